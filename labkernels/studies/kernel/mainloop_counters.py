"""Issue slots, wavefronts of shared memory, reads of L2: what does each way to bring tiles take beside tensor cores?"""

from collections.abc import Iterator
from dataclasses import dataclass

from labkernels.device import Gpu
from labkernels.device.counters import MEMORY_PATH, OF_SM
from labkernels.protocols.counted import counted_experiment
from labkernels.protocols.mainloop import LAP, MainLoop, MainLoopConfiguration, Operands
from labkernels.studies.kernel.mainloop import Parameters as Sweep
from labkernels.studies.kernel.mainloop import configurations as all_configurations
from labkernels.studies.kernel.mainloop import contest

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
