"""Findings on clusters, from the stored rows."""

import pytest

from labkernels.errors import NotMeasured
from labkernels.model.advisor import gpus
from labkernels.store import Store
from labkernels.studies import cluster_charts, cluster_rows, select
from labkernels.studies.broadcast import findings as broadcast
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
    with pytest.raises(ValueError, match="more than one pipeline"):
        cluster_rows.pipeline(frames["multicast"], source="l2", fan_out=4)


def test_own_points_are_triangles_over_the_stored_lines(frames):
    table = cluster_rows.rates(
        where(frames["multicast"], source="l2", tile_bytes=32768, stages=6, **cluster_rows.PLAIN)
    )
    chart = cluster_charts.transports(table, cluster_charts.fan_out_axis(), own=table.head(2))
    assert str(chart.to_dict()).count("triangle-up") == 1
    assert "triangle-up" not in str(cluster_charts.transports(table, cluster_charts.fan_out_axis()).to_dict())


def test_traffic_is_counted_ratio_times_timed_rate(frames):
    table = found.traffic(frames["multicast"], frames["cluster_counters"])
    assert not table.duplicated(["mechanism", "share", "source", "fan_out"]).any()
    assert set(table["fan_out"]) == {1, 2, 4, 8, 16}
    multicast = where(table, mechanism="tma_multicast")
    assert (multicast["from_l2"] * multicast["fan_out"] / multicast["into_sms"]).between(0.99, 1.01).all()
    assert (table["into_sms"] <= table["median"]).all()


def test_no_rows_make_empty_tables_with_the_same_columns(frames):
    pipeline, counters, dsm = (frames[name] for name in ("multicast", "cluster_counters", "dsm"))
    for make, given in (
        (cluster_rows.rates, [pipeline]),
        (cluster_rows.exchange_rates, [dsm]),
        (found.read_ratios, [counters]),
        (found.by_clusters, [frames["crowding"]]),
        (found.traffic, [pipeline, counters]),
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
