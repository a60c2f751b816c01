"""How fast does each mechanism fill shared memory, by bytes in flight per SM?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.kernels.build import CONSUMER_THREADS
from labkernels.kernels.registry import kernel
from labkernels.operand import GIB, KIB, MIB, TMA_THREADS, Pipeline, boxed_operand, linear_operand
from labkernels.protocols.measure import stream_experiment
from labkernels.protocols.stream import STAGE_ALIGNMENT_BYTES, Configuration


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        tile_bytes: of the TMA pipelines; cp.async and ld tiles follow from threads × chunks × 16 bytes.
        stages: of the mbarrier pipelines.
        ctas_per_sm: of all.
        threads: copying threads of cp.async and ld.
        chunks: 16-byte vectors per thread and tile of cp.async and ld.
        depths: tiles in flight of cp.async by groups.
        policies: cache policies of ld.
        sources: where the data lies.
        hbm_footprint_bytes: read in turn, at least four times L2.
        l2_footprint_bytes: read again and again.
        bytes_moved: by each timed launch, at least.
        rounds: timed launches of each configuration.
    """

    tile_bytes: tuple[int, ...]
    stages: tuple[int, ...]
    ctas_per_sm: tuple[int, ...]
    threads: tuple[int, ...]
    chunks: tuple[int, ...]
    depths: tuple[int, ...]
    policies: tuple[str, ...] = ("nc",)
    sources: tuple[str, ...] = ("hbm", "l2")
    hbm_footprint_bytes: int = GIB
    l2_footprint_bytes: int = 16 * MIB
    bytes_moved: int = 2 * GIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters(
        tile_bytes=(2 * KIB, 8 * KIB, 32 * KIB),
        stages=(2, 4, 6),
        ctas_per_sm=(1,),
        threads=(128, 256),
        chunks=(4, 8),
        depths=(1, 2, 4),
        bytes_moved=GIB,
    ),
    "full": Parameters(
        tile_bytes=(KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB),
        stages=(1, 2, 4, 6, 12),
        ctas_per_sm=(1, 2),
        threads=(128, 256),
        chunks=(1, 2, 4, 8),
        depths=(1, 2, 4, 8),
        policies=("nc", "cg", "L1::no_allocate"),
    ),
}


def configurations(parameters: Parameters, sm_count: int) -> Iterator[Configuration]:
    """Every configuration of the sweep whose pipeline fits shared memory."""
    for source, ctas in product(parameters.sources, parameters.ctas_per_sm):
        footprint = parameters.hbm_footprint_bytes if source == "hbm" else parameters.l2_footprint_bytes

        def pipeline(stages: int, threads: int, ctas: int = ctas) -> Pipeline:
            return Pipeline(stages=stages, ctas_per_sm=ctas, threads=threads, shared_alignment_bytes=128)

        def fits(tile_bytes: int, stages: int, ctas: int = ctas, footprint: int = footprint) -> bool:
            shared = tile_bytes * stages + 2 * STAGE_ALIGNMENT_BYTES
            return shared * ctas <= 226 * KIB and sm_count * ctas * tile_bytes <= footprint

        for tile, stages in product(parameters.tile_bytes, parameters.stages):
            if fits(tile, stages):
                shape = (footprint, tile, pipeline(stages, TMA_THREADS))
                bulk, box = linear_operand(*shape), boxed_operand(*shape)
                yield Configuration(kernel("tma_bulk", "stream", excess_bytes=0), bulk, source)
                yield Configuration(kernel("tma_tile", "stream", rank=2), box, source)
        for threads, chunks in product(parameters.threads, parameters.chunks):
            tile = threads * chunks * 16
            for depth in parameters.depths:
                if fits(tile, depth + 1):
                    spec = kernel("cp_async", "stream", completion="group", depth=depth, chunks=chunks)
                    operand = linear_operand(footprint, tile, pipeline(depth + 1, threads))
                    yield Configuration(spec, operand, source)
            if threads == min(parameters.threads):
                for stages in parameters.stages:
                    if stages > 1 and fits(tile, stages):
                        spec = kernel("cp_async", "stream", completion="mbarrier", chunks=chunks)
                        operand = linear_operand(
                            footprint, tile, pipeline(stages, threads + CONSUMER_THREADS)
                        )
                        yield Configuration(spec, operand, source)
            for policy in parameters.policies:
                if fits(tile, 2):
                    operand = linear_operand(footprint, tile, pipeline(2, threads))
                    yield Configuration(
                        kernel("ldg", "stream", chunks=chunks, policy=policy), operand, source
                    )


EXPERIMENT = stream_experiment(
    "throughput",
    "How fast does each mechanism fill shared memory, by bytes in flight per SM?",
    PRESETS,
    configurations,
)
