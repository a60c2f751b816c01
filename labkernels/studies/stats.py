"""Rows by value, medians over rounds, ratios and crossovers with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from labkernels.errors import NotMeasured

RESAMPLES = 4000
SEED = 20260131


class Summary(NamedTuple):
    """Quantiles of `n` samples, in their unit."""

    n: int
    p05: float
    median: float
    p95: float

    def cycles(self) -> dict[str, float]:
        """The columns in which tables keep it."""
        quantiles = {"p05": self.p05, "median": self.median, "p95": self.p95}
        return {"n": self.n} | {f"cycles_{name}": round(value, 1) for name, value in quantiles.items()}


class Measured(NamedTuple):
    """A value with its 95% interval, in its unit."""

    value: float
    low: float
    high: float


class Ratio(NamedTuple):
    """A ratio of medians and the interval it lies in."""

    ratio: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 1; if not, the report is «no difference»."""
        return not self.low <= 1 <= self.high

    def within(self, margin: float) -> bool:
        """Whether the interval lies within 1 ± the margin: a test of equality, where «no difference» is claimed."""
        return 1 - margin <= self.low and self.high <= 1 + margin

    @property
    def inverse(self) -> Ratio:
        """The second over the first."""
        return Ratio(1 / self.ratio, 1 / self.high, 1 / self.low)

    def times(self, digits: int = 2) -> str:
        """As in `1.24× (1.21 to 1.29)`."""
        return f"{self.ratio:.{digits}f}× ({self.low:.{digits}f} to {self.high:.{digits}f})"


class Crossover(NamedTuple):
    """Where B overtakes A for good.

    Attributes:
        x: Where, on the given axis; None when B does not come from behind and stay ahead within the range.
        low: Lower end of the interval; 0 when B may lead over the whole range.
        high: Upper end of the interval; inf when A may lead at the end of the range.
        leader: Who is ahead at the end of the range; None for a tie. With `x` None, "b" leads all the way.
    """

    x: float | None
    low: float
    high: float
    leader: Literal["a", "b"] | None


def having(frame: pd.DataFrame, **equal: Any) -> pd.DataFrame:
    """Rows whose columns have the given values; a preset, or a reader's own run, may have none."""
    return frame[np.logical_and.reduce([frame[column].eq(value) for column, value in equal.items()])]


def where(frame: pd.DataFrame, **equal: Any) -> pd.DataFrame:
    """Rows whose columns have the given values.

    Raises:
        NotMeasured: There are none.
        KeyError: There is no such column: a typo, which is never taken for a missing measurement.
    """
    found = having(frame, **equal)
    if found.empty:
        raise NotMeasured(f"no rows of {', '.join(f'{column} {value}' for column, value in equal.items())}")
    return found


def spread(frame: pd.DataFrame, by: Sequence[str], column: str) -> pd.DataFrame:
    """Median, 5th and 95th percentile of a column over the rounds of each configuration.

    Args:
        frame: One row for each round.
        by: Columns that tell configurations apart.
        column: What was measured.

    Returns:
        The columns of `by`, and `p05`, `median`, `p95`, `rounds`; no rows for no rows.
    """
    groups = frame.groupby(list(by), dropna=False, sort=True)[column]
    if frame.empty:
        return frame[list(by)].assign(p05=np.nan, median=np.nan, p95=np.nan, rounds=0)
    table = groups.quantile([0.05, 0.5, 0.95]).unstack()
    table.columns = ["p05", "median", "p95"]
    return table.assign(rounds=groups.size()).reset_index()


def paired(first: pd.DataFrame, second: pd.DataFrame, column: str) -> Ratio:
    """Median of a column over that of another configuration, with the rounds of one run paired.

    Args:
        first: Rows of one configuration, with `run_id` and `round`.
        second: Rows of another, of the same runs.
        column: What was measured.

    Raises:
        NotMeasured: They have no round in common.
        ValueError: One of them has rows of more than one configuration.
    """
    of = [
        dict(zip(zip(frame["run_id"], frame["round"], strict=True), frame[column], strict=True))
        for frame in (first, second)
    ]
    if len(of[0]) < len(first) or len(of[1]) < len(second):
        raise ValueError(f"{column}: more than one configuration; say which, a round has several rows")
    rounds = sorted(of[0].keys() & of[1].keys())
    if not rounds:
        raise NotMeasured(f"{column}: no round that both were measured in")
    return bootstrap_ratio(*([values[one] for one in rounds] for values in of))


def summarize(values: ArrayLike) -> Summary:
    """Number, median and 5th and 95th percentile of samples.

    Args:
        values: Samples, in any shape.

    Raises:
        ValueError: There are none, or one is not finite.
    """
    samples = _samples("values", values)
    p05, median, p95 = np.quantile(samples, [0.05, 0.5, 0.95])
    return Summary(samples.size, float(p05), float(median), float(p95))


def bootstrap_ratio(a: ArrayLike, b: ArrayLike, *, paired: bool = True, confidence: float = 0.95) -> Ratio:
    """Ratio of the medians of two samples, median(a) / median(b), with a percentile bootstrap interval.

    Args:
        a: Positive samples; of paired ones, sample i was taken in round i.
        b: Positive samples in the same unit.
        paired: Draw whole rounds, so that what the two share (clocks, temperature) cancels.
        confidence: Probability that the interval is to cover the ratio.

    Returns:
        The same for the same samples: the resampling is seeded.

    Raises:
        ValueError: Samples that are not positive and finite, paired ones of different number, or a
            confidence that is no probability.
    """
    first, second = _positive("a", a), _positive("b", b)
    if paired:
        _check_paired(first, second)
    draws, others = _draws(first.size, None if paired else second.size)
    ratios = _medians(first[draws]) / _medians(second[others])
    low, high = _interval(ratios, confidence)
    return Ratio(float(np.median(first) / np.median(second)), low, high)


def measured(samples: ArrayLike) -> Measured:
    """Median of positive samples with a percentile bootstrap interval; errors as `bootstrap_ratio`."""
    samples = np.asarray(samples, dtype=float)
    median = float(np.median(samples))
    interval = bootstrap_ratio(samples, np.full_like(samples, median))
    return Measured(median, interval.low * median, interval.high * median)


@cache
def _draws(first: int, second: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Resampled indices of two samples of these sizes; of paired ones (None) the same for both."""
    rng = np.random.default_rng(SEED)
    draws = rng.integers(first, size=(RESAMPLES, first))
    return draws, draws if second is None else rng.integers(second, size=(RESAMPLES, second))


def _medians(rows: np.ndarray) -> np.ndarray:
    """The median of each row: np.median's, without its checks, which cost more than the few samples of a row."""
    middle = [(rows.shape[1] - 1) // 2, rows.shape[1] // 2]
    return np.partition(rows, middle, axis=1)[:, middle].mean(axis=1)


def crossover(
    x: ArrayLike, a: Sequence[ArrayLike], b: Sequence[ArrayLike], *, confidence: float = 0.95
) -> Crossover:
    """Where B overtakes A and stays ahead: the last change of sign of log(median b / median a).

    Between two points the log ratio is taken to be linear in log x.

    Args:
        x: Positive and increasing, such as bytes in flight per SM; at least two points.
        a: At each x, positive samples of A (throughput), one per round.
        b: At each x, samples of B from the same rounds.
        confidence: Probability that the interval is to cover the crossover.

    Returns:
        The crossover, its interval from resampled rounds, and who leads at the end of the range.

    Raises:
        ValueError: Axes that do not match, or samples `bootstrap_ratio` refuses.
    """
    axis = _positive("x", x)
    if axis.size < 2 or np.any(np.diff(axis) <= 0):
        raise ValueError(f"x is {axis.tolist()}; give at least two increasing values")
    if not len(a) == len(b) == axis.size:
        raise ValueError(
            f"x has {axis.size} values, a {len(a)} and b {len(b)}; give samples of both at each x"
        )
    rng = np.random.default_rng(SEED)
    point, resampled = np.empty(axis.size), np.empty((axis.size, RESAMPLES))
    for at in range(axis.size):
        first, second = _positive(f"a[{at}]", a[at]), _positive(f"b[{at}]", b[at])
        _check_paired(first, second)
        draws = rng.integers(first.size, size=(RESAMPLES, first.size))
        point[at] = np.log(np.median(second) / np.median(first))
        resampled[at] = np.log(np.median(second[draws], axis=1) / np.median(first[draws], axis=1))
    found = _last_rise(np.log2(axis), point)
    low, high = _interval(
        np.exp2([_last_rise(np.log2(axis), lead) for lead in resampled.T]), confidence, method="nearest"
    )
    leader = "b" if point[-1] > 0 else "a" if point[-1] < 0 else None
    return Crossover(float(np.exp2(found)) if np.isfinite(found) else None, low, high, leader)


def _last_rise(axis: NDArray, lead: NDArray) -> float:
    """Where `lead` last rises through zero: -inf if it is above throughout, inf if not above at the end."""
    behind = np.flatnonzero(lead <= 0)
    if behind.size == 0:
        return -np.inf
    at = behind[-1]
    if at == lead.size - 1:
        return np.inf
    share = -lead[at] / (lead[at + 1] - lead[at])
    return float(axis[at] + share * (axis[at + 1] - axis[at]))


def _interval(values: NDArray, confidence: float, method: str = "linear") -> tuple[float, float]:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; give a probability between 0 and 1, such as 0.95")
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail], method=method)
    return float(low), float(high)


def _check_paired(a: NDArray, b: NDArray) -> None:
    if a.size != b.size:
        raise ValueError(f"{a.size} and {b.size} samples are not paired; give one of each per round")


def _positive(name: str, values: ArrayLike) -> NDArray:
    samples = _samples(name, values)
    if samples.min() <= 0:
        raise ValueError(f"{name} holds {samples.min()}; give positive samples")
    return samples


def _samples(name: str, values: ArrayLike) -> NDArray:
    samples = np.asarray(values, dtype=float).ravel()
    if samples.size == 0:
        raise ValueError(f"{name} is empty; give at least one sample")
    if not np.isfinite(samples).all():
        raise ValueError(f"{name} holds {samples[~np.isfinite(samples)][0]}; give finite samples")
    return samples
