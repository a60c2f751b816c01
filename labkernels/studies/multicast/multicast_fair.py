"""Does multicast deliver more of the whole GPU's time than the same CTAs without a cluster, each rival at its best?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.operand import GIB, KIB, MIB
from labkernels.protocols.cluster_pipeline import PipelineConfiguration, four_transports, skews
from labkernels.protocols.measure import pipeline_experiment

SHARED_LIMIT_BYTES = 200 * KIB


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        fan_outs: CTAs that receive the same tile.
        l2_tile_kib: of one tile, from L2.
        l2_stages: of each CTA's pipeline.
        hbm_tile_kib: the same, from HBM.
        hbm_stages: the same.
        warps: that issue copies; as many read.
        skewed_rings: KiB of a tile, stages and warps of pipelines that are run out of step too.
        lag_cycles: how much later each CTA of a group starts than the one before.
        delay_cycles: what the last CTA of a group spends before each copy.
        hold_cycles: how long every CTA keeps a tile.
        hbm_footprint_bytes: read in turn.
        l2_footprint_bytes: read again and again.
        bytes_per_cta: brought to each CTA by a timed launch, at least.
        rounds: timed launches of each configuration.
    """

    fan_outs: tuple[int, ...] = (2, 4, 8)
    l2_tile_kib: tuple[int, ...] = (8, 32)
    l2_stages: tuple[int, ...] = (4, 6)
    hbm_tile_kib: tuple[int, ...] = (32,)
    hbm_stages: tuple[int, ...] = (6,)
    warps: tuple[int, ...] = (1, 2)
    skewed_rings: tuple[tuple[int, int, int], ...] = ((32, 6, 1),)
    lag_cycles: tuple[int, ...] = (1000,)
    delay_cycles: tuple[int, ...] = ()
    hold_cycles: tuple[int, ...] = ()
    hbm_footprint_bytes: int = GIB
    l2_footprint_bytes: int = 24 * MIB
    bytes_per_cta: int = 24 * MIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters(),
    "full": Parameters(
        fan_outs=(2, 4, 8, 16),
        l2_tile_kib=(2, 4, 8, 16, 32),
        l2_stages=(2, 3, 4, 6, 8, 12),
        hbm_tile_kib=(2, 8, 32),
        hbm_stages=(4, 6, 12),
        warps=(1, 2, 4),
        skewed_rings=((32, 6, 1), (16, 12, 2)),
        lag_cycles=(200, 1000, 5000),
        delay_cycles=(250, 1000),
        hold_cycles=(500,),
        bytes_per_cta=48 * MIB,
    ),
}


def configurations(parameters: Parameters) -> Iterator[PipelineConfiguration]:
    """Every pipeline that fits shared memory, and the skewed ones."""
    p = parameters
    places = (
        ("l2", p.l2_footprint_bytes, p.l2_tile_kib, p.l2_stages),
        ("hbm", p.hbm_footprint_bytes, p.hbm_tile_kib, p.hbm_stages),
    )
    for (source, footprint, tiles, depths), fan_out in product(places, p.fan_outs):
        for kib, stages, warps in product(tiles, depths, p.warps):
            if kib * KIB * stages <= SHARED_LIMIT_BYTES and stages % warps == 0:
                yield from four_transports(fan_out, source, kib * KIB, stages, footprint, warps)
        for (kib, stages, warps), skew in product(p.skewed_rings, skews(p)):
            yield from four_transports(fan_out, source, kib * KIB, stages, footprint, warps, **skew)


EXPERIMENT = pipeline_experiment(
    "multicast_fair",
    "Does multicast deliver more of the whole GPU than the same CTAs without a cluster?",
    PRESETS,
    configurations,
)
