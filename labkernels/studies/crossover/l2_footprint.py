"""How much memory may be read again and again before L2 no longer serves it at full speed?"""

from collections.abc import Iterator
from dataclasses import dataclass

from labkernels.kernels.registry import kernel
from labkernels.operand import GIB, KIB, MIB, TMA_THREADS, Pipeline, boxed_operand, linear_operand
from labkernels.protocols.measure import stream_experiment
from labkernels.protocols.stream import Configuration

TILE_BYTES = 16 * KIB
STAGES = 6  # 96 KiB in flight per SM: past the knee of every mechanism
COPYING_THREADS = 256


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep: what is read in turn, bytes moved by a launch at least, and rounds."""

    footprints_bytes: tuple[int, ...]
    bytes_moved: int = 2 * GIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters(tuple(n * MIB for n in (8, 24, 40, 56)), bytes_moved=GIB),
    "full": Parameters(tuple(n * MIB for n in (4, 8, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 128))),
}


def configurations(parameters: Parameters, sm_count: int) -> Iterator[Configuration]:
    """One well-fed pipeline of each kind over every footprint that gives each SM a tile."""
    for footprint in parameters.footprints_bytes:
        if sm_count * TILE_BYTES > footprint:
            continue
        pipeline = Pipeline(STAGES, threads=TMA_THREADS, shared_alignment_bytes=128)
        box = boxed_operand(footprint, TILE_BYTES, pipeline)
        yield Configuration(kernel("tma_tile", "stream", rank=2), box, "l2")
        chunks = TILE_BYTES // (16 * COPYING_THREADS)
        spec = kernel("cp_async", "stream", completion="group", depth=4, chunks=chunks)
        pipeline = Pipeline(5, threads=COPYING_THREADS, shared_alignment_bytes=128)
        yield Configuration(spec, linear_operand(footprint, TILE_BYTES, pipeline), "l2")


EXPERIMENT = stream_experiment(
    "l2_footprint", "How much memory does L2 serve at full speed?", PRESETS, configurations
)
