"""How many clusters does the GPU hold at once, how many SMs stay idle, and what does one cluster too many cost?"""

from dataclasses import dataclass
from itertools import product
from typing import Any

from labkernels.device import Gpu
from labkernels.operand import KIB, MIB
from labkernels.protocols.cluster_pipeline import ClusterPipeline, PipelineConfiguration, unicast_pipeline
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.memory import Memory
from labkernels.protocols.rounds import timed_rounds

TILE_BYTES = 8 * KIB


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        clusters: CTAs of a cluster.
        stages: of each CTA's pipeline of 8 KiB tiles: its shared memory.
        footprint_bytes: memory that is read, from L2.
        bytes_per_cta: brought to each CTA by a timed launch.
        rounds: timed launches of each grid.
    """

    clusters: tuple[int, ...] = (1, 2, 4, 8, 16)
    stages: tuple[int, ...] = (6, 13, 26)
    footprint_bytes: int = 32 * MIB
    bytes_per_cta: int = 4 * MIB
    rounds: int = 9


PRESETS = {"quick": Parameters(), "full": Parameters(stages=(4, 6, 8, 13, 14, 20, 26))}


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Ask the driver, then time a grid that fits and one with a cluster more."""
    p = parameters
    memory = Memory(gpu, p.footprint_bytes)
    spec = unicast_pipeline()
    pipelines: list[tuple[ClusterPipeline, int]] = []
    for cluster, stages in progress(list(product(p.clusters, p.stages)), "check"):
        shape = PipelineConfiguration(
            spec, cluster, "l2", TILE_BYTES, stages, p.footprint_bytes, clustered=cluster > 1
        )
        asked = ClusterPipeline(gpu, shape, memory.buffer, memory.seed, alone=False)
        resident = asked.clusters.resident_clusters
        asked.close()
        for more in (0, 1):
            pipeline = ClusterPipeline(
                gpu, shape, memory.buffer, memory.seed, clusters=resident + more, alone=False
            )
            pipeline.check()
            pipelines.append((pipeline, resident))

    def once(prepared: tuple[ClusterPipeline, int]) -> dict[str, Any]:
        pipeline, resident = prepared
        pipeline.warm()
        duration_us, _ = pipeline.time(pipeline.tiles_for(p.bytes_per_cta))
        return _row(gpu, pipeline, resident, duration_us)

    rows = timed_rounds(pipelines, once, p.rounds, progress)
    for pipeline, _ in pipelines:
        pipeline.require_arrived()
        pipeline.close()
    memory.close()
    return Result({"cluster_residency": rows}, [pipelines[0][0].kernel])


def _row(gpu: Gpu, pipeline: ClusterPipeline, resident: int, duration_us: float) -> dict[str, Any]:
    c = pipeline.configuration
    cluster = c.fan_out
    ctas_per_sm = pipeline.clusters.blocks_per_sm
    return {
        "kernel": c.spec.name,
        "cluster": cluster,
        "shared_bytes": pipeline.clusters.shared_bytes,
        "threads": c.threads,
        "ctas_per_sm": ctas_per_sm,
        "resident_clusters": resident,
        "idle_sms": round(gpu.facts.sm_count - resident * cluster / ctas_per_sm, 2),
        "launched_clusters": pipeline.groups,
        "duration_us": round(duration_us, 3),
    }


EXPERIMENT = Experiment(
    "residency",
    "How many clusters are resident, and what does one too many cost?",
    ("cluster_residency",),
    PRESETS,
    measure,
    needs(Gpu),
)
