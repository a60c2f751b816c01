"""Rounds: every item once in each, in random order, so that ratios of one round are paired."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from labkernels.protocols.experiment import Progress

Item = TypeVar("Item")
SEED = 1  # of the order


def interleaved(items: Sequence[Item], rounds: int) -> list[list[Item]]:
    """All items in another random order for each round."""
    order = np.random.default_rng(SEED)
    return [[items[index] for index in order.permutation(len(items))] for _ in range(rounds)]


def rate(duration_us: float, bytes_moved: int) -> dict[str, float]:
    """Columns of a timed launch: `duration_us`, and `gbps` (1e9 bytes per second)."""
    return {"duration_us": round(duration_us, 3), "gbps": round(bytes_moved / duration_us / 1e3, 2)}


def timed_rounds(
    items: Sequence[Item], once: Callable[[Item], dict[str, Any]], rounds: int, progress: Progress
) -> list[dict[str, Any]]:
    """What `once` gives for every item in every round: a row each, with the number of its round."""
    turns = progress(interleaved(items, rounds), "time")
    return [{**once(item), "round": number} for number, turn in enumerate(turns) for item in turn]
