"""Issue slots, wavefronts of shared memory, reads of L2: what does each way to bring tiles take beside tensor cores?"""

from collections.abc import Iterator
from dataclasses import dataclass

from labkernels.device import Gpu
from labkernels.device.counters import MEMORY_PATH
from labkernels.protocols.counted import counted_experiment
from labkernels.protocols.mainloop import LAP, MainLoop, MainLoopConfiguration, Operands
from labkernels.studies.kernel.mainloop import Parameters as Sweep
from labkernels.studies.kernel.mainloop import configurations as all_configurations
from labkernels.studies.kernel.mainloop import contest

#: Counters of the SMs, with what they count.
OF_SM = {
    "smsp__inst_issued.sum": ("issued", "Warp instructions issued: issue slots taken."),
    "smsp__inst_executed.sum": ("executed", "Warp instructions executed."),
    "l1tex__data_pipe_lsu_wavefronts.sum": (
        "lsu_wavefronts",
        "Wavefronts of the LSU's data pipe: shared memory, and data of loads on their way to registers.",
    ),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum": (
        "wgmma_wavefronts",
        "Wavefronts in which wgmma reads shared memory.",
    ),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": (
        "store_wavefronts",
        "Wavefronts of stores to shared memory.",
    ),
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum": (
        "ldgsts_wavefronts",
        "Wavefronts in which cp.async writes shared memory, by the instruction.",
    ),
    "l1tex__data_bank_reads.sum": ("bank_reads", "Reads of banks of L1 and shared memory."),
    "l1tex__data_bank_writes.sum": ("bank_writes", "Writes of banks of L1 and shared memory."),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": (
        "bank_conflicts",
        "Conflicts of accesses to shared memory by the LSU.",
    ),
    "l1tex__data_bank_conflicts_type_arbitration.sum": (
        "arbitration_conflicts",
        "Conflicts between the clients of L1's data banks.",
    ),
}
COUNTED = {metric: column for metric, (column, _) in OF_SM.items()} | {
    metric: column for metric, column in MEMORY_PATH.items() if "programmatic" not in metric
}


@dataclass(frozen=True)
class Parameters:
    """What is counted.

    Attributes:
        tiles: rows of A and of B that a CTA multiplies.
        laps: products of a counted launch.
        all_of_square: whether every kernel of tile 128×128 is counted, not those of the contest alone.
    """

    tiles: tuple[tuple[int, int], ...] = ((128, 128), (128, 256), (256, 128))
    laps: int = 16
    all_of_square: bool = True


PRESETS = {"quick": Parameters(((128, 128),), all_of_square=False), "full": Parameters()}


def configurations(parameters: Parameters) -> Iterator[MainLoopConfiguration]:
    """The contest of every tile; and of the square one every kernel, in the usual pipeline."""
    chosen = [one for tile in parameters.tiles for one in contest(tile)]
    if parameters.all_of_square:
        square = all_configurations(Sweep(tiles=((128, 128),), sources=("l2",)))
        chosen += [one for one in square if one.is_usual and one.data == "random"]
    yield from dict.fromkeys(chosen)


def ready(gpu: Gpu, parameters: Parameters) -> Iterator[tuple[MainLoop, int]]:
    """Every configuration, what it reads in L2."""
    chosen = list(configurations(parameters))
    memory = Operands(chosen, gpu.facts.sm_count)
    for one in chosen:
        loop = MainLoop(gpu, one, memory)
        loop.launch(2 * LAP)
        yield loop, parameters.laps * LAP
    memory.close()


EXPERIMENT = counted_experiment(
    __name__,
    "mainloop_counters",
    "What does each way to bring tiles take of issue slots, shared memory and L2?",
    PRESETS,
    COUNTED,
    ready,
)
