"""What other cards of the same name say: the cells that two runs share, and figures and rules on each card."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pandas as pd

from labkernels.device.counters import MEMORY_PATH
from labkernels.errors import NotMeasured
from labkernels.protocols.counted import STREAM_COUNTERS
from labkernels.store import RUNS, Store
from labkernels.store.provenance import kernels_unchanged
from labkernels.studies import select
from labkernels.studies.experiments import experiment as named
from labkernels.studies.experiments import studies
from labkernels.studies.multicast.multicast_requests import METRICS
from labkernels.studies.rule import Rule
from labkernels.studies.rules import judge

#: Whole numbers that are measured or depend on the preset, and so do not tell cells apart.
_OF_NO_CELL = {
    "round",
    "n",
    "samples",
    "bytes_moved",
    "bytes_sent",
    "bytes_delivered",
    *MEMORY_PATH.values(),
    *STREAM_COUNTERS.values(),
    *METRICS.values(),
    "launches",
}


#: What an experiment measures: the first of these that its table has.
QUANTITIES = ("gbps", "bytes_per_clock_per_sm", "arrived_cycles", "cycles_median", "duration_us")


CELL_COLUMNS = ["experiment", "quantity", "cards", "cells", "lowest", "highest", "p05", "p95"]


class Range(NamedTuple):
    """A figure on several cards: their number, and its lowest and highest value."""

    cards: int
    low: float
    high: float


def runs_by_card(store: Store, gpu: str) -> dict[str, set[str]]:
    """Runs of each card of a GPU's name, by the hash of its UUID; without those whose kernels have changed since."""
    runs = store.read(RUNS)
    unchanged = kernels_unchanged(store)
    runs = runs[runs["gpu_name"].eq(gpu) & runs["run_id"].map(lambda run_id: unchanged[run_id] is not False)]
    return runs.groupby("gpu_uuid_hash")["run_id"].agg(set).to_dict()


def _newest(store: Store, experiment: str, gpu: str, among: set[str]) -> str | None:
    others = set(store.read(RUNS)["run_id"]) - among
    return select.latest_run(store, experiment, gpu, without=others)


def shared(store: Store, experiment: str, first: str, second: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of two runs, of the cells that both of them measured."""
    fields = store.tables[named(experiment).table()].fields
    tells = [one.name for one in fields if one.type in ("string", "integer", "boolean")]
    tells = [name for name in tells if name != "run_id" and name not in _OF_NO_CELL]

    def rows(run_id: str) -> pd.DataFrame:
        frame = select.rows(store, experiment, [run_id])
        return frame.assign(cell=pd.util.hash_pandas_object(frame[tells].astype(str), index=False))

    one, other = rows(first), rows(second)
    return one[one["cell"].isin(other["cell"])], other[other["cell"].isin(one["cell"])]


def over_cards(
    store: Store,
    gpu: str,
    experiment: str,
    find: Callable[[pd.DataFrame], float | None],
    shown: str,
    value: float,
    by_card: dict[str, set[str]],
) -> Range:
    """A figure of the shown run on all cards that measured the cells it is of.

    Another card's figure is the shown one, times how much it differs over the cells that both cards measured.

    Args:
        store: the rows.
        gpu: name of the cards.
        experiment: whose rows.
        find: the figure, from rows of one run.
        shown: run whose figure is shown.
        value: that figure.
        by_card: of `runs_by_card`.
    """
    values = [value]
    for runs in by_card.values():
        other = None if shown in runs else _newest(store, experiment, gpu, runs)
        if other is None:
            continue
        try:
            here, there = (find(frame) for frame in shared(store, experiment, shown, other))
        except NotMeasured:
            continue
        if here and there:
            values.append(float(value * there / here))
    return Range(len(values), min(values), max(values))


def cells(store: Store, gpu: str) -> pd.DataFrame:
    """Every experiment on every other card over the run that the book shows, in the cells that both measured.

    Returns:
        `experiment`, `quantity`, `cards`, and of the ratio of medians, card over shown run: `lowest` and `highest`
        median over the cells of a card, `p05` and `p95` over all cells of all cards.
    """
    by_card = runs_by_card(store, gpu)
    found = []
    for experiment in studies():
        shown = select.latest_run(store, experiment, gpu)
        if shown is None:
            continue
        table = store.tables[named(experiment).table()].columns
        quantity = next((name for name in QUANTITIES if name in table), None)
        if quantity is None:
            continue
        ratios = []
        for runs in by_card.values():
            other = None if shown in runs else _newest(store, experiment, gpu, runs)
            if other:
                here, there = shared(store, experiment, shown, other)
                ratios.append(_medians(there, quantity) / _medians(here, quantity))
        ratios = [one for one in ratios if len(one)]
        if ratios:
            every, medians = pd.concat(ratios), [one.median() for one in ratios]
            found.append(
                {
                    "experiment": experiment,
                    "quantity": quantity,
                    "cards": 1 + len(ratios),
                    "cells": len(every),
                    "lowest": min(medians),
                    "highest": max(medians),
                    "p05": every.quantile(0.05),
                    "p95": every.quantile(0.95),
                }
            )
    return pd.DataFrame(found, columns=CELL_COLUMNS)


def _medians(frame: pd.DataFrame, quantity: str) -> pd.Series:
    return frame.groupby("cell")[quantity].median()


def _outcome(rule: Rule, frames: list[pd.DataFrame]) -> bool | None:
    try:
        return bool(rule.judge(*frames)[0])
    except NotMeasured:
        return None


def rules(store: Store, gpu: str) -> pd.DataFrame:
    """Every rule on every card that can judge it: `rule`, `cards`, and on how many of them it holds, `cards_hold`.

    A card's run is cut to the cells that it shares with the run that the book shows. It judges a rule only if the shown
    run, cut to the same cells, still says what it says of all its cells: else the cells are too few, whoever has them.
    """
    by_card = runs_by_card(store, gpu).values()
    pair = cache(lambda name, first, second: shared(store, name, first, second))
    found = []
    for verdict in judge(store, gpu):
        if verdict.outcome == "not measured":
            continue
        names, holds = verdict.rule.experiments, verdict.outcome == "holds"
        outcomes = [holds]
        for runs in by_card:
            others = [_newest(store, name, gpu, runs) for name in names]
            if None in others or tuple(others) == verdict.run_ids:
                continue
            pairs = [pair(*one) for one in zip(names, verdict.run_ids, others, strict=True)]
            here, there = (_outcome(verdict.rule, list(side)) for side in zip(*pairs, strict=True))
            if here == holds and there is not None:
                outcomes.append(there)
        found.append({"rule": verdict.rule.id, "cards": len(outcomes), "cards_hold": sum(outcomes)})
    return pd.DataFrame(found, columns=["rule", "cards", "cards_hold"])
