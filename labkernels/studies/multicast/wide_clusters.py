"""Why do clusters of 16 take in less? Every width, and groups inside a wide cluster."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.operand import KIB, MIB
from labkernels.protocols.cluster_pipeline import PipelineConfiguration, multicast_pipeline
from labkernels.protocols.measure import pipeline_experiment


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        fan_outs: CTAs of a cluster; all receive the same tile, from the first or, of a power of two, in slices.
        groups: CTAs that receive the same tile in a cluster of 16.
        clusters: at once; 0 for as many as the GPU holds.
        tile_bytes: of one tile.
        stages: of each CTA's pipeline.
        footprint_bytes: read again and again, from L2.
        bytes_per_cta: brought to each CTA by a launch, at least.
        rounds: timed launches of each configuration.
    """

    fan_outs: tuple[int, ...] = (8, 12, 16)
    groups: tuple[int, ...] = (8,)
    clusters: tuple[int, ...] = (1,)
    tile_bytes: int = 32 * KIB
    stages: int = 6
    footprint_bytes: int = 24 * MIB
    bytes_per_cta: int = 8 * MIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters(),
    "full": Parameters(
        fan_outs=(2, 4, 6, 8, 9, 10, 12, 14, 16), groups=(4, 8), clusters=(1, 2, 0), bytes_per_cta=16 * MIB
    ),
}
WIDEST = 16


def configurations(parameters: Parameters) -> Iterator[PipelineConfiguration]:
    """What is timed, in order."""
    p = parameters
    shape = ("l2", p.tile_bytes, p.stages, p.footprint_bytes)
    for fan_out, clusters in product(p.fan_outs, p.clusters):
        yield PipelineConfiguration(
            multicast_pipeline(share="leader"), fan_out, *shape, clusters=clusters or None
        )
        if fan_out & (fan_out - 1) == 0:
            yield PipelineConfiguration(multicast_pipeline(), fan_out, *shape, clusters=clusters or None)
    for group, clusters, share in product(p.groups, p.clusters, ("leader", "slices")):
        in_one = WIDEST // group
        spec = multicast_pipeline(share=share, group=group)
        yield PipelineConfiguration(
            spec, group, *shape, clusters=clusters * in_one or None, groups_per_cluster=in_one
        )


EXPERIMENT = pipeline_experiment(
    "wide_clusters", "Why do clusters of 16 take in less?", PRESETS, configurations
)
