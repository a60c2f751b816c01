"""`measure`: run an experiment on this machine's GPU and store its rows."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from labkernels.commands import WRITES, Answer, Option, option
from labkernels.errors import BadArgument
from labkernels.store import Store
from labkernels.studies.experiments import studies
from labkernels.studies.run import Outcome, run_all
from labkernels.studies.run import run as run_one


def options() -> Iterator[Option]:
    """What to measure, how thoroughly, and where to store it."""
    yield option("experiment", choices=[*studies(), "all"], help="all: one after the other")
    yield option("--preset", default="quick", help="quick or full (default: quick)")
    yield option("--set", action="append", default=[], metavar="NAME=JSON", help="replace one parameter")
    yield WRITES


def run(arguments: Namespace) -> Answer:
    """The ids of the runs, and why there is none of an experiment; exit status 1 where one failed."""
    store = Store(arguments.data)
    given = (arguments.preset, store, dict(map(_assignment, arguments.set)))
    one = arguments.experiment
    outcomes = run_all(*given) if one == "all" else [Outcome(one, run_id=run_one(one, *given))]
    found: dict[str, dict[str, str]] = {"runs": {}, "skipped": {}, "failed": {}}
    for name, *what in outcomes:
        for kind, text in zip(found, what, strict=True):
            if text is not None:
                found[kind][name] = text
                if one == "all":  # hours may pass until the rest is there
                    print(f"{name} {kind}: {text}", file=sys.stderr, flush=True)
    ids = "\n".join(found["runs"].values())
    return Answer(found | {"data": str(store.root)}, ids, int(bool(found["failed"])))


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadArgument(f"`set` {text}: give NAME=VALUE, with VALUE in JSON")
    try:
        return name, json.loads(value)
    except ValueError:
        raise BadArgument(
            f"`set` {text}: {value!r} is no JSON; give a number, true, false, a list in brackets, or a text in "
            f"quotes, as in --set '{name}=\"text\"'"
        ) from None
