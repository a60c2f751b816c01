"""What does it cost to release a stage to the other CTAs of a cluster?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.operand import KIB, MIB
from labkernels.protocols.cluster_pipeline import PipelineConfiguration, multicast_pipeline
from labkernels.protocols.measure import pipeline_experiment

#: Who arrives × the scope of the arrive and of the wait; see ptx/tma_multicast.ptx and macros/cluster.ptx.
VARIANTS = (
    *(("lanes", scope) for scope in ("default", "relaxed", "wait", "arrive", "cluster")),
    *product(("thread", "all"), ("default", "cluster")),
    *(("barrier", scope) for scope in ("relaxed", "cluster")),
)


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        fan_outs: CTAs of a cluster; all receive the same tile.
        tile_bytes: of one tile.
        stages: of each CTA's pipeline.
        footprint_bytes: read again and again, from L2.
        bytes_per_cta: brought to each CTA by a timed launch, at least.
        rounds: timed launches of each configuration.
    """

    fan_outs: tuple[int, ...] = (4,)
    tile_bytes: tuple[int, ...] = (8 * KIB, 32 * KIB)
    stages: int = 4
    footprint_bytes: int = 24 * MIB
    bytes_per_cta: int = 8 * MIB
    rounds: int = 9


PRESETS = {"quick": Parameters(), "full": Parameters(fan_outs=(2, 4, 8, 16), bytes_per_cta=12 * MIB)}


def configurations(parameters: Parameters) -> Iterator[PipelineConfiguration]:
    """Every variant at every fan-out and tile."""
    p = parameters
    for fan_out, tile, (arrivers, scope) in product(p.fan_outs, p.tile_bytes, VARIANTS):
        spec = multicast_pipeline(arrivers=arrivers, scope=scope)
        yield PipelineConfiguration(spec, fan_out, "l2", tile, p.stages, p.footprint_bytes)


EXPERIMENT = pipeline_experiment(
    "handshake", "What does it cost to release a stage to the other CTAs?", PRESETS, configurations
)
