"""Batches: plans are checked before anything runs, nothing is lost or repeated, one job at a time on a GPU."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from stub_book import write

from labkernels.book.batch import fleet
from labkernels.book.batch.folder import BadBatch, BatchFolder, estimates
from labkernels.book.batch.job import shared_runs
from labkernels.book.batch.plan import BadParameterFile, plan
from labkernels.cli import main
from labkernels.commands import batch as command
from labkernels.paths import BOOK, DATA
from labkernels.store import RUNS, Store

GPUS = [f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in range(8)]


@pytest.mark.parametrize("file", sorted((BOOK / "params").glob("*.yml")), ids=lambda path: path.stem)
def test_the_books_own_parameter_files_run_every_chapter(file):
    assert {job.chapter for job in plan([file])} == {path.stem for path in BOOK.glob("*.ipynb")}


def test_lists_are_axes_and_a_chapter_gets_what_it_has(tmp_path):
    file = tmp_path / "mine.yml"
    file.write_text("chapters: all\nparameters:\n  measure: [true, false]\n  preset: [quick, full]\n")
    jobs = plan([file, file])
    of = {name: [job.parameters for job in jobs if job.chapter == name] for name in ("crossover", "catalog")}
    assert len(of["crossover"]) == 4 and of["catalog"] == [{"measure": True}, {"measure": False}]
    assert {job.writes for job in jobs if job.chapter == "catalog"} == {False}
    assert len({job.name for job in jobs}) == len(jobs)
    assert {job.experiments for job in jobs if job.chapter == "method"} == {("throughput",)}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("chapters: [crossover,\n  crosover]", 2, "unknown chapter 'crosover'; there are broadcast"),
        ("chapters: all\nparameters:\n  mesure: true", 3, "unknown 'mesure'; there are measure"),
        (
            "chapters: [catalog]\nparameters:\n  preset: full",
            3,
            "unknown 'preset'; there are measure, compiled",
        ),
        (
            "chapters: [latency, catalog]\nparameters:\n  preset: full",
            3,
            "catalog has no parameter preset; it has measure, compiled",
        ),
        ("chapters: all\nparameters:\n  measure: 1", 3, "measure is 1, a int; broadcast takes a bool"),
        ("chapters: all\nparameters:\n  measure:\n    - true\n    - 'no'", 5, "measure is 'no', a str"),
        ("chapters: [latency]\nparameters:\n  preset: slow", 3, "preset 'slow': latency has quick, full"),
        ("chapters: all\nparameters:\n  preset: []", 3, "preset is an empty list"),
        ("chapters: []", 1, "chapters is an empty list"),
        ("chapters: all\nparameters:\n  gpu: !!python/object/apply:os.system ['true']", 3, "python/object"),
        ("chapters: all\nparameters:\n  measure: !!python/name:os.system", 3, "a value of kind python/name"),
        ("!!python/object:os.stat\nchapters: all", 1, "give a mapping"),
        ("chapters: all\nparameters:\n  gpu: !!int x", 3, "'x' is none of the kind int"),
        ("chapters: all\nparameters:\n  preset: {a: 1}", 3, "a value of kind map"),
        ("chapters: all\nchapters: all", 2, "chapters is given twice"),
        ("chapter: all", 1, "unknown 'chapter'; there are chapters, parameters"),
        ("parameters: {}", 1, "no chapters: give chapters: all"),
        ("chapters: all\n  x: [", 2, "no YAML"),
        ("", 1, "give a mapping with chapters and parameters"),
        ("chapters: &a [*a]", 1, "a value of kind seq"),
    ],
)
def test_bad_parameter_files_are_refused_with_their_line(tmp_path, text, line, said, capsys):
    file = tmp_path / "mine.yml"
    file.write_text(text)
    with pytest.raises(BadParameterFile) as error:
        plan([file])
    assert str(error.value).startswith(f"{file}:{line}: ") and said in str(error.value)
    out = tmp_path / "out"
    assert main(["batch", str(file), "--out", str(out)]) == 2
    assert f"{file}:{line}: " in capsys.readouterr().err and not out.exists()


@pytest.fixture
def data(tmp_path):
    """A copy of the stored tables."""
    return shutil.copytree(DATA, tmp_path / "data", copy_function=os.link)


@pytest.fixture
def stub(tmp_path, data, monkeypatch):
    """A batch over stand-ins on simulated GPUs: its exit status and summary."""
    monkeypatch.setattr("labkernels.book.batch.folder.SECONDS", tmp_path / "seconds.json")
    monkeypatch.setattr(command, "gpu_uuids", lambda: GPUS)
    monkeypatch.setattr(command, "visible_gpus", lambda: GPUS)

    def run(chapters, *options, out=tmp_path / "out", parameters="measure: true"):
        write(tmp_path / "book", *chapters)
        file = tmp_path / "mine.yml"
        file.write_text(f"chapters: all\nparameters:\n  {parameters}\n")
        given = ["--book", str(tmp_path / "book"), "--out", str(out), "--data", str(data)]
        status = main(["batch", str(file), *given, *options])
        path = out / "summary.json"
        return status, json.loads(path.read_text()) if path.exists() else None

    return run


def new_rows(data):
    """Rows that are not in the book's data, without what tells one execution from another; no run is torn or double."""
    store = Store(data)
    assert store.check() == []
    runs = [run for run in store.read(RUNS)["run_id"] if run not in set(Store().read(RUNS)["run_id"])]
    rows = store.read("latency", run_ids=runs).drop(columns="run_id")
    return sorted(map(str, rows.astype(str).to_dict("records")))


def test_what_fails_or_lacks_something_does_not_stop_the_rest(stub, data, tmp_path, capsys):
    status, value = stub(["dies", "fails", "lacks", "partly", "rows", "elsewhere"])
    of = {job["chapter"]: job for job in value["jobs"]}
    assert status == 1 and value["counts"] == {
        "done": 2,
        "nothing to measure here": 1,
        "failed": 3,
        "not run": 0,
    }
    assert of["fails"]["error"].startswith("ValueError: the third stage was never released (cell ")
    assert of["lacks"]["error"] == "ncu is not here: install it"
    assert of["partly"]["left_out"] == ["hints: ncu is not here"]
    assert "measured, not GPU-" in of["elsewhere"]["error"] and of["dies"]["error"]
    assert len(new_rows(data)) == 2 and len(value["merged"]) == 1
    assert of["rows"]["gpu"] == "stub" and of["rows"]["device"] == GPUS[0]
    page = (tmp_path / "out" / "summary.html").read_text()
    assert "the third stage was never released" in page and 'href="005-partly/notebook.ipynb"' in page
    said = capsys.readouterr()
    assert "3 failed" in said.out and "; 6 of 6, about 0.0 min left\n" in said.err


def test_nothing_to_measure_is_no_failure(stub):
    assert stub(["lacks"])[0] == 0


def test_resuming_runs_what_failed_and_nothing_else(stub, tmp_path, data, capsys):
    out = tmp_path / "out"
    assert stub(["fails", "rows"])[0] == 1
    began = {path: path.stat().st_mtime_ns for path in out.glob("*-rows/*")}
    notebook = tmp_path / "book" / "fails.ipynb"
    notebook.write_text(notebook.read_text().replace("raise ValueError", "print"))
    assert main(["batch", "--resume", str(out)]) == 0
    assert began == {path: path.stat().st_mtime_ns for path in out.glob("*-rows/*")}
    assert len(new_rows(data)) == 2
    assert main(["batch", "--resume", str(out), "--out", "x"]) == 2
    assert main(["batch", "--resume", str(tmp_path)]) == 2
    assert "holds no batch" in capsys.readouterr().err
    assert stub(["rows"])[0] == 2  # the folder is taken
    with (
        BatchFolder(out).locked(),
        pytest.raises(BadBatch, match="another process"),
        BatchFolder(out).locked(),
    ):
        pass


def test_a_dry_run_tells_the_minutes_and_runs_nothing(stub, tmp_path, capsys):
    assert stub(["rows"], "--dry-run") == (0, None)
    assert "1 jobs, about 0.4 min" in capsys.readouterr().out and not (tmp_path / "out").exists()


def test_estimates_are_what_a_job_last_took(stub, tmp_path):
    _, value = stub(["rows"])
    jobs = BatchFolder(tmp_path / "out").jobs
    assert [*estimates(jobs, DATA).values()] == [value["jobs"][0]["seconds"]]


def test_what_one_chapter_measured_is_not_measured_again_on_the_same_gpu(stub, tmp_path, data):
    status, value = stub(["rows", "shares"])
    of = {job["chapter"]: job for job in value["jobs"]}
    assert status == 0, of["shares"]["error"]
    assert of["rows"]["runs"] and not of["shares"]["runs"] and len(new_rows(data)) == 2
    notebook = json.loads((tmp_path / "out" / "002-shares" / "notebook.ipynb").read_text())
    assert notebook["cells"][-1]["outputs"][0]["text"] == ["2\n"]
    batch = BatchFolder(tmp_path / "out")
    job = next(job for job in batch.jobs if job.chapter == "shares")
    shared = [shared_runs(job, batch.rows(), gpu) for gpu in (*GPUS[:2], None)]
    assert [[one.experiment for one in each] for each in shared] == [["latency"], [], []]
    assert shared_runs(replace(job, parameters={"preset": "full"}), batch.rows(), GPUS[0]) == []


def test_gpus_that_are_not_there_are_refused(stub, monkeypatch, capsys):
    assert stub(["rows"], "--gpus", "9")[0] == 2 and "a number up to 8" in capsys.readouterr().err
    assert stub(["rows"], "--gpus", "GPU-x")[0] == 2 and stub(["rows"], "--gpus", "0")[0] == 2
    monkeypatch.setattr(command, "gpu_uuids", list)
    assert stub(["rows"])[0] == 2 and "no GPU is seen here" in capsys.readouterr().err


def apart(jobs):
    """Whether no two jobs were at once on one GPU."""
    for device in {job["device"] for job in jobs}:
        spans = sorted((j["began"], j["began"] + j["seconds"]) for j in jobs if j["device"] == device)
        if any(first[1] > second[0] for first, second in pairwise(spans)):
            return False
    return True


def on_gpus(stub, data, count, jobs):
    status, value = stub(
        ["rows"], "--gpus", str(count), parameters=f"measure: true\n  cell: {[*range(jobs)]}"
    )
    assert status == 0 and value["counts"]["done"] == jobs and apart(value["jobs"])
    assert {job["device"] for job in value["jobs"]} == {*GPUS[:count]}
    assert len(new_rows(data)) == 2 * jobs and len(set(value["merged"])) == jobs


@pytest.mark.slow
def test_one_job_at_a_time_on_a_gpu(stub, data):
    on_gpus(stub, data, 3, 6)


@pytest.mark.slow
def test_eight_gpus_run_a_hundred_jobs_one_at_a_time_each(stub, data):
    on_gpus(stub, data, 8, 100)


def test_what_failed_is_tried_once_more_on_another_gpu(stub):
    status, value = stub(["picky"], "--gpus", "2", parameters="cell: [0, 1]")
    assert status == 0 and [job["device"] for job in value["jobs"]] == [GPUS[1]] * 2


PROCESS = """
import sys
from pathlib import Path
from labkernels.book.batch import folder
from labkernels.cli import main
from labkernels.commands import batch
folder.SECONDS = Path(sys.argv[1])
batch.gpu_uuids = batch.visible_gpus = lambda: sys.argv[2].split(",")
sys.exit(main(["batch", *sys.argv[3:]]))
"""


class Killed:
    """A batch of stand-ins in a process of its own, to be killed and resumed."""

    def __init__(self, folder: Path, jobs: int, *options: str) -> None:
        self.folder, self.options, self.data = folder, options, folder / "data"
        folder.mkdir()
        shutil.copytree(DATA, self.data, copy_function=os.link)
        write(folder / "book", "rows")
        parameters = f"measure: true\n  seconds: 0.2\n  cell: {[*range(jobs)]}"
        (folder / "mine.yml").write_text(f"chapters: all\nparameters:\n  {parameters}\n")

    def start(self) -> subprocess.Popen:
        out = str(self.folder / "out")
        fresh = ["mine.yml", "--book", "book", "--data", "data", "--out", out]
        given = ["--resume", out] if (self.folder / "out" / "batch.json").exists() else fresh
        command = [sys.executable, "-c", PROCESS, "seconds.json", ",".join(GPUS), *given, *self.options]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def finish(self) -> list[str]:
        process = self.start()
        _, said = process.communicate()
        assert process.returncode == 0, said.decode()
        jobs = json.loads((self.folder / "out" / "summary.json").read_text())["jobs"]
        assert {job["status"] for job in jobs} == {"done"} and apart(jobs)
        return new_rows(self.data)

    def kill_after(self, seconds: float) -> bool:
        """Whether it was still at work."""
        process = self.start()
        time.sleep(seconds)
        was = process.poll() is None
        process.kill()
        process.communicate()
        return was


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The new rows of a batch of four jobs that nobody killed."""
    rows = Killed(tmp_path_factory.mktemp("batch") / "undisturbed", 4).finish()
    assert len(rows) == 8
    return rows


def killed_again_and_again(tmp_path, kills, undisturbed):
    chance, done, batch = random.Random(7), 0, 0
    while done < kills:
        one, batch = Killed(tmp_path / f"batch-{batch}", 4), batch + 1
        while done < kills and one.kill_after(chance.uniform(0.5, 12)):
            done += 1
        assert one.finish() == undisturbed
        shutil.rmtree(one.folder)


def test_a_killed_batch_goes_on_to_the_same_table(tmp_path, undisturbed):
    killed_again_and_again(tmp_path, 2, undisturbed)


@pytest.mark.slow
def test_fifty_kills_lead_to_the_same_table(tmp_path, undisturbed):
    killed_again_and_again(tmp_path, 50, undisturbed)


class Cluster:
    """A Dask scheduler and workers of one thread, each with a simulated GPU, as separate processes."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.count, self.port = folder, workers, None
        self.processes: list[subprocess.Popen] = []

    def _dask(self, *arguments: str, device: str = "") -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": device},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def __enter__(self):
        port = str(self.port or 0)
        file = self.folder / "scheduler.json"
        file.unlink(missing_ok=True)
        self.scheduler = self._dask(
            "scheduler",
            "--no-dashboard",
            "--host",
            "127.0.0.1",
            "--port",
            port,
            "--scheduler-file",
            str(file),
        )
        while not file.exists():
            time.sleep(0.1)
        self.address = json.loads(file.read_text())["address"]
        self.workers = [self.worker(device) for device in GPUS[: self.count]]
        return self

    def worker(self, device):
        return self._dask("worker", self.address, "--nthreads", "1", "--no-dashboard", device=device)

    def __exit__(self, *_):
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(batch, jobs):
    """Until so many of a batch's jobs are complete."""
    while len([*(batch.folder / "out").glob("*/outcome.json")]) < jobs:
        time.sleep(0.05)


def test_a_killed_worker_costs_nothing(tmp_path, undisturbed):
    with Cluster(tmp_path, 2) as cluster:
        batch = Killed(tmp_path / "batch", 4, "--scheduler", cluster.address)
        process = batch.start()
        wait_for(batch, 1)
        os.killpg(cluster.workers[0].pid, signal.SIGKILL)
        _, said = process.communicate()
        assert process.returncode == 0, said.decode()
        assert new_rows(batch.data) == undisturbed


@pytest.mark.slow
def test_a_killed_scheduler_is_started_again_and_the_batch_resumed(tmp_path, undisturbed):
    with Cluster(tmp_path, 2) as cluster:
        batch = Killed(tmp_path / "batch", 4, "--scheduler", cluster.address)
        process = batch.start()
        wait_for(batch, 1)
        cluster.scheduler.kill()
        _, said = process.communicate()
        assert process.returncode == 2 and b"Go on with --resume" in said, said.decode()
    before = {path: path.stat().st_mtime_ns for path in (batch.folder / "out").glob("*/outcome.json")}
    with Cluster(tmp_path, 2) as cluster:
        batch.options = ("--scheduler", cluster.address)
        assert batch.finish() == undisturbed
    assert before and before.items() <= {p: p.stat().st_mtime_ns for p in before}.items()


def test_workers_that_would_share_a_gpu_are_refused(tmp_path):
    with Cluster(tmp_path, 1) as cluster:
        cluster.worker(GPUS[0])
        from distributed import Client

        with Client(cluster.address) as client:
            client.wait_for_workers(2)
        with pytest.raises(fleet.NoScheduler, match=r"2 workers on .* see GPU-0+-0.* would share it"):
            list(fleet.on_scheduler([], cluster.address))


def test_a_worker_with_threads_is_refused(tmp_path):
    with Cluster(tmp_path, 0) as cluster:
        cluster._dask("worker", cluster.address, "--nthreads", "2", "--nworkers", "1", "--no-dashboard")
        with pytest.raises(fleet.NoScheduler, match=r"has 2 threads.*: start it with --nthreads 1"):
            list(fleet.on_scheduler([], cluster.address))


def test_a_scheduler_that_is_not_there_is_a_sentence(monkeypatch):
    monkeypatch.setattr(fleet, "ANSWER_S", "1s")
    with pytest.raises(fleet.NoScheduler, match="no Dask scheduler answers"):
        list(fleet.on_scheduler([], "tcp://127.0.0.1:1"))
