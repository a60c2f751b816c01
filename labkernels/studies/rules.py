"""Rules of thumb as executable checks over the stored rows of one GPU."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.operand import KIB
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.crossover import findings
from labkernels.studies.latency import findings as latency_findings
from labkernels.studies.rules_chapters import Told, chapter_rules

TMA = ("tma_bulk", "tma_tile")


@dataclass(frozen=True)
class Rule:
    """One rule of thumb.

    Attributes:
        id: stable name.
        chapter: file name of the chapter that shows its evidence, without the ending.
        operands: the operands it speaks of.
        choice: what to do with them.
        statement: the rule as a sentence.
        evidence: takes a store and a GPU's name; None where that GPU has no rows for it.
    """

    id: str
    chapter: str
    operands: str
    choice: str
    statement: str
    evidence: Callable[[Store, str], Told | None]


@dataclass(frozen=True)
class Verdict:
    """A rule judged on one GPU: `holds`, `does not hold` or `not measured`."""

    rule: Rule
    gpu: str
    outcome: str
    sentence: str
    run_id: str | None


def judge(
    store: Store, gpu: str, chapter: str | None = None, ids: Collection[str] | None = None
) -> list[Verdict]:
    """Judge every rule, or those of one chapter or with the given ids, on a GPU's newest rows."""
    return [
        _judge(rule, store, gpu)
        for rule in RULES
        if chapter in (None, rule.chapter) and (ids is None or rule.id in ids)
    ]


def _judge(rule: Rule, store: Store, gpu: str) -> Verdict:
    found = rule.evidence(store, gpu)
    if found is None:
        return Verdict(rule, gpu, "not measured", "", None)
    outcome = "holds" if found.holds else "does not hold"
    return Verdict(rule, gpu, outcome, found.sentence, found.run_id)


def _over(experiment: str) -> Callable[[Callable[[pd.DataFrame], tuple[bool, str]]], Callable]:
    """Turn a check of one experiment's rows into evidence on a store."""

    def wrap(check: Callable[[pd.DataFrame], tuple[bool, str]]) -> Callable[[Store, str], Told | None]:
        def evidence(store: Store, gpu: str) -> Told | None:
            frame = select.latest_rows(store, experiment, gpu)
            if frame.empty:
                return None
            try:
                holds, sentence = check(frame)
            except NotMeasured:  # a quick run leaves out points that the rule asks for
                return None
            return Told(holds, sentence, str(frame["run_id"].iloc[0]))

        return evidence

    return wrap


@_over("throughput")
def _enough_in_flight(frame: pd.DataFrame) -> tuple[bool, str]:
    best = findings.best_by_bytes_in_flight(frame[frame["source"].eq("hbm")])
    at = best[best["bytes_in_flight_per_sm"].eq(64 * KIB)]["median"].max()
    share = at / best["median"].max()
    half = best[best["bytes_in_flight_per_sm"].eq(16 * KIB)]["median"].max() / best["median"].max()
    return share >= 0.98, f"64 KiB reach {100 * share:.0f} % of the best HBM read, 16 KiB {100 * half:.0f} %."


@_over("throughput")
def _cp_async_with_little_in_flight(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = [findings.compare(frame, "hbm", "tma_tile", "cp_async", n * KIB) for n in (4, 8, 16)]
    gains = ", ".join(f"{100 * (1 / r.ratio - 1):.0f} %" for r in ratios)
    return all(r.high < 1 for r in ratios), f"cp.async is ahead by {gains} at 4, 8 and 16 KiB."


@_over("throughput")
def _no_difference_beyond(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = [findings.compare(frame, "hbm", "tma_tile", "cp_async", n * KIB) for n in (64, 128)]
    shown = " and ".join(f"{r.ratio:.3f} [{r.low:.3f}, {r.high:.3f}]" for r in ratios)
    return not any(r.differs for r in ratios), f"TMA over cp.async from HBM at 64 and 128 KiB: {shown}."


@_over("throughput")
def _registers_stay_behind(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = {
        (source, n): findings.compare(frame, source, "cp_async", "ldg", n * KIB)
        for source in ("hbm", "l2")
        for n in (4, 8, 16, 32, 64, 128)
    }
    low, high = min(r.ratio for r in ratios.values()), max(r.ratio for r in ratios.values())
    sentence = (
        f"cp.async is ahead by {100 * (low - 1):.0f} to {100 * (high - 1):.0f} % from 4 to 128 KiB in flight."
    )
    return all(r.low > 1 for r in ratios.values()), sentence


@_over("latency")
def _no_premium_into_shared_memory(frame: pd.DataFrame) -> tuple[bool, str]:
    places = ("l2_near", "hbm")
    tma = [
        latency_findings.latency(frame, "tma_bulk", "try_wait", place)["cycles_median"] for place in places
    ]
    ldg = [latency_findings.latency(frame, "ldg", "shared nc", place)["cycles_median"] for place in places]
    apart = [a - b for a, b in zip(tma, ldg, strict=True)]
    shown = ", ".join(f"{gap:+.0f}" for gap in apart)
    return max(apart) <= 10, f"16 bytes, TMA minus load and store: {shown} cycles from L2 and HBM."


@_over("issue")
def _issue_pays_from(frame: pd.DataFrame) -> tuple[bool, str]:
    copy = latency_findings.issue_slope_cycles(frame, "tma_tile", 1024)
    warp = latency_findings.issue_slope_cycles(frame, "cp_async", 512)
    equal = 512 * copy / warp
    return equal <= 2 * KIB, (
        f"A TMA copy of any size takes {copy:.0f} cycles of one thread, 512 bytes of cp.async {warp:.0f} of a warp: "
        f"even at {equal:,.0f} bytes."
    )


@_over("latency")
def _descriptor_is_fetched_first(frame: pd.DataFrame) -> tuple[bool, str]:
    gaps = {
        place: latency_findings.latency(frame, "tma_tile", "2d", place, protocol="first")["cycles_median"]
        - latency_findings.latency(frame, "tma_tile", "2d", place)["cycles_median"]
        for place in ("l2_near", "hbm")
    }
    return gaps["l2_near"] > 100, (
        f"The first tensor copy of a launch takes {gaps['l2_near']:.0f} cycles longer with its descriptor in L2, "
        f"{gaps['hbm']:.0f} with it in HBM."
    )


def _promotion(frame: pd.DataFrame, inner_bytes: int, promotion_bytes: int) -> float:
    rows = frame[
        frame["source"].eq("hbm")
        & frame["mechanism"].eq("tma_tile")
        & frame["swizzle"].eq("none")
        & frame["inner_bytes"].eq(inner_bytes)
        & frame["pitch_bytes"].eq(inner_bytes)
    ]
    by_promotion = rows.groupby("l2_promotion_bytes")["gbps"].median()
    return float(by_promotion[promotion_bytes] / by_promotion[0])


@_over("row_shape")
def _promote_short_rows(frame: pd.DataFrame) -> tuple[bool, str]:
    short, long = _promotion(frame, 64, 128), _promotion(frame, 128, 256)
    return short > 1.1 and long < 1, (
        f"128 B promotion makes rows of 64 bytes {100 * (short - 1):.0f} % faster from HBM; "
        f"256 B makes rows of 128 bytes {100 * (1 - long):.0f} % slower."
    )


RULES = (
    Rule(
        "enough_in_flight",
        "crossover",
        "any tile from HBM",
        "an asynchronous copy, 64 KiB in flight per SM",
        "Keep 64 KiB in flight per SM; more brings nothing.",
        _enough_in_flight,
    ),
    Rule(
        "cp_async_with_little_in_flight",
        "crossover",
        "16 KiB or less in flight per SM",
        "cp.async",
        "With little in flight, cp.async beats a TMA ring: its turn is shorter.",
        _cp_async_with_little_in_flight,
    ),
    Rule(
        "no_difference_beyond_64_kib",
        "crossover",
        "64 KiB or more in flight per SM",
        "TMA: the same speed from one thread",
        "From 64 KiB in flight on, the mechanism does not matter for bandwidth.",
        _no_difference_beyond,
    ),
    Rule(
        "registers_stay_behind",
        "crossover",
        "data that shared memory needs",
        "never through registers",
        "Do not load through registers what shared memory needs.",
        _registers_stay_behind,
    ),
    Rule(
        "promote_short_rows",
        "crossover",
        "TMA tiles with rows under 128 bytes, from HBM",
        "a tensor map with L2 promotion 128 B",
        "Promote short rows to 128 bytes, and no further.",
        _promote_short_rows,
    ),
    Rule(
        "no_premium_into_shared_memory",
        "latency",
        "one transfer that somebody waits for",
        "any; TMA costs no latency into shared memory",
        "TMA adds no latency to data that has to be in shared memory.",
        _no_premium_into_shared_memory,
    ),
    Rule(
        "issue_pays_from_2_kib",
        "latency",
        "tiles of 2 KiB and more, issue slots scarce",
        "TMA",
        "From 2 KiB a copy, TMA takes fewer issue cycles than cp.async.",
        _issue_pays_from,
    ),
    Rule(
        "descriptor_is_fetched_first",
        "latency",
        "a tensor copied once in a launch",
        "TMA with the descriptor prefetched, or cp.async.bulk",
        "Prefetch the tensor map: the first copy waits for it.",
        _descriptor_is_fetched_first,
    ),
    *(Rule(*rule) for rule in chapter_rules()),
)
