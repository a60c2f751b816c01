"""How fast are plain loads whose registers are all in flight: by occupancy, vectors a thread and sets of registers?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from labkernels.kernels.registry import kernels
from labkernels.operand import GIB, KIB, MIB
from labkernels.protocols.cell import Cell, footprint_of_its_own
from labkernels.protocols.contiguous import Contiguous
from labkernels.protocols.measure import stream_experiment

PAST_L1 = "cg"  # the policy of loads that L1 keeps nothing of, and L2 as much as of any other


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        threads: of a CTA.
        ctas_per_sm: that share an SM.
        chunks: 16-byte vectors of a thread and tile.
        bytes_in_flight_per_sm: the least and the most.
        sources: where the data lies.
        hbm_footprint_bytes: read in turn, at least four times L2.
        l2_footprint_bytes: read again and again: in one order by blocks that take each other's tiles over, in the other
            (of loads past L1) by blocks that each have tiles of their own.
        bytes_moved: by each timed launch, at least.
        rounds: timed launches of each.
    """

    threads: tuple[int, ...]
    ctas_per_sm: tuple[int, ...]
    chunks: tuple[int, ...]
    bytes_in_flight_per_sm: tuple[int, int]
    sources: tuple[str, ...] = ("hbm", "l2")
    hbm_footprint_bytes: int = GIB
    l2_footprint_bytes: int = 16 * MIB
    bytes_moved: int = 2 * GIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters((256, 1024), (1, 2, 4, 8), (1, 2), (16 * KIB, 64 * KIB), bytes_moved=GIB),
    "full": Parameters((256, 512, 1024), (1, 2, 4, 8), (1, 2, 4, 8), (4 * KIB, 128 * KIB)),
}


def cells(parameters: Parameters, sm_count: int) -> Iterator[Cell]:
    """Every kernel at every occupancy that keeps so many bytes in flight."""
    least, most = parameters.bytes_in_flight_per_sm
    for spec, threads, ctas in product(
        kernels("ldg", "multistage"), parameters.threads, parameters.ctas_per_sm
    ):
        constants = dict(spec.constants)
        tile_bytes = threads * 16 * constants["chunks"]
        lap_bytes = sm_count * ctas * tile_bytes
        stages = 2 if constants["destination"] == "shared" else 0
        reads = {
            ("hbm", parameters.hbm_footprint_bytes),
            ("l2", parameters.l2_footprint_bytes),
            *(
                [("l2", footprint_of_its_own(parameters.l2_footprint_bytes, lap_bytes))]
                if constants["policy"] == PAST_L1
                else []
            ),
        }
        for source, footprint in sorted(reads):
            cell = Cell(spec, source, footprint, tile_bytes, stages, threads, ctas)
            wanted = source in parameters.sources and constants["chunks"] in parameters.chunks
            if (
                wanted
                and lap_bytes <= footprint
                and least <= cell.bytes_in_flight_per_sm <= most
                and cell.fits
            ):
                yield cell


def _registers(cell: Cell) -> dict[str, Any]:
    return {name: cell.constants[name] for name in ("sets", "chunks", "policy", "prefetch")}


EXPERIMENT = stream_experiment(
    "plain_loads",
    "How fast are plain loads whose registers are all in flight?",
    PRESETS,
    cells,
    "plain_loads",
    _registers,
    Contiguous,
)
