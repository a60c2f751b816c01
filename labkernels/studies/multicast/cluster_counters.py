"""Which bytes leave L2 and which reach the SMs, when the CTAs of a cluster want the same tiles?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.device import counters
from labkernels.operand import GIB, KIB, MIB
from labkernels.protocols.cluster_pipeline import (
    PipelineConfiguration,
    four_transports,
    skews,
    unicast_pipeline,
)
from labkernels.protocols.counted import counted_experiment
from labkernels.protocols.measure import pipelines_ready


@dataclass(frozen=True)
class Parameters:
    """What is counted.

    Attributes:
        fan_outs: CTAs that receive the same tile.
        tile_bytes: of one tile.
        stages: of each CTA's pipeline.
        lag_cycles: how much later each CTA of a group starts than the one before, at `chosen_fan_outs`.
        delay_cycles: what the last CTA of a group spends before each copy.
        hold_cycles: how long every CTA keeps a tile.
        chosen_fan_outs: where skew and device memory are counted, at the largest tile and most stages.
        hbm_footprint_bytes: read in turn.
        l2_footprint_bytes: read again and again.
        bytes_per_cta: brought to each CTA by a counted launch, at least.
    """

    fan_outs: tuple[int, ...] = (1, 2, 4, 8, 16)
    tile_bytes: tuple[int, ...] = (8 * KIB, 32 * KIB)
    stages: tuple[int, ...] = (6,)
    lag_cycles: tuple[int, ...] = (1000,)
    delay_cycles: tuple[int, ...] = ()
    hold_cycles: tuple[int, ...] = ()
    chosen_fan_outs: tuple[int, ...] = (4,)
    hbm_footprint_bytes: int = GIB
    l2_footprint_bytes: int = 24 * MIB
    bytes_per_cta: int = 8 * MIB


PRESETS = {
    "quick": Parameters(fan_outs=(1, 4), tile_bytes=(32 * KIB,)),
    "full": Parameters(
        stages=(2, 6),
        lag_cycles=(100, 200, 500, 1000, 2000, 5000),
        delay_cycles=(250, 1000),
        hold_cycles=(500,),
        chosen_fan_outs=(2, 4, 8, 16),
    ),
}


def configurations(parameters: Parameters) -> Iterator[PipelineConfiguration]:
    """What is counted, in order."""
    p = parameters
    for fan_out, tile, stages in product(p.fan_outs, p.tile_bytes, p.stages):
        shape = (fan_out, "l2", tile, stages, p.l2_footprint_bytes)
        if fan_out == 1:
            yield PipelineConfiguration(unicast_pipeline(), *shape, clustered=False)
        else:
            yield from four_transports(*shape)
            yield PipelineConfiguration(unicast_pipeline(), *shape, clustered=False, scattered=True)
    pipeline = max(p.tile_bytes), max(p.stages)
    for fan_out in p.chosen_fan_outs:
        for skew in skews(p):
            yield from four_transports(fan_out, "l2", *pipeline, p.l2_footprint_bytes, **skew)
        yield from four_transports(fan_out, "hbm", *pipeline, p.hbm_footprint_bytes)
        yield from four_transports(
            fan_out, "hbm", *pipeline, p.hbm_footprint_bytes, lag_cycles=max(p.lag_cycles)
        )


ready = pipelines_ready(configurations)

EXPERIMENT = counted_experiment(
    __name__,
    "cluster_counters",
    "Which bytes leave L2 and which reach the SMs of a cluster?",
    PRESETS,
    counters.MEMORY_PATH,
    ready,
)
