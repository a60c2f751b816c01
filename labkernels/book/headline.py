"""The figures that README quotes, per GPU, each with unit, interval and run."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from labkernels.model import validate
from labkernels.store import Store, select
from labkernels.studies.crossover import findings
from labkernels.studies.gemm import findings as gemm_findings
from labkernels.studies.multicast import findings as multicast_findings
from labkernels.studies.paged import findings as paged_findings
from labkernels.studies.stats import SEED, bootstrap_ratio


@dataclass(frozen=True)
class Figure:
    """One figure: its value with an interval, where it was measured and from which run.

    A value of None means that it was not measured on this GPU, or, with a run, that it does not exist there.
    `high` of None beside a `low`: the interval is open upwards.
    """

    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    run_id: str | None = None


#: Value, interval and run of a figure on a GPU; None or a LookupError where it was not measured.
Measure = Callable[[Store, str], tuple[float, float | None, float | None, str] | None]


def _read_gbps(source: str) -> Measure:
    def measure(store: Store, gpu: str) -> tuple[float, float, float, str] | None:
        frame = select.latest_rows(store, "throughput", "throughput", gpu)
        if frame.empty:
            return None
        fastest = findings.best(frame, source)
        rounds = findings.rounds_of(frame, fastest)
        median = float(fastest["gbps_median"])
        interval = bootstrap_ratio(rounds, np.full_like(rounds, median))
        return median, interval.low * median, interval.high * median, fastest["run_id"]

    return measure


def _tma_premium(store: Store, gpu: str) -> tuple[float, float, float, str] | None:
    frame = select.latest_rows(store, "latency", "latency", gpu)
    if frame.empty:
        return None
    tma = findings.latency(frame, "tma_bulk", "try_wait", "l2_near")
    ldg = findings.latency(frame, "ldg", "register nc", "l2_near")
    all_three = [float(tma[q] - ldg[q]) for q in ("cycles_p05", "cycles_median", "cycles_p95")]
    return all_three[1], min(all_three), max(all_three), tma["run_id"]


def _crossover(store: Store, gpu: str) -> tuple[float, float, float | None, str] | None:
    frame = select.latest_rows(store, "throughput", "throughput", gpu)
    if frame.empty:
        return None
    found = findings.overtaking(frame, "hbm", "cp_async", ("tma_bulk", "tma_tile"))
    high = found.high if np.isfinite(found.high) else None
    return found.x, found.low, high, frame["run_id"].iloc[0]


def _of_frame(table: str, figure: Callable[[pd.DataFrame], tuple[float, float, float]]) -> Measure:
    """A figure of the newest run of an experiment that has the name of its table."""

    def measure(store: Store, gpu: str) -> tuple[float, float, float, str] | None:
        frame = select.latest_rows(store, table, table, gpu)
        if frame.empty:
            return None
        return *figure(frame), str(frame["run_id"].iloc[0])

    return measure


def _regret(frame: pd.DataFrame) -> tuple[float, float, float]:
    regret = paged_findings.fa3_rule_regret(frame)
    return regret.mean, 1.0, regret.worst


def _best(
    find: Callable[[pd.DataFrame], gemm_findings.Best],
) -> Callable[[pd.DataFrame], tuple[float, float, float]]:
    def figure(frame: pd.DataFrame) -> tuple[float, float, float]:
        best = find(frame)
        return best.value, best.low, best.high

    return figure


def _of_advisor(name: str) -> Measure:
    """A score over the held-out configurations, with the interval of resampled cells."""

    def measure(store: Store, gpu: str) -> tuple[float, float, float, str]:
        cells = validate.choices(validate.held_out(store, gpu))
        rng = np.random.default_rng(SEED)
        draws = [
            getattr(validate.score(cells.sample(frac=1, replace=True, random_state=rng)), name)
            for _ in range(400)
        ]
        low, high = np.quantile(draws, [0.025, 0.975])
        run_id = select.latest_run(store, "throughput", gpu)
        return getattr(validate.score(cells), name), float(low), float(high), str(run_id)

    return measure


#: Every name that a reader may rely on, in the order of the table.
FIGURES: dict[str, tuple[str, Measure]] = {
    "hbm_read_gbps": ("GB/s", _read_gbps("hbm")),
    "l2_read_gbps": ("GB/s", _read_gbps("l2")),
    "tma_latency_premium_cycles": ("cycles", _tma_premium),
    "crossover_bytes_in_flight_per_sm": ("bytes per SM", _crossover),
    "multicast_fill_bytes_per_clock_per_sm": (
        "B/clk/SM",
        multicast_findings.multicast_fill_bytes_per_clock_per_sm,
    ),
    "multicast_l2_read_ratio": ("ratio", multicast_findings.multicast_l2_read_ratio),
    "dsm_bulk_bytes_per_clock_per_sm": ("B/clk/SM", multicast_findings.dsm_bulk_bytes_per_clock_per_sm),
    "dsm_load_latency_cycles": ("cycles", multicast_findings.dsm_load_latency_cycles),
    "paged_best_over_contiguous": ("ratio", _of_frame("paged", paged_findings.paged_best_over_contiguous)),
    "fa3_rule_regret": ("ratio", _of_frame("fa3", _regret)),
    "wgmma_bf16_tflops": ("TFLOP/s", _of_frame("gemm", _best(gemm_findings.wgmma_bf16_tflops))),
    "gemm_best_over_library": ("ratio", _of_frame("gemm", _best(gemm_findings.gemm_best_over_library))),
    "advisor_agreement": ("ratio", _of_advisor("agreement")),
    "advisor_regret_p95": ("ratio", _of_advisor("regret_p95")),
}


def _figure(measure: Measure, unit: str, store: Store, gpu: str) -> Figure:
    try:
        found = measure(store, gpu)
    except LookupError:  # a quick run leaves out what the figure asks for
        found = None
    if found is None:
        return Figure(None, unit)
    value, low, high, run_id = found
    return Figure(value, unit, low, high, run_id)


def headline(store: Store) -> dict[str, dict[str, Figure]]:
    """All figures by GPU name and figure name; not measured is a value of None, never left out."""
    return {
        gpu: {name: _figure(measure, unit, store, gpu) for name, (unit, measure) in FIGURES.items()}
        for gpu in select.gpus(store)
    }
