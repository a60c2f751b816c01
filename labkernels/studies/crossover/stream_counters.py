"""Which bytes leave L2, the request coalescer and memory while every SM streams tiles of its own?"""

from collections.abc import Iterator
from dataclasses import dataclass

from labkernels.device import Gpu
from labkernels.kernels.registry import kernel
from labkernels.operand import GIB, KIB, MIB, TMA_THREADS, Pipeline, boxed_operand, linear_operand
from labkernels.protocols.counted import STREAM_COUNTERS, counted_experiment
from labkernels.protocols.memory import Memory
from labkernels.protocols.stream import Configuration, Stream


@dataclass(frozen=True)
class Parameters:
    """What is counted: L2 footprints, bytes moved by a counted launch at least, and the HBM footprint."""

    footprints_bytes: tuple[int, ...] = tuple(n * MIB for n in (4, 8, 16, 32, 48, 56, 64, 80))
    bytes_moved: int = 2 * GIB
    hbm_footprint_bytes: int = GIB


PRESETS = {"quick": Parameters(footprints_bytes=(16 * MIB,)), "full": Parameters()}


def configurations(parameters: Parameters) -> Iterator[Configuration]:
    """Well-fed pipelines over every footprint; cp.async tiles of 8 KiB at several depths and blocks per SM."""

    def threads(footprint: int, depth: int, ctas: int, tile: int, count: int) -> Configuration:
        spec = kernel("cp_async", "stream", completion="group", depth=depth, chunks=tile // (16 * count))
        pipeline = Pipeline(depth + 1, ctas_per_sm=ctas, threads=count, shared_alignment_bytes=128)
        return Configuration(
            spec, linear_operand(footprint, tile, pipeline), "hbm" if footprint > 256 * MIB else "l2"
        )

    def engine(footprint: int, stages: int, ctas: int, tile: int) -> Configuration:
        pipeline = Pipeline(stages, ctas_per_sm=ctas, threads=TMA_THREADS, shared_alignment_bytes=128)
        box = boxed_operand(footprint, tile, pipeline)
        return Configuration(
            kernel("tma_tile", "stream", rank=2), box, "hbm" if footprint > 256 * MIB else "l2"
        )

    for footprint in (*parameters.footprints_bytes, parameters.hbm_footprint_bytes):
        for depth, ctas in ((2, 2), (4, 2), (8, 2), (8, 1)):
            yield threads(footprint, depth, ctas, 8 * KIB, 256)
        yield threads(footprint, 4, 1, 16 * KIB, 256)
        for stages, ctas, tile in ((12, 2, 8 * KIB), (6, 1, 16 * KIB)):
            yield engine(footprint, stages, ctas, tile)


def ready(gpu: Gpu, parameters: Parameters) -> Iterator[tuple[Stream, int]]:
    """Every configuration, over memory that is warm where it is to be."""
    memory = Memory(gpu, max(parameters.hbm_footprint_bytes, *parameters.footprints_bytes))
    for configuration in configurations(parameters):
        stream = Stream(gpu, configuration, memory.buffer, memory.seed)
        stream.launch(stream.tiles_for(2 * min(configuration.operand.footprint_bytes, 64 * MIB)))
        yield stream, stream.tiles_for(parameters.bytes_moved)
    memory.close()


EXPERIMENT = counted_experiment(
    __name__,
    "stream_counters",
    "Which bytes leave L2, the coalescer and memory in a stream?",
    PRESETS,
    STREAM_COUNTERS,
    ready,
)
