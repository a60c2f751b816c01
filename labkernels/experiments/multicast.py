"""What does multicast deliver over fan-out, tile and depth, beside the same CTAs each loading for themselves?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.device import Gpu
from labkernels.experiments.base import Experiment, Memory, Progress, Result
from labkernels.experiments.cluster_ring import RingConfiguration, multicast_ring, timed_rings
from labkernels.experiments.throughput import GIB, KIB, MIB
from labkernels.mechanisms import kernel

SHARED_LIMIT_BYTES = 224 * KIB
SMALLEST_SLICE_BYTES = 256


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        fan_outs: CTAs that receive the same tile.
        tile_bytes: of one tile.
        stages: of each CTA's ring.
        sources: where the data lies.
        producers: warps that issue copies; more than one is measured at `chosen_fan_outs`.
        chosen_fan_outs: where what follows is varied, at the largest tile.
        lag_cycles: how much later each CTA of a cluster starts than the one before, when each loads for itself.
        delay_cycles: what the last CTA of a cluster spends before each copy.
        hbm_footprint_bytes: read in turn.
        l2_footprint_bytes: read again and again.
        bytes_per_cta: brought to each CTA by a timed launch, at least.
        rounds: timed launches of each configuration.
    """

    fan_outs: tuple[int, ...] = (1, 2, 4, 8, 16)
    tile_bytes: tuple[int, ...] = (8 * KIB, 32 * KIB)
    stages: tuple[int, ...] = (4, 6)
    sources: tuple[str, ...] = ("l2", "hbm")
    producers: tuple[int, ...] = (1,)
    chosen_fan_outs: tuple[int, ...] = (4,)
    lag_cycles: tuple[int, ...] = (200, 1000, 5000)
    delay_cycles: tuple[int, ...] = (1000,)
    hbm_footprint_bytes: int = GIB
    l2_footprint_bytes: int = 24 * MIB
    bytes_per_cta: int = 12 * MIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters(fan_outs=(1, 2, 4, 8, 16), bytes_per_cta=8 * MIB),
    "full": Parameters(
        tile_bytes=(2 * KIB, 8 * KIB, 16 * KIB, 32 * KIB),
        stages=(1, 2, 4, 6, 12, 24),
        producers=(1, 2),
        chosen_fan_outs=(2, 4, 8, 16),
        lag_cycles=(50, 100, 200, 500, 1000, 2000, 5000, 20000),
        delay_cycles=(250, 500, 1000, 2000),
    ),
}


def configurations(parameters: Parameters) -> Iterator[RingConfiguration]:
    """Every configuration of the sweep whose ring fits shared memory and whose slices are long enough."""
    p = parameters
    for source, fan_out, tile, stages in product(p.sources, p.fan_outs, p.tile_bytes, p.stages):
        if tile * stages > SHARED_LIMIT_BYTES:
            continue
        footprint = p.hbm_footprint_bytes if source == "hbm" else p.l2_footprint_bytes
        shape = (fan_out, source, tile, stages, footprint)
        sliced = tile // fan_out >= SMALLEST_SLICE_BYTES
        if sliced:
            yield RingConfiguration(multicast_ring(), *shape)
        if fan_out > 1:
            yield RingConfiguration(multicast_ring(share="leader"), *shape)
            yield RingConfiguration(kernel("tma_tile", "ring", producers=1), *shape)
        yield RingConfiguration(kernel("tma_tile", "ring", producers=1), *shape, clustered=False)
        if fan_out not in p.chosen_fan_outs:
            continue
        for producers in p.producers:
            if producers > 1 and stages % producers == 0 and sliced and source == "l2":
                yield RingConfiguration(multicast_ring(producers=producers), *shape)
                yield RingConfiguration(kernel("tma_tile", "ring", producers=producers), *shape)
        if tile == max(p.tile_bytes) and stages == 4:
            for lag in p.lag_cycles:
                spec = kernel("tma_tile", "ring", producers=1)
                yield RingConfiguration(spec, *shape, lag_cycles=lag)
            for delay in p.delay_cycles:
                for spec in (
                    multicast_ring(),
                    multicast_ring(share="leader"),
                    kernel("tma_tile", "ring", producers=1),
                ):
                    yield RingConfiguration(spec, *shape, delay_cycles=delay)


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Time every configuration; see `Parameters`."""
    memory = Memory(gpu, max(parameters.hbm_footprint_bytes, parameters.l2_footprint_bytes))
    chosen = list(configurations(parameters))
    rows, kernels = timed_rings(gpu, memory, chosen, parameters.rounds, parameters.bytes_per_cta, progress)
    memory.close()
    return Result({"cluster_ring": rows}, kernels)


EXPERIMENT = Experiment(
    "multicast",
    "What does multicast deliver over fan-out, tile and depth, beside the same CTAs each loading for themselves?",
    PRESETS,
    measure,
)
