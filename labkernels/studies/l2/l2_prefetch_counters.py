"""Does memory deliver a tile twice when its prefetch was too early? Bytes read from memory, beside those delivered."""

from collections.abc import Iterator

from labkernels.device import Gpu
from labkernels.operand import KIB
from labkernels.protocols.contiguous import Contiguous
from labkernels.protocols.counted import STREAM_COUNTERS, counted_experiment
from labkernels.protocols.memory import Memory
from labkernels.studies.l2.l2_prefetch import Parameters, cells

PRESETS = {
    "quick": Parameters((8 * KIB, 32 * KIB), (2,), (8, 32)),
    "full": Parameters((2 * KIB, 8 * KIB, 32 * KIB), (1, 2, 4)),
}


def ready(gpu: Gpu, parameters: Parameters) -> Iterator[tuple[Contiguous, int]]:
    """Every pipeline without a prefetch and with each lead."""
    memory = Memory(gpu, parameters.hbm_footprint_bytes)
    for cell in cells(parameters, gpu.facts.sm_count):
        stream = Contiguous(gpu, cell, memory.buffer, memory.seed)
        memory.evict()
        yield stream, stream.tiles_for(parameters.bytes_moved)
    memory.close()


EXPERIMENT = counted_experiment(
    __name__,
    "l2_prefetch_counters",
    "Does memory deliver a tile twice when its prefetch was too early?",
    PRESETS,
    STREAM_COUNTERS,
    ready,
)
