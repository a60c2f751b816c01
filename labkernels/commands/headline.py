"""`headline`: the figures that README and introduction quote, per GPU."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict

from labkernels.book.headline import Figure, headline
from labkernels.commands import READS, Answer, Option
from labkernels.protocols.progress import track
from labkernels.store import Store


def options() -> Iterator[Option]:
    """Which folder."""
    yield READS


def run(arguments: Namespace) -> Answer:
    """Each figure with unit, interval and run; one that was not measured is null, never left out."""
    store = Store(arguments.data)
    store.require_runs()
    by_gpu = headline(store, track)
    value = {gpu: {name: asdict(one) for name, one in figures.items()} for gpu, figures in by_gpu.items()}
    lines = [
        line
        for gpu, figures in by_gpu.items()
        for line in (gpu, *(_line(*figure) for figure in figures.items()))
    ]
    without = {
        f"{name} on {gpu}: {one.note}"
        for gpu, figures in by_gpu.items()
        for name, one in figures.items()
        if one.note and one.value is not None
    }
    return Answer(value, "\n".join(lines), notes=tuple(sorted(without)))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1e4 else f"{value:,.4g}"


def _line(name: str, figure: Figure) -> str:
    missing = ": ".join(filter(None, ("none" if figure.run_id else "not measured", figure.note)))
    text = missing if figure.value is None else f"{_number(figure.value)} {figure.unit}"
    high = "open" if figure.high is None else _number(figure.high)
    interval = f"  [{_number(figure.low)}, {high}]" if figure.low is not None else ""
    cards = ""
    if figure.cards and figure.cards > 1:
        cards = f"  {figure.cards} cards [{_number(figure.cards_low)}, {_number(figure.cards_high)}]"
    return f"  {name:40} {text}{interval}  {figure.run_id or ''}{cards}".rstrip()
