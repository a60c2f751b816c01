"""`check`: is everything that is stored sound?"""

from argparse import Namespace
from collections.abc import Iterator

from labkernels.book import hygiene
from labkernels.commands import WRITES, Answer, Option
from labkernels.store import Store, StoreError


def options() -> Iterator[Option]:
    """Which folder."""
    yield WRITES


def run(arguments: Namespace) -> Answer:
    """All problems; exit status 1 where there are any."""
    store, leftovers = None, []
    try:
        store = Store(arguments.data)
        problems, leftovers = store.check(), store.leftovers()
    except StoreError as error:  # the tables are not described; the chapters can be checked all the same
        problems = error.problems
    found = [*map(str, problems), *hygiene.book_problems(store)]
    left = [
        f"{path} is no stored run's: a writer that was stopped left it, and it may be removed"
        for path in leftovers
    ]
    text = "\n".join([*(found or ["data, provenance and chapters are sound"]), *left])
    return Answer({"problems": found, "leftovers": leftovers}, text, status=int(bool(found)))
