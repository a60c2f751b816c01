"""The folder of a batch: its plan, a folder per finished job, and the summary. Whatever is there is whole."""

import fcntl
import io
import json
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from labkernels.book.batch.job import DATA_FOLDER, DONE, FAILED, Outcome
from labkernels.book.batch.plan import Job
from labkernels.errors import LabError
from labkernels.paths import CACHE
from labkernels.store import RUNS, Store
from labkernels.store.archive import packed
from labkernels.store.files import read_file, write_file

PLAN, OUTCOME, ARCHIVE = "batch.json", "outcome.json", "rows.tar.gz"
#: How long jobs took here before, for estimates.
SECONDS = CACHE / "batch_seconds.json"
#: Of a chapter that was never executed here, without its experiments.
UNKNOWN_S = 20.0


class BadBatch(LabError):
    """There is no such batch, another process is at work on it, or the folder is taken."""


class BatchFolder:
    """A batch on disk.

    Args:
        root: its folder.

    Raises:
        BadBatch: it holds no batch.
    """

    def __init__(self, root: Path) -> None:
        try:
            plan = json.loads(read_file(root / PLAN))
        except FileNotFoundError:
            raise BadBatch(f"{root} holds no batch: there is no {PLAN}") from None
        self.root, self.data = root, Path(plan["data"])
        self.jobs = [Job(**job | {"experiments": tuple(job["experiments"])}) for job in plan["jobs"]]

    @classmethod
    def create(cls, root: Path, jobs: Sequence[Job], data: Path) -> "BatchFolder":
        """A new batch.

        Raises:
            BadBatch: the folder holds something.
        """
        if root.exists() and any(root.iterdir()):
            raise BadBatch(f"{root} is not empty: name another folder, or go on with --resume {root}")
        plan = {"data": str(data.resolve()), "jobs": [asdict(job) for job in jobs]}
        write_file(root / PLAN, json.dumps(plan, indent=1).encode())
        return cls(root)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working on the same batch.

        Raises:
            BadBatch: one does.
        """
        with (self.root / PLAN).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadBatch(f"another process is at work on {self.root}") from None
            yield

    def outcomes(self) -> dict[str, Outcome]:
        """Outcomes of the jobs that came to an end, by name."""
        found = {}
        for job in self.jobs:
            if (path := self.root / job.name / OUTCOME).exists():
                values = json.loads(read_file(path))
                found[job.name] = Outcome(**values | {k: tuple(values[k]) for k in ("left_out", "runs")})
        return found

    def todo(self) -> list[Job]:
        """The jobs that did not come to an end, and those that failed; the longest first."""
        ended = {name for name, one in self.outcomes().items() if one.status != FAILED}
        return sorted((j for j in self.jobs if j.name not in ended), key=lambda job: -self.expected[job.name])

    @cached_property
    def expected(self) -> dict[str, float]:
        """Seconds that each job will take, of `estimates`."""
        return estimates(self.jobs, self.data)

    def keep(self, job: Job, outcome: Outcome, files: bytes) -> None:
        """Store what came of a job, in one step."""
        unfinished = self.root / f"{job.name}.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        if files:
            with tarfile.open(fileobj=io.BytesIO(files)) as archive:
                archive.extractall(unfinished, filter="data")
        write_file(unfinished / OUTCOME, json.dumps(asdict(outcome), indent=1).encode())
        shutil.rmtree(self.root / job.name, ignore_errors=True)  # of an attempt that failed
        unfinished.rename(self.root / job.name)
        if outcome.status == DONE:
            write_file(SECONDS, json.dumps(_seconds() | {job.key: outcome.seconds}, indent=1).encode())

    def merge(self, store: Store) -> list[str]:
        """Put the rows of all jobs that are done into a store; ids of the runs that were not there.

        Raises:
            StoreError: rows that do not match their schema.
        """
        return [run for folder in self.rows() for run in store.merge(folder)]

    def archive(self) -> Path | None:
        """The rows of all jobs that are done in one file, to send to others; None where there are none."""
        if not self.rows():
            return None
        with TemporaryDirectory(prefix="labkernels-") as folder:
            self.merge(Store(folder))
            write_file(self.root / ARCHIVE, packed(Path(folder)))
        return self.root / ARCHIVE

    def rows(self) -> list[Path]:
        """Folders with the rows of all jobs that are done."""
        outcomes = self.outcomes().items()
        return [self.root / name / DATA_FOLDER for name, one in outcomes if one.status == DONE and one.runs]


def _seconds() -> dict[str, float]:
    try:
        return json.loads(read_file(SECONDS))
    except (OSError, ValueError):
        return {}


def estimates(jobs: Sequence[Job], data: Path) -> dict[str, float]:
    """Seconds of each job by name: as it last took here; else a guess for its text, and its experiments as stored.

    What several jobs measure alike is counted once.
    """
    known = _seconds()
    runs = Store(data).read(RUNS)
    measured: dict[Any, float] = runs.groupby(["experiment", "preset"])["wall_s"].agg(median).to_dict()
    found = {}
    for job in jobs:
        asked = [(one, job.preset) for one in job.measures]
        found[job.name] = known.get(job.key) or UNKNOWN_S + sum(measured.pop(one, 0.0) for one in asked)
    return found
