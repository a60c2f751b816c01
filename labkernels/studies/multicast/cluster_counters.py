"""Which bytes leave L2 and which reach the SMs, when the CTAs of a cluster want the same tiles?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.device import Gpu, counters
from labkernels.operand import GIB, KIB, MIB
from labkernels.protocols.counted import counted_experiment
from labkernels.protocols.memory import Memory
from labkernels.protocols.ring import ClusterRing, RingConfiguration, multicast_ring, unicast_ring


@dataclass(frozen=True)
class Parameters:
    """What is counted.

    Attributes:
        fan_outs: CTAs that receive the same tile.
        tile_bytes: of one tile.
        stages: of each CTA's ring.
        lag_cycles: as in the multicast experiment, at `chosen_fan_outs`.
        chosen_fan_outs: where lags and device memory are counted, at the largest tile and most stages.
        hbm_footprint_bytes: read in turn.
        l2_footprint_bytes: read again and again.
        bytes_per_cta: brought to each CTA by a counted launch, at least.
    """

    fan_outs: tuple[int, ...] = (1, 2, 4, 8, 16)
    tile_bytes: tuple[int, ...] = (8 * KIB, 32 * KIB)
    stages: tuple[int, ...] = (6,)
    lag_cycles: tuple[int, ...] = (1000,)
    chosen_fan_outs: tuple[int, ...] = (4,)
    hbm_footprint_bytes: int = GIB
    l2_footprint_bytes: int = 24 * MIB
    bytes_per_cta: int = 8 * MIB


PRESETS = {
    "quick": Parameters(fan_outs=(1, 4), tile_bytes=(32 * KIB,)),
    "full": Parameters(
        stages=(2, 6), lag_cycles=(100, 200, 500, 1000, 2000, 5000), chosen_fan_outs=(2, 4, 8, 16)
    ),
}


def configurations(parameters: Parameters) -> Iterator[RingConfiguration]:
    """What is counted, in order."""
    p, unicast = parameters, unicast_ring()
    for fan_out, tile, stages in product(p.fan_outs, p.tile_bytes, p.stages):
        shape = (fan_out, "l2", tile, stages, p.l2_footprint_bytes)
        yield RingConfiguration(unicast, *shape, clustered=False)
        if fan_out > 1:
            yield RingConfiguration(unicast, *shape, clustered=False, scattered=True)
            yield RingConfiguration(unicast, *shape)
            yield RingConfiguration(multicast_ring(), *shape)
            yield RingConfiguration(multicast_ring(share="leader"), *shape)
    tile, stages = max(p.tile_bytes), max(p.stages)
    for fan_out in p.chosen_fan_outs:
        for lag in p.lag_cycles:
            shape = (fan_out, "l2", tile, stages, p.l2_footprint_bytes)
            yield RingConfiguration(unicast, *shape, lag_cycles=lag)
        shape = (fan_out, "hbm", tile, stages, p.hbm_footprint_bytes)
        yield RingConfiguration(unicast, *shape, clustered=False)
        yield RingConfiguration(unicast, *shape)
        yield RingConfiguration(multicast_ring(), *shape)


def ready(gpu: Gpu, parameters: Parameters) -> Iterator[tuple[ClusterRing, int]]:
    """Every configuration, over memory that is warm where it is to be."""
    memory = Memory(gpu, max(parameters.hbm_footprint_bytes, parameters.l2_footprint_bytes))
    for configuration in configurations(parameters):
        ring = ClusterRing(gpu, configuration, memory.buffer, memory.seed)
        ring.place_source(memory)
        yield ring, ring.tiles_for(parameters.bytes_per_cta)
    memory.close()


EXPERIMENT = counted_experiment(
    __name__,
    "cluster_counters",
    "Which bytes leave L2 and which reach the SMs of a cluster?",
    PRESETS,
    counters.MEMORY_PATH,
    ready,
)
