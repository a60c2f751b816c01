"""Two GPUs, or two cards of one name, against each other: cells, rules, and what was predicted of them.

A speed is a rate over a rate, or cycles the other way round: above one, the first side is faster.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.model.closed_form import constants
from labkernels.model.other_gpus import ERROR, projected
from labkernels.model.validate import beside
from labkernels.protocols.experiment import Progress, silent
from labkernels.store import RUNS, Store, datasheet
from labkernels.studies import cards, select
from labkernels.studies.experiments import studies
from labkernels.studies.rules import judge
from labkernels.studies.stats import Ratio, bootstrap_ratio, where

#: A clock that differs by more is named as a cause.
CLOCK = 0.01
#: Reasons for a lower clock that are none of the work's own.
_THROTTLED = {
    "power_cap", "hardware_slowdown", "software_thermal", "hardware_thermal", "hardware_power_brake",
    "applications_clocks",
}  # fmt: skip
EXPERIMENT_COLUMNS = [
    "experiment", "quantity", "preset", "cards", "cells", "speed", "low", "high", "expected_low", "expected_high",
    "outside",
]  # fmt: skip
OUTSIDE_COLUMNS = ["experiment", "cell", "speed", "expected_low", "expected_high", "likely causes", "runs"]
RULE_COLUMNS = ["rule", "chapter", "first", "second", "they differ"]


@dataclass(frozen=True)
class Side:
    """One of the two.

    Attributes:
        name: as it was asked for: a GPU, or a card by the hash of its UUID.
        gpu: its name.
        by_card: its runs, whose kernels are still the same, by card.
    """

    name: str
    gpu: str
    by_card: dict[str, set[str]]

    @property
    def runs(self) -> set[str]:
        """All of them."""
        return set().union(*self.by_card.values())


def sides(store: Store, first: str, second: str) -> tuple[Side, Side]:
    """The two sides by GPU name or card; where one is a card of the other, that one is without it.

    Raises:
        NotMeasured: one is unknown, or both are the same; the message names GPUs and cards.
    """
    one, other = _side(store, first), _side(store, second)
    both = one.by_card.keys() & other.by_card.keys() if one.gpu == other.gpu else set()
    if both and both == one.by_card.keys():
        other = Side(f"other cards of {other.name}", other.gpu, _without(other, both))
    elif both and both == other.by_card.keys():
        one = Side(f"other cards of {one.name}", one.gpu, _without(one, both))
    if not (one.by_card and other.by_card):
        raise NotMeasured(f"{first} and {second} are the same cards: give two GPUs, or a card and its GPU")
    return one, other


def _without(side: Side, leaving: set[str]) -> dict[str, set[str]]:
    return {card: runs for card, runs in side.by_card.items() if card not in leaving}


def _side(store: Store, name: str) -> Side:
    known = {gpu: cards.runs_by_card(store, gpu) for gpu in select.require_gpus(store)}
    if name in known:
        return Side(name, name, known[name])
    found = [
        (gpu, card) for gpu, of in known.items() for card in of if len(name) >= 4 and card.startswith(name)
    ]
    if len(found) == 1:
        gpu, card = found[0]
        return Side(card, gpu, {card: known[gpu][card]})
    told = "; ".join(f"{gpu}, cards {', '.join(of)}" for gpu, of in known.items())
    raise NotMeasured(
        f"{name!r} is {'more than one card' if found else 'no GPU or card that has rows'}: there are {told}"
    )


def newest(store: Store, gpu: str) -> str:
    """Whose pipelines came last: another GPU, or a card of that one's name.

    Raises:
        NotMeasured: nobody's.
    """
    last = where(store.read(RUNS).sort_values("run_id"), experiment="pipelines").iloc[-1]
    return str(last["gpu_uuid_hash"] if last["gpu_name"] == gpu else last["gpu_name"])


def _alike(store: Store, experiment: str, one: Side, other: Side) -> tuple[list[str], list[str]]:
    """Newest runs of the cards of each side, all of one preset: that which most cards of both have run."""
    here, there = (cards.by_preset(store, experiment, side.by_card) for side in (one, other))
    both = [(list(here[preset].values()), list(there[preset].values())) for preset in here if preset in there]
    return max(both, key=lambda runs: len(runs[0]) + len(runs[1]), default=([], []))


def compare(
    store: Store, one: Side, other: Side, progress: Progress = silent
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every experiment that both sides have run with one preset, in the cells that all those runs share.

    Returns:
        A row for each experiment: `speed`, the median over the cells; `low` and `high`, the outermost ends of the 95%
        intervals over rounds of any card of one side and any of the other; the band that a cell is expected in, and how
        many are outside. And a row for each of those, with what the runs recorded that may be why.
    """
    runs = store.read(RUNS).set_index("run_id")
    found, outside = [], []
    for experiment in progress(list(studies()), "compare"):
        quantity, (here, there) = cards.quantity_of(store, experiment), _alike(store, experiment, one, other)
        if quantity is None or not here:
            continue
        frames = cards.shared(store, experiment, *here, *there)
        if frames[0].empty:
            continue
        mine, theirs = frames[: len(here)], frames[len(here) :]
        is_rate = cards.IS_RATE[quantity]
        cells = (_median_of(mine, quantity) / _median_of(theirs, quantity)).dropna()
        cells = cells if is_rate else 1 / cells
        over = [_speed(*pair, quantity) for pair in product(mine, theirs)]
        low, high = _band(store, one, other, theirs, quantity, runs.loc[[here[-1], there[-1]]])
        beyond = cells[~cells.between(low, high)]
        found.append(
            {
                "experiment": experiment,
                "quantity": quantity,
                "preset": runs.loc[here[0], "preset"],
                "cards": f"{len(here)} and {len(there)}",
                "cells": len(cells),
                "speed": cells.median(),
                "low": min(cells.median(), *(ratio.low for ratio in over)),
                "high": max(cells.median(), *(ratio.high for ratio in over)),
                "expected_low": low,
                "expected_high": high,
                "outside": len(beyond),
            }
        )
        names = _labels(store, experiment, mine[0])
        causes = "; ".join(likely_causes(runs.loc[here], runs.loc[there]))
        outside += [
            {
                "experiment": experiment,
                "cell": names[cell],
                "speed": speed,
                "expected_low": low,
                "expected_high": high,
                "likely causes": causes or "nothing that the runs recorded",
                "runs": ", ".join([*here, *there]),
            }
            for cell, speed in beyond.items()
        ]
    return pd.DataFrame(found, columns=EXPERIMENT_COLUMNS), pd.DataFrame(outside, columns=OUTSIDE_COLUMNS)


def _median_of(frames: list[pd.DataFrame], quantity: str) -> pd.Series:
    """Of each cell the median over cards of the median over rounds."""
    return pd.concat([cards.medians(frame, quantity) for frame in frames], axis=1).median(axis=1)


def _speed(mine: pd.DataFrame, theirs: pd.DataFrame, quantity: str) -> Ratio:
    """The typical cell of one card over another's, round by round, with an interval over rounds."""
    reference = cards.medians(theirs, quantity)

    def of_rounds(frame: pd.DataFrame) -> pd.Series:
        relative = frame[quantity] / frame["cell"].map(reference)
        return relative.groupby(frame["round"]).median() if "round" in frame else pd.Series(relative.median())

    ratio = bootstrap_ratio(of_rounds(mine), of_rounds(theirs), paired=False)
    return ratio if cards.IS_RATE[quantity] else ratio.inverse


def _band(
    store: Store, one: Side, other: Side, theirs: list[pd.DataFrame], quantity: str, runs: pd.DataFrame
) -> tuple[float, float]:
    """Where a cell's speed is expected.

    Of one GPU's cards: by as much as any two cards of the other side differ in any cell, if there are several. Else
    what the data sheets' memory, the SMs, their clock or none of them give, and the model's error.
    """
    if one.gpu == other.gpu and len(theirs) > 1:
        of_cell = pd.concat([cards.medians(frame, quantity) for frame in theirs], axis=1)
        apart = float((of_cell.max(axis=1) / of_cell.min(axis=1)).max())
        return 1 / apart, apart
    mine, their = (runs.iloc[number] for number in range(2))
    sheets = [datasheet(side.gpu) for side in (one, other)]
    scales = [1.0, mine["sm_clock_mhz_median"] / their["sm_clock_mhz_median"]]
    scales.append(scales[-1] * mine["sm_count"] / their["sm_count"])
    if all(sheets):
        scales.append(sheets[0].memory_gbps / sheets[1].memory_gbps)
    known = [scale for scale in scales if pd.notna(scale)]
    return min(known) / (1 + ERROR), max(known) * (1 + ERROR)


def _labels(store: Store, experiment: str, frame: pd.DataFrame) -> dict[int, str]:
    """Each cell in words: its kernel, and what differs between cells of one kernel."""
    one_each = frame.drop_duplicates("cell").set_index("cell")
    by = one_each["kernel"] if "kernel" in one_each else pd.Series(0, one_each.index)
    differs = one_each.groupby(by.to_numpy()).nunique().max()
    columns = [
        name for name in cards.tells(store, experiment) if name == "kernel" or differs.get(name, 0) > 1
    ]
    return {
        cell: ", ".join(f"{name} {row[name]}" for name in columns if pd.notna(row[name]) and row[name] != "")
        for cell, row in one_each.iterrows()
    }


def newest_rows(store: Store, experiment: str, side: Side) -> pd.DataFrame:
    """Rows of a side's newest run of an experiment; may have none."""
    run_id = select.latest_run(
        store, experiment, side.gpu, without=set(store.read(RUNS)["run_id"]) - side.runs
    )
    return select.rows(store, experiment, [run_id] if run_id else [])


def likely_causes(here: pd.DataFrame, there: pd.DataFrame) -> Iterator[str]:
    """What the first side's runs recorded of their GPU that the second's did not: why rows may differ.

    Args:
        here: rows of the run table of the first side.
        there: of the second.
    """
    reasons = {one for text in here["throttle_reasons"].dropna() for one in text.split(";")} & _THROTTLED
    if reasons:
        yield f"throttled: {', '.join(sorted(reasons))}"
    for column, what in (("sm_clock_mhz_median", "SM clock"), ("memory_clock_mhz", "memory clock")):
        mine, theirs = here[column].median(), there[column].median()
        if abs(mine / theirs - 1) > CLOCK:
            yield f"{what} {mine:,.0f} MHz, not {theirs:,.0f}"
    if here["mig"].eq(True).any():
        yield "MIG: an instance of a partitioned GPU"
    others = here["other_processes"].max()
    if others > 0:
        yield f"other load: {others:.0f} other processes"
    for text in sorted(set(here["gpu_name"])):
        if "pcie" in text.lower() or "nvl" in text.lower():
            yield f"PCIe part: {text}"
    mine, theirs = here["power_limit_w"].median(), there["power_limit_w"].median()
    if mine < theirs * (1 - CLOCK):
        yield f"power limit {mine:,.0f} W, not {theirs:,.0f}"
    if here["sm_count"].min() != there["sm_count"].max():
        yield f"{here['sm_count'].min()} SMs, not {there['sm_count'].max()}"
    if here["ecc"].eq(False).any() and there["ecc"].eq(True).any():
        yield "ECC off"
    for column, what in (("driver_version", "driver"), ("toolkit_version", "toolkit")):
        if new := sorted(set(here[column]) - set(there[column])):
            yield f"{what} {', '.join(new)}"


def rules(store: Store, one: Side, other: Side, progress: Progress = silent) -> pd.DataFrame:
    """Every rule's verdict on both sides, and where they differ whether the cells explain it.

    Returns:
        `they differ`: empty where they do not; `in the cells measured` where the second side, cut to the cells that the
        first measured, says the same as it; `on the GPU` where it does not.
    """
    every = set(store.read(RUNS)["run_id"])
    mine, theirs = (
        judge(store, side.gpu, without=every - side.runs, progress=progress) for side in (one, other)
    )
    found = []
    for here, there in zip(mine, theirs, strict=True):
        why = ""
        if here.run_ids and there.run_ids and here.outcome != there.outcome:
            pairs = [
                cards.shared(store, *names)
                for names in zip(here.rule.experiments, here.run_ids, there.run_ids, strict=True)
            ]
            first, second = (cards.outcome(here.rule, list(side)) for side in zip(*pairs, strict=True))
            why = "on the GPU" if None not in (first, second) and first != second else "in the cells measured"
        found.append([here.rule.statement, here.rule.chapter, here.outcome, there.outcome, why])
    return pd.DataFrame(found, columns=RULE_COLUMNS)


def forecast(store: Store, side: Side, base: str) -> pd.DataFrame:
    """Pipelines of one CTA and of clusters that a side measured, beside what the model says of its GPU.

    The constants are the GPU's own where the model was fitted to one of its cards, else those of `base`, projected.

    Returns:
        Columns as `validate.another_card`: `ratio` is predicted over measured throughput.

    Raises:
        NotMeasured: the side has no such rows, or nothing is known of the GPU.
    """
    fitted = {row["gpu"] for row in store.records("constants")}
    of = constants(side.gpu, store.root) if side.gpu in fitted else projected(side.gpu, base, store.root)
    others = set(store.read(RUNS)["run_id"]) - side.runs
    newest = {
        name: select.latest_run(store, name, side.gpu, without=others)
        for name in ("pipelines", "multicast_fair")
    }
    if not any(newest.values()):
        raise NotMeasured(
            f"{side.name} has no runs of {' or '.join(newest)}: run python -m labkernels measure pipelines"
        )
    return beside(store, {name: run for name, run in newest.items() if run}, of, side.name)
