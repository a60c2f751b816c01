"""The store under kills, rivals, full disks and hand edits: no row lost or torn, every fault named."""

import csv
import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import tempfile
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkernels.store import Store, StoreError, new_run_id, published
from labkernels.store.store import PACKAGE

FORK = multiprocessing.get_context("fork")


def make_run(**changes):
    return {
        "run_id": new_run_id(),
        "started_utc": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "experiment": "latency",
        "preset": "quick",
        "gpu_name": "NVIDIA Test",
        "sm_count": 132,
        "compute_capability": "9.0",
        "l2_bytes": 2**26,
        "memory_bytes": 2**37,
        "driver_version": "575.57",
        "cuda_driver_api": "12.9",
        "toolkit_version": "12.9",
        "python_version": "3.11.4",
        "package_versions": "numpy==2.4.6;pandas==3.1.1",
        "commit": "0123456789" * 4,
        "dirty": False,
        "kernels_sha256": "ab" * 32,
        "parameters": {"threads": [32, 128], "note": 'a "quoted", comma'},
        "wall_s": 1.5,
        **changes,
    }


def latency_row(**changes):
    return {
        "kernel": "latency_tma_bulk",
        "mechanism": "tma_bulk",
        "protocol": "issue to readable",
        "source": "l2_near",
        "footprint_bytes": 1 << 20,
        "transfer_bytes": 1024,
        "threads": 32,
        "n": 100,
        "cycles_p05": 640.5,
        "cycles_median": 0.1 + 0.2,
        "cycles_p95": 700,
        "ns_median": 333.3,
        **changes,
    }


def issue_row(**changes):
    kept = ("kernel", "mechanism", "transfer_bytes", "n", "cycles_p05", "cycles_median", "cycles_p95")
    return {name: latency_row()[name] for name in kept} | {
        "train_length": 8,
        "arrived_cycles_median": 900,
        **changes,
    }


def record(store, latency=3, issue=2, **changes):
    """One run over two data tables."""
    return store.record(
        make_run(**changes),
        {
            "latency": [latency_row()] * latency,
            "issue_cost": [issue_row(train_length=i + 1) for i in range(issue)],
        },
    )


def assert_whole(store, acknowledged, unsure=0):
    """All acknowledged runs with all their rows, at most `unsure` runs besides, before and after repair."""
    for repair in (False, True):
        if repair:
            assert store.check() == []
            assert sorted(path.name for path in (store.root / ".store").iterdir()) in ([], ["lock"])
        runs = set(store.read("runs")["run_id"])
        assert set(acknowledged) <= runs
        assert len(runs - set(acknowledged)) <= unsure
        assert store.read("latency")["run_id"].value_counts().to_dict() == dict.fromkeys(runs, 3)
        assert store.read("issue_cost")["run_id"].value_counts().to_dict() == dict.fromkeys(runs, 2)


@pytest.fixture(scope="module")
def memory():
    """A folder in memory where there is such a place: hundreds of fsyncs take long on a busy disk."""
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=place if os.access(place, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def tmp_path(memory):
    return Path(tempfile.mkdtemp(dir=memory))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "data")


@pytest.fixture
def filled(store):
    record(store)
    record(store)
    return store


def test_rows_come_back_as_they_went_in_with_types_of_the_schema(store):
    run_id = record(store, temperature_c_max=61.0)
    rows = store.read("latency", run_columns=["gpu_name"])
    assert list(rows["run_id"]) == [run_id] * 3
    assert set(rows["gpu_name"]) == {"NVIDIA Test"}
    assert rows["cycles_median"][0] == 0.1 + 0.2
    assert rows["transfer_bytes"].dtype == "int64"
    assert rows["variant"].isna().all()
    run = store.read("runs").iloc[0]
    assert run["started_utc"] == pd.Timestamp("2026-01-31T12:00:00Z")
    assert not run["dirty"]
    assert pd.isna(run["ecc"])
    assert json.loads(run["parameters"]) == make_run()["parameters"]
    assert run["rows"] == "issue_cost=2;latency=3"
    assert list(store.read("runs")) == store.tables["runs"].columns


def test_a_frame_with_gaps_in_an_integer_column_is_stored(store):
    shared = {"source": "hbm", "footprint_bytes": 1024, "tile_bytes": 64, "stages": 2, "ctas_per_sm": 1}
    timed = {
        "threads": 32,
        "bytes_in_flight_per_sm": 128,
        "bytes_moved": 4096,
        "duration_us": 1.0,
        "gbps": 4.1,
    }
    row = (
        {"kernel": "k", "mechanism": "tma_tile", "inner_bytes": 16, "box_rows": 4, "swizzle": "none"}
        | {"pitch_bytes": 16, "l2_promotion_bytes": 0}
        | shared
        | timed
    )
    frame = pd.DataFrame([row | {"rank": 2, "round": 0}, row | {"rank": None, "round": 1}])
    store.record(make_run(), {"row_shape": frame})
    assert store.read("row_shape")["rank"].tolist() == [2, pd.NA]


def test_an_empty_store_has_columns_and_no_rows(store):
    for name, table in store.tables.items():
        frame = store.read(name)
        assert list(frame) == table.columns
        assert frame.empty
        assert frame.dtypes.astype(str).tolist() == [field.dtype for field in table.fields]
    assert store.check() == []
    assert not store.root.exists()


def test_stored_bytes_are_never_rewritten(store):
    record(store)
    path = store.root / "latency.csv"
    # Spelling that the store itself would not choose, but may read.
    path.write_bytes(path.read_bytes().replace(b"640.5", b'"640.50"'))
    before = {path: path.read_bytes() for path in store.root.glob("*.csv")}
    record(store)
    for path, content in before.items():
        assert path.read_bytes().startswith(content)


def test_selecting_runs(filled):
    first, second = filled.read("runs")["run_id"]
    assert set(filled.read("latency", run_ids=[second])["run_id"]) == {second}
    with pytest.raises(ValueError, match="no run nonesuch"):
        filled.read("latency", run_ids=[first, "nonesuch"])
    with pytest.raises(ValueError, match="no column gpu_nam; they have run_id"):
        filled.read("latency", run_columns=["gpu_nam"])
    with pytest.raises(ValueError, match=r"no table 'latencies'.* latency"):
        filled.read("latencies")


def test_run_ids_sort_by_time_and_differ():
    ids = [new_run_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert [run_id[:16] for run_id in ids] == sorted(run_id[:16] for run_id in ids)


# --- what is offered ---


@pytest.mark.parametrize(
    "row, message",
    [
        ({"threads": "many"}, "row 2: column threads: 'many' is no integer"),
        ({"threads": 32.5}, "column threads: 32.5 is no integer"),
        ({"threads": True}, "column threads: True is no integer"),
        ({"threads": 0}, "column threads: 0 is below the minimum 1"),
        ({"threads": None}, "column threads: is empty and required"),
        ({"cycles_p05": float("inf")}, "column cycles_p05: 'inf' is no number"),
        ({"cycles_p05": float("nan")}, "column cycles_p05: is empty and required"),
        ({"cycles_p05": "1.0"}, "column cycles_p05: '1.0' is no number"),
        ({"kernel": "two\nlines"}, "column kernel: .* control character"),
        ({"kernel": 5}, "column kernel: 5 is no string"),
        ({"kernel": "\ud800"}, "column kernel: .*surrogates not allowed"),
        ({"source": "l3"}, "'l3' is not allowed; use one of l2_near, l2_far, l2, hbm"),
        ({"cycles": 5}, "column cycles is not in the table; the columns are run_id, kernel"),
        ({"run_id": "20260131T120000Z-00000000"}, "run 20260131T120000Z-00000000 is not in runs.csv"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_written(filled, row, message):
    before = contents(filled.root)
    with pytest.raises(StoreError, match=message.replace("row 2", "new rows for latency.csv, line 2")):
        filled.record(make_run(), {"latency": [latency_row(), latency_row(**row)]})
    assert contents(filled.root) == before


@pytest.mark.parametrize(
    "change, message",
    [
        ({"run_id": "run 7"}, "column run_id: 'run 7' does not match"),
        ({"run_id": None}, "column run_id: is empty"),
        ({"commit": "main"}, "column commit: 'main' does not match"),
        ({"started_utc": datetime(2026, 1, 31)}, "column started_utc: .*no time zone"),
        (
            {"started_utc": "2026-02-30T00:00:00Z"},
            "column started_utc: '2026-02-30T00:00:00Z' is no datetime",
        ),
        ({"dirty": 1}, "column dirty: 1 is no boolean"),
        ({"parameters": "[1]"}, r"column parameters: '\[1\]' is no object"),
        ({"parameters": {"path": Path("x")}}, "column parameters: .*not JSON serializable"),
    ],
)
def test_bad_runs_are_refused(store, change, message):
    with pytest.raises(StoreError, match=message):
        record(store, **change)
    assert not store.root.exists()


def test_a_time_elsewhere_is_stored_as_utc(store):
    record(store, started_utc=datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=9))))
    assert store.read("runs")["started_utc"][0] == pd.Timestamp("2026-01-31T03:00:00Z")


def test_a_run_is_stored_once_and_with_rows(filled):
    run_id = filled.read("runs")["run_id"][1]
    with pytest.raises(StoreError, match=f"runs.csv, line 3: run {run_id} is already stored"):
        record(filled, run_id=run_id)
    for tables in ({}, {"latency": []}):
        with pytest.raises(ValueError, match="has no rows"):
            filled.record(make_run(), tables)
    with pytest.raises(ValueError, match="published does not hold rows of runs"):
        filled.record(make_run(), {"published": [{"quantity": "latency"}]})
    assert_whole(filled, filled.read("runs")["run_id"])


def test_a_column_shared_with_the_run_table_must_agree(tmp_path):
    package = json.loads(PACKAGE.read_text())
    latency = next(resource for resource in package["resources"] if resource["name"] == "latency")
    latency["schema"]["fields"].append({"name": "gpu_name", "type": "string"})
    (tmp_path / "datapackage.json").write_text(json.dumps(package))
    store = Store(tmp_path / "data", package=tmp_path / "datapackage.json")
    with pytest.raises(
        StoreError, match=r"latency\.csv, line 1: gpu_name is 'NVIDIA Other' and 'NVIDIA Test'"
    ):
        store.record(make_run(), {"latency": [latency_row(gpu_name="NVIDIA Other")]})
    store.record(make_run(), {"latency": [latency_row(gpu_name="NVIDIA Test")]})
    assert store.check() == []


text = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1)
whole = st.integers(1, 10**17)
number = st.floats(0, allow_infinity=False)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(text, whole, number, number), min_size=1, max_size=5))
def test_any_values_survive_the_round_trip(memory, values):
    store = Store(tempfile.mkdtemp(dir=memory))
    rows = [
        latency_row(kernel=k, transfer_bytes=b, ns_median=x, cycles_p95=np.float64(y))
        for k, b, x, y in values
    ]
    store.record(make_run(), {"latency": rows})
    read = store.read("latency")
    columns = ["kernel", "transfer_bytes", "ns_median", "cycles_p95"]
    assert list(read[columns].itertuples(index=False, name=None)) == values
    with (store.root / "latency.csv").open(newline="", encoding="utf-8") as file:
        assert [row["kernel"] for row in csv.DictReader(file)] == [k for k, *_ in values]
    assert store.check() == []


# --- hand edits ---


def contents(root):
    return {path: path.read_bytes() for path in root.rglob("*.csv")}


def cell(line, column, value):
    """Edit of one cell of latency.csv."""

    def edit(data):
        lines = data.decode().split("\n")
        cells = lines[line - 1].split(",")
        cells[lines[0].split(",").index(column)] = value
        lines[line - 1] = ",".join(cells)
        return "\n".join(lines).encode()

    return edit


EDITS = {
    "truncated in a line": (lambda data: data[:-9], 7, "ends inside this line"),
    "truncated after the header's text": (lambda data: data.split(b"\n")[0], 1, "ends inside this line"),
    "truncated to nothing": (lambda data: b"", 1, "has no header"),
    "last line gone": (
        lambda data: data[: data[:-1].rindex(b"\n") + 1],
        6,
        "was stored with 3 rows and 2 are here",
    ),
    "line twice": (lambda data: data + data.split(b"\n")[-2] + b"\n", 8, "with 3 rows and 4 are here"),
    "blank line": (lambda data: data.replace(b"\n", b"\n\n", 1), 2, "has 1 cells"),
    "CR LF": (lambda data: data.replace(b"\n", b"\r\n"), 1, "CR LF"),
    "CR LF on one line": (lambda data: data[:-1] + b"\r\n", 7, r"control character '\\r'"),
    "byte order mark": (lambda data: b"\xef\xbb\xbf" + data, 1, "byte order mark"),
    "other encoding": (lambda data: data[:-5] + b"\xe9" + data[-5:], 7, "not UTF-8"),
    "zero bytes": (lambda data: data + b"\0" * 512, 8, "ends inside this line"),
    "column renamed": (
        lambda data: data.replace(b"threads", b"width"),
        1,
        "lacks threads and has unknown width",
    ),
    "columns swapped": (lambda data: data.replace(b"threads,n,", b"n,threads,"), 1, "not in the order"),
    "semicolons": (lambda data: data.replace(b",", b";"), 1, "lacks run_id"),
    "wrong type": (cell(4, "threads", "32.0"), 4, "column threads: '32.0' is no integer"),
    "wrong type by locale": (cell(4, "ns_median", '"3,5"'), 4, "column ns_median: '3,5' is no number"),
    "too large": (cell(4, "ns_median", "1e999"), 4, "column ns_median: '1e999' is no number"),
    "emptied": (cell(4, "mechanism", ""), 4, "column mechanism: is empty and required"),
    "cell added": (cell(4, "mechanism", "a,b"), 4, "has 15 cells and the table 14 columns"),
    "quote opened": (cell(4, "mechanism", '"ldg'), 4, "is no CSV"),
    "run renamed": (cell(4, "run_id", "20260131T120000Z-00000000"), 4, "is not in runs.csv"),
}


@pytest.mark.parametrize("edit, line, what", EDITS.values(), ids=EDITS)
def test_a_broken_file_is_named_with_its_line_and_left_alone(filled, edit, line, what):
    path = filled.root / "latency.csv"
    path.write_bytes(edit(path.read_bytes()))
    before = contents(filled.root)
    message = rf"latency\.csv, line {line}: .*{what}"
    for attempt in (
        lambda: filled.read("latency"),
        lambda: record(filled),
        lambda: filled.merge(filled.root),
    ):
        with pytest.raises(StoreError, match=message):
            attempt()
    assert any(problem.file == "latency.csv" and problem.line == line for problem in filled.check())
    assert contents(filled.root) == before
    filled.read("issue_cost")  # the rest stays readable
    path.write_bytes(before[path])


def test_a_broken_run_table_is_named_and_left_alone(filled):
    path = filled.root / "runs.csv"
    sound = path.read_bytes()
    header, first, second, _ = sound.split(b"\n")
    gone, twice = b"\n".join([header, first, b""]), sound + second + b"\n"
    for broken, message in {
        gone: r"latency.csv, line 5: run .* is not in runs.csv; restore its line",
        twice: "runs.csv, line 4: run_id .* is already on line 3",
        sound[:-3]: "runs.csv, line 3: the file ends inside this line",
    }.items():
        path.write_bytes(broken)
        for attempt in (lambda: filled.read("latency"), lambda: record(filled)):
            with pytest.raises(StoreError, match=message):
                attempt()
        assert any(message.split(",")[0] == problem.file for problem in filled.check())
        assert path.read_bytes() == broken


def test_a_lost_file_and_a_stray_one_are_found(filled):
    (filled.root / "latency.csv").unlink()
    (filled.root / "latency (copy).csv").write_text("x\n")
    found = "\n".join(map(str, filled.check()))
    assert "latency.csv, line 1: run" in found
    assert "with 3 rows and 0 are here" in found
    assert "latency (copy).csv, line 1: the file is no table of the store" in found
    with pytest.raises(StoreError):
        record(filled)


# --- kills, rivals, full disks ---


def in_child(work, *args):
    """Run in a forked process; its exit code, negative for a signal."""
    process = FORK.Process(target=work, args=args)
    process.start()
    process.join(20)
    assert process.exitcode is not None, "the child hangs"
    return process.exitcode


def at_each_step(act):
    """Patch this process: call act(n) before and after each change of the disk, n counting from 0."""
    count = 0

    def wrap(real):
        def wrapped(*args, **kwargs):
            nonlocal count
            act(count)
            result = real(*args, **kwargs)
            act(count + 1)
            count += 2
            return result

        return wrapped

    for name in ("fsync", "replace", "unlink"):
        setattr(os, name, wrap(getattr(os, name)))


def test_a_kill_at_every_step_leaves_all_or_nothing(tmp_path):
    def work(root, step):
        def die(now):
            if now == step:
                os.kill(os.getpid(), signal.SIGKILL)

        at_each_step(die)
        record(Store(root))

    stored = []
    for step in range(100):
        store = Store(tmp_path / str(step))
        first = record(store)
        before = contents(store.root)
        code = in_child(work, store.root, step)
        assert_whole(store, [first], unsure=1)
        for path, content in before.items():
            assert path.read_bytes().startswith(content)
        stored.append(len(store.read("runs")) == 2)
        second = record(store)
        assert_whole(store, [first, second], unsure=1)
        if code == 0:
            break
    else:
        pytest.fail("the last step was never reached")
    assert step > 15
    # Up to the journal's rename nothing counts, from there on all of it does.
    assert stored == sorted(stored)
    assert 0 < sum(stored) < len(stored)


def test_kills_at_random_moments_lose_nothing_acknowledged(store):
    def work(pipe):
        while True:
            pipe.send_bytes(record(store).encode())

    rng = random.Random(5)
    acknowledged, kills = [], 0
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        ours, theirs = FORK.Pipe(duplex=False)
        process = FORK.Process(target=work, args=(theirs,))
        process.start()
        theirs.close()
        time.sleep(rng.uniform(0.01, 0.1))
        process.kill()
        process.join()
        kills += 1
        try:
            while True:
                acknowledged.append(ours.recv_bytes().decode())
        except EOFError:
            pass
        assert not store.root.exists() or set(acknowledged) <= set(store.read("runs")["run_id"])
    assert kills >= 20
    assert len(acknowledged) >= 20
    assert_whole(store, acknowledged, unsure=kills)


def test_rivals_do_not_overwrite_each_other(store):
    def work(queue):
        for _ in range(15):
            queue.put(record(store))

    queue = FORK.Queue()
    rivals = [FORK.Process(target=work, args=(queue,)) for _ in range(4)]
    for rival in rivals:
        rival.start()
    acknowledged = []
    while len(acknowledged) < 60:
        acknowledged.append(queue.get(timeout=20))
        runs = set(store.read("runs")["run_id"])
        assert set(store.read("latency")["run_id"]) >= runs  # rows are there as soon as their run is
    for rival in rivals:
        rival.join()
    assert_whole(store, acknowledged)


def test_a_disk_that_fills_up_loses_nothing(tmp_path, monkeypatch):
    """ENOSPC at each fsync and rename: the message says whether the run is stored, and it is right."""
    outcomes = []
    for step in range(100):
        store = Store(tmp_path / str(step))
        first = record(store)
        calls = 0

        def full(real, step=step):
            def wrapped(*args):
                nonlocal calls
                calls += 1
                if calls - 1 == step:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return real(*args)

            return wrapped

        run_id = new_run_id()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full(os.fsync))
            patch.setattr(os, "replace", full(os.replace))
            try:
                record(store, run_id=run_id)
                break
            except OSError as error:
                assert error.errno == errno.ENOSPC
                outcomes.append("the run is stored" in str(error))
                assert outcomes[-1] != ("nothing was stored" in str(error))
        assert not (store.root / ".store" / "scratch").exists()
        assert_whole(store, [first, run_id] if outcomes[-1] else [first])
    else:
        pytest.fail("the last step was never reached")
    assert outcomes == sorted(outcomes)
    assert 0 < sum(outcomes) < len(outcomes)


@pytest.mark.parametrize("killed", [False, True])
def test_a_write_cut_short_tears_nothing(tmp_path, killed):
    """The system cuts a write at a size limit, from nothing to beyond every file, by an error or a kill."""

    def work(root, limit):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if killed else signal.SIG_IGN)
        try:
            record(Store(root))
        except OSError as error:
            os._exit(2 if error.errno == errno.EFBIG else 3)

    stored = {}
    for limit in range(0, 4000, 200):
        store = Store(tmp_path / str(limit))
        before = [record(store), record(store), record(store)]
        code = in_child(work, store.root, limit)
        stored[limit] = (code, len(store.read("runs")) - len(before))
        assert_whole(store, before, unsure=1)
    cut = -signal.SIGXFSZ if killed else 2
    assert list(dict.fromkeys(stored.values())) == [(cut, 0), (cut, 1), (0, 1)], stored


def test_a_pending_change_waits_until_the_broken_table_is_mended(store):
    first = record(store)

    def work():
        real = os.replace

        def die(source, target):
            real(source, target)
            if Path(target).name == "journal.json":
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = die
        record(store)

    assert in_child(work) == -signal.SIGKILL
    path = store.root / "latency.csv"
    sound = path.read_bytes()
    path.write_bytes(sound[:-4])
    problems = store.check()
    assert [problem.file for problem in problems] == ["latency.csv", ".store/journal.json"]
    with pytest.raises(StoreError, match=r"latency\.csv, line 4"):
        record(store)
    assert path.read_bytes() == sound[:-4]
    path.write_bytes(sound)
    assert_whole(store, [first], unsure=1)
    assert len(store.read("runs")) == 2


def test_a_hung_holder_of_the_lock_is_named(filled, monkeypatch):
    monkeypatch.setattr("labkernels.store.journal.LOCK_TIMEOUT_S", 0.1)
    with filled._journal.lock(), pytest.raises(TimeoutError, match=r"lock is held by another process"):
        Store(filled.root).read("runs")


# --- merging ---


def test_merge_brings_home_what_is_new_byte_for_byte(store, tmp_path):
    rented = Store(tmp_path / "rented")
    ours, theirs = record(store), [record(rented), record(rented)]
    before = contents(store.root)
    assert store.merge(rented.root) == sorted(theirs)
    assert store.merge(rented.root) == []
    assert_whole(store, [ours, *theirs])
    for path, content in before.items():
        added = path.read_bytes().removeprefix(content)
        assert sorted(added.splitlines()) == sorted((rented.root / path.name).read_bytes().splitlines()[1:])


def test_merge_refuses_one_run_with_two_contents(store, tmp_path):
    rented = Store(tmp_path / "rented")
    run_id = record(store)
    record(rented)
    record(rented, run_id=run_id, sm_count=78)
    before = contents(store.root)
    with pytest.raises(
        StoreError, match=f"runs.csv, line 2: run {run_id} differs from the run of that id in"
    ):
        store.merge(rented.root)
    assert contents(store.root) == before


def test_merge_refuses_rows_it_would_leave_behind(store, tmp_path):
    rented = Store(tmp_path / "rented")
    record(rented)
    path = rented.root / "runs.csv"
    path.write_bytes(path.read_bytes().replace(b"latency=3", b"latency=3;other=1"))
    with pytest.raises(StoreError, match=r"runs\.csv, line 2: rows names table other; describe it"):
        store.merge(rented.root)
    with pytest.raises(FileNotFoundError, match="no runs in"):
        store.merge(tmp_path / "nowhere")


# --- the repository's own data ---


def test_stored_data_is_sound():
    assert Store().check() == []


def test_published_numbers_have_source_and_selectors():
    rows = published()
    assert len(rows) > 100
    assert rows["source"].str.len().min() > 5
    latency = published("latency", mechanism="tma_bulk", gpu="H800 PCIe")
    assert dict(zip(latency["memory"], latency["value"], strict=True)) == {
        "l2_near": 366,
        "l2_far": 596,
        "hbm": 740,
    }
    assert published("latency", gpu="NVIDIA Test").empty
    with pytest.raises(ValueError, match="no published 'latencies'; there are bandwidth, "):
        published("latencies")


def test_a_schema_the_store_would_not_enforce_is_refused(tmp_path):
    for field, message in [
        ({"name": "x", "type": "geopoint"}, "field x: type 'geopoint' is unknown"),
        ({"name": "x", "type": "number", "constraints": {"maximum": 5}}, "field x: constraint maximum"),
    ]:
        resource = {"name": "t", "path": "t.csv", "schema": {"fields": [field]}}
        (tmp_path / "datapackage.json").write_text(json.dumps({"resources": [resource]}))
        with pytest.raises(ValueError, match=message):
            Store(tmp_path, package=tmp_path / "datapackage.json")


@pytest.mark.parametrize("name", Store().tables)
def test_every_column_says_what_it_is_and_has_its_unit_in_the_name(name):
    resource = next(r for r in json.loads(PACKAGE.read_text())["resources"] if r["name"] == name)
    assert resource["description"].endswith(".")
    for field in resource["schema"]["fields"]:
        assert field["description"].endswith("."), field["name"]
    if "foreignKeys" in resource["schema"]:
        assert resource["schema"]["fields"][0]["name"] == "run_id"


def test_a_table_is_read_again_when_its_file_changes(store):
    store.record(make_run(), {"latency": [latency_row()]})
    first = store.read("latency")
    first["cycles_median"] = -1.0
    assert (store.read("latency")["cycles_median"] > 0).all(), "what a caller changed stayed"
    Store(store.root).record(make_run(), {"latency": [latency_row(), latency_row()]})
    assert len(store.read("latency")) == 3
    file = store.root / "latency.csv"
    file.write_text(file.read_text().replace("latency", "latency", 1)[:-2])
    with pytest.raises(StoreError):
        store.read("latency")
