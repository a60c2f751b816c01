"""Best configurations, ratios, crossovers and rules, on rows made up for the purpose (never stored)."""

import numpy as np
import pandas as pd
import pytest

from labkernels.book.headline import FIGURES, headline
from labkernels.errors import NotMeasured
from labkernels.operand import KIB
from labkernels.store import RUNS, Store
from labkernels.studies.crossover import findings
from labkernels.studies.latency import findings as latency


def rows(speeds, source="hbm", tile=4 * KIB):
    """speeds: mechanism -> {bytes in flight: GB/s}; nine rounds with a little noise shared by all."""
    rng = np.random.default_rng(3)
    noise = 1 + 0.002 * rng.standard_normal(9)
    return pd.DataFrame(
        {
            "gpu": "Some GPU", "run_id": "r", "source": source, "kernel": f"{mechanism}.stream", "mechanism": mechanism,
            "variant": "", "tile_bytes": tile, "stages": at // tile, "ctas_per_sm": 1, "threads": 64,
            "bytes_in_flight_per_sm": at, "round": number, "gbps": speed * noise[number],
        }
        for mechanism, by_size in speeds.items()
        for at, speed in by_size.items()
        for number in range(9)
    )  # fmt: skip


CROSSING = {
    "cp_async": {4 * KIB: 110, 8 * KIB: 200, 16 * KIB: 300, 32 * KIB: 400},
    "tma_tile": {4 * KIB: 100, 8 * KIB: 190, 16 * KIB: 310, 32 * KIB: 440},
    "tma_bulk": {4 * KIB: 90, 8 * KIB: 180, 16 * KIB: 305, 32 * KIB: 430},
}


def test_best_is_the_fastest_median():
    frame = rows(CROSSING)
    assert findings.best(frame, "hbm").mechanism == "tma_tile"
    assert findings.best(frame, "hbm", "cp_async").bytes_in_flight_per_sm == 32 * KIB
    assert findings.best(frame, "hbm").rounds == 9


def test_rounds_keep_their_order():
    frame = rows(CROSSING).sample(frac=1, random_state=1)
    chosen = findings.best(frame, "hbm")
    expected = frame[frame.mechanism.eq("tma_tile") & frame.bytes_in_flight_per_sm.eq(32 * KIB)].sort_values(
        "round"
    )
    assert np.array_equal(findings.rounds_of(frame, chosen).gbps, expected.gbps)


def test_a_frontier_leaves_out_what_fewer_bytes_beat():
    frame = rows({"tma_tile": {4 * KIB: 100, 8 * KIB: 90, 16 * KIB: 200}})
    assert findings.frontier(frame).bytes_in_flight_per_sm.tolist() == [4 * KIB, 16 * KIB]


def test_footprints_stay_apart():
    frame = rows({"tma_tile": {4 * KIB: 100}})
    both = pd.concat([frame.assign(footprint_bytes=n << 20, gbps=frame.gbps * n) for n in (1, 2)])
    table = findings.by_footprint(both).set_index("mebibytes")["median"]
    assert table[2.0] == pytest.approx(2 * table[1.0])


def test_l2_reads_less_than_arrives_where_requests_were_merged():
    counted = pd.DataFrame(
        {"l2_read_bytes": [92.0], "bytes_moved": [100.0], "cycles": [5.0], "sm_count": [2]}
    )
    found = findings.l2_share(counted).iloc[0]
    assert (found.from_l2, found.per_clock) == (0.92, 10.0)


def test_two_runs_are_compared_configuration_by_configuration():
    first = rows({"tma_tile": {4 * KIB: 100, 8 * KIB: 200}})
    second = first.assign(
        run_id="s", gbps=first.gbps.where(first.bytes_in_flight_per_sm.eq(4 * KIB), first.gbps * 0.9)
    )
    apart = findings.repeated(pd.concat([first, second]).sample(frac=1, random_state=1))
    assert sorted(apart.round(6)) == [0, 0.1]


def test_a_slope_is_that_of_one_kind_of_train():
    trains = pd.DataFrame(
        {
            "mechanism": "tma_bulk",
            "transfer_bytes": 128,
            "variant": step,
            "train_length": n,
            "cycles_median": c,
        }
        for step, n, c in (("copy", 1, 50), ("copy", 8, 330), ("wait", 1, 150), ("wait", 8, 1200))
    )
    assert latency.issue_slope_cycles(trains, "tma_bulk", 128) == 40
    assert latency.issue_slope_cycles(trains, "tma_bulk", 128, per_copy="wait") == 150


def test_cycles_per_tile():
    table = findings.rates(rows({"tma_tile": {4 * KIB: 100}}))
    cycles = findings.with_cycles_per_tile(table, 132, 2000).cycles_per_tile.iloc[0]
    assert cycles == pytest.approx(4096 / (100e9 / 132 / 2e9), rel=1e-3)


def test_a_latency_that_was_not_measured_is_named():
    frame = pd.DataFrame(columns=["mechanism", "variant", "source", "transfer_bytes", "protocol"])
    with pytest.raises(NotMeasured, match="tma_bulk"):
        latency.latency(frame, "tma_bulk", "try_wait", "hbm")


def test_every_stored_gpu_gets_every_headline_figure():
    store = Store()
    known = set(store.read(RUNS).run_id)
    for figures in headline(store).values():
        assert list(figures) == list(FIGURES)
        assert figures.pop("cards").value >= 1
        for name, figure in figures.items():
            assert figure.unit == FIGURES[name]
            if figure.value is not None:
                assert figure.run_id in known
                assert figure.low <= figure.value
                assert figure.high is None or figure.value <= figure.high
                assert figure.cards is None or figure.cards_low <= figure.value <= figure.cards_high
