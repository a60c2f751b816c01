"""Rows from others: unpacked with care, and refused where they cannot be, with row, value and limit."""

import io
import shutil
import subprocess
import tarfile

import pytest

from labkernels.cli import main
from labkernels.paths import ROOT
from labkernels.store import RUNS, Store, datasheet
from labkernels.store.archive import BadArchive, opened, packed
from labkernels.studies import select
from labkernels.studies.plausible import problems


def test_every_stored_row_is_plausible():
    store = Store()
    assert problems(store, store.read(RUNS, marked=True)["run_id"]) == []


def copied(store, experiment, run=None, **row):
    """A stored quick run with other values in the run's row and in its third row."""
    of = Store()
    run_id = select.latest_run(of, experiment, preset="quick")
    (described,) = of.read(RUNS, run_ids=[run_id]).astype(object).to_dict("records")
    table = next(one for one in described["rows"].split(";")).split("=")[0]
    rows = of.read(table, run_ids=[run_id]).drop(columns="run_id").astype(object)
    rows = rows.where(rows.notna(), None).to_dict("records")
    rows[2] |= row
    described = {name: None if value != value else value for name, value in described.items()} | (run or {})
    described["started_utc"] = described["started_utc"].to_pydatetime()
    return store.record(described, {table: rows})


FAST = 1.01 * datasheet("NVIDIA H200").memory_gbps
FROM_HBM = {"source": "hbm", "footprint_bytes": 1 << 30, "bytes_moved": 10**9}


@pytest.mark.parametrize(
    ("experiment", "run", "row", "said"),
    [
        ("latency", {"compute_capability": "8.9"}, {}, "compute_capability is 8.9, below the 9.0"),
        ("latency", {"sm_clock_mhz_min": 1990.0}, {}, r"\[1990.0, 1980.0, 1980.0\]: they have to rise"),
        ("latency", {"sm_clock_mhz_max": 5000.0}, {}, "sm_clock_mhz_max is 5,000, above 3,000"),
        ("latency", {"power_w_max": 900.0}, {}, "power_w_max is 900.0, above the limit of 700.0 W"),
        ("latency", {"power_w_median": 699.0}, {}, "power_w_median is 699.0, above power_w_max"),
        ("latency", {"temperature_c_max": 300.0}, {}, "temperature_c_max is 300.0, not between 0 and 120"),
        ("latency", {"gpu_name": "NVIDIA H100 PCIe"}, {}, "sm_count is 132, .* H100 PCIe gives 114"),
        (
            "latency",
            {},
            {"cycles_median": 1e6},
            r"latency of run .*: row 3: .*1000000.0.*: they have to rise",
        ),
        ("throughput", {"wall_s": 0.0}, {}, "wall_s is 0.0, less than the .* s that its rows took"),
        ("throughput", {}, {"gbps": 20.0}, "row 3: gbps is 20.0, but .* bytes in .* us are "),
        (
            "throughput",
            {},
            FROM_HBM | {"gbps": FAST, "duration_us": round(1e6 / FAST, 2)},
            "row 3: gbps is 4,848, above 4,800, memory's peak by the data sheet of H200 SXM5",
        ),
        (
            "throughput",
            {},
            {"source": "l2", "bytes_moved": 10**9, "gbps": 5e4, "duration_us": 20.0},
            "row 3: gbps is 50,000, above 33,454, 128 bytes a clock in each SM",
        ),
        ("gemm", {}, {"dtype": "bf16", "tflops": 1200.0}, "row 3: tflops is 1,200, above 1,138"),
    ],
)
def test_what_cannot_be_is_refused_with_row_value_and_limit(experiment, run, row, said, tmp_path, capsys):
    theirs = Store(tmp_path / "theirs")
    run_id = copied(theirs, experiment, run, **row)
    (found,) = problems(theirs, [run_id])
    assert run_id in str(found)
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(str(found))
    archive = tmp_path / "rows.tar.gz"
    archive.write_bytes(packed(theirs.root))
    assert main(["merge", str(archive), "--data", str(tmp_path / "mine")]) == 2
    assert run_id in capsys.readouterr().err and not (tmp_path / "mine" / RUNS).exists()


def test_an_archive_is_merged_as_its_folder_is(tmp_path, capsys):
    run_id = copied(Store(tmp_path / "theirs"), "latency")
    archive = tmp_path / "rows.tar.gz"
    archive.write_bytes(packed(tmp_path / "theirs"))
    for given in (archive, tmp_path / "theirs"):
        assert main(["merge", str(given), "--data", str(tmp_path / f"from {given.name}")]) == 0
        assert capsys.readouterr().out == f"{run_id}\n"
    assert main(["merge", str(archive), "--data", str(tmp_path / "theirs")]) == 0
    assert capsys.readouterr().out == "nothing new\n"


def test_a_row_that_was_changed_on_its_way_is_refused(tmp_path, capsys):
    run_id = copied(Store(tmp_path / "theirs"), "latency")
    path = tmp_path / "theirs" / "latency" / f"{run_id}.csv"
    path.write_text(path.read_text().replace(",hbm,", ",l2_near,", 1))
    (tmp_path / "rows.tar.gz").write_bytes(packed(tmp_path / "theirs"))
    assert main(["merge", str(tmp_path / "rows.tar.gz"), "--data", str(tmp_path / "mine")]) == 2
    assert "is not what was stored: its SHA-256" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../outside.csv", "runs/script.sh", "a link.csv"])
def test_an_archive_of_something_else_is_refused(name, tmp_path):
    with tarfile.open(tmp_path / "rows.tar.gz", "w:gz") as archive:
        one = tarfile.TarInfo(name)
        if "link" in name:
            one.type, one.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(one, io.BytesIO(b""))
    with pytest.raises(BadArchive), opened(tmp_path / "rows.tar.gz"):
        pass
    (tmp_path / "no.tar.gz").write_text("none")
    with pytest.raises(BadArchive, match="no archive"), opened(tmp_path / "no.tar.gz"):
        pass


def test_an_archive_that_would_fill_the_disk_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("labkernels.store.archive.MOST_BYTES", 10)
    copied(Store(tmp_path / "theirs"), "latency")
    (tmp_path / "rows.tar.gz").write_bytes(packed(tmp_path / "theirs"))
    with pytest.raises(BadArchive, match="at most 10 are taken"), opened(tmp_path / "rows.tar.gz"):
        pass


def test_a_pull_request_adds_rows_and_changes_none(tmp_path):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True)

    def rows(**files):
        for name, text in files.items():
            (tmp_path / "data" / "latency" / f"20260101T000000Z-0000000{name}.csv").write_text(text)
        (tmp_path / "data" / "SHA256SUMS").write_text(str(files))
        git("add", "-A")
        git("commit", "-m", "rows")
        return subprocess.run([tmp_path / ".ci" / "rows", "base"], capture_output=True, text=True)

    git("init")
    (tmp_path / "data" / "latency").mkdir(parents=True)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "rows", tmp_path / ".ci")
    (tmp_path / "data" / "latency" / "20260101T000000Z-00000001.csv").write_text("1")
    git("add", "-A")
    git("commit", "-m", "base")
    git("tag", "base")
    assert rows(a="a").returncode == 0
    done = rows(**{"1": "another"})
    assert done.returncode == 1 and "data/latency/20260101T000000Z-00000001.csv" in done.stdout
