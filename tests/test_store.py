"""The store under kills, rivals, full disks and hand edits: no row lost or torn, every fault named."""

import csv
import errno
import io
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import tempfile
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkernels.errors import NotMeasured
from labkernels.paths import DATA
from labkernels.store import RUNS, Store, StoreError, new_run_id, published
from labkernels.store import run as run_module
from labkernels.store.store import PACKAGE, SUMS
from labkernels.studies import select

FORK = multiprocessing.get_context("fork")


BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
OTHER_RUN = "20260131T120000Z-00000000"


def make_run(**changes):
    return {
        "run_id": new_run_id(BEGAN),
        "started_utc": BEGAN,
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


def files_of(store, table):
    return sorted((store.root / table).glob("*.csv"))


def assert_whole(store, acknowledged, unsure=0):
    """All acknowledged runs with all their rows, at most `unsure` runs besides, and nothing wrong.

    What a killed writer left is named, and the store is the same once it is removed.
    """
    for remove in (False, True):
        assert store.check() == []
        runs = set(store.read("runs")["run_id"])
        assert set(acknowledged) <= runs
        assert len(runs - set(acknowledged)) <= unsure
        assert store.read("latency")["run_id"].value_counts().to_dict() == dict.fromkeys(runs, 3)
        assert store.read("issue_cost")["run_id"].value_counts().to_dict() == dict.fromkeys(runs, 2)
        if not remove:
            for path in store.leftovers():
                (store.root / path).unlink()
    assert {path.suffix for path in store.root.rglob("*.*")} <= {".csv"}
    assert {path.stem for table in ("latency", "issue_cost") for path in files_of(store, table)} <= runs


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
    assert [part.split("=")[0] for part in run["rows_sha256"].split(";")] == ["issue_cost", "latency", "runs"]
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
    for run_id in ((), None):
        assert store.read("latency", run_ids=run_id).empty
    assert [problem.what for problem in store.check()] == ["is no folder"]
    assert not store.root.exists()
    store.root.mkdir()
    assert [problem.what for problem in store.check()] == ["holds no runs"]


def test_stored_files_are_never_rewritten(store):
    record(store)
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in store.root.rglob("*.csv")}
    record(store)
    store.merge(store.root)
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in before} == before


def test_a_long_table_is_divided_and_read_as_one(store, monkeypatch):
    monkeypatch.setattr(run_module, "PART_BYTES", 700)
    rows = [latency_row(transfer_bytes=16 << i) for i in range(20)]
    run_id = store.record(make_run(), {"latency": rows})
    files = files_of(store, "latency")
    assert len(files) > 3 and all(path.stat().st_size <= 700 for path in files)
    assert store.read("latency")["transfer_bytes"].tolist() == [row["transfer_bytes"] for row in rows]
    assert store.check() == []
    other = Store(store.root.parent / "other")
    assert other.merge(store.root) == [run_id] and other.check() == []
    (store.root / "latency" / f"{run_id}.3.csv").unlink()
    assert {problem.what for problem in store.check()} >= {"belongs to no run of runs/"}
    with pytest.raises(StoreError, match=rf"latency/{run_id}\.2\.csv, line .*with 20 rows and"):
        store.read("latency")


def test_a_file_may_be_older_than_a_column_that_may_be_empty(tmp_path):
    package = json.loads(PACKAGE.read_text())
    latency = next(resource for resource in package["resources"] if resource["name"] == "latency")
    newer = tmp_path / "datapackage.json"
    old = Store(tmp_path / "data")
    first = record(old)
    for field, problems in (({"name": "x", "type": "integer"}, 0), ({"constraints": {"required": True}}, 1)):
        latency["schema"]["fields"].insert(5, latency["schema"]["fields"].pop(5) if problems else field)
        latency["schema"]["fields"][5] |= field
        newer.write_text(json.dumps(package))
        assert len(Store(old.root, package=newer).check()) == problems
    del latency["schema"]["fields"][5]["constraints"]
    newer.write_text(json.dumps(package))
    store = Store(old.root, package=newer)
    second = store.record(make_run(), {"latency": [latency_row(x=5)]})
    rows = store.read("latency")
    assert rows["x"].isna().tolist() == [run_id == first for run_id in rows["run_id"]]
    assert rows["x"].dropna().tolist() == [5] and set(rows["run_id"]) == {first, second}
    with pytest.raises(StoreError, match=r"has unknown x.*use the version of the project"):
        old.read("latency")


def test_selecting_runs(filled):
    first, second = filled.read("runs")["run_id"]
    assert set(filled.read("latency", run_ids=[second])["run_id"]) == {second}
    with pytest.raises(ValueError, match=r"no run nonesuch in .*runs"):
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
        ({"run_id": OTHER_RUN}, f"line 3: run_id is '{OTHER_RUN}' and '.*' in run"),
        ({"kernel": "=HYPERLINK(x)"}, "column kernel: '=HYPERLINK.x.' is a formula to a spreadsheet"),
        ({"kernel": "@x"}, "is a formula to a spreadsheet; do not begin it with @"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_written(filled, row, message):
    before = contents(filled.root)
    with pytest.raises(StoreError, match=message.replace("row 2", "new rows for latency, line 2")):
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
        ({"started_utc": BEGAN + timedelta(seconds=61)}, "tell two times; name a run by the time it began"),
        ({"run_id": "20990131T120000Z-00000000"}, "run_id 20990131T120000Z-00000000 and started_utc 2026"),
        ({"run_id": "20260231T120000Z-00000000"}, "run_id 20260231T120000Z-00000000 and started_utc 2026"),
        ({"gpu_name": "=HYPERLINK(x)"}, "column gpu_name: .* is a formula"),
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
    elsewhere = datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=9)))
    record(store, run_id=new_run_id(elsewhere), started_utc=elsewhere)
    assert store.read("runs")["started_utc"][0] == pd.Timestamp("2026-01-31T03:00:00Z")


def test_a_run_is_stored_once_and_with_rows(filled):
    run_id = filled.read("runs")["run_id"][1]
    with pytest.raises(StoreError, match=f"runs/{run_id}.csv: is already stored"):
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
        StoreError, match=r"rows for latency, line 2: gpu_name is 'NVIDIA Other' and 'NVIDIA Test'"
    ):
        store.record(make_run(), {"latency": [latency_row(gpu_name="NVIDIA Other")]})
    store.record(make_run(), {"latency": [latency_row(gpu_name="NVIDIA Test")]})
    assert store.check() == []


text = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1).filter(
    lambda text: text[0] not in "=+-@"
)
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
    (path,) = files_of(store, "latency")
    with path.open(newline="", encoding="utf-8") as file:
        assert [row["kernel"] for row in csv.DictReader(file)] == [k for k, *_ in values]
    assert store.check() == []


# --- hand edits ---


def contents(root):
    return {path: path.read_bytes() for path in root.rglob("*.csv")}


def cell(line, column, value):
    """Edit of one cell of a file of latency."""

    def edit(data):
        lines = data.decode().split("\n")
        cells = lines[line - 1].split(",")
        cells[lines[0].split(",").index(column)] = value
        lines[line - 1] = ",".join(cells)
        return "\n".join(lines).encode()

    return edit


EDITS = {
    "truncated in a line": (lambda data: data[:-9], 4, "ends inside this line"),
    "truncated after the header's text": (lambda data: data.split(b"\n")[0], 1, "ends inside this line"),
    "truncated to nothing": (lambda data: b"", 1, "has no header"),
    "last line gone": (
        lambda data: data[: data[:-1].rindex(b"\n") + 1],
        4,
        "was stored with 3 rows and 2 are here",
    ),
    "line twice": (lambda data: data + data.split(b"\n")[-2] + b"\n", 6, "with 3 rows and 4 are here"),
    "blank line": (lambda data: data.replace(b"\n", b"\n\n", 1), 2, "has 1 cells"),
    "CR LF": (lambda data: data.replace(b"\n", b"\r\n"), 1, "CR LF"),
    "CR LF on one line": (lambda data: data[:-1] + b"\r\n", 4, r"control character '\\r'"),
    "byte order mark": (lambda data: b"\xef\xbb\xbf" + data, 1, "byte order mark"),
    "other encoding": (lambda data: data[:-5] + b"\xe9" + data[-5:], 4, "not UTF-8"),
    "zero bytes": (lambda data: data + b"\0" * 512, 5, "ends inside this line"),
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
    "run renamed": (cell(4, "run_id", OTHER_RUN), 4, f"run_id is '{OTHER_RUN}' and "),
    "digit flipped": (lambda data: data.replace(b"700", b"708", 1), 0, "is not what was stored: its SHA-256"),
    "spelled otherwise": (lambda data: data.replace(b"640.5", b'"640.50"'), 0, "is not what was stored"),
    "lines swapped": (
        lambda data: b"\n".join([*(lines := data.split(b"\n"))[:1], lines[2], lines[1], *lines[3:]]),
        0,
        "is not what was stored",
    ),
}


@pytest.mark.parametrize("edit, line, what", EDITS.values(), ids=EDITS)
def test_a_broken_file_is_named_with_its_line_and_left_alone(filled, tmp_path, edit, line, what):
    path, other = files_of(filled, "latency")
    rows = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*rows[:2], rows[2].replace(b"1024", b"2048", 1), *rows[3:]]))
    reseal(filled, path.stem, {})  # rows that differ, so that their order can be told
    path.write_bytes(edit(path.read_bytes()))
    before = contents(filled.root)
    at = f", line {line}" if line else ""
    message = rf"latency/{path.stem}\.csv{at}: .*{what}"
    for attempt in (lambda: filled.read("latency"), lambda: Store(tmp_path / "new").merge(filled.root)):
        with pytest.raises(StoreError, match=rf"^{filled.root}/{message}"):
            attempt()
    assert next((p.file, p.line) for p in filled.check()) == (f"latency/{path.stem}.csv", line)
    assert contents(filled.root) == before
    assert not (tmp_path / "new").exists()
    filled.read("issue_cost")  # the rest stays readable, and more can be stored
    assert len(filled.read("latency", run_ids=[other.stem])) == 3
    third = record(filled)
    assert len(filled.read("latency", run_ids=[third])) == 3


def reseal(store, run_id, cells):
    """Give a run's row other cells, and checksums that agree: an edit that no checksum tells."""
    path = store.root / RUNS / f"{run_id}.csv"
    columns, row, _ = path.read_bytes().decode().split("\n")
    values = dict(zip(columns.split(","), next(csv.reader([row])), strict=True)) | cells
    tables = [part.split("=")[0] for part in values["rows"].split(";")]
    sums = {
        name: run_module.hexdigest((store.root / name / f"{run_id}.csv").read_bytes())
        for name in tables
        if (store.root / name).exists()
    }

    def text():
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(values)
        writer.writerow(values.values())
        return lines.getvalue().encode()

    values["rows_sha256"] = run_module.listed(sums)
    values["rows_sha256"] = run_module.listed(sums | {RUNS: run_module.own_hash(text())})
    path.write_bytes(text())


def test_every_flipped_bit_is_found(filled):
    run_id = files_of(filled, RUNS)[0].stem
    filled.mark(run_id, "suspect", "It ran hot.", table="latency", where=[{"threads": 32}])
    filled.write(
        "published",
        [{"quantity": "x", "gpu": "x", "value": 1.5, "unit": "ns", "conditions": "x", "source": "x"}],
    )
    for path in (
        *filled.root.glob(f"*/{run_id}*.csv"),
        filled.root / "published/published.csv",
        filled.root / SUMS,
    ):
        sound = path.read_bytes()
        for bit in range(3, 8 * len(sound), 61):
            flipped = bytearray(sound)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            assert filled.check(), (path, bit)
        path.write_bytes(sound)
    assert filled.check() == []


RUN_EDITS = {
    "truncated": (lambda data: data[:-3], ", line 2", "the file ends inside this line"),
    "emptied": (lambda data: b"", ", line 1", "has no header"),
    "header only": (lambda data: data.split(b"\n")[0] + b"\n", "", "holds 0 runs instead of one"),
    "two rows": (lambda data: data + data.split(b"\n")[1] + b"\n", "", "holds 2 runs instead of one"),
    "digit flipped": (lambda data: data.replace(b",132,", b",133,"), ", line 2", "is not what was stored"),
    "checksum flipped": (
        lambda data: data[:-2] + (b"0" if data[-2:-1] != b"0" else b"1") + b"\n",
        ", line 2",
        "is not what was stored",
    ),
    "nested deeply": (
        lambda data: data.replace(b'"{""note', b'"{""x"": ' + b"[" * 50_000 + b"]" * 50_000 + b', ""note'),
        ", line 2",
        "is no object",
    ),
}


@pytest.mark.parametrize("edit, line, what", RUN_EDITS.values(), ids=RUN_EDITS)
def test_a_broken_run_is_named_and_left_alone(filled, tmp_path, edit, line, what):
    path, _ = files_of(filled, RUNS)
    sound = path.read_bytes()
    path.write_bytes(edit(sound))
    assert path.read_bytes() != sound
    before = contents(filled.root)
    message = rf"runs/{path.stem}\.csv{line}: .*{what}"
    for attempt in (
        lambda: filled.read("latency"),
        lambda: select.gpus(filled),
        lambda: Store(tmp_path / "new").merge(filled.root),
    ):
        with pytest.raises(StoreError, match=rf"^{filled.root}/{message}"):
            attempt()
    assert [problem.file for problem in filled.check()] == [f"runs/{path.stem}.csv"]
    assert contents(filled.root) == before


@pytest.mark.parametrize(
    "cells, what",
    [
        ({"rows": "latency=3;other=1"}, "rows names table other; describe it"),
        ({"run_id": OTHER_RUN}, f"run_id is {OTHER_RUN}; name the file like the run"),
        ({"started_utc": "2026-02-01T12:00:00Z"}, "tell two times"),
        ({"rows": "latency=3"}, None),
    ],
)
def test_a_run_that_contradicts_itself_is_refused_whatever_its_checksum(filled, tmp_path, cells, what):
    run_id = files_of(filled, RUNS)[0].stem
    reseal(filled, run_id, cells)
    if what:
        for attempt in (lambda: filled.read("latency"), lambda: Store(tmp_path / "new").merge(filled.root)):
            with pytest.raises(StoreError, match=what):
                attempt()
    assert (what or f"issue_cost/{run_id}.csv: belongs to no run") in "\n".join(map(str, filled.check()))


def test_lost_files_and_stray_ones_are_found_all_at_once(filled):
    (first, second), (_, rows) = files_of(filled, RUNS), files_of(filled, "latency")
    first.unlink()
    rows.unlink()
    stray = filled.root / "latency" / "x.csv"
    stray.write_text("x\n")
    (filled.root / "latency (copy).csv").write_text("x\n")
    found = "\n".join(map(str, filled.check()))
    assert f"latency/{first.stem}.csv: belongs to no run of runs/; restore the run's file" in found
    assert f"issue_cost/{first.stem}.csv: belongs to no run" in found
    assert f"latency/{second.stem}.csv: cannot be read: No such file" in found
    assert "latency/x.csv: belongs to no run" in found
    assert "latency (copy).csv: is no table of the store; describe it" in found
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        filled.read("latency")
    assert filled.leftovers() == []


@pytest.mark.parametrize("table", [RUNS, "latency", "marks", "published", SUMS])
@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "forbidden"])
def test_what_is_no_file_is_named_and_nothing_waits_for_it(filled, tmp_path, table, kind):
    filled.mark(files_of(filled, RUNS)[0].stem, "suspect", "For a test.")
    filled.write(
        "published", [dict(quantity="latency", gpu="x", value="1", unit="ns", conditions="x", source="x")]
    )
    path = {SUMS: filled.root / SUMS, "published": filled.root / "published/published.csv"}.get(table)
    path = path or files_of(filled, table)[0]
    data = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif os.geteuid():
        path.write_bytes(data)
        path.chmod(0)
    else:
        path.symlink_to("/proc/self/mem")  # the administrator may read all but this
    found = filled.check()
    assert path.relative_to(filled.root).as_posix() in [problem.file for problem in found]
    if table in (RUNS, "latency", "marks"):
        with pytest.raises(StoreError, match=path.name):
            Store(tmp_path / "new").merge(filled.root)


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
        assert bool(store.leftovers()) == (len(store.read("runs")) == 1)
        assert_whole(store, [first], unsure=1)
        assert contents(store.root).items() >= before.items()
        stored.append(len(store.read("runs")) == 2)
        second = record(store)
        assert_whole(store, [first, second], unsure=1)
        if code == 0:
            break
    else:
        pytest.fail("the last step was never reached")
    assert step > 15
    # Up to the rename of the run's own file nothing counts, from there on all of it does.
    assert stored == sorted(stored)
    assert 0 < sum(stored) < len(stored)


def test_many_kills_lose_nothing_acknowledged(store):
    """Writers that are killed at one step after the other, each after some whole runs."""

    def work(pipe, step):
        for _ in range(2):
            pipe.send_bytes(record(store).encode())

        def die(now):
            if now == step:
                os.kill(os.getpid(), signal.SIGKILL)

        at_each_step(die)
        record(store)

    acknowledged = []
    for kill in range(20):
        ours, theirs = FORK.Pipe(duplex=False)
        assert in_child(work, theirs, kill % 16) == -signal.SIGKILL
        acknowledged += [ours.recv_bytes().decode() for _ in range(2)]
        assert set(acknowledged) <= set(store.read("runs")["run_id"])
    assert_whole(store, acknowledged, unsure=20)


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
        assert store.check() == []  # whoever comes while they write sees whole runs only
        runs = set(store.read("runs")["run_id"])
        assert set(store.read("latency")["run_id"]) >= runs
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

        run_id = new_run_id(BEGAN)
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
        assert store.leftovers() == []
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
    for limit in range(0, 2400, 100):
        store = Store(tmp_path / str(limit))
        before = [record(store)]
        code = in_child(work, store.root, limit)
        stored[limit] = (code, len(store.read("runs")) - len(before))
        assert_whole(store, before, unsure=1)
    cut = -signal.SIGXFSZ if killed else 2
    assert list(dict.fromkeys(stored.values())) == [(cut, 0), (0, 1)], stored


def test_a_folder_that_cannot_be_written_is_read(filled):
    for path in (filled.root, *filled.root.iterdir()):
        path.chmod(0o555)
    store = Store(filled.root)
    assert store.check() == [] and len(store.read("latency")) == 6


# --- merging ---


def test_merge_brings_home_what_is_new_byte_for_byte(store, tmp_path):
    rented = Store(tmp_path / "rented")
    ours, theirs = record(store), [record(rented), record(rented)]
    rented.mark(theirs[0], "suspect", "For a test.", table="latency", where=[{"threads": 32}])
    before, there = contents(store.root), contents(rented.root)
    assert store.merge(rented.root) == sorted(theirs)
    assert store.merge(rented.root) == []
    assert store.check() == [] and set(store.read("latency")["run_id"]) == {ours, theirs[1]}
    assert contents(rented.root) == there, "merge only reads there"
    copied = {store.root / path.relative_to(rented.root): data for path, data in there.items()}
    assert contents(store.root) == before | copied


def test_a_merge_that_is_cut_short_leaves_whole_runs_and_is_taken_up(store, tmp_path):
    rented = Store(tmp_path / "rented")
    ours, theirs = record(store), [record(rented), record(rented)]

    def work(step):
        def die(now):
            if now == step:
                os.kill(os.getpid(), signal.SIGKILL)

        at_each_step(die)
        store.merge(rented.root)

    stored = set()
    for step in range(30):
        in_child(work, step)
        stored.add(len(store.read("runs")))
        assert store.check() == []
        assert len(store.read("latency")) == 3 * len(store.read("runs"))
    assert stored == {1, 2, 3}
    store.merge(rented.root)
    assert_whole(store, [ours, *theirs])


def test_rivals_may_merge_the_same_runs(store, tmp_path):
    rented = Store(tmp_path / "rented")
    theirs = [record(rented) for _ in range(5)]
    rivals = [FORK.Process(target=store.merge, args=(rented.root,)) for _ in range(4)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    assert [rival.exitcode for rival in rivals] == [0] * 4
    assert_whole(store, theirs)


def test_merge_refuses_one_run_with_two_contents(store, tmp_path):
    rented = Store(tmp_path / "rented")
    run_id = record(store)
    record(rented)
    record(rented, run_id=run_id, sm_count=78)
    before = contents(store.root)
    with pytest.raises(StoreError, match=f"runs/{run_id}.csv: differs from that of {rented.root}"):
        store.merge(rented.root)
    assert contents(store.root) == before


def test_merge_says_whose_file_is_wrong(store, tmp_path):
    rented = Store(tmp_path / "rented")
    run_id = record(rented)
    path = rented.root / "latency" / f"{run_id}.csv"
    path.write_bytes(path.read_bytes().replace(b"\n", b",x\n"))
    message = rf"^{path}, line 1: the header has unknown x; .*or use the version of the project"
    with pytest.raises(StoreError, match=message):
        store.merge(rented.root)
    for folder, what in ((tmp_path / "nowhere", "is no folder"), (tmp_path, "holds no runs")):
        with pytest.raises(NotMeasured, match=f"{folder} {what}"):
            store.merge(folder)
    assert not store.root.exists()


# --- marks ---


def test_a_superseded_run_stays_and_is_not_the_newest(store):
    old, new = record(store), record(store, run_id=new_run_id(BEGAN + timedelta(seconds=30)))
    assert select.latest_run(store, "latency") == new
    before = contents(store.root)
    store.mark(new, "superseded", "A later run has what this one lacked.")
    assert select.latest_run(store, "latency") == old
    assert set(store.read("runs")["run_id"]) == set(store.read("latency")["run_id"]) == {old}
    assert set(store.read("runs", marked=True)["run_id"]) == {old, new}
    assert len(store.read("latency", marked=True)) == 6
    assert len(store.read("latency", run_ids=[new])) == 3, "a run that is asked for is given"
    assert contents(store.root).items() > before.items()
    assert store.check() == []


def test_suspect_rows_are_left_out_unless_asked_for(store):
    run_id = store.record(
        make_run(), {"latency": [latency_row(threads=32 * i, variant="x" * (i % 2)) for i in range(1, 7)]}
    )
    store.mark(
        run_id, "suspect", "No.", table="latency", where=[{"threads": 64}, {"threads": 96, "variant": "x"}]
    )
    assert store.read("latency")["threads"].tolist() == [32, 128, 160, 192]
    assert select.rows(store, "latency", [run_id])["threads"].tolist() == [32, 128, 160, 192]
    assert len(store.read("latency", marked=True)) == 6
    store.mark(run_id, "suspect", "No.", table="latency")
    assert store.read("latency").empty and len(store.read("runs")) == 1
    assert store.check() == []


@pytest.mark.parametrize(
    "change, message",
    [
        ({"run_id": OTHER_RUN}, f"there is no run {OTHER_RUN}"),
        ({"table": "fa3"}, "has no rows in fa3; it has issue_cost, latency"),
        ({"table": None, "where": [{"threads": 32}]}, "where is given without a table"),
        ({"where": [{"width": 32}]}, "latency has no column width; the columns are run_id"),
        ({"where": [{"threads": 33}]}, "no row of latency has {'threads': 33}"),
        ({"where": [{"threads": "32"}]}, "no row of latency has {'threads': '32'}"),
        ({"kind": "bad"}, "column kind: 'bad' is not allowed; use one of superseded, suspect"),
        ({"reason": ""}, "column reason: is empty and required"),
    ],
)
def test_a_mark_that_speaks_of_nothing_is_refused_and_found(filled, change, message):
    run_id = files_of(filled, RUNS)[0].stem
    given = {"run_id": run_id, "kind": "suspect", "reason": "No.", "table": "latency"} | change
    with pytest.raises(StoreError, match=message):
        filled.mark(**given)
    assert not (filled.root / "marks").exists()
    path = filled.mark(run_id, "suspect", "No.", table="latency", where=[{"threads": 32}])
    cells = given | {"where": json.dumps(given.get("where", [{}])[0]), "marked_utc": "2026-01-31T12:00:00Z"}
    lines = io.StringIO()
    writer = csv.DictWriter(lines, filled.tables["marks"].columns, lineterminator="\n")
    writer.writeheader()
    writer.writerow(cells)
    data = lines.getvalue().encode()
    path.unlink()
    path = path.with_name(f"{path.stem[:-8]}{run_module.hexdigest(data)[:8]}.csv")
    path.write_bytes(data)
    (problem,) = filled.check()
    assert problem.file == f"marks/{path.name}" and re.search(message, str(problem))


def test_a_mark_that_was_changed_is_found(filled):
    path = filled.mark(files_of(filled, RUNS)[0].stem, "suspect", "It ran hot.")
    path.write_bytes(path.read_bytes().replace(b"hot", b"hat"))
    (problem,) = filled.check()
    assert str(problem).startswith(
        f"marks/{path.name}: is not what was stored: its name ends in another SHA-256"
    )


def test_nothing_takes_a_run_away():
    names = [name for name in dir(Store) if not name.startswith("_")]
    assert not [name for name in names if any(w in name for w in ("remove", "delete", "replace", "rewrite"))]


# --- tables without runs ---


def test_a_table_without_runs_is_written_with_its_checksum(store):
    row = {
        "gpu": "A",
        "way": "x",
        "constant": "c",
        "value": "1.50",
        "unit": "u",
        "meaning": "m",
        "run_ids": "r",
    }
    store.write("constants", [row, row | {"gpu": "B", "value": 2}])
    before = (store.root / "model/constants.csv").read_bytes()
    store.write("constants", [row | {"gpu": "B", "value": 3.25}], replacing={"gpu": "B"})
    assert (store.root / "model/constants.csv").read_bytes() == before.replace(b"B,x,c,2", b"B,x,c,3.25")
    assert [(r["gpu"], r["value"]) for r in store.records("constants")] == [("A", 1.5), ("B", 3.25)]
    with pytest.raises(StoreError, match="new rows for constants, line 1: column value: 'x' is no number"):
        store.write("constants", [row | {"value": "x"}])
    with pytest.raises(ValueError, match="latency belongs to runs, whose rows are never replaced"):
        store.write("latency", [latency_row()])
    path = store.root / "model/constants.csv"
    for edit in (
        lambda text: text.replace("1.50", "0"),
        lambda text: text[: text.rindex("B")],
        lambda text: "",
    ):
        sound = path.read_text()
        path.write_text(edit(sound))
        with pytest.raises(StoreError, match=f"^{path}"):
            store.records("constants")
        assert "model/constants.csv" in [problem.file for problem in store.check()]
        path.write_text(sound)
    path.unlink()
    with pytest.raises(StoreError, match=r"constants\.csv: cannot be read: No such file"):
        store.read("constants")


@pytest.fixture
def copied(tmp_path):
    """The repository's own data, but for the many rows."""
    package = json.loads(PACKAGE.read_text())
    for path in [
        PACKAGE,
        DATA / SUMS,
        *(DATA / r["path"] for r in package["resources"] if "*" not in r["path"]),
    ]:
        target = tmp_path / "data" / path.relative_to(DATA)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    store = Store(tmp_path / "data")
    record(store)
    assert store.check() == []
    return store


def edit_text(path, edit):
    path.write_text(edit(path.read_text()))


LOSSES = {
    "model gone": (lambda root: shutil.rmtree(root / "model"), "model/constants.csv: cannot be read"),
    "constants cut at a line end": (
        lambda root: edit_text(
            root / "model/constants.csv", lambda text: "".join(text.splitlines(True)[:40])
        ),
        "model/constants.csv: is not what SHA256SUMS says",
    ),
    "a clock of 0": (
        lambda root: edit_text(root / "model/constants.csv", lambda text: text.replace(",1980,", ",0,")),
        "model/constants.csv: is not what SHA256SUMS says",
    ),
    "published gone": (
        lambda root: (root / "published/published.csv").unlink(),
        "published.csv: cannot be read",
    ),
    "published cut": (
        lambda root: edit_text(
            root / "published/published.csv", lambda text: "".join(text.splitlines(True)[:9])
        ),
        "published.csv: is not what SHA256SUMS says",
    ),
    "published header only": (
        lambda root: edit_text(root / "published/published.csv", lambda text: text.splitlines(True)[0]),
        "published.csv: is not what",
    ),
    "published line twice": (
        lambda root: edit_text(
            root / "published/published.csv", lambda text: text + text.splitlines(True)[-1]
        ),
        "published.csv: is not what",
    ),
    "checksums gone": (lambda root: (root / SUMS).unlink(), "SHA256SUMS: lacks model/constants.csv"),
    "checksums broken": (lambda root: (root / SUMS).write_text("x"), "SHA256SUMS: is no list of"),
    "package broken": (
        lambda root: (root / "datapackage.json").write_text("{"),
        "datapackage.json: Expecting",
    ),
    "package of lists": (
        lambda root: (root / "datapackage.json").write_text('{"version": "2.0", "resources": "x"}'),
        "datapackage.json: string indices",
    ),
    "package without version": (
        lambda root: edit_text(root / "datapackage.json", lambda text: text.replace('"version"', '"v"')),
        "datapackage.json: version is None, this program reads 2; .*or use the version of the project",
    ),
    "package newer": (
        lambda root: edit_text(root / "datapackage.json", lambda text: text.replace('"2.0"', '"3.0"')),
        "datapackage.json: version is 3.0",
    ),
    "package with another column": (
        lambda root: edit_text(
            root / "datapackage.json", lambda text: text.replace('"wall_s"', '"wall_seconds"')
        ),
        "datapackage.json: table runs has another schema",
    ),
    "package too deep": (
        lambda root: (root / "datapackage.json").write_text("[" * 60_000),
        "datapackage.json: maximum recursion",
    ),
}


@pytest.mark.parametrize("harm, message", LOSSES.values(), ids=LOSSES)
def test_what_is_missing_cut_or_of_another_version_is_found_with_all_else(copied, harm, message):
    harm(copied.root)
    files_of(copied, "latency")[0].unlink()
    found = "\n".join(map(str, Store(copied.root).check()))
    assert re.search(message, found)
    assert re.search(r"latency/.*csv: cannot be read", found), "it went on after the first"


def test_a_folder_may_describe_tables_that_it_does_not_hold_in_another_way(copied, tmp_path):
    package = tmp_path / "measured" / "datapackage.json"
    shutil.copytree(copied.root, package.parent)
    for path in (package.parent / "model").glob("*.csv"):
        path.unlink()
    edit_text(package, lambda text: text.replace('"model/verdicts.csv"', '"model/judged.csv"'))
    Store(tmp_path / "new").merge(package.parent)


def test_a_folder_of_another_version_is_not_read(copied, tmp_path):
    edit_text(copied.root / "datapackage.json", lambda text: text.replace('"2.0"', '"3.0"'))
    store = Store(copied.root)
    for attempt in (lambda: store.read("latency"), lambda: Store(tmp_path / "new").merge(copied.root)):
        with pytest.raises(StoreError, match=f"^{copied.root}/datapackage.json: version is 3.0"):
            attempt()
    with pytest.raises(StoreError, match=f"^{copied.root}/datapackage.json: version is 3.0"):
        Store(tmp_path, package=copied.root / "datapackage.json")


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
        package = {"version": "2.0", "resources": [resource]}
        (tmp_path / "datapackage.json").write_text(json.dumps(package))
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
    if Store().tables[name].is_folder:
        assert resource["path"] == f"{name}/*.csv"


def test_no_stored_file_is_large():
    assert max(path.stat().st_size for path in DATA.rglob("*")) <= run_module.PART_BYTES


def test_a_table_is_read_again_when_its_file_changes(store):
    store.record(make_run(), {"latency": [latency_row()]})
    first = store.read("latency")
    first["cycles_median"] = -1.0
    assert (store.read("latency")["cycles_median"] > 0).all(), "what a caller changed stayed"
    Store(store.root).record(make_run(), {"latency": [latency_row(), latency_row()]})
    assert len(store.read("latency")) == 3
    file = files_of(store, "latency")[0]
    file.write_text(file.read_text()[:-2])
    with pytest.raises(StoreError):
        store.read("latency")
