"""A job at work: its notebook executed beside private data, and all that came of it as one value."""

import csv
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import nbformat

from labkernels.book import MEASURED, NOT_HERE
from labkernels.book.batch.plan import Job
from labkernels.store import RUNS

DONE, NOTHING, FAILED = "done", "nothing to measure here", "failed"
#: What a job leaves, in its folder.
NOTEBOOK, LOG, DATA_FOLDER = "notebook.ipynb", "log.txt", "data"


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        status: `done`, `nothing to measure here` or `failed`.
        error: why it failed or measured nothing, in the notebook's own words.
        in_notebook: whether a cell raised that; otherwise its process died.
        left_out: experiments of the chapter that could not be measured here, and why.
        runs: ids of the runs it stored.
        gpu: name of the GPU that its rows name.
        device: which GPU it was given, as CUDA_VISIBLE_DEVICES names it.
        host: machine.
        began: seconds since the epoch.
        seconds: how long it took.
    """

    status: str
    error: str | None
    in_notebook: bool
    left_out: tuple[str, ...]
    runs: tuple[str, ...]
    gpu: str | None
    device: str | None
    host: str
    began: float
    seconds: float


class Shared(NamedTuple):
    """A run that another job of the batch has measured.

    Attributes:
        experiment: of what.
        run_id: its id.
        folder: where its rows are.
    """

    experiment: str
    run_id: str
    folder: Path

    def show(self, store: Path) -> None:
        """Put links to its files into a folder of tables."""
        for path in self.folder.glob(f"*/{self.run_id}*.csv"):
            shown = store / path.relative_to(self.folder)
            shown.parent.mkdir(parents=True, exist_ok=True)
            if not shown.exists():
                shown.symlink_to(path.resolve())


def execute(
    job: Job, source: str, data: str, device: str | None = None, shared: Iterable[Shared] = ()
) -> tuple[Outcome, bytes]:
    """Execute a job in a folder of its own that is gone afterwards.

    Args:
        job: which.
        source: its notebook.
        data: folder of the stored tables; the job sees it and writes beside it.
        device: GPU, as CUDA_VISIBLE_DEVICES takes it; by default the one that this process has.
        shared: runs that it takes as its own instead of measuring again.

    Returns:
        What became of it, and its folder as a tar archive: notebook, log and the new rows.
    """
    environment = dict(os.environ) | ({} if device is None else {"CUDA_VISIBLE_DEVICES": device})
    device = environment.get("CUDA_VISIBLE_DEVICES")
    began = time.time()
    with TemporaryDirectory(prefix="labkernels-") as folder:
        home = Path(folder)
        parameters = dict(job.parameters)
        private = home / DATA_FOLDER
        if job.writes:
            stored = Path(parameters.get("data_dir") or data).resolve()
            shutil.copytree(stored, private, copy_function=os.symlink)
            parameters["data_dir"] = str(private)
            environment[MEASURED] = json.dumps({one.experiment: one.run_id for one in shared})
            for one in shared:
                one.show(private)
        (home / "source.ipynb").write_text(source, "utf8")
        (home / "parameters.json").write_text(json.dumps(parameters), "utf8")
        given = [home / "source.ipynb", home / NOTEBOOK, home / "parameters.json", os.getpid()]
        command = [sys.executable, "-m", "labkernels.book.batch.notebook", *map(str, given)]
        with (home / LOG).open("wb") as log:
            status = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            ).returncode
        runs = _new_runs(private)
        found = _verdict(home, status)
        if device and (others := _on_others(runs, device)):
            found = (FAILED, f"{others} measured, not {device}: nothing of it is kept", False)
        outcome = Outcome(
            *found,
            left_out=_left_out(home / NOTEBOOK),
            runs=tuple(run["run_id"] for run in runs),
            gpu=runs[0]["gpu_name"] if runs else None,
            device=device,
            host=platform.node(),
            began=began,
            seconds=round(time.time() - began, 2),
        )
        return outcome, _packed(home)


def _runs(folder: Path) -> Iterator[dict[str, str]]:
    """Rows of the run table in a folder."""
    for path in sorted((folder / RUNS).glob("*.csv")):
        with path.open(newline="", encoding="utf8") as file:
            yield from csv.DictReader(file)


def _new_runs(private: Path) -> list[dict[str, str]]:
    """Take away what the job was shown of the stored tables; the rows of the runs that it added."""
    for path in [*private.rglob("*")]:
        if path.is_symlink():
            path.unlink()
    return [*_runs(private)]


def shared_runs(job: Job, measured: Iterable[Path], device: str | None) -> list[Shared]:
    """The newest run of each of a job's experiments, of its preset and on this GPU, that another chapter has measured.

    Args:
        job: which.
        measured: folders of rows of other jobs.
        device: the GPU, by its UUID.
    """
    found = {
        run["experiment"]: Shared(run["experiment"], run["run_id"], folder)
        for folder in measured
        if folder.parent.name.partition("-")[2] != job.chapter
        for run in _runs(folder)
        if run["experiment"] in job.experiments and run["preset"] == job.preset and _is_of(run, device)
    }
    return list(found.values())


def _is_of(run: dict[str, str], device: str | None) -> bool:
    """Whether a run names this GPU, given by its UUID."""
    own = hashlib.sha256((device or "").removeprefix("GPU-").encode()).hexdigest()
    return own.startswith(run["gpu_uuid_hash"])


def _on_others(runs: list[dict[str, str]], device: str) -> str:
    """Hashes of the GPUs that rows name, where the job was given another by its UUID."""
    others = {run["gpu_uuid_hash"] for run in runs if not _is_of(run, device)}
    return ", ".join(sorted(others)) if device.startswith("GPU-") else ""


def _outputs(path: Path, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Outputs of one kind in an executed notebook, with their cell's id; none where there is no whole notebook."""
    try:
        cells = nbformat.read(path, as_version=4).cells
    except (OSError, ValueError):
        return
    for cell in cells:
        yield from ((cell["id"], one) for one in cell.get("outputs", []) if one.output_type == kind)


def _verdict(home: Path, status: int) -> tuple[str, str | None, bool]:
    if status == 0:
        return DONE, None, False
    for cell, error in _outputs(home / NOTEBOOK, "error"):
        if error["ename"] == "NotInstalled":
            return NOTHING, error["evalue"], True
        return FAILED, f"{error['ename']}: {error['evalue']} (cell {cell})", True
    said = (home / LOG).read_text("utf8", "replace").splitlines()
    return FAILED, f"its process ended with status {status}{': ' + said[-1] if said else ''}", False


def _left_out(path: Path) -> tuple[str, ...]:
    lines = (line for _, one in _outputs(path, "stream") for line in one["text"].splitlines())
    return tuple(line.removeprefix(NOT_HERE) for line in lines if line.startswith(NOT_HERE))


def _packed(home: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name in (NOTEBOOK, LOG, DATA_FOLDER):
            if (home / name).exists():
                archive.add(home / name, name)
    return packed.getvalue()
