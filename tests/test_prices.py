"""What rows say at a stated price: the same pipeline, equal bytes in flight, equal shared memory."""

import pandas as pd
import pytest

from labkernels.errors import NotMeasured
from labkernels.operand import KIB, MIB
from labkernels.studies.crossover import prices
from labkernels.studies.stats import Ratio

NOISE = (1.0, 1.001, 0.999)


def cell(
    mechanism, gbps, *, stages=4, warps=1, pipeline="pipeline", tile=8 * KIB, spare=0, source="hbm", kernel=""
):
    """Rows of three rounds; a multistage pipeline holds `spare` tiles more than are in flight."""
    return pd.DataFrame(
        {
            "gpu": "G", "run_id": "r", "source": source, "order": "moving", "mechanism": mechanism,
            "kernel": kernel or f"{mechanism}.{pipeline}", "pipeline": pipeline, "share": "turns",
            "producer_warps": warps, "consumer_warps": warps, "destination": "shared", "footprint_bytes": MIB,
            "tile_bytes": tile, "stages": stages, "ctas_per_sm": 1, "threads": 64 * warps,
            "bytes_in_flight_per_sm": (stages - spare) * tile, "shared_bytes_per_sm": stages * tile,
            "round": range(3), "gbps": [gbps * noise for noise in NOISE],
        }
    )  # fmt: skip


def multistage(gbps, stages):
    return cell("cp_async", gbps, stages=stages, pipeline="multistage", spare=1)


ROWS = pd.concat(
    [
        cell("tma_bulk", 102), cell("tma_tile", 104), cell("cp_async", 100), multistage(120, 5),
        cell("tma_bulk", 150, stages=8), cell("tma_tile", 150, stages=8), cell("cp_async", 150, stages=8),
        multistage(165, 9),
        cell("cp_async", 130, warps=4), cell("tma_tile", 1000, source="l2"),
    ]
)  # fmt: skip


def test_in_the_same_pipeline_each_mechanism_is_in_its_faster_form():
    found = prices.same_pipeline(ROWS, "hbm").set_index("stages")
    assert list(found.index) == [4, 8]  # four warps: cp.async alone has them
    assert found["ratio"].tolist() == pytest.approx([1.04, 1.0])
    assert found["equal"].tolist() == [False, True]


def test_equal_bytes_in_flight_and_equal_shared_memory_compare_different_pipelines():
    in_flight = prices.at_equal(ROWS, "hbm", prices.IN_FLIGHT, [32 * KIB, 64 * KIB])
    assert in_flight["ratio"].tolist() == pytest.approx([104 / 130, 150 / 165])
    shared = prices.at_equal(ROWS, "hbm", prices.SHARED, [32 * KIB, 40 * KIB, 64 * KIB])
    assert shared["ratio"].tolist() == pytest.approx([104 / 130, 104 / 130, 150 / 150])
    assert "multistage" not in "".join(shared["second"])


def test_what_one_of_them_does_not_have_is_not_measured():
    with pytest.raises(NotMeasured):
        prices.at_equal(ROWS, "hbm", prices.IN_FLIGHT, [24 * KIB])
    with pytest.raises(NotMeasured, match="no pipeline from l2"):
        prices.same_pipeline(ROWS, "l2")


def test_the_frontier_leaves_out_what_a_cheaper_cell_reaches():
    slower = pd.concat([ROWS, cell("tma_tile", 90, stages=6)])
    table = prices.frontier(slower, prices.SHARED)
    tiles = table[table["mechanism"].eq("tma_tile") & table["source"].eq("hbm")]
    assert tiles["shared_bytes_per_sm"].tolist() == [32 * KIB, 64 * KIB]


@pytest.mark.parametrize(("late", "expected"), [(1.005, None), (1.05, True)])
def test_a_lead_counts_as_overtaking_when_it_exceeds_the_margin(late, expected):
    rows = []
    for size in prices.SIZES:
        stages = size // (4 * KIB)
        ahead = late if size >= 64 * KIB else 0.9
        rows += [
            cell("tma_tile", 100 * ahead, stages=stages, tile=4 * KIB),
            cell("cp_async", 100, stages=stages, tile=4 * KIB),
        ]
    found = prices.overtaking(pd.concat(rows), "hbm")
    assert (found.x is not None) == bool(expected)
    if found.x:
        assert 48 * KIB < found.x < 64 * KIB


def test_plain_loads_are_the_fastest_with_so_many_bytes_in_flight():
    rows = pd.concat(
        [cell("ldg", 100, kernel="a"), cell("ldg", 110, kernel="b"), cell("ldg", 200, stages=8, kernel="c")]
    )
    assert prices.plain_loads(rows, "hbm").value == pytest.approx(110)
    with pytest.raises(NotMeasured):
        prices.plain_loads(rows, "l2")


def test_l2s_own_part_is_that_of_the_fastest_counted_stream():
    counted = pd.DataFrame(
        {
            "source": "l2", "footprint_bytes": 16 * MIB, "mechanism": ["ldg", "ldg", "tma_tile"],
            "bytes_moved": [100, 100, 100], "cycles": [10, 9, 8], "l2_read_bytes": [100, 80, 99],
        }
    )  # fmt: skip
    assert prices.from_l2_itself(counted) == 0.99
    assert prices.from_l2_itself(counted, mechanism="ldg") == 0.8


def test_equality_is_a_claim_of_its_own():
    assert Ratio(1.002, 0.995, 1.008).within(0.01)
    assert not Ratio(1.002, 0.985, 1.008).within(0.01)
    assert not Ratio(1.02, 1.015, 1.025).within(0.01) and Ratio(1.02, 1.015, 1.025).differs
