"""Who executes the jobs: this process, on one GPU, or workers of Dask, one for each GPU."""

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkernels.book.batch.job import FAILED, Outcome, Shared, execute, shared_runs
from labkernels.book.batch.plan import Job
from labkernels.device.board import gpu_uuids, visible_gpus
from labkernels.errors import LabError, NotInstalled

if TYPE_CHECKING:
    from distributed import Client

#: A job, its notebook and the folder of the stored tables.
Task = tuple[Job, str, str]
Finished = tuple[Job, Outcome, bytes]
ANSWER_S = "10s"  # for a scheduler


class NoScheduler(LabError):
    """The scheduler cannot be reached, or was lost; what was complete is kept."""


def here(
    tasks: Sequence[Task], device: str, workers: int, measured: Callable[[], Sequence[Path]]
) -> Iterator[Finished]:
    """The jobs on one GPU, one after the other; then those that have nothing left to measure, side by side without it.

    Args:
        tasks: the jobs.
        device: the GPU; empty for none.
        workers: how many that measure nothing run at once.
        measured: folders of rows that the batch has; what they have is not measured again.
    """
    later = []
    for task in sorted(tasks, key=lambda task: task[0].may_follow):
        shared = shared_runs(task[0], measured(), device)
        if task[0].may_follow and {one.experiment for one in shared} >= set(task[0].measures):
            later.append((task, shared))
        else:
            yield _executed(task, device, shared)
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(_executed, task, "", shared) for task, shared in later]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _executed(task: Task, device: str, shared: list[Shared]) -> Finished:
    """A job; one whose process died is run once more."""
    outcome, files = execute(*task, device, shared)
    if outcome.status == FAILED and not outcome.in_notebook:
        outcome, files = execute(*task, device, shared)
    return task[0], outcome, files


def on_devices(tasks: Sequence[Task], devices: Sequence[str]) -> Iterator[Finished]:
    """The jobs on workers of this machine, one for each of these GPUs; as they finish."""
    with _local(devices) as client:
        yield from _on(client, tasks)


def on_scheduler(tasks: Sequence[Task], address: str) -> Iterator[Finished]:
    """The jobs on whatever workers a Dask scheduler has; as they finish.

    Raises:
        NoScheduler: there is none at the address, it was lost, or one of its workers would share a GPU.
    """
    distributed = _distributed()
    try:
        client = distributed.Client(address, timeout=ANSWER_S)
    except (OSError, ValueError) as error:
        raise NoScheduler(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        client.wait_for_workers(1)
        _require_one_job_each(client)
        yield from _on(client, tasks)


def _distributed() -> Any:
    try:
        import distributed
    except ModuleNotFoundError:
        raise NotInstalled("more than one worker needs Dask: pip install 'labkernels[batch]'") from None
    return distributed


@contextmanager
def _local(devices: Sequence[str]) -> "Iterator[Client]":
    """A client of workers of this machine; each is a process with one thread and sees one GPU."""
    distributed = _distributed()
    import dask

    def worker(device: str) -> dict[str, Any]:
        environment = {"CUDA_VISIBLE_DEVICES": device}
        return {"cls": distributed.Nanny, "options": {"nthreads": 1, "env": environment}}

    settings = {"distributed.diagnostics.nvml": False, "distributed.scheduler.worker-saturation": 1.0}
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard": False}}
    with (
        dask.config.set(settings),
        distributed.SpecCluster(dict(enumerate(map(worker, devices))), scheduler, silence_logs=40) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(len(devices))
        yield client


def _gpus() -> list[tuple[str, str]]:
    """The GPUs that a worker sees, with its machine: by UUID, since Slurm's tasks may each call theirs number 0."""
    known = gpu_uuids()
    names = (known[int(n)] if n.isdecimal() and int(n) < len(known) else n for n in visible_gpus())
    return [(platform.node(), name) for name in names]


def _require_one_job_each(client: "Client") -> None:
    """Refuse workers that would put two jobs on one GPU."""
    for address, one in client.scheduler_info(n_workers=-1)["workers"].items():
        if one["nthreads"] != 1:
            raise NoScheduler(
                f"worker {address} has {one['nthreads']} threads, which would share its GPU: start it with "
                "--nthreads 1"
            )
    seen = Counter(gpu for gpus in client.run(_gpus).values() for gpu in gpus)
    for (host, gpu), count in seen.items():
        if count > 1:
            raise NoScheduler(
                f"{count} workers on {host} see {gpu} and would share it: start one for each GPU, with its UUID as "
                "CUDA_VISIBLE_DEVICES"
            )


def _work(task: Task) -> tuple[Outcome, bytes, str]:
    from distributed import get_worker

    return *execute(*task), get_worker().address


def _on(client: "Client", tasks: Sequence[Task]) -> Iterator[Finished]:
    """The jobs as they finish; one that failed is tried once more, on another worker if there is one."""
    from distributed import as_completed as completed

    of: dict[Any, tuple[Task, bool]] = {client.submit(_work, one, pure=False): (one, True) for one in tasks}
    futures = completed(of, raise_errors=False)
    for future in futures:
        task, is_first = of.pop(future)
        if future.status in ("cancelled", "lost"):
            raise NoScheduler("the Dask scheduler was lost; what is complete is kept")
        if future.status == "error":  # workers died under it, again and again
            yield task[0], _died(future.exception()), b""
            continue
        outcome, files, worker = future.result()
        future.release()
        others = [one for one in client.scheduler_info(n_workers=-1)["workers"] if one != worker]
        if outcome.status == FAILED and is_first and (others or not outcome.in_notebook):
            again = client.submit(_work, task, pure=False, workers=others or None)
            of[again] = task, False
            futures.add(again)
            continue
        yield task[0], outcome, files


def _died(error: BaseException) -> Outcome:
    return Outcome(FAILED, f"{type(error).__name__}: {error}", False, (), (), None, None, "", 0.0, 0.0)
