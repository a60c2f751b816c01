"""The same tile to every CTA of a cluster: by multicast, by pushing or pulling through DSM, or by unicast?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.kernels.registry import kernel
from labkernels.operand import GIB, KIB, MIB
from labkernels.protocols.cluster_pipeline import PipelineConfiguration, multicast_pipeline, unicast_pipeline
from labkernels.protocols.measure import pipeline_experiment

SHARED_READ_BYTES_PER_CYCLE = 128  # of one SM: what a consumer of a whole tile needs at least


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        fan_outs: CTAs of a cluster.
        tile_bytes: of one tile.
        sources: `l2`, `hbm`, or `computed`: made in shared memory by threads of the cluster.
        reuses: how often a CTA reads a tile before it lets go, at the full rate of its shared memory.
        reuse_fan_out: fan-out at which `reuses` above 0 are measured, at the largest tile, from L2.
        stages: of each CTA's pipeline.
        hbm_footprint_bytes: read in turn.
        l2_footprint_bytes: read again and again.
        bytes_per_cta: brought to each CTA by a timed launch, at least.
        rounds: timed launches of each configuration.
    """

    fan_outs: tuple[int, ...] = (2, 4, 8)
    tile_bytes: tuple[int, ...] = (8 * KIB, 32 * KIB)
    sources: tuple[str, ...] = ("l2", "hbm", "computed")
    reuses: tuple[int, ...] = (2, 8)
    reuse_fan_out: int = 4
    stages: int = 4
    hbm_footprint_bytes: int = GIB
    l2_footprint_bytes: int = 24 * MIB
    bytes_per_cta: int = 4 * MIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters(),
    "full": Parameters(
        fan_outs=(2, 4, 8, 16),
        tile_bytes=(4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB),
        reuses=(1, 2, 4, 8, 16),
    ),
}


def configurations(parameters: Parameters) -> Iterator[PipelineConfiguration]:
    """Every transport at every fan-out, tile and source."""
    p = parameters
    for source, fan_out, tile in product(p.sources, p.fan_outs, p.tile_bytes):
        origin = "computed" if source == "computed" else "global"
        footprint = p.hbm_footprint_bytes if source == "hbm" else p.l2_footprint_bytes
        reuses = (
            (0, *p.reuses) if (source, fan_out, tile) == ("l2", p.reuse_fan_out, max(p.tile_bytes)) else (0,)
        )
        for reuse in reuses:
            hold = reuse * tile // SHARED_READ_BYTES_PER_CYCLE
            for share in ("slices", "leader"):
                for spec in (
                    multicast_pipeline(share=share, origin=origin),
                    kernel("dsm_bulk", "ring", share=share, origin=origin),
                    kernel("dsm_load", "ring", share=share, origin=origin),
                ):
                    yield PipelineConfiguration(
                        spec, fan_out, source, tile, p.stages, footprint, hold_cycles=hold
                    )
            if source != "computed":
                spec = unicast_pipeline()
                yield PipelineConfiguration(
                    spec, fan_out, source, tile, p.stages, footprint, hold_cycles=hold
                )


EXPERIMENT = pipeline_experiment(
    "broadcast",
    "The same tile to every CTA of a cluster: multicast, DSM or unicast?",
    PRESETS,
    configurations,
)
