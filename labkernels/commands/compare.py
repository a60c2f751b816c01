"""`compare`: two GPUs, or a card and the others of its name, against each other."""

import math
from argparse import Namespace
from collections.abc import Iterator

import pandas as pd

from labkernels.commands import READS, Answer, Option, option
from labkernels.model import versus
from labkernels.protocols.progress import track
from labkernels.store import Store


def options() -> Iterator[Option]:
    """Which two, and whose rows."""
    about = "name of a GPU, or the hash of a card's UUID as runs record it (its first characters)"
    yield option("first", metavar="GPU_A", help=about)
    yield option("second", metavar="GPU_B", help="what it is compared with, likewise")
    yield READS


def run(arguments: Namespace) -> Answer:
    """Speeds by experiment, cells outside the expected band with likely causes, and the rules' verdicts on both."""
    store = Store(arguments.data)
    one, other = versus.sides(store, arguments.first, arguments.second)
    experiments, outside = versus.compare(store, one, other, track)
    rules = versus.rules(store, one, other, track)
    value = {
        "first": {"name": one.name, "gpu": one.gpu, "cards": sorted(one.by_card)},
        "second": {"name": other.name, "gpu": other.gpu, "cards": sorted(other.by_card)},
        **{
            name: [{key: _finite(cell) for key, cell in row.items()} for row in frame.to_dict("records")]
            for name, frame in (("experiments", experiments), ("outside", outside), ("rules", rules))
        },
    }
    return Answer(value, "\n".join(_lines(one, other, experiments, outside, rules)))


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lines(
    one: versus.Side,
    other: versus.Side,
    experiments: pd.DataFrame,
    outside: pd.DataFrame,
    rules: pd.DataFrame,
) -> Iterator[str]:
    yield f"{one.name} over {other.name}: above 1 the first is faster"
    for row in experiments.itertuples():
        yield (
            f"  {row.experiment:22} {row.speed:6.3f}  [{row.low:.3f}, {row.high:.3f}]  {row.cells:5} cells, "
            f"{row.outside} outside {row.expected_low:.3f} to {row.expected_high:.3f}; {row.cards} cards, {row.preset}"
        )
    if experiments.empty:
        yield "  no experiment that both have run with one preset and the same kernels"
    for row in outside.itertuples(index=False):
        yield f"  outside: {row.speed:.3f} in {row.experiment}, {row.cell}: {row[5]}"
    judged = rules[rules[["first", "second"]].ne("not measured").all(axis=1)]
    differing = judged[judged["they differ"].ne("")]
    alike, rest = len(judged) - len(differing), len(rules) - len(judged)
    yield f"rules: {len(judged)} judged on both, {alike} alike; {rest} not measured on one"
    for row in differing.itertuples(index=False):
        yield f"  {row.first}, {row.second} {row[4]}: {row.rule}"
