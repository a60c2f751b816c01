"""Does a prefetch into L2, tiles ahead of the copy, stand in for bytes in flight that shared memory has no room for?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from labkernels.kernels.registry import kernel, kernels
from labkernels.operand import GIB, KIB, TMA_THREADS
from labkernels.protocols.cell import Cell
from labkernels.protocols.contiguous import Contiguous
from labkernels.protocols.measure import stream_experiment

MECHANISMS = ("tma_bulk", "tma_tile")


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        tile_bytes: of every tile.
        stages: of the pipeline.
        leads: tiles that the prefetch is ahead of the copy; without one besides.
        ctas_per_sm: that share an SM.
        hbm_footprint_bytes: read in turn, at least four times L2.
        bytes_moved: by each timed launch, at least.
        rounds: timed launches of each.
    """

    tile_bytes: tuple[int, ...]
    stages: tuple[int, ...]
    leads: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    ctas_per_sm: tuple[int, ...] = (1,)
    hbm_footprint_bytes: int = GIB
    bytes_moved: int = GIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters((2 * KIB, 8 * KIB, 32 * KIB), (1, 2, 4), (2, 8, 32), rounds=5),
    "full": Parameters(tuple(n * KIB for n in (2, 4, 8, 16, 32)), (1, 2, 3, 4, 6, 8, 12)),
}


def cells(parameters: Parameters, _sm_count: int) -> Iterator[Cell]:
    """Every pipeline without a prefetch and with each lead."""
    axes = (MECHANISMS, parameters.tile_bytes, parameters.stages, parameters.ctas_per_sm)
    for mechanism, tile_bytes, stages, ctas in product(*axes):
        specs = [
            spec
            for spec in kernels(mechanism, "prefetched")
            if dict(spec.constants)["lead"] in parameters.leads
        ]
        for spec in (kernel(mechanism, "pipeline", producers=1, consumers=1), *specs):
            cell = Cell(spec, "hbm", parameters.hbm_footprint_bytes, tile_bytes, stages, TMA_THREADS, ctas)
            if cell.fits:
                yield cell


def _lead(cell: Cell) -> dict[str, Any]:
    return {"lead": cell.constants.get("lead", 0)}


EXPERIMENT = stream_experiment(
    "l2_prefetch",
    "Does a prefetch into L2 stand in for bytes in flight?",
    PRESETS,
    cells,
    "l2_prefetch",
    _lead,
    Contiguous,
)
