"""Which part of a lead is the mechanism's, which the pipeline's, which the warps'? Each mechanism in each pipeline."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from labkernels.kernels.registry import KernelSpec, kernel, kernels
from labkernels.operand import GIB, KIB, MIB, WARP
from labkernels.protocols.cell import WARP_COPY_BYTES, Cell, footprint_of_its_own
from labkernels.protocols.contiguous import Contiguous
from labkernels.protocols.measure import stream_experiment
from labkernels.studies.crossover.plain_loads import PAST_L1


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        tile_bytes: of every tile; cp.async's specialized pipelines take 2, 8 and 32 KiB.
        in_flight: tiles that a CTA has requested and not yet received.
        warps: that copy, and as many that read, in specialized pipelines.
        ctas_per_sm: that share an SM; more than one of multistage pipelines and of those with one warp of each kind.
        sources, hbm_footprint_bytes, bytes_moved, rounds: as in `plain_loads`.
        l2_footprint_bytes: read again and again, at most; each block has tiles of its own.
    """

    tile_bytes: tuple[int, ...]
    in_flight: tuple[int, ...]
    warps: tuple[int, ...] = (1, 2, 4)
    ctas_per_sm: tuple[int, ...] = (1, 2)
    sources: tuple[str, ...] = ("hbm", "l2")
    hbm_footprint_bytes: int = GIB
    l2_footprint_bytes: int = 16 * MIB
    bytes_moved: int = 2 * GIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters((2 * KIB, 8 * KIB, 32 * KIB), (1, 2, 4, 6, 12), ctas_per_sm=(1,), bytes_moved=GIB),
    "full": Parameters(tuple(n * KIB for n in (2, 4, 8, 16, 32)), tuple(range(1, 13))),
}
#: Threads of a multistage pipeline that bring a tile with one or four vectors each.
MULTISTAGE_THREADS = {2: (128,), 4: (256,), 8: (128, 512), 16: (256,), 32: (512,)}


def _shapes(spec: KernelSpec, tile_bytes: int, in_flight: int) -> Iterator[tuple[int, int]]:
    """Stages and threads with which a kernel has so many tiles in flight, if it can."""
    constants = dict(spec.constants)
    if spec.protocol == "pipeline":
        together = constants.get("share") == "together"
        turns = max(constants["consumers"], 1 if together else constants["producers"])
        copying = constants["producers"] if together else 1
        brought = constants["chunks"] * copying * WARP_COPY_BYTES if "chunks" in constants else tile_bytes
        if in_flight % turns == 0 and brought == tile_bytes:
            yield in_flight, (constants["producers"] + constants["consumers"]) * WARP
    elif constants["depth"] == in_flight:
        for threads in MULTISTAGE_THREADS[tile_bytes // KIB]:
            if threads * 16 * constants["chunks"] == tile_bytes:
                yield in_flight + (constants["barriers"] == 1), threads


def _plain_loads(parameters: Parameters, tile_bytes: int) -> Iterator[tuple[KernelSpec, int, int]]:
    """Kernel, threads and CTAs per SM of plain loads by occupancy that bring such a tile to shared memory."""
    for chunks, threads, ctas in product((1, 2), (256, 1024), (1, 2, 4, 8)):
        if threads * 16 * chunks == tile_bytes and ctas <= 4 * max(parameters.ctas_per_sm):
            form = {"destination": "shared", "policy": PAST_L1, "prefetch": "none"}
            yield kernel("ldg", "multistage", sets=1, unroll=1, chunks=chunks, **form), threads, ctas


def cells(parameters: Parameters, sm_count: int) -> Iterator[Cell]:
    """Every kernel with every tile and depth it has, where shared memory holds its stages; plain loads beside them."""

    def footprint(source: str, tile_bytes: int, ctas: int) -> int:
        if source == "hbm":
            return parameters.hbm_footprint_bytes
        return footprint_of_its_own(parameters.l2_footprint_bytes, sm_count * ctas * tile_bytes)

    specs = [
        *(spec for name in ("tma_bulk", "tma_tile", "cp_async") for spec in kernels(name, "pipeline")),
        *kernels("cp_async", "multistage"),
    ]
    axes = (parameters.sources, specs, parameters.tile_bytes, parameters.in_flight, parameters.ctas_per_sm)
    for source, spec, tile_bytes, in_flight, ctas in product(*axes):
        warps = dict(spec.constants).get("producers", 1)
        if warps > 1 and (ctas > 1 or warps not in parameters.warps):
            continue
        for stages, threads in _shapes(spec, tile_bytes, in_flight):
            cell = Cell(spec, source, footprint(source, tile_bytes, ctas), tile_bytes, stages, threads, ctas)
            if cell.fits:
                yield cell
    for source, tile_bytes in product(parameters.sources, parameters.tile_bytes):
        for spec, threads, ctas in _plain_loads(parameters, tile_bytes):
            cell = Cell(spec, source, footprint(source, tile_bytes, ctas), tile_bytes, 2, threads, ctas)
            if cell.fits:
                yield cell


def _prefetch(cell: Cell) -> dict[str, Any]:
    return {"prefetch": cell.constants.get("prefetch", "none")}


EXPERIMENT = stream_experiment(
    "pipelines",
    "Which part of a lead is the mechanism's, which the pipeline's, which the warps'?",
    PRESETS,
    cells,
    "pipelines",
    _prefetch,
    Contiguous,
)
