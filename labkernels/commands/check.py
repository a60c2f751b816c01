"""`check`: is everything that is stored sound?"""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from labkernels.commands import Answer, Option, option
from labkernels.paths import DATA, IS_CHECKOUT
from labkernels.store import RUNS, Store, StoreError


def options() -> Iterator[Option]:
    """Which folder."""
    yield option(
        "--data", type=Path, default=DATA, metavar="DIR", help="folder of the tables (default: data/)"
    )


def run(arguments: Namespace) -> Answer:
    """All problems; exit status 1 where there are any."""
    store, leftovers = None, []
    try:
        store = Store(arguments.data)
        problems, leftovers = store.check(), store.leftovers()
    except StoreError as error:  # the tables are not described; the chapters can be checked all the same
        problems = error.problems
    if store and not problems:
        from labkernels.studies.plausible import problems as implausible

        problems = implausible(store, store.read(RUNS, marked=True)["run_id"])
    found = [str(problem) for problem in problems]
    if IS_CHECKOUT:
        from labkernels.book import hygiene  # an installed copy has no chapters, nor what reads them

        found += hygiene.book_problems(store)
    left = [
        f"{path} is no stored run's: a writer that was stopped left it, and it may be removed"
        for path in leftovers
    ]
    sound = f"data{', provenance and chapters' if IS_CHECKOUT else ' and provenance'} are sound"
    text = "\n".join([*(found or [sound]), *left])
    return Answer({"problems": found, "leftovers": leftovers}, text, status=int(bool(found)))
