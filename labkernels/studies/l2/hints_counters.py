"""Which bytes come from memory, by the policies of what streams by and of what is used again and again?"""

from collections.abc import Iterator

from labkernels.device import Gpu
from labkernels.operand import MIB
from labkernels.protocols.counted import STREAM_COUNTERS, counted_experiment
from labkernels.protocols.memory import Memory
from labkernels.protocols.mixed import Mixed
from labkernels.studies.l2.hints import Parameters, cells

PRESETS = {
    "quick": Parameters((24 * MIB,), ("tma_tile",)),
    "full": Parameters(tuple(n * MIB for n in (4, 8, 16, 24, 32, 40, 64)), ("tma_tile",)),
}


def ready(gpu: Gpu, parameters: Parameters) -> Iterator[tuple[Mixed, int]]:
    """Every pair of policies over every region, which L2 holds as it does in the middle of a stream."""
    chosen = list(cells(parameters, gpu.facts.sm_count))
    memory = Memory(gpu, max(cell.operand.footprint_bytes for cell in chosen))
    for cell in chosen:
        mixed = Mixed(gpu, cell, memory.buffer, memory.seed)
        mixed.place_source(memory)
        yield mixed, mixed.tiles_for(parameters.bytes_moved)
    memory.close()


EXPERIMENT = counted_experiment(
    __name__,
    "hints_counters",
    "Which bytes come from memory, by the policies of lines in L2?",
    PRESETS,
    STREAM_COUNTERS,
    ready,
)
