"""Findings on clusters, from the stored rows."""

import shutil
from datetime import UTC, datetime

import nbformat
import pytest

from labkernels import charts
from labkernels.charts import tables
from labkernels.errors import NotMeasured
from labkernels.model.advisor import gpus
from labkernels.paths import BOOK
from labkernels.store import Store, new_run_id
from labkernels.studies import cluster_charts, cluster_rows, select
from labkernels.studies.broadcast import findings as broadcast
from labkernels.studies.experiments import experiment
from labkernels.studies.multicast import findings as found
from labkernels.studies.stats import where

NAMES = ("multicast", "handshake", "crowding", "broadcast", "cluster_counters", "residency", "dsm")


@pytest.fixture(scope="module")
def frames():
    store = Store()
    return {name: select.require_rows(store, name, gpus()[0]) for name in NAMES}


def test_rows_without_what_a_figure_asks_for_are_not_measured(frames):
    for measure, name in (
        (found.multicast_fill_bytes_per_clock_per_sm, "multicast"),
        (found.multicast_l2_read_ratio, "cluster_counters"),
        (broadcast.dsm_bulk_bytes_per_clock_per_sm, "dsm"),
    ):
        one = measure(frames[name])
        assert one.low <= one.value <= one.high
        with pytest.raises(NotMeasured, match="no rows of mechanism"):
            measure(frames[name].assign(mechanism="another"))


def test_rounds_of_more_than_one_ring_are_refused(frames):
    with pytest.raises(ValueError, match="more than one ring"):
        cluster_rows.ring(frames["multicast"], source="l2", fan_out=4)


def test_own_points_are_triangles_over_the_stored_lines(frames):
    table = cluster_rows.rates(
        where(frames["multicast"], source="l2", tile_bytes=32768, stages=6, **cluster_rows.PLAIN)
    )
    chart = cluster_charts.ways(table, cluster_charts.fan_out_axis(), own=table.head(2))
    assert str(chart.to_dict()).count("triangle-up") == 1
    assert "triangle-up" not in str(cluster_charts.ways(table, cluster_charts.fan_out_axis()).to_dict())


def test_traffic_is_counted_ratio_times_timed_rate(frames):
    table = found.traffic(frames["multicast"], frames["cluster_counters"])
    assert not table.duplicated(["mechanism", "share", "source", "fan_out"]).any()
    assert set(table["fan_out"]) == {1, 2, 4, 8, 16}
    multicast = where(table, mechanism="tma_multicast")
    assert (multicast["from_l2"] * multicast["fan_out"] / multicast["into_sms"]).between(0.99, 1.01).all()
    assert (table["into_sms"] <= table["median"]).all()


def test_no_rows_make_empty_tables_with_the_same_columns(frames):
    ring, counters, dsm = (frames[name] for name in ("multicast", "cluster_counters", "dsm"))
    for make, given in (
        (cluster_rows.rates, [ring]),
        (cluster_rows.exchange_rates, [dsm]),
        (found.read_ratios, [counters]),
        (found.by_clusters, [frames["crowding"]]),
        (found.traffic, [ring, counters]),
    ):
        full, empty = make(*given), make(*(frame.head(0) for frame in given))
        assert empty.empty and set(empty.columns) == set(full.columns)


def test_what_an_sm_gets_depends_on_how_many_clusters_stream(frames):
    table = found.by_clusters(frames["crowding"])
    assert not table.duplicated(["share", "fan_out", "clusters"]).any()
    multicast = where(table, share="slices")
    small = multicast[multicast["fan_out"].le(8)]
    few, many = (small[mask]["median"] for mask in (small["clusters"].le(8), small["clusters"].ge(24)))
    assert few.min() > many.max()


#: What a quick run has of each experiment's full one.
QUICK = {
    "multicast": "tile_bytes.isin([8192, 32768]) and stages.isin([4, 6]) and producers == 1 and consumers <= 2 "
    "and lag_cycles.isin([0, 200, 1000, 5000]) and delay_cycles.isin([0, 1000]) "
    "and (fan_out == 4 or (lag_cycles == 0 and delay_cycles == 0 and consumers == 1))",
    "handshake": "fan_out == 4",
    "crowding": "fan_out.isin([4, 8])",
    "cluster_counters": "fan_out.isin([1, 4]) and tile_bytes == 32768 and stages == 6 and lag_cycles.isin([0, 1000])",
    "cluster_latency": "asker == 0 and transfer_bytes.isin([4, 8, 16, 256, 2048, 16384])",
    "residency": "shared_bytes.isin([50176, 107520, 214016])",
    "broadcast": "fan_out.isin([2, 4, 8]) and tile_bytes.isin([8192, 32768]) and hold_cycles.isin([0, 512, 2048])",
    "dsm": "command_bytes.isin([16, 256, 1024, 4096, 8192, 16384])",
}


def shown_by(chapter, namespace, monkeypatch):
    """What a chapter draws, in order: specifications of charts, frames of tables."""
    shown = []
    monkeypatch.setattr(charts, "figure", lambda chart, **_: shown.append(chart.to_dict()))
    monkeypatch.setattr(tables, "Table", lambda frame, **_: shown.append(frame))
    for cell in nbformat.read(BOOK / f"{chapter}.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, namespace)
            if "parameters" in cell.metadata.get("tags", []):
                namespace.update(namespace.pop("given"))
    return shown


@pytest.mark.parametrize("chapter", ["multicast", "broadcast"])
def test_every_main_chart_shows_what_the_reader_measured(chapter, tmp_path, monkeypatch):
    stored = Store()
    needed = {*(experiment(name).table() for name in (*NAMES, "cluster_latency", "issue")), "runs"}
    for name in needed:
        shutil.copytree(stored.root / name, tmp_path / name)
    asked = []

    def fake_run(name, preset, store):
        """A quick run of a GPU like the stored one, a tenth slower."""
        asked.append((name, preset))
        table = experiment(name).table()
        run_id = select.latest_run(stored, name, gpus()[0])
        rows = stored.read(table, run_ids=[run_id]).query(QUICK[name])
        rows = rows.drop(columns="run_id").astype(object).where(lambda frame: frame.notna(), None)
        if cluster_rows.RATE in rows:
            rows[cluster_rows.RATE] = (rows[cluster_rows.RATE] * 0.9).astype(float).round(3).astype(object)
        run = stored.read("runs", run_ids=[run_id]).astype(object).where(lambda frame: frame.notna(), None)
        described = run.iloc[0].to_dict() | {
            "run_id": new_run_id(began := datetime.now(UTC)),
            "started_utc": began,
            "gpu_name": "GPU of a test",
            "preset": preset,
        }
        return store.record(described, {table: rows.to_dict("records")})

    monkeypatch.setattr("labkernels.studies.run.run", fake_run)
    plain = shown_by(chapter, {"given": {"data_dir": str(tmp_path)}}, monkeypatch)
    given = {"data_dir": str(tmp_path), "measure": True}
    drawn = shown_by(chapter, {"given": given}, monkeypatch)
    assert asked and {preset for _, preset in asked} == {"quick"}
    assert len(plain) == len(drawn)
    for before, after in zip(plain, drawn, strict=True):
        if isinstance(before, dict):
            assert "GPU of a test" not in str(before) and "triangle-up" not in str(before)
            assert "GPU of a test" in str(after) and "triangle-up" in str(after), after.get("title")
        elif "idle SMs" in before:
            assert len(after) > len(before) and after["run"].str.contains("GPU of a test").any()
