"""Quantiles, ratios and crossovers against cases whose answer is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkernels.studies import stats

positive = st.floats(1e-3, 1e6)
samples = st.lists(positive, min_size=1, max_size=30)
SIZES = 2.0 ** np.arange(10, 18)


@given(samples)
def test_summary_orders_its_quantiles_within_the_samples(values):
    summary = stats.summarize(values)
    assert summary.n == len(values)
    assert min(values) <= summary.p05 <= summary.median <= summary.p95 <= max(values)
    assert summary.median == pytest.approx(np.median(values))


@pytest.mark.parametrize("values, message", [([], "empty"), ([1.0, math.nan], "nan"), ([math.inf], "inf")])
def test_summary_refuses_what_has_no_quantiles(values, message):
    with pytest.raises(ValueError, match=message):
        stats.summarize(values)


@settings(max_examples=30, deadline=None)
@given(samples, st.floats(0.1, 10))
def test_a_ratio_that_is_the_same_in_every_round_has_no_spread(rounds, factor):
    b = np.array(rounds)
    ratio, low, high = stats.bootstrap_ratio(factor * b, b)
    assert (ratio, low, high) == pytest.approx((factor,) * 3)


@settings(max_examples=30, deadline=None)
@given(samples, samples, positive)
def test_ratio_is_free_of_the_unit_and_inside_its_interval(a, b, unit):
    first = stats.bootstrap_ratio(a, b, paired=False)
    again = stats.bootstrap_ratio(unit * np.array(a), unit * np.array(b), paired=False)
    assert first == pytest.approx(again)
    assert first.low <= first.high
    assert first.ratio == pytest.approx(np.median(a) / np.median(b))


def test_interval_covers_the_true_ratio_about_as_often_as_it_says():
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        drift = rng.normal(1, 0.05, 9)
        a, b = 1.1 * drift * rng.normal(1, 0.01, 9), drift * rng.normal(1, 0.01, 9)
        interval = stats.bootstrap_ratio(a, b)
        covered += interval.low <= 1.1 <= interval.high
    assert covered / 200 >= 0.9


def test_pairing_takes_out_what_both_share():
    rng = np.random.default_rng(3)
    drift = rng.normal(1, 0.1, 15)
    a, b = 1.05 * drift * rng.normal(1, 0.002, 15), drift
    assert stats.bootstrap_ratio(a, b).differs
    assert not stats.bootstrap_ratio(a, b, paired=False).differs
    assert not stats.bootstrap_ratio(a, a).differs


@pytest.mark.parametrize(
    "a, b, options, message",
    [
        ([1, 2], [1], {}, "2 and 1 samples are not paired"),
        ([1, 0], [1, 1], {}, "a holds 0"),
        ([1], [-2], {}, "b holds -2"),
        ([1], [1], {"confidence": 95}, "confidence is 95"),
    ],
)
def test_ratio_names_bad_input(a, b, options, message):
    with pytest.raises(ValueError, match=message):
        stats.bootstrap_ratio(a, b, **options)


@settings(max_examples=15, deadline=None)
@given(st.floats(10.1, 16.9), st.floats(0.05, 2))
def test_crossover_of_power_laws_is_exact(where, slope):
    """log(b / a) is linear in log x, so interpolation has no error."""
    a = [np.full(5, 100.0)] * SIZES.size
    b = [np.full(5, 100 * (x / 2**where) ** slope) for x in SIZES]
    found = stats.crossover(SIZES, a, b)
    assert (found.x, found.low, found.high) == pytest.approx((2**where,) * 3)
    assert found.leader == "b"


def test_crossover_interval_covers_the_truth_under_noise():
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(40):
        a = [100 * rng.normal(1, 0.01, 9) for _ in SIZES]
        b = [100 * (x / 2**14.3) ** 0.1 * rng.normal(1, 0.01, 9) for x in SIZES]
        found = stats.crossover(SIZES, a, b)
        assert found.low <= found.x <= found.high
        covered += found.low <= 2**14.3 <= found.high
    assert covered >= 35


def _flat(values):
    return [np.full(3, value) for value in values]


def test_only_the_last_overtaking_counts():
    found = stats.crossover([1, 2, 4, 8, 16], _flat([2.0] * 5), _flat([1.0, 4.0, 1.0, 4.0, 4.0]))
    assert found.x == pytest.approx(2**2.5)


@pytest.mark.parametrize(
    "b, expected",
    [
        ([3.0, 3.0, 3.0], (None, 0, 0, "b")),
        ([1.0, 1.0, 1.0], (None, math.inf, math.inf, "a")),
        ([1.0, 3.0, 1.0], (None, math.inf, math.inf, "a")),
        ([2.0, 2.0, 2.0], (None, math.inf, math.inf, None)),
        ([1.0, 2.0, 3.0], (2, 2, 2, "b")),
    ],
)
def test_without_a_lasting_overtaking_there_is_no_crossover(b, expected):
    assert stats.crossover([1, 2, 4], _flat([2.0] * 3), _flat(b)) == expected


def test_interval_is_open_where_the_leader_at_the_end_is_unsure():
    a = [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    b = [[0.5, 0.5, 0.5], [0.9, 1.1, 1.2]]
    found = stats.crossover([1024, 2048], a, b)
    assert 1024 < found.low <= found.x < 2048
    assert found.high == math.inf


@pytest.mark.parametrize(
    "x, a, b, message",
    [
        ([1], [[1]], [[1]], "at least two"),
        ([2, 1], [[1]] * 2, [[1]] * 2, "increasing"),
        ([0, 1], [[1]] * 2, [[1]] * 2, "x holds 0"),
        ([1, 2], [[1]], [[1]] * 2, "a 1 and b 2"),
        ([1, 2], [[1], [1, 2]], [[1], [1]], "2 and 1 samples"),
        ([1, 2], [[1], [0]], [[1], [1]], r"a\[1\] holds 0"),
    ],
)
def test_crossover_names_bad_input(x, a, b, message):
    with pytest.raises(ValueError, match=message):
        stats.crossover(x, a, b)
