"""`merge`: take the runs of another data folder that are not here yet."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from labkernels.commands import WRITES, Answer, Option, option
from labkernels.store import Store


def options() -> Iterator[Option]:
    """Whose runs, and where to."""
    yield option("folder", type=Path, help="data folder of the other machine")
    yield WRITES


def run(arguments: Namespace) -> Answer:
    """The ids of the new runs."""
    new = Store(arguments.data).merge(arguments.folder)
    return Answer({"runs": new}, "\n".join(new) or "nothing new")
