"""`merge`: take the runs of another data folder, or of an archive of one, that are not here yet."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from labkernels.commands import WRITES, Answer, Option, option
from labkernels.store import RUNS, Store, StoreError
from labkernels.store.archive import opened
from labkernels.store.provenance import kernels_unchanged
from labkernels.studies.plausible import problems


def options() -> Iterator[Option]:
    """Whose runs, and where to."""
    yield option(
        "folder", type=Path, help="data folder of the other machine, or an archive of it that batch wrote"
    )
    yield WRITES


def run(arguments: Namespace) -> Answer:
    """The ids of the new runs; where a row of them cannot be, nothing is taken."""
    mine = Store(arguments.data)
    with opened(arguments.folder) as folder:
        theirs = Store(folder, package=mine.package)
        theirs.require_runs()
        here = {path.stem for path in (mine.root / RUNS).glob("*.csv")}
        new = sorted(set(theirs.read(RUNS, marked=True)["run_id"]) - here)
        if found := problems(theirs, new):
            raise StoreError(found)
        unchanged = kernels_unchanged(theirs) if new else {}
        new = mine.merge(folder)
    changed = [one for one in new if unchanged.get(one) is False]
    note = f"kernels have changed since, so that compare leaves these out: {', '.join(changed)}"
    return Answer({"runs": new}, "\n".join(new) or "nothing new", notes=(note,) if changed else ())
