"""What binds a multicast pipeline at its fastest: its own SMs, or what all SMs share? Ever more clusters at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.operand import KIB, MIB
from labkernels.protocols.cluster_pipeline import PipelineConfiguration, multicast_pipeline, unicast_pipeline
from labkernels.protocols.measure import pipeline_experiment


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        fan_outs: CTAs of a cluster; all receive the same tile.
        ctas: of all clusters together, at most: whole clusters, and no more than the GPU holds at once.
        tile_bytes: of one tile.
        stages: of each CTA's pipeline.
        footprint_bytes: read again and again, from L2.
        bytes_per_cta: brought to each CTA by a timed launch, at least.
        rounds: timed launches of each configuration.
    """

    fan_outs: tuple[int, ...] = (4, 8)
    ctas: tuple[int, ...] = (8, 16, 32, 64, 96, 120)
    tile_bytes: int = 32 * KIB
    stages: int = 6
    footprint_bytes: int = 24 * MIB
    bytes_per_cta: int = 8 * MIB
    rounds: int = 9


PRESETS = {"quick": Parameters(), "full": Parameters(fan_outs=(2, 4, 8, 16), bytes_per_cta=16 * MIB)}


def configurations(parameters: Parameters) -> Iterator[PipelineConfiguration]:
    """Multicast and unicast, by so many clusters."""
    p = parameters
    for fan_out, ctas, spec in product(p.fan_outs, p.ctas, (multicast_pipeline(), unicast_pipeline())):
        if clusters := ctas // fan_out:
            shape = (fan_out, "l2", p.tile_bytes, p.stages, p.footprint_bytes)
            yield PipelineConfiguration(spec, *shape, clusters=clusters)


EXPERIMENT = pipeline_experiment(
    "crowding", "What binds a multicast pipeline: its own SMs, or what all share?", PRESETS, configurations
)
