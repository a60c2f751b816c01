"""What does a launch take that reads a few KiB to a few MiB once? Launch, first bytes and ramp, by mechanism."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from labkernels.kernels.registry import KernelSpec, kernel
from labkernels.operand import KIB, MIB, TMA_THREADS
from labkernels.protocols.cell import Cell
from labkernels.protocols.contiguous import Contiguous
from labkernels.protocols.measure import stream_experiment
from labkernels.studies.crossover.plain_loads import PAST_L1


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        read_kib: read once by a launch, by as many blocks as it has tiles, at most as many as the SMs hold.
        tile_kib: of tiles that go to shared memory; 4 and 16 have kernels of cp.async.
        sources: `hbm`: everything, code and tensor map too, was pushed out of L2 before; `l2`: read just before.
        bytes_moved: 0, each launch reads its footprint once.
        rounds: timed launches of each.
    """

    read_kib: tuple[int, ...]
    tile_kib: tuple[int, ...] = (4, 16)
    sources: tuple[str, ...] = ("hbm", "l2")
    bytes_moved: int = 0
    rounds: int = 15


PRESETS = {
    "quick": Parameters((16, 256, 2048, 16384), tile_kib=(16,)),
    "full": Parameters(tuple(4 * 2**power for power in range(15))),
}


def _forms(tile_bytes: int) -> Iterator[tuple[KernelSpec, int, int, int]]:
    """Kernel, stages, threads and CTAs per SM: 32 or 64 KiB in flight on each SM, a tile of 4 or 16 KiB."""
    depth = {4: 8, 16: 4}[tile_bytes // KIB]
    for name in ("tma_bulk", "tma_tile"):
        yield kernel(name, "pipeline", producers=1, consumers=1), depth, TMA_THREADS, 1
    chunks = {4: 1, 16: 4}[tile_bytes // KIB]
    multistage = kernel("cp_async", "multistage", depth=depth, barriers=1, chunks=chunks, prefetch="128B")
    yield multistage, depth + 1, 256, 1
    form = {"destination": "register", "policy": PAST_L1, "prefetch": "none"}
    yield kernel("ldg", "multistage", sets=1, unroll=1, chunks=chunks, **form), 0, 256, depth


def cells(parameters: Parameters, sm_count: int) -> Iterator[Cell]:
    """Every form with every size of which its tiles are a whole part."""
    for source, kib, tile_kib in product(parameters.sources, parameters.read_kib, parameters.tile_kib):
        if kib % tile_kib:
            continue
        for spec, stages, threads, ctas in _forms(tile_kib * KIB):
            blocks = min(sm_count * ctas, kib // tile_kib)
            cell = Cell(spec, source, kib * KIB, tile_kib * KIB, stages, threads, ctas, blocks)
            if kib * KIB <= 32 * MIB or source == "hbm":
                yield cell


def _prefetch(cell: Cell) -> dict[str, Any]:
    return {"prefetch": cell.constants.get("prefetch", "none")}


EXPERIMENT = stream_experiment(
    "short_kernels",
    "What does a launch take that reads a few KiB to a few MiB once?",
    PRESETS,
    cells,
    "pipelines",
    _prefetch,
    Contiguous,
)
