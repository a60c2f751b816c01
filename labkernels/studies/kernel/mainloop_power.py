"""What clock and power does a main loop settle at, and what does a step cost in energy, by who brings its tiles?"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from cuda.core import EventOptions

from labkernels.device import Gpu
from labkernels.device.energy import keep_busy_for, power_while
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.mainloop import LAP, MainLoop, MainLoopConfiguration
from labkernels.studies.kernel.mainloop import contest, in_rounds


@dataclass(frozen=True)
class Parameters:
    """What is run.

    Attributes:
        tiles: rows of A and of B that a CTA multiplies.
        data: what A and B hold.
        laps: products of a launch.
        settle_s: before a window.
        window_s: at least; a window begins and ends where the energy counter moves.
        rounds: windows of each.
    """

    tiles: tuple[tuple[int, int], ...] = ((128, 128), (128, 256))
    data: tuple[str, ...] = ("random", "zeros")
    laps: int = 64
    settle_s: float = 1.2
    window_s: float = 0.4
    rounds: int = 4


PRESETS = {"quick": Parameters(tiles=((128, 128),), data=("random",), rounds=3), "full": Parameters()}


def configurations(parameters: Parameters) -> Iterator[MainLoopConfiguration]:
    """Each way to bring tiles at its best, and none."""
    for tile in parameters.tiles:
        for data in parameters.data:
            yield from (one for one in contest(tile, data) if data == "random" or tile == parameters.tiles[0])


class Busy:
    """Keeps the GPU busy with launches of one main loop, without waiting: a few are queued beyond the one that runs.

    Attributes:
        launches: queued so far.
    """

    BATCH = 8

    def __init__(self, one: MainLoop, tiles: int) -> None:
        self._one, self._tiles, self._queued = one, tiles, deque[Any]()
        self.launches = 0

    def __call__(self) -> None:
        """Queue a batch when fewer than two are left."""
        while self._queued and self._queued[0].is_done:
            self._queued.popleft()
        if len(self._queued) < 2:
            for _ in range(self.BATCH):
                self._one.launch(self._tiles)
            self.launches += self.BATCH
            self._queued.append(self._one.gpu.stream.record())


def sustained(one: MainLoop, parameters: Parameters) -> dict[str, Any]:
    """The row of one window."""
    tiles, board = parameters.laps * LAP, one.gpu.board
    busy = Busy(one, tiles)
    keep_busy_for(parameters.settle_s, busy)
    before = busy.launches
    timing = EventOptions(timing_enabled=True)
    began = one.gpu.stream.record(options=timing)
    power = power_while(board.energy_j, parameters.window_s, busy)
    ended = one.gpu.stream.record(options=timing)
    ended.sync()
    duration_us = (ended - began) * 1000 / (busy.launches - before)
    joules = power and power.watts * duration_us / 1e6 / (one.blocks * tiles)
    return (
        one.row(tiles)
        | one.rates(duration_us, tiles)
        | {
            "power_w": power and round(power.watts, 1),
            "power_window_s": power and round(power.seconds, 4),
            "energy_per_step_uj": joules and round(joules * 1e6, 3),
        }
    )


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Let each run for a while in every round; see `Parameters`."""
    once = partial(sustained, parameters=parameters)
    return in_rounds(gpu, configurations(parameters), once, parameters.rounds, "mainloop_power", progress)


EXPERIMENT = Experiment(
    "mainloop_power",
    "What clock and power does a main loop settle at, by who brings its tiles?",
    ("mainloop_power",),
    PRESETS,
    measure,
    needs(Gpu),
)
