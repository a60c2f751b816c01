"""What other cards of the same name say: the cells that runs share, and figures and rules on each card.

Rates are compared between runs of one preset: the launches of a quick one are shorter, so that their start weighs more.
"""

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


#: What an experiment measures: the first of these that its table has; and whether it is a rate, or a time.
IS_RATE = {
    "gbps": True,
    "bytes_per_clock_per_sm": True,
    "arrived_cycles": False,
    "cycles_median": False,
    "duration_us": False,
}

CELL_COLUMNS = ["experiment", "quantity", "preset", "cards", "cells", "lowest", "highest", "p05", "p95"]


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


def by_preset(store: Store, experiment: str, by_card: dict[str, set[str]]) -> dict[str, dict[str, str]]:
    """For each preset the newest run of each card that has one; the full preset comes first."""
    runs = store.read(RUNS)
    runs = runs[runs["experiment"].eq(experiment) & runs["run_id"].isin(set().union(*by_card.values()))]
    newest = runs.groupby(["preset", "gpu_uuid_hash"])["run_id"].max()
    return {preset: newest[preset].to_dict() for preset in sorted(set(runs["preset"]))}  # full before quick


def alike(store: Store, experiment: str, by_card: dict[str, set[str]]) -> dict[str, str]:
    """The newest run of each card, all of one preset: that which most cards have run, of several the full one."""
    return max(by_preset(store, experiment, by_card).values(), key=len, default={})


def quantity_of(store: Store, experiment: str) -> str | None:
    """What an experiment measures, of `IS_RATE`; None if none of these."""
    columns = store.tables[named(experiment).table()].columns
    return next((name for name in IS_RATE if name in columns), None)


def tells(store: Store, experiment: str) -> list[str]:
    """The columns that tell an experiment's cells apart."""
    fields = store.tables[named(experiment).table()].fields
    found = [one.name for one in fields if one.type in ("string", "integer", "boolean")]
    return [name for name in found if name != "run_id" and name not in _OF_NO_CELL]


def shared(store: Store, experiment: str, *run_ids: str) -> list[pd.DataFrame]:
    """Rows of each of some runs, of the cells that all of them measured; `cell` tells these apart."""
    columns = tells(store, experiment)

    def rows(run_id: str) -> pd.DataFrame:
        frame = select.rows(store, experiment, [run_id])
        return frame.assign(cell=pd.util.hash_pandas_object(frame[columns].astype(str), index=False))

    frames = [rows(run_id) for run_id in run_ids]
    of_all = set.intersection(*(set(frame["cell"]) for frame in frames))
    return [frame[frame["cell"].isin(of_all)] for frame in frames]


def over_cards(
    store: Store,
    experiment: str,
    find: Callable[[pd.DataFrame], float | None],
    shown: str,
    value: float,
    by_card: dict[str, set[str]],
) -> Range:
    """The shown figure, and by how much it differs between the cards of `alike`, over the cells that they share.

    Args:
        store: the rows.
        experiment: whose rows.
        find: the figure, from rows of one run.
        shown: run whose figure is shown.
        value: that figure, which stands for its card where that is among the compared, else for their median.
        by_card: of `runs_by_card`.
    """
    runs = alike(store, experiment, by_card)
    if len(runs) < 2:
        return Range(1, value, value)
    try:
        figures = pd.Series(
            [find(frame) for frame in shared(store, experiment, *runs.values())], runs, dtype=float
        )
    except NotMeasured:
        return Range(1, value, value)
    if figures.isna().any():
        return Range(1, value, value)
    own = [card for card in runs if shown in by_card[card]]
    values = value * (figures / (figures[own[0]] if own else figures.median()))
    return Range(len(values), float(values.min()), float(values.max()))


def cells(store: Store, gpu: str) -> pd.DataFrame:
    """Every experiment on the cards of `alike`: each cell's median over the rounds, over the cards' median of it.

    Returns:
        `experiment`, `quantity`, `preset`, `cards`, `cells`, and of those ratios `lowest` and `highest`, medians over
        the cells of a card, and `p05` and `p95` over all cells of all cards.
    """
    by_card = runs_by_card(store, gpu)
    presets = store.read(RUNS).set_index("run_id")["preset"]
    found = []
    for experiment in studies():
        quantity, runs = quantity_of(store, experiment), alike(store, experiment, by_card)
        if quantity is None or len(runs) < 2:
            continue
        frames = shared(store, experiment, *runs.values())
        of_cell = pd.DataFrame(
            {card: medians(frame, quantity) for card, frame in zip(runs, frames, strict=True)}
        )
        if of_cell.empty:
            continue
        ratios = of_cell.div(of_cell.median(axis=1), axis=0)
        of_cards, every = ratios.median(), ratios.stack()
        found.append(
            {
                "experiment": experiment,
                "quantity": quantity,
                "preset": presets[next(iter(runs.values()))],
                "cards": len(runs),
                "cells": len(ratios),
                "lowest": of_cards.min(),
                "highest": of_cards.max(),
                "p05": every.quantile(0.05),
                "p95": every.quantile(0.95),
            }
        )
    return pd.DataFrame(found, columns=CELL_COLUMNS)


def medians(frame: pd.DataFrame, quantity: str) -> pd.Series:
    """Median of a quantity over the rounds of each cell."""
    return frame.groupby("cell")[quantity].median()


def outcome(rule: Rule, frames: list[pd.DataFrame]) -> bool | None:
    """Whether a rule holds in some rows of its experiments; None where they do not say."""
    try:
        return bool(rule.judge(*frames)[0])
    except NotMeasured:
        return None


def rules(store: Store, gpu: str) -> pd.DataFrame:
    """Every rule on every card that can judge it: `rule`, `cards`, and on how many of them it holds, `cards_hold`.

    A card's run is cut to the cells that it shares with the run that the book shows. It judges a rule only if the shown
    run, cut to the same cells, still says what it says of all its cells: else the cells are too few, whoever has them.
    """
    by_card = runs_by_card(store, gpu)
    newest = cache(lambda name, card: _newest(store, name, gpu, by_card[card]))
    pair = cache(lambda name, first, second: shared(store, name, first, second))
    found = []
    for verdict in judge(store, gpu):
        if verdict.outcome == "not measured":
            continue
        names, holds = verdict.rule.experiments, verdict.outcome == "holds"
        outcomes = [holds]
        for card in by_card:
            others = [newest(name, card) for name in names]
            if None in others or tuple(others) == verdict.run_ids:
                continue
            pairs = [pair(*one) for one in zip(names, verdict.run_ids, others, strict=True)]
            here, there = (outcome(verdict.rule, list(side)) for side in zip(*pairs, strict=True))
            if here == holds and there is not None:
                outcomes.append(there)
        found.append({"rule": verdict.rule.id, "cards": len(outcomes), "cards_hold": sum(outcomes)})
    return pd.DataFrame(found, columns=["rule", "cards", "cards_hold"])
