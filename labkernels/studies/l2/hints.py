"""Does it help to tell L2 which lines to evict, where an operand streams by beside one that is used again and again?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.kernels.registry import kernel
from labkernels.operand import GIB, KIB, MIB, TMA_THREADS
from labkernels.protocols.cell import footprint_of_its_own
from labkernels.protocols.measure import stream_experiment
from labkernels.protocols.mixed import Mixed, MixedCell

NORMAL, FIRST, LAST = "evict_normal", "evict_first", "evict_last"
#: Policies of the lines that stream by and of those used again: none; each hint alone; both; both the wrong way round.
PAIRS = ((NORMAL, NORMAL), (FIRST, NORMAL), (NORMAL, LAST), (FIRST, LAST), (LAST, FIRST))


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        reused_bytes: of the region, at most; every block has tiles of its own in it.
        mechanisms: that bring tiles.
        tile_bytes, stages: of the pipeline.
        hbm_footprint_bytes: that stream by, at least four times L2.
        bytes_moved: by each timed launch, at least, half of them of the region.
        rounds: timed launches of each.
    """

    reused_bytes: tuple[int, ...]
    mechanisms: tuple[str, ...] = ("tma_bulk", "tma_tile")
    tile_bytes: int = 16 * KIB
    stages: int = 8
    hbm_footprint_bytes: int = GIB
    bytes_moved: int = 2 * GIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters(tuple(n * MIB for n in (8, 24, 40)), ("tma_tile",), rounds=5),
    "full": Parameters(tuple(n * MIB for n in (4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64))),
}


def cells(parameters: Parameters, sm_count: int) -> Iterator[MixedCell]:
    """Every pair of policies over every region."""
    for mechanism, most, (streamed, reused) in product(parameters.mechanisms, parameters.reused_bytes, PAIRS):
        spec = kernel(mechanism, "mixed", producers=1, consumers=1, streamed=streamed, reused=reused)
        yield MixedCell(
            spec,
            "hbm",
            parameters.hbm_footprint_bytes,
            parameters.tile_bytes,
            parameters.stages,
            TMA_THREADS,
            reused_bytes=footprint_of_its_own(most, sm_count * parameters.tile_bytes),
        )


EXPERIMENT = stream_experiment(
    "hints",
    "Does it help to tell L2 which lines to evict?",
    PRESETS,
    cells,
    "hints",
    bind=Mixed,
)
