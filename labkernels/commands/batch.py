"""`batch`: chapters with parameter sets from YAML, executed by papermill, their rows merged at the end."""

import json
import math
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from labkernels.book.batch import fleet, summary
from labkernels.book.batch.folder import BatchFolder, estimates
from labkernels.book.batch.job import FAILED
from labkernels.book.batch.plan import Job, plan
from labkernels.commands import WRITES, Answer, Option, option
from labkernels.device.board import gpu_uuids, visible_gpus
from labkernels.errors import BadArgument, NoGpu
from labkernels.paths import BOOK
from labkernels.store import Store
from labkernels.store.files import write_file

QUICK = BOOK / "params" / "quick.yml"


def options() -> Iterator[Option]:
    """What to run, on what, and where to put it."""
    yield option("files", nargs="*", type=Path, help="parameter files (default: book/params/quick.yml)")
    yield option("--out", type=Path, metavar="DIR", help="folder of the batch (default: a new one in runs/)")
    yield option("--resume", type=Path, metavar="DIR", help="go on with a batch; what is complete stays")
    yield option("--dry-run", action="store_true", help="print the plan with estimated minutes, run nothing")
    yield option(
        "--gpus", help="all, a number, or UUIDs with commas: a worker for each (default: the first GPU)"
    )
    yield option(
        "--workers",
        type=int,
        default=min(8, os.cpu_count() or 1),
        metavar="N",
        help="how many chapters that measure nothing run at once (default: one for each core, 8 at most)",
    )
    yield option("--scheduler", metavar="ADDRESS", help="Dask scheduler whose workers do the work")
    yield option(
        "--book", type=Path, default=BOOK, metavar="DIR", help="folder of the notebooks (default: book/)"
    )
    yield WRITES


def run(arguments: Namespace) -> Answer:
    """What became of every job; exit status 1 where one failed.

    Raises:
        LabError: what is asked for cannot be run; nothing was.
    """
    if arguments.resume and (arguments.files or arguments.out):
        raise BadArgument("`resume` takes its plan from the folder: leave parameter files and --out away")
    if arguments.resume:
        batch, jobs = (found := BatchFolder(arguments.resume)), found.todo()
    else:
        batch, jobs = None, plan(arguments.files or [QUICK], arguments.book)
    if arguments.dry_run:
        return _planned(jobs, arguments)
    devices = _devices(arguments, any(job.writes for job in jobs))
    if batch is None:
        name = f"batch-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        batch = BatchFolder.create(arguments.out or Path("runs") / name, jobs, arguments.data)
    print(f"batch: {len(jobs)} jobs, in {batch.root}", file=sys.stderr, flush=True)
    with batch.locked():
        return _run(batch, devices, arguments)


def _run(batch: BatchFolder, devices: Sequence[str], arguments: Namespace) -> Answer:
    tasks = [(job, Path(job.notebook).read_text("utf8"), str(batch.data)) for job in batch.todo()]
    if not tasks:
        finished: Iterator[fleet.Finished] = iter(())
    elif arguments.scheduler:
        finished = fleet.on_scheduler(tasks, arguments.scheduler)
    elif len(devices) > 1:
        finished = fleet.on_devices(tasks, devices)
    else:
        finished = fleet.here(tasks, devices[0], arguments.workers, batch.rows)
    expected = {job.name: batch.expected[job.name] for job, *_ in tasks}
    began, done, lost = time.monotonic(), 0.0, None
    try:
        for number, (job, outcome, files) in enumerate(finished, start=1):
            batch.keep(job, outcome, files)
            done += expected[job.name]
            left = max(0.0, math.fsum(expected.values()) - done) * (time.monotonic() - began) / done / 60
            print(
                f"{job.name}: {outcome.status}, {outcome.seconds:.0f} s; {number} of {len(tasks)}, "
                f"about {left:.1f} min left",
                file=sys.stderr,
                flush=True,
            )
    except fleet.NoScheduler as error:
        lost = error
    value = summary.summary(batch, batch.merge(Store(batch.data)))
    write_file(batch.root / "summary.json", json.dumps(value, indent=1).encode())
    write_file(batch.root / "summary.html", summary.page(value).encode())
    if lost:
        raise fleet.NoScheduler(f"{lost}. Go on with --resume {batch.root}")
    return Answer(value, summary.text(value), status=int(value["counts"][FAILED] > 0))


def _devices(arguments: Namespace, measures: bool) -> list[str]:
    """A value of CUDA_VISIBLE_DEVICES for each worker of this machine.

    Raises:
        BadArgument: there are no such GPUs.
        NoGpu: a chapter measures, and there is none.
    """
    if arguments.workers < 1:
        raise BadArgument(f"`workers` {arguments.workers}: give 1 or more")
    if arguments.scheduler:
        return []
    there = visible_gpus() if gpu_uuids() else []
    if not (measures or arguments.gpus):
        return [""]  # hides the GPUs
    if not there:
        raise NoGpu("no GPU is seen here: run chapters from stored rows with book/params/stored.yml")
    wanted = arguments.gpus or "1"
    if wanted == "all":
        return there
    if wanted.isdecimal() and 1 <= int(wanted) <= len(there):
        return there[: int(wanted)]
    if len(chosen := wanted.split(",")) == len({*chosen} & {*there}):
        return chosen
    raise BadArgument(f"`gpus` {wanted}: give all, a number up to {len(there)}, or some of {','.join(there)}")


def _planned(jobs: Sequence[Job], arguments: Namespace) -> Answer:
    seconds = estimates(jobs, arguments.data)
    listed = [
        {"chapter": job.chapter, "parameters": job.parameters, "minutes": round(seconds[job.name] / 60, 1)}
        for job in jobs
    ]
    minutes = math.fsum(seconds.values()) / 60
    lines = [
        f"{one['minutes']:6.1f} min  {one['chapter']} "
        + " ".join(f"{name}={value}" for name, value in one["parameters"].items())
        for one in listed
    ]
    total = f"{len(jobs)} jobs, about {minutes:.1f} min on one worker"
    return Answer({"jobs": listed, "minutes": round(minutes, 1)}, "\n".join([*lines, total]))
