"""`fit`: the model's constants from the stored microbenchmarks."""

import os
from argparse import Namespace
from collections.abc import Iterator

from labkernels.commands import GPU, UPDATES, Answer, Option
from labkernels.errors import LabError
from labkernels.model.configurations import EXPERIMENTS, frames
from labkernels.model.fit import save
from labkernels.model.splits import OF_SOURCES, all_scores
from labkernels.protocols.progress import track
from labkernels.store import Store
from labkernels.studies import select


def options() -> Iterator[Option]:
    """Whose rows."""
    yield GPU
    yield UPDATES


def run(arguments: Namespace) -> Answer:
    """Where the constants went: `model/` beside the tables, which `advise --data` reads."""
    store = Store(arguments.data)
    store.require_runs()
    folder = store.root / "model"
    if not os.access(folder if folder.exists() else store.root, os.W_OK):
        raise LabError(f"{folder} cannot be written: copy {store.root} and name the copy with --data")
    names = select.require_gpus(store, arguments.gpu)
    notes = []
    for gpu in names:
        scores = all_scores(frames(store, gpu, (*EXPERIMENTS, *OF_SOURCES)), track)
        without = save(store, gpu, track, scores)
        notes += [f"left out of the fit on {gpu}: {', '.join(without)}"] if without else []
    folders = dict.fromkeys(names, str(folder))
    return Answer({"models": folders}, "\n".join(folders.values()), notes=tuple(notes))
