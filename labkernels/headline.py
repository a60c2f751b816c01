"""The figures that README and introduction quote, per GPU, each with unit, interval and run."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkernels import findings, selection
from labkernels.stats import bootstrap_ratio
from labkernels.store import Store


@dataclass(frozen=True)
class Figure:
    """One figure: its value with an interval, where it was measured and from which run.

    A value of None means that it was not measured on this GPU, or, with a run, that it does not exist there.
    """

    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    run_id: str | None = None


Measure = Callable[[Store, str], Figure | None]


def _read_gbps(source: str) -> Measure:
    def measure(store: Store, gpu: str) -> Figure | None:
        frame = selection.latest_rows(store, "throughput", "throughput", gpu)
        if frame.empty:
            return None
        fastest = findings.best(frame, source)
        rounds = findings.rounds_of(frame, fastest)
        median = float(fastest["gbps_median"])
        interval = bootstrap_ratio(rounds, np.full_like(rounds, median))
        return Figure(median, "GB/s", interval.low * median, interval.high * median, fastest["run_id"])

    return measure


def _tma_premium(store: Store, gpu: str) -> Figure | None:
    frame = selection.latest_rows(store, "latency", "latency", gpu)
    if frame.empty:
        return None
    tma = findings.latency(frame, "tma_bulk", "try_wait", "l2_near")
    ldg = findings.latency(frame, "ldg", "register nc", "l2_near")
    low, median, high = (float(tma[q] - ldg[q]) for q in ("cycles_p05", "cycles_median", "cycles_p95"))
    return Figure(median, "cycles", min(low, high), max(low, high), tma["run_id"])


def _crossover(store: Store, gpu: str) -> Figure | None:
    frame = selection.latest_rows(store, "throughput", "throughput", gpu)
    if frame.empty:
        return None
    found = findings.overtaking(frame, "hbm", "cp_async", ("tma_bulk", "tma_tile"))
    return Figure(found.x, "bytes per SM", found.low, found.high, frame["run_id"].iloc[0])


#: Every name that a reader may rely on, in the order of the table; None where nothing measures it yet.
FIGURES: dict[str, tuple[str, Measure | None]] = {
    "hbm_read_gbps": ("GB/s", _read_gbps("hbm")),
    "l2_read_gbps": ("GB/s", _read_gbps("l2")),
    "tma_latency_premium_cycles": ("cycles", _tma_premium),
    "crossover_bytes_in_flight_per_sm": ("bytes per SM", _crossover),
    "multicast_fill_bytes_per_clock_per_sm": ("B/clk/SM", None),
    "multicast_l2_read_ratio": ("ratio", None),
    "dsm_bulk_bytes_per_clock_per_sm": ("B/clk/SM", None),
    "dsm_load_latency_cycles": ("cycles", None),
    "paged_best_over_contiguous": ("ratio", None),
    "fa3_rule_regret": ("ratio", None),
    "wgmma_bf16_tflops": ("TFLOP/s", None),
    "gemm_best_over_library": ("ratio", None),
    "advisor_agreement": ("ratio", None),
    "advisor_regret_p95": ("ratio", None),
}


def _figure(measure: Measure, unit: str, store: Store, gpu: str) -> Figure:
    try:
        return measure(store, gpu) or Figure(None, unit)
    except LookupError:  # a quick run leaves out what the figure asks for
        return Figure(None, unit)


def headline(store: Store) -> dict[str, dict[str, Figure]]:
    """All figures by GPU name and figure name; not measured is a value of None, never left out."""
    return {
        gpu: {
            name: _figure(measure, unit, store, gpu) if measure else Figure(None, unit)
            for name, (unit, measure) in FIGURES.items()
        }
        for gpu in selection.gpus(store)
    }
