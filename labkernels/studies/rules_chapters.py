"""The rules of the chapters on clusters, pages and GEMM, in the form that `labkernels.studies.rules` judges."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.gemm.findings import Rounds, with_kernels
from labkernels.studies.gemm.rules import RULES as GEMM_RULES
from labkernels.studies.multicast import findings as multicast_findings
from labkernels.studies.paged import findings as paged_findings


class Told(NamedTuple):
    """What a store says of a rule: whether it holds, in words, and the run."""

    holds: bool
    sentence: str
    run_id: str


class ChapterRule(NamedTuple):
    """A rule; fields as those of `labkernels.studies.rules.Rule`."""

    id: str
    chapter: str
    operands: str
    choice: str
    statement: str
    tell: Callable[[Store, str], Told | None]


#: Operands a rule speaks of and what it says to take, by the rule's id.
SPEAKS = {
    "gains_from_l2": ("a tile of 32 KiB in L2 that 4 or 8 CTAs need", "multicast"),
    "nothing_at_two": ("a tile that two CTAs need", "each loads it, or multicast: the same"),
    "nothing_from_hbm": ("a tile in HBM that 4 CTAs or more need in step", "each loads it, or multicast"),
    "one_over_fan_out": ("a tile that several CTAs need, L2 traffic scarce", "multicast"),
    "neighbours": ("a tile that neighbouring CTAs need at the same time", "each loads it, side by side"),
    "lag": ("a tile that several CTAs need at different times", "multicast, or keep them in step"),
    "scope": ("a multicast ring's slot handshake", "arrive without release.cluster"),
    "one_arrives": ("a multicast ring's slot handshake", "one lane for each CTA releases a slot"),
    "two_warps": ("small multicast tiles", "two producer and two consumer warps"),
    "short_slices": ("a tile whose slice is under 1 KiB", "one CTA multicasts whole tiles"),
    "second_wave": ("a grid of clusters", "as many clusters as are resident"),
    "few_streams": ("a tile in L2 that 8 CTAs or more need, all SMs at work", "clusters of 8"),
    "multicast_beats_dsm": ("a tile in global memory that 4 CTAs or more need", "multicast, not DSM"),
    "slices_beat_one": ("a tile passed on through DSM", "every CTA pushes its slice"),
    "push_beats_pull": ("a tile passed on through DSM", "push"),
    "computed_pair": ("a tile computed in shared memory, needed by two CTAs", "dsm_bulk"),
    "round_trip": ("a computed tile of 32 KiB that 4 CTAs or more need", "store it, then multicast"),
    "one_way_cap": ("bytes from one CTA to another, one way", "any DSM mechanism"),
    "two_ways": ("bytes between two CTAs, both ways at once", "pushes"),
    "command_size": ("bulk pushes", "2 KiB or more in a command"),
    "reuse": ("a tile that is kept for 4096 cycles or more", "any"),
    "gemm_no_gain": ("A and B of a compute-bound GEMM", "multicast or not: the same"),
    "gemm_order": ("A and B of a GEMM whose tiles come in a bad order", "a swizzle, or a pair along M"),
    "gemm_four": ("A and B of a compute-bound GEMM", "clusters of two at most"),
    "gemm_padding": ("A and B of a GEMM with few tiles", "a swizzle that does not pad the grid"),
    "gemm_empty_side": (
        "A and B of a GEMM, fewer tiles along a side than CTAs",
        "no cluster along that side",
    ),
    "gemm_decode": ("B of a decode GEMM, fewer rows than the tile", "a cluster along N with multicast"),
    "gemm_outside": ("a box that reaches outside its tensor", "tiles that fit the rows"),
    "paged_decode": ("pages of 16 rows or more in decode", "TMA or cp.async"),
    "paged_issue": ("rows copied one by one by TMA", "several issuing warps"),
    "paged_prefill": ("pages of 8 rows or more beside busy tensor cores", "tma_tile, a box for each page"),
    "paged_short": ("pages of 1 to 4 rows beside busy tensor cores", "cp_async"),
    "paged_odd_rows": ("pages that are one run, rows no multiple of 128 bytes", "tma_bulk"),
    "fa3_decode": ("pages that are whole tiles in decode", "tma_tile"),
}


@lru_cache(maxsize=12)  # a run's rows never change
def _rows(store: Store, experiment: str, run_id: str) -> pd.DataFrame:
    return select.rows(store, experiment, [run_id])


def _frames(store: Store, gpu: str, experiments: tuple[str, ...]) -> dict[str, pd.DataFrame]:
    runs = {experiment: select.latest_run(store, experiment, gpu) for experiment in experiments}
    return {name: _rows(store, name, run_id) for name, run_id in runs.items() if run_id}


_MULTICAST = ("multicast", "handshake", "crowding", "cluster_counters", "residency")
_BROADCAST = ("broadcast", "dsm")


class _Asked(dict):
    """Frames by experiment that remember which were asked for."""

    def __init__(self, frames: dict[str, pd.DataFrame]) -> None:
        super().__init__(frames)
        self.runs: list[str] = []

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self:
            raise NotMeasured(f"no rows of {name}")
        frame = super().__getitem__(name)
        self.runs.append(str(frame["run_id"].iloc[0]))
        return frame


def _of_clusters(
    experiments: tuple[str, ...], judge: multicast_findings.Judge
) -> Callable[[Store, str], Told | None]:
    def tell(store: Store, gpu: str) -> Told | None:
        asked = _Asked(_frames(store, gpu, experiments))
        try:
            holds, sentence = judge(asked)
        except NotMeasured:  # no rows, or a quick run without these points
            return None
        return Told(bool(holds), sentence, asked.runs[0])

    return tell


@lru_cache(maxsize=4)
def _paged_rules(store: Store, paged_run: str, fa3_run: str) -> pd.DataFrame:
    return paged_findings.rules(_rows(store, "paged", paged_run), _rows(store, "fa3", fa3_run))


def _of_pages(id: str) -> Callable[[Store, str], Told | None]:
    def tell(store: Store, gpu: str) -> Told | None:
        runs = [select.latest_run(store, name, gpu) for name in ("paged", "fa3")]
        if None in runs:
            return None
        try:
            row = _paged_rules(store, *runs).set_index("id").loc[id]
        except NotMeasured:
            return None
        if row["holds"] is None or pd.isna(row["holds"]):
            return None
        sentence = f"{row['effect']}: {row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        return Told(bool(row["holds"]), sentence, runs[id == "fa3_decode"])

    return tell


@lru_cache(maxsize=2)
def _gemm_rounds(store: Store, run_id: str) -> Rounds:
    return Rounds(with_kernels(_rows(store, "gemm", run_id)))


def _of_gemm(judge: Callable[[Rounds], tuple[bool, str]]) -> Callable[[Store, str], Told | None]:
    def tell(store: Store, gpu: str) -> Told | None:
        run_id = select.latest_run(store, "gemm", gpu)
        if run_id is None:
            return None
        try:
            holds, sentence = judge(_gemm_rounds(store, run_id))
        except NotMeasured:
            return None
        return Told(bool(holds), sentence, run_id)

    return tell


def chapter_rules() -> Iterator[ChapterRule]:
    """Every rule of these chapters, under the name of the function that judges it; `gemm_` before GEMM's."""

    def rule(id: str, chapter: str, statement: str, tell: Callable[[Store, str], Told | None]) -> ChapterRule:
        return ChapterRule(id, chapter, *SPEAKS[id], statement, tell)

    for chapter, experiments, rules in (
        ("multicast", _MULTICAST, multicast_findings.MULTICAST_RULES),
        ("broadcast", _BROADCAST, multicast_findings.BROADCAST_RULES),
    ):
        for statement, judge in rules:
            yield rule(judge.__name__.lstrip("_"), chapter, statement, _of_clusters(experiments, judge))
    for id, statement in paged_findings.STATEMENTS.items():
        yield rule(id, "paged", statement, _of_pages(id))
    for statement, judge in GEMM_RULES:
        yield rule(f"gemm{judge.__name__}", "gemm", statement, _of_gemm(judge))
