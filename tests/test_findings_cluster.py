"""Findings on clusters: from the stored rows, and from rows bent until a rule must fall."""

import shutil

import nbformat
import pandas as pd
import pytest

from labkernels import charts
from labkernels.charts import tables
from labkernels.errors import NotMeasured
from labkernels.paths import BOOK
from labkernels.store import Store, new_run_id
from labkernels.studies import select
from labkernels.studies.experiments import experiment
from labkernels.studies.multicast import charts as multicast_charts
from labkernels.studies.multicast import findings as found

NAMES = ("multicast", "handshake", "crowding", "broadcast", "cluster_counters", "residency", "dsm")
RULES = (*found.MULTICAST_RULES, *found.BROADCAST_RULES)


@pytest.fixture(scope="module")
def frames():
    store = Store()
    return {name: select.latest_rows(store, name, "NVIDIA H200") for name in NAMES}


def test_rows_without_what_a_figure_asks_for_are_not_measured(frames):
    for measure, name in (
        (found.multicast_fill_bytes_per_clock_per_sm, "multicast"),
        (found.multicast_l2_read_ratio, "cluster_counters"),
        (found.dsm_bulk_bytes_per_clock_per_sm, "dsm"),
    ):
        one = measure(frames[name])
        assert one.low <= one.value <= one.high
        with pytest.raises(NotMeasured, match="no rows of mechanism"):
            measure(frames[name].assign(mechanism="another"))


def test_every_rule_is_judged_on_the_stored_rows(frames):
    judged = found.verdicts(RULES, frames)
    assert len(judged) == len(RULES)
    assert set(judged["verdict"]) <= {"holds", "does not hold"}


def test_without_rows_every_rule_is_not_measured():
    assert set(found.verdicts(RULES, {})["verdict"]) == {"not measured"}


def bent(frames, name, column, factor, **rows):
    frame = frames[name].copy()
    chosen = pd.concat([frame[key].eq(value) for key, value in rows.items()], axis=1).all(axis=1)
    assert chosen.any()
    frame[column] = frame[column].astype(float).where(~chosen, frame[column] * factor)
    return {**frames, name: frame}


@pytest.mark.parametrize(
    ("words", "name", "column", "factor", "rows"),
    [
        ("multicast to 4 or 8", "multicast", found.RATE, 0.5, {"mechanism": "tma_multicast"}),
        ("To two CTAs", "multicast", found.RATE, 1.2, {"mechanism": "tma_multicast"}),
        ("From HBM", "multicast", found.RATE, 1.5, {"mechanism": "tma_multicast"}),
        ("1/fan-out", "cluster_counters", "l2_read_bytes", 1.2, {"mechanism": "tma_multicast"}),
        ("asks for neighbours", "cluster_counters", "l2_read_bytes", 0.4, {"share": "scattered"}),
        ("asks for neighbours", "cluster_counters", "l2_read_bytes", 2, {"share": "alone"}),
        ("asks for step", "cluster_counters", "l2_read_bytes", 0.5, {"lag_cycles": 1000}),
        ("release.cluster", "handshake", found.RATE, 3, {"scope": "arrive"}),
        ("One lane for each", "handshake", found.RATE, 3, {"arrivers": "thread"}),
        ("two producer and two", "multicast", found.RATE, 0.5, {"producers": 2}),
        ("Slices under", "multicast", found.RATE, 2, {"share": "slices"}),
        (
            "One cluster too many",
            "residency",
            "duration_us",
            0.5,
            {"ctas_per_sm": 1, "launched_clusters": 16},
        ),
        ("A tile in global memory", "broadcast", found.RATE, 4, {"mechanism": "dsm_bulk"}),
        ("pushes its slice", "broadcast", found.RATE, 5, {"mechanism": "dsm_bulk", "share": "leader"}),
        ("Push rather", "broadcast", found.RATE, 5, {"mechanism": "dsm_load"}),
        ("for two CTAs: push", "broadcast", found.RATE, 3, {"mechanism": "tma_multicast"}),
        ("through L2 and back", "broadcast", found.RATE, 0.2, {"mechanism": "tma_multicast"}),
        ("One way, every", "dsm", "sent_bytes_per_clock", 0.8, {"mechanism": "dsm_load"}),
        (
            "Both ways at once",
            "dsm",
            "sent_bytes_per_clock",
            0.8,
            {"mechanism": "dsm_bulk", "pattern": "pair_two_way"},
        ),
        ("2 KiB or more", "dsm", "sent_bytes_per_clock", 2, {"command_bytes": 1024}),
        ("kept for 4096", "broadcast", found.RATE, 0.5, {"mechanism": "dsm_bulk", "hold_cycles": 4096}),
    ],
)
def test_rows_that_say_otherwise_overturn_a_rule(frames, words, name, column, factor, rows):
    (rule,) = [one for one in RULES if words in one[0]]
    before = found.verdicts([rule], frames)["verdict"].iloc[0]
    after = found.verdicts([rule], bent(frames, name, column, factor, **rows))["verdict"].iloc[0]
    assert (before, after) == ("holds", "does not hold")


def test_rounds_of_more_than_one_ring_are_refused(frames):
    with pytest.raises(ValueError, match="more than one ring"):
        found.ring(frames["multicast"], source="l2", fan_out=4)


def test_own_points_are_triangles_over_the_stored_lines(frames):
    table = found.rates(
        found.where(frames["multicast"], source="l2", tile_bytes=32768, stages=6, **found.PLAIN)
    )
    chart = multicast_charts.ways(table, multicast_charts.fan_out_axis(), own=table.head(2))
    assert str(chart.to_dict()).count("triangle-up") == 1
    assert "triangle-up" not in str(multicast_charts.ways(table, multicast_charts.fan_out_axis()).to_dict())


def test_a_span_of_one_value_is_one_number():
    assert found.span([17.4, 20.3, 18]) == "17 to 20"
    assert found.span([21.2, 21.3]) == "21"
    assert found.span([21.2, 21.3], 1) == "21.2 to 21.3"


def test_traffic_is_counted_ratio_times_timed_rate(frames):
    table = found.traffic(frames["multicast"], frames["cluster_counters"])
    assert not table.duplicated(["mechanism", "share", "source", "fan_out"]).any()
    assert set(table["fan_out"]) == {1, 2, 4, 8, 16}
    multicast = found.where(table, mechanism="tma_multicast")
    assert (multicast["from_l2"] * multicast["fan_out"] / multicast["into_sms"]).between(0.99, 1.01).all()
    assert (table["into_sms"] <= table["median"]).all()


def test_no_rows_make_empty_tables_with_the_same_columns(frames):
    ring, counters, dsm = (frames[name] for name in ("multicast", "cluster_counters", "dsm"))
    for make, given in (
        (found.rates, [ring]),
        (found.exchange_rates, [dsm]),
        (found.read_ratios, [counters]),
        (found.by_clusters, [frames["crowding"]]),
        (found.traffic, [ring, counters]),
    ):
        full, empty = make(*given), make(*(frame.head(0) for frame in given))
        assert empty.empty and set(empty.columns) == set(full.columns)


def test_what_an_sm_gets_depends_on_how_many_clusters_stream(frames):
    table = found.by_clusters(frames["crowding"])
    assert not table.duplicated(["share", "fan_out", "clusters"]).any()
    multicast = found.where(table, share="slices")
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
    for path in (stored.root / f"{name}.csv" for name in needed):
        shutil.copy(path, tmp_path)
    asked = []

    def fake_run(name, preset, store):
        """A quick run of a GPU like the stored one, a tenth slower."""
        asked.append((name, preset))
        table = experiment(name).table()
        run_id = select.latest_run(stored, name)
        rows = stored.read(table, run_ids=[run_id]).query(QUICK[name])
        rows = rows.drop(columns="run_id").astype(object).where(lambda frame: frame.notna(), None)
        if found.RATE in rows:
            rows[found.RATE] = (rows[found.RATE] * 0.9).astype(float).round(3).astype(object)
        run = stored.read("runs", run_ids=[run_id]).astype(object).where(lambda frame: frame.notna(), None)
        described = run.iloc[0].to_dict() | {
            "run_id": new_run_id(),
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
