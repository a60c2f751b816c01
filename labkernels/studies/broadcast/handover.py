"""What does it take to hand a tile over through DSM, by tile, depth and fan-out? What the model's terms are fitted to.

`broadcast` asks which transport is best, at pipelines of its own; none of its configurations is among these.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.kernels.registry import kernel
from labkernels.operand import KIB, MIB
from labkernels.protocols.cluster_pipeline import PipelineConfiguration, multicast_pipeline
from labkernels.protocols.measure import pipeline_experiment


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        fan_outs: CTAs of a cluster.
        rings: (bytes of a tile, stages).
        sources: `l2`, or `computed`: made in shared memory by threads of the cluster.
        footprint_bytes: of the tensor.
        bytes_per_cta: brought to each CTA by a timed launch, at least.
        rounds: timed launches of each configuration.
    """

    fan_outs: tuple[int, ...] = (2, 4, 8)
    rings: tuple[tuple[int, int], ...] = ((8 * KIB, 6), (32 * KIB, 3))
    sources: tuple[str, ...] = ("l2", "computed")
    footprint_bytes: int = 32 * MIB
    bytes_per_cta: int = 2 * MIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters(),
    "full": Parameters(
        fan_outs=(2, 4, 8, 16),
        rings=(
            (2 * KIB, 6),
            (4 * KIB, 6),
            (8 * KIB, 3),
            (8 * KIB, 6),
            (16 * KIB, 3),
            (32 * KIB, 3),
            (64 * KIB, 3),
        ),
    ),
}


def configurations(parameters: Parameters) -> Iterator[PipelineConfiguration]:
    """Pushes and pulls of slices and of whole tiles; computed tiles also by a round trip through L2 and multicast."""
    p = parameters
    for source, fan_out, (tile, stages), share in product(
        p.sources, p.fan_outs, p.rings, ("slices", "leader")
    ):
        origin = "computed" if source == "computed" else "global"
        specs = [kernel(name, "ring", share=share, origin=origin) for name in ("dsm_bulk", "dsm_load")]
        if source == "computed":
            specs.append(multicast_pipeline(share=share, origin=origin))
        for spec in specs:
            yield PipelineConfiguration(spec, fan_out, source, tile, stages, p.footprint_bytes)


EXPERIMENT = pipeline_experiment(
    "handover", "What does it take to hand a tile over through DSM?", PRESETS, configurations
)
