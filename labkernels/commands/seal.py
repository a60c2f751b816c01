"""`seal`: freeze what the model says of GPUs that nobody has measured."""

from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime

from labkernels.commands import UPDATES, Answer, Option, option
from labkernels.model import advisor, sealed
from labkernels.store import Store


def options() -> Iterator[Option]:
    """Which GPUs."""
    yield option("gpus", nargs="+", metavar="GPU", help="names of table gpus: H100 SXM5, B200 …")
    yield UPDATES


def run(arguments: Namespace) -> Answer:
    """How many predictions of each were frozen, today."""
    store, today = Store(arguments.data), datetime.now(UTC).date()
    base = advisor.gpus(store.root)[0]
    made = {gpu: sealed.seal(store, gpu, base, today) for gpu in arguments.gpus}
    return Answer(
        made, "\n".join(f"{gpu}: {count} predictions sealed on {today}" for gpu, count in made.items())
    )
