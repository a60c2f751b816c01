"""What does multicast deliver over fan-out, tile and depth, against unicast by the same CTAs?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.operand import GIB, KIB, MIB
from labkernels.protocols.cluster_pipeline import PipelineConfiguration, multicast_pipeline, unicast_pipeline
from labkernels.protocols.measure import pipeline_experiment

SHARED_LIMIT_BYTES = 224 * KIB
SMALLEST_SLICE_BYTES = 256


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        fan_outs: CTAs that receive the same tile.
        tile_bytes: of one tile.
        stages: of each CTA's pipeline.
        sources: where the data lies.
        warps: producer and consumer warps other than one of each, at `chosen_fan_outs`, from L2.
        chosen_fan_outs: where what follows is varied too, at the largest tile.
        lag_cycles: how much later each CTA of a group starts than the one before, when each loads for itself.
        delay_cycles: what the last CTA of a group spends before each copy.
        hbm_footprint_bytes: read in turn.
        l2_footprint_bytes: read again and again.
        bytes_per_cta: brought to each CTA by a timed launch, at least.
        rounds: timed launches of each configuration.
    """

    fan_outs: tuple[int, ...] = (1, 2, 4, 8, 16)
    tile_bytes: tuple[int, ...] = (8 * KIB, 32 * KIB)
    stages: tuple[int, ...] = (4, 6)
    sources: tuple[str, ...] = ("l2", "hbm")
    warps: tuple[tuple[int, int], ...] = ((1, 2),)
    chosen_fan_outs: tuple[int, ...] = (4,)
    lag_cycles: tuple[int, ...] = (200, 1000, 5000)
    delay_cycles: tuple[int, ...] = (1000,)
    hbm_footprint_bytes: int = GIB
    l2_footprint_bytes: int = 24 * MIB
    bytes_per_cta: int = 12 * MIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters(bytes_per_cta=8 * MIB),
    "full": Parameters(
        tile_bytes=(2 * KIB, 8 * KIB, 32 * KIB),
        stages=(2, 4, 6, 12),
        warps=((1, 2), (2, 2), (1, 4), (2, 4)),
        chosen_fan_outs=(4, 16),
        lag_cycles=(50, 100, 200, 500, 1000, 2000, 5000, 20000),
        delay_cycles=(250, 500, 1000, 2000),
        rounds=15,
    ),
}


def configurations(parameters: Parameters) -> Iterator[PipelineConfiguration]:
    """Every configuration of the sweep whose pipeline fits shared memory and whose slices are long enough."""
    p = parameters
    for source, fan_out, tile, stages in product(p.sources, p.fan_outs, p.tile_bytes, p.stages):
        if tile * stages > SHARED_LIMIT_BYTES:
            continue
        footprint = p.hbm_footprint_bytes if source == "hbm" else p.l2_footprint_bytes
        shape = (fan_out, source, tile, stages, footprint)
        sliced = tile // fan_out >= SMALLEST_SLICE_BYTES
        if sliced:
            yield PipelineConfiguration(multicast_pipeline(), *shape)
        yield PipelineConfiguration(unicast_pipeline(), *shape, clustered=False)
        if fan_out > 1:
            yield PipelineConfiguration(multicast_pipeline(share="leader"), *shape)
            yield PipelineConfiguration(unicast_pipeline(), *shape)
            yield PipelineConfiguration(unicast_pipeline(), *shape, clustered=False, scattered=True)
        if fan_out not in p.chosen_fan_outs:
            continue
        for producers, consumers in p.warps:
            if source == "l2" and stages % producers == stages % consumers == 0:
                warps = {"producers": producers, "consumers": consumers}
                if sliced:
                    yield PipelineConfiguration(multicast_pipeline(**warps), *shape)
                yield PipelineConfiguration(multicast_pipeline(share="leader", **warps), *shape)
                yield PipelineConfiguration(unicast_pipeline(**warps), *shape)
        if (tile, stages) == (max(p.tile_bytes), 4):
            for lag in p.lag_cycles:
                yield PipelineConfiguration(unicast_pipeline(), *shape, lag_cycles=lag)
                yield PipelineConfiguration(unicast_pipeline(), *shape, clustered=False, lag_cycles=lag)
            for delay in p.delay_cycles:
                for spec in (multicast_pipeline(), multicast_pipeline(share="leader"), unicast_pipeline()):
                    yield PipelineConfiguration(spec, *shape, delay_cycles=delay)


EXPERIMENT = pipeline_experiment(
    "multicast",
    "What does multicast deliver over fan-out, tile and depth, against unicast by the same CTAs?",
    PRESETS,
    configurations,
)
