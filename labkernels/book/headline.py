"""The figures that README quotes, per GPU, each with unit, interval and run."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.model import validate
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.broadcast import findings as broadcast
from labkernels.studies.crossover import findings as crossover
from labkernels.studies.gemm import findings as gemm
from labkernels.studies.latency import findings as latency
from labkernels.studies.multicast import findings as multicast
from labkernels.studies.paged import findings as paged
from labkernels.studies.stats import SEED, Measured, measured


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


#: Value, interval and run of a figure on a GPU; NotMeasured where there are no rows for it.
Measure = Callable[[Store, str], tuple[float | None, float | None, float | None, str]]


def _of(experiment: str, find: Callable[[pd.DataFrame], tuple[float | None, float, float | None]]) -> Measure:
    """A figure of the newest run of an experiment."""

    def measure(store: Store, gpu: str) -> tuple[float | None, float, float | None, str]:
        frame = select.require_rows(store, experiment, gpu)
        return *find(frame), str(frame["run_id"].iloc[0])

    return measure


def _read_gbps(source: str) -> Measure:
    def find(frame: pd.DataFrame) -> Measured:
        return measured(crossover.rounds_of(frame, crossover.best(frame, source))["gbps"])

    return _of("throughput", find)


def _tma_premium(frame: pd.DataFrame) -> tuple[float, float, float]:
    tma = latency.latency(frame, "tma_bulk", "try_wait", "l2_near")
    ldg = latency.latency(frame, "ldg", "register nc", "l2_near")
    all_three = [float(tma[q] - ldg[q]) for q in ("cycles_p05", "cycles_median", "cycles_p95")]
    return all_three[1], min(all_three), max(all_three)


def _crossover(frame: pd.DataFrame) -> tuple[float | None, float, float | None]:
    found = crossover.overtaking(frame, "hbm", "cp_async", ("tma_bulk", "tma_tile"))
    return found.x, found.low, found.high if np.isfinite(found.high) else None


def _regret(frame: pd.DataFrame) -> tuple[float, float, float]:
    regret = paged.fa3_rule_regret(frame)
    return regret.mean, 1.0, regret.worst


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
    "tma_latency_premium_cycles": ("cycles", _of("latency", _tma_premium)),
    "crossover_bytes_in_flight_per_sm": ("bytes per SM", _of("throughput", _crossover)),
    "multicast_fill_bytes_per_clock_per_sm": (
        "B/clk/SM",
        _of("multicast", multicast.multicast_fill_bytes_per_clock_per_sm),
    ),
    "multicast_l2_read_ratio": (
        "ratio",
        _of("cluster_counters", multicast.multicast_l2_read_ratio),
    ),
    "dsm_bulk_bytes_per_clock_per_sm": (
        "B/clk/SM",
        _of("dsm", broadcast.dsm_bulk_bytes_per_clock_per_sm),
    ),
    "dsm_load_latency_cycles": (
        "cycles",
        _of("cluster_latency", broadcast.dsm_load_latency_cycles),
    ),
    "paged_best_over_contiguous": ("ratio", _of("paged", paged.paged_best_over_contiguous)),
    "fa3_rule_regret": ("ratio", _of("fa3", _regret)),
    "wgmma_bf16_tflops": ("TFLOP/s", _of("gemm", gemm.wgmma_bf16_tflops)),
    "gemm_best_over_library": ("ratio", _of("gemm", gemm.gemm_best_over_library)),
    "advisor_agreement": ("ratio", _of_advisor("agreement")),
    "advisor_regret_p95": ("ratio", _of_advisor("regret_p95")),
}


def _figure(measure: Measure, unit: str, store: Store, gpu: str) -> Figure:
    try:
        value, low, high, run_id = measure(store, gpu)
    except NotMeasured:
        return Figure(None, unit)
    return Figure(value, unit, low, high, run_id)


def headline(store: Store) -> dict[str, dict[str, Figure]]:
    """All figures by GPU name and figure name; not measured is a value of None, never left out."""
    return {
        gpu: {name: _figure(measure, unit, store, gpu) for name, (unit, measure) in FIGURES.items()}
        for gpu in select.gpus(store)
    }
