"""What did L2 itself read for the fastest streams, and what did its request coalescer add?"""

from collections.abc import Iterator
from dataclasses import dataclass

from labkernels.device import Gpu
from labkernels.kernels.registry import KernelSpec, kernel
from labkernels.operand import GIB, KIB, MIB
from labkernels.protocols.cell import Cell, footprint_of_its_own
from labkernels.protocols.contiguous import Contiguous
from labkernels.protocols.counted import STREAM_COUNTERS, counted_experiment
from labkernels.protocols.memory import Memory
from labkernels.studies.crossover.plain_loads import PAST_L1


@dataclass(frozen=True)
class Parameters:
    """What is counted: bytes moved by a counted launch at least, and the footprints."""

    bytes_moved: int = 2 * GIB
    l2_footprints_bytes: tuple[int, ...] = (16 * MIB, 24 * MIB)
    hbm_footprint_bytes: int = GIB


PRESETS = {"quick": Parameters(l2_footprints_bytes=(16 * MIB,)), "full": Parameters()}


def _plain(destination: str, chunks: int, policy: str = PAST_L1) -> KernelSpec:
    return kernel(
        "ldg", "multistage", destination=destination, sets=1, unroll=1, chunks=chunks, policy=policy, prefetch="none"
    )  # fmt: skip


def _shapes() -> Iterator[tuple[KernelSpec, int, int, int, int]]:
    """Kernel, tile, stages, threads and CTAs per SM: plain loads with 16 to 64 KiB in flight, the others well fed."""
    for chunks, ctas in ((1, 4), (1, 8), (2, 4), (2, 8)):
        for destination, stages in (("register", 0), ("shared", 2)):
            yield _plain(destination, chunks), chunks * 4 * KIB, stages, 256, ctas
    yield _plain("register", 2, "L1::no_allocate"), 8 * KIB, 0, 256, 4
    for chunks, depth, threads in ((1, 9, 256), (4, 8, 128)):
        spec = kernel("cp_async", "multistage", depth=depth, chunks=chunks, barriers=1, prefetch="128B")
        yield spec, threads * 16 * chunks, depth + 1, threads, 1
    for mechanism, warps, tile_bytes, stages in (("tma_bulk", 4, 4 * KIB, 12), ("tma_tile", 1, 32 * KIB, 6)):
        spec = kernel(mechanism, "pipeline", producers=warps, consumers=warps)
        yield spec, tile_bytes, stages, 2 * warps * 32, 1


def cells(parameters: Parameters, sm_count: int) -> Iterator[Cell]:
    """Every shape over every footprint; L2's in both orders."""
    for spec, tile_bytes, stages, threads, ctas in _shapes():
        for footprint in parameters.l2_footprints_bytes:
            own = footprint_of_its_own(footprint, sm_count * ctas * tile_bytes)
            for each in (footprint, own):
                yield Cell(spec, "l2", each, tile_bytes, stages, threads, ctas)
        yield Cell(spec, "hbm", parameters.hbm_footprint_bytes, tile_bytes, stages, threads, ctas)


def ready(gpu: Gpu, parameters: Parameters) -> Iterator[tuple[Contiguous, int]]:
    """Every cell; what it reads from L2 was read by the same kernel into an L2 full of other lines."""
    memory = Memory(gpu, parameters.hbm_footprint_bytes)
    for cell in cells(parameters, gpu.facts.sm_count):
        stream = Contiguous(gpu, cell, memory.buffer, memory.seed)
        memory.evict()
        stream.place_source(memory)
        yield stream, stream.tiles_for(parameters.bytes_moved)
    memory.close()


EXPERIMENT = counted_experiment(
    __name__,
    "pipeline_counters",
    "What did L2 itself read for the fastest streams, and what did its request coalescer add?",
    PRESETS,
    STREAM_COUNTERS,
    ready,
)
