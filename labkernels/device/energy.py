"""Mean power of work on the GPU, from NVML's energy counter.

The counter moves in steps (of 100 ms on an H200), so that two readings 0.2 s apart hold two steps or three: the energy
of 0.2 s or of 0.3 s. Here a window begins and ends where the counter moves.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

LONGEST_STEP_S = 2.0


class Power(NamedTuple):
    """Mean power between two steps of the counter, and the seconds between them."""

    watts: float
    seconds: float


def keep_busy_for(seconds: float, keep_busy: Callable[[], None]) -> None:
    """Call again and again for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        keep_busy()


def power_while(
    energy_j: Callable[[], float | None], seconds: float, keep_busy: Callable[[], None]
) -> Power | None:
    """Mean power while the GPU is kept busy.

    Args:
        energy_j: the counter, None where there is none.
        seconds: the window is at least so long.
        keep_busy: queues work when little is left, and does not wait; called all the time.

    Returns:
        None where there is no counter, or one that stands still.
    """
    first = _at_next_step(energy_j, keep_busy)
    keep_busy_for(seconds, keep_busy)
    last = _at_next_step(energy_j, keep_busy) if first else None
    if not first or not last:
        return None
    (began, before), (ended, after) = first, last
    return Power((after - before) / (ended - began), ended - began)


def _at_next_step(
    energy_j: Callable[[], float | None], keep_busy: Callable[[], None]
) -> tuple[float, float] | None:
    """When the counter moves next, and to which value."""
    before, give_up = energy_j(), time.perf_counter() + LONGEST_STEP_S
    while before is not None and time.perf_counter() < give_up:
        keep_busy()
        if (now := energy_j()) is not None and now != before:
            return time.perf_counter(), now
    return None
