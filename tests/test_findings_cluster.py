"""Findings on clusters: from the stored rows, and from rows bent until a rule must fall."""

import pandas as pd
import pytest

from labkernels import charts_cluster, selection
from labkernels import findings_cluster as found
from labkernels.store import Store

TABLES = {
    "multicast": "cluster_ring",
    "handshake": "cluster_ring",
    "broadcast": "cluster_ring",
    "cluster_counters": "cluster_counters",
    "residency": "cluster_residency",
    "dsm": "dsm_bandwidth",
}
RULES = (*found.MULTICAST_RULES, *found.BROADCAST_RULES)


@pytest.fixture(scope="module")
def store():
    return Store()


@pytest.fixture(scope="module")
def gpus(store):
    return sorted(set(store.read("cluster_ring", run_columns=("gpu_name",))["gpu_name"]))


@pytest.fixture(scope="module")
def frames(store):
    return {name: selection.latest_rows(store, table, name, "NVIDIA H200") for name, table in TABLES.items()}


def test_headlines_lie_inside_their_intervals(store, gpus):
    for gpu in gpus:
        for measure in (
            found.multicast_fill_bytes_per_clock_per_sm,
            found.multicast_l2_read_ratio,
            found.dsm_bulk_bytes_per_clock_per_sm,
            found.dsm_load_latency_cycles,
        ):
            one = measure(store, gpu)
            assert one.low <= one.value <= one.high
            assert one.run_id in set(store.read("runs")["run_id"])
        assert found.multicast_l2_read_ratio(store, gpu).value == pytest.approx(0.25, rel=0.05)


def test_a_gpu_without_rows_is_not_measured(store):
    with pytest.raises(found.NotMeasured, match="no rows of multicast on H9000"):
        found.multicast_fill_bytes_per_clock_per_sm(store, "H9000")


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
        ("asks for neighbours", "multicast", found.RATE, 2.5, {"share": "scattered"}),
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
        found.rounds(frames["multicast"], source="l2", fan_out=4)


def test_own_points_are_triangles_over_the_stored_lines(frames):
    table = found.rates(
        found.where(frames["multicast"], source="l2", tile_bytes=32768, stages=6, **found.PLAIN)
    )
    chart = charts_cluster.ways(table, charts_cluster.fan_out_axis(), own=table.head(2))
    layers = chart.to_dict()["layer"]
    assert [layer["mark"].get("shape") for layer in layers].count("triangle-up") == 1
    assert "triangle-up" not in str(charts_cluster.ways(table, charts_cluster.fan_out_axis()).to_dict())
