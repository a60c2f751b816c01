"""The figures that README quotes, per GPU, each with unit, interval and run."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.model import kernel_pairs
from labkernels.model.choosing import ADVISOR
from labkernels.model.configurations import LOADS, frames, left_out
from labkernels.operand import KIB
from labkernels.protocols.experiment import Progress, silent
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.broadcast import findings as broadcast
from labkernels.studies.cards import over_cards, runs_by_card
from labkernels.studies.crossover import findings as crossover
from labkernels.studies.crossover import prices
from labkernels.studies.gemm import findings as gemm
from labkernels.studies.gemm import pair_findings as pairs
from labkernels.studies.kernel import mainloop_findings
from labkernels.studies.kernel import triton_findings as triton
from labkernels.studies.l2 import findings as l2
from labkernels.studies.latency import findings as latency
from labkernels.studies.multicast import findings as multicast
from labkernels.studies.multicast import whole_gpu
from labkernels.studies.paged import findings as paged
from labkernels.studies.stats import Measured, having, measured
from labkernels.studies.stores import findings as stores


@dataclass(frozen=True)
class Figure:
    """One figure: its value with an interval, where it was measured and from which run.

    A value of None means that it was not measured on this GPU, or, with a run, that it does not exist there.
    `high` of None beside a `low`: the interval is open upwards. `note` says which rows are missing, or what was
    measured and is not in the figure. The interval is over the rounds, or cells, of one run on one card; `cards` is on
    how many cards it was measured with one preset, `cards_low` and `cards_high` the plain range over them.
    """

    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    run_id: str | None = None
    note: str = ""
    cards: int | None = None
    cards_low: float | None = None
    cards_high: float | None = None


def _read_gbps(source: str) -> Callable[[pd.DataFrame], Measured]:
    return lambda frame: measured(crossover.rounds_of(frame, crossover.best(frame, source))["gbps"])


def _tma_premium(frame: pd.DataFrame) -> tuple[float, float, float]:
    tma = latency.latency(frame, "tma_bulk", "try_wait", "l2_near")
    ldg = latency.latency(frame, "ldg", "register nc", "l2_near")
    all_three = [float(tma[q] - ldg[q]) for q in ("cycles_p05", "cycles_median", "cycles_p95")]
    return all_three[1], min(all_three), max(all_three)


def _from_l2(**equal: object) -> Callable[[pd.DataFrame], tuple[float, float, float]]:
    return lambda frame: (prices.from_l2_itself(frame, **equal),) * 3


def _within_a_poll(
    find: Callable[[pd.DataFrame], float],
) -> Callable[[pd.DataFrame], tuple[float, float, float]]:
    """Between two polls of a barrier the clock does not see: the interval is that grain."""

    def found(frame: pd.DataFrame) -> tuple[float, float, float]:
        value = find(frame)
        return value, value - latency.POLL_CYCLES, value + latency.POLL_CYCLES

    return found


def _crossover(frame: pd.DataFrame) -> tuple[float | None, float | None, float | None, str]:
    found = prices.overtaking(frame, "hbm")
    if found.x is None:
        return (
            None,
            None,
            None,
            "TMA never leads by more than 1%" if found.leader == "a" else "TMA leads throughout",
        )
    return found.x, found.low, found.high if np.isfinite(found.high) else None, ""


def _regret(frame: pd.DataFrame) -> tuple[float, float, float]:
    regret = paged.fa3_rule_regret(frame)
    return regret.mean, 1.0, regret.worst


#: Unit of each figure, the experiment it is of, and from that experiment's rows value, interval and, of some, a note.
OF_ROWS: dict[str, tuple[str, str, Callable[[pd.DataFrame], tuple]]] = {
    "hbm_read_gbps": ("GB/s", "throughput", _read_gbps("hbm")),
    "l2_read_gbps": ("GB/s", "throughput", _read_gbps("l2")),
    "l2_read_share_from_l2": ("ratio", "stream_counters", _from_l2()),
    "ldg_hbm_read_gbps_at_32_kib": ("GB/s", "plain_loads", lambda frame: prices.plain_loads(frame, "hbm")),
    "ldg_l2_read_gbps_at_32_kib": ("GB/s", "plain_loads", lambda frame: prices.plain_loads(frame, "l2")),
    "ldg_l2_read_share_from_l2": (
        "ratio", "pipeline_counters", _from_l2(mechanism="ldg", bytes_in_flight_per_sm=32 * KIB),
    ),
    "tma_over_cp_async_same_pipeline": (
        "ratio", "pipelines", lambda frame: prices.over_cells(prices.same_pipeline(frame, "hbm")),
    ),
    "tma_over_cp_async_equal_shared_bytes": (
        "ratio", "pipelines", lambda frame: prices.over_cells(prices.at_equal(frame, "hbm", prices.SHARED)),
    ),
    "tma_latency_premium_cycles": ("cycles", "latency", _tma_premium),
    "crossover_bytes_in_flight_per_sm": ("bytes per SM", "pipelines", _crossover),
    "multicast_fill_bytes_per_clock_per_sm": (
        "B/clk/SM", "multicast", multicast.multicast_fill_bytes_per_clock_per_sm,
    ),
    "multicast_l2_read_ratio": ("ratio", "cluster_counters", multicast.multicast_l2_read_ratio),
    "multicast_over_unclustered_whole_gpu": (
        "ratio", "multicast_fair", whole_gpu.multicast_over_unclustered_whole_gpu,
    ),
    "dsm_bulk_bytes_per_clock_per_sm": ("B/clk/SM", "dsm", broadcast.dsm_bulk_bytes_per_clock_per_sm),
    "dsm_load_latency_cycles": ("cycles", "cluster_latency", broadcast.dsm_load_latency_cycles),
    "paged_best_over_contiguous": ("ratio", "paged", paged.paged_best_over_contiguous),
    "tma_store_over_st_global_hbm": ("ratio", "stores", stores.tma_store_over_st_global_hbm),
    "launch_to_first_byte_us": ("us", "short_kernels", crossover.launch_to_first_byte_us),
    "l2_prefetch_gain_best": ("ratio", "l2_prefetch", l2.l2_prefetch_gain_best),
    "descriptor_cold_cycles": ("cycles", "descriptors", _within_a_poll(latency.descriptor_cold_cycles)),
    "descriptor_replace_cycles": ("cycles", "descriptors", _within_a_poll(latency.descriptor_replace_cycles)),
    "fa3_rule_regret": ("ratio", "fa3", _regret),
    "wgmma_bf16_tflops": ("TFLOP/s", "gemm", gemm.wgmma_bf16_tflops),
    "gemm_best_over_library": ("ratio", "gemm", gemm.gemm_best_over_library),
    "gemm_tma_over_cp_async_pingpong": ("ratio", "gemm_loads", pairs.gemm_tma_over_cp_async(pairs.PINGPONG)),
    "gemm_tma_over_cp_async_cooperative": (
        "ratio", "gemm_loads", pairs.gemm_tma_over_cp_async(pairs.COOPERATIVE),
    ),
    "gemm_tma_over_cp_async_past_l1_pingpong": (
        "ratio", "gemm_loads", pairs.gemm_tma_over_cp_async(pairs.PINGPONG, "cp_async_bypass"),
    ),
    "gemm_tma_over_cp_async_past_l1_cooperative": (
        "ratio", "gemm_loads", pairs.gemm_tma_over_cp_async(pairs.COOPERATIVE, "cp_async_bypass"),
    ),
    "gemm_tma_store_over_direct_store": ("ratio", "gemm_loads", pairs.gemm_tma_store_over_direct_store),
    "triton_gemm_tma_over_pointers": ("ratio", "triton_loads", triton.triton_gemm_tma_over_pointers),
    "wgmma_beside_tma": ("ratio", "mainloop", mainloop_findings.wgmma_beside("tma_tile")),
    "wgmma_beside_cp_async": ("ratio", "mainloop", mainloop_findings.wgmma_beside("cp_async")),
}  # fmt: skip

#: Figures that are scores of the advisor, the worst over all splits, and which is the worst.
OF_ADVISOR = {"advisor_agreement": ("agreement", "idxmin"), "advisor_regret_p95": ("regret_p95", "idxmax")}

PAIRS = "kernel_advice_error_p90"

#: Every name that a reader may rely on, in the order of the table, with its unit.
FIGURES = (
    {name: unit for name, (unit, _, _) in OF_ROWS.items()}
    | dict.fromkeys((*OF_ADVISOR, PAIRS), "ratio")
    | {"cards": "cards"}
)


def quoted(store: Store, gpu: str, name: str) -> Figure:
    """One figure of a run on one card, for a sentence; a value of None where it was not measured."""
    unit, experiment, find = OF_ROWS[name]
    try:
        frame = select.require_rows(store, experiment, gpu)
        value, low, high, *note = find(frame)
    except NotMeasured as missing:
        return Figure(None, unit, note=str(missing))
    return Figure(value, unit, low, high, str(frame["run_id"].iloc[0]), *note)


def _of_rows(store: Store, gpu: str, name: str, by_card: dict[str, set[str]]) -> Figure:
    figure = quoted(store, gpu, name)
    if figure.value is None:
        return figure
    _, experiment, find = OF_ROWS[name]
    over = over_cards(store, experiment, lambda rows: find(rows)[0], figure.run_id, figure.value, by_card)
    return replace(figure, cards=over.cards, cards_low=over.low, cards_high=over.high)


def _of_advisor(store: Store, gpu: str) -> dict[str, Figure]:
    """Scores on what was left out of the fit, of the worst split, with the interval of resampled cells."""
    scores = having(store.read("splits"), gpu=gpu, policy=ADVISOR).reset_index(drop=True)
    try:
        rows = frames(store, gpu, LOADS)
    except NotMeasured as missing:
        return {name: Figure(None, "ratio", note=str(missing)) for name in OF_ADVISOR}
    if scores.empty:
        missing = f"no scores of {gpu}: run python -m labkernels fit"
        return {name: Figure(None, "ratio", note=missing) for name in OF_ADVISOR}
    run_id, without = str(rows["pipelines"]["run_id"].iloc[0]), ", ".join(left_out(rows))
    found = {}
    for name, (field, worst) in OF_ADVISOR.items():
        one = scores.loc[getattr(scores[field], worst)()]
        note = f"of the worst of {len(scores)} splits, {one['split']} left out"
        note += f", without {without}" if without else ""
        found[name] = Figure(one[field], "ratio", one[f"{field}_low"], one[f"{field}_high"], run_id, note)
    return found


def _of_pairs(store: Store, gpu: str) -> Figure:
    """How far the prediction for a kernel is off, over pairs of real kernels."""
    try:
        table = kernel_pairs.pairs(store, gpu)
        run_id = select.latest_run(store, "mainloop", gpu)
    except NotMeasured as missing:
        return Figure(None, "ratio", note=str(missing))
    near = table["error"].abs().le(kernel_pairs.NEAR).mean()
    note = f"over {len(table)} pairs of real kernels, {near:.0%} within {kernel_pairs.NEAR:.0%}"
    value, low, high = kernel_pairs.error_p90(table)
    return Figure(value, "ratio", low, high, run_id, note)


def headline(store: Store, progress: Progress = silent) -> dict[str, dict[str, Figure]]:
    """All figures by GPU name and figure name; not measured is a value of None, never left out.

    Raises:
        NotMeasured: the store has no run at all.
    """

    def of(gpu: str) -> dict[str, Figure]:
        by_card = runs_by_card(store, gpu)
        figures = {name: _of_rows(store, gpu, name, by_card) for name in progress(OF_ROWS, gpu)}
        figures |= _of_advisor(store, gpu) | {PAIRS: _of_pairs(store, gpu)}
        return figures | {"cards": Figure(len(by_card), "cards")}

    return {gpu: of(gpu) for gpu in select.require_gpus(store)}
