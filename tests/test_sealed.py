"""Predictions that were frozen stay as they are, and are scored when rows of their GPU arrive."""

import shutil
from datetime import date, datetime
from itertools import groupby

import pytest

from labkernels.cli import main
from labkernels.errors import LabError, NotMeasured
from labkernels.model import sealed
from labkernels.paths import DATA
from labkernels.store import RUNS, Store, new_run_id
from labkernels.studies import select

BASE = "NVIDIA H200"
#: Hash of the predictions of each day. A line is added when more are sealed; none is ever changed.
FROZEN = {"2026-12-01": "235ab2f61527add4b209a20ed94f3801c3334338ae3d530975c888cab1ee08be"}


def test_what_is_sealed_never_changes():
    rows = Store().records(sealed.TABLE)
    days = {day: sealed.digest([*of]) for day, of in groupby(rows, key=lambda row: row["sealed_on"])}
    assert days == FROZEN


@pytest.fixture
def store(tmp_path):
    """What is sealed, and the runs that predictions are made with."""
    for name in ("model", "published"):
        shutil.copytree(DATA / name, tmp_path / name)
    shutil.copy(DATA / "SHA256SUMS", tmp_path)
    store = Store(tmp_path)
    for experiment in ("pipelines", "multicast_fair"):
        put(store, experiment, BASE)
    return store


def put(store, experiment, gpu, rate=1.0):
    """The newest quick run of an experiment, as one of that GPU and at another rate."""
    of = Store()
    run_id = select.latest_run(of, experiment, BASE, preset="quick")
    run = of.read(RUNS, run_ids=[run_id]).astype(object)
    described = run.where(run.notna(), None).iloc[0].to_dict()
    table = described["rows"].split("=")[0]
    rows = of.read(table, run_ids=[run_id]).drop(columns="run_id")
    rows = rows.assign(gbps=(rows["gbps"] * rate).round(2), duration_us=(rows["duration_us"] / rate).round(3))
    if "bytes_per_clock_per_sm" in rows:
        rows["bytes_per_clock_per_sm"] = (rows["bytes_per_clock_per_sm"] * rate).round(3)
    began = datetime.fromisoformat(str(described["started_utc"]))
    described |= {"run_id": new_run_id(began), "started_utc": began, "gpu_name": gpu}
    rows = rows.astype(object)
    store.record(described, {table: rows.where(rows.notna(), None).to_dict("records")})


def test_rows_that_arrive_score_what_was_sealed(store):
    before = sealed.scores(store).set_index("GPU")
    assert before["measured"].eq(0).all() and before["predictions"].gt(100).all()
    h100 = "NVIDIA H100 80GB HBM3"
    put(store, "pipelines", h100, rate=3350 / 4800)
    after = sealed.scores(store).set_index("GPU")
    assert after.loc["H100 SXM5", "measured"] > 50 and after.drop(index="H100 SXM5")["measured"].eq(0).all()
    # Its rates from HBM are as memory's would have them; from L2 it has as many SMs, and is not slower.
    assert 0 < after.loc["H100 SXM5", "inside"] < after.loc["H100 SXM5", "measured"]
    assert after["sha256"].equals(before["sha256"])


def test_nothing_is_sealed_twice_or_after_it_was_measured(store):
    before = store.records(sealed.TABLE)
    assert sealed.seal(store, "H20", BASE, date(2030, 1, 1)) > 100
    assert store.records(sealed.TABLE)[: len(before)] == before
    with pytest.raises(LabError, match="H20 was sealed on 2030-01-01"):
        sealed.seal(store, "NVIDIA H20", BASE, date(2030, 1, 1))
    put(store, "pipelines", "NVIDIA B200")
    with pytest.raises(LabError, match="B200 has rows here"):
        sealed.seal(store, "B200", BASE, date(2030, 1, 1))
    with pytest.raises(NotMeasured, match="no model of 'H9999'"):
        sealed.seal(store, "H9999", BASE, date(2030, 1, 1))


def test_a_sealed_interval_holds_its_prediction():
    rows = Store().records(sealed.TABLE)
    assert all(row["low_gbps"] < row["predicted_gbps"] < row["high_gbps"] for row in rows)
    assert {row["gpu"] for row in rows} >= {"H100 SXM5", "H100 PCIe", "H20", "B200"}


def test_the_command_seals(store, capsys):
    assert main(["seal", "H200 NVL", "--data", str(store.root)]) == 2  # no source gives its SMs
    assert "no model of 'H200 NVL'" in capsys.readouterr().err
