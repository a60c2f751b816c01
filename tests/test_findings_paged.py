"""What is said of paged rows, against frames whose answer is known, and against the stored ones."""

import numpy as np
import pandas as pd
import pytest

from labkernels.errors import NotMeasured
from labkernels.model.advisor import gpus
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.paged import findings as found

ROUNDS = 9


def paged_rows(**ways):
    """Rows of one run: `(phase, variant, page_rows, piece_rows, issuers)` -> microseconds, with a little noise."""
    rows = []
    for (phase, variant, page_rows, piece_rows, issuers), duration_us in ways["ways"].items():
        for number in range(ROUNDS):
            noisy = duration_us * (1 + 0.001 * (number - ROUNDS // 2))
            mechanism = "cp_async" if variant == "rows" else "tma_tile"
            rows.append(
                dict(found.PLAIN, run_id="run", gpu="GPU", phase=phase, mechanism=mechanism, variant=variant)
                | {"page_rows": page_rows, "piece_rows": piece_rows, "issuers": issuers, "round": number}
                | {"duration_us": noisy, "gbps": 1e6 / noisy}
            )
    return pd.DataFrame(rows)


@pytest.fixture
def paged():
    return paged_rows(
        ways={
            ("decode", "contiguous", 0, 128, 1): 100.0,
            ("decode", "rows", 64, 1, 1): 110.0,
            ("decode", "box", 64, 64, 1): 105.0,
            ("prefill", "no_copy", 0, 128, 1): 200.0,
            ("prefill", "rows", 128, 1, 1): 220.0,
            ("prefill", "box", 128, 128, 1): 230.0,
            ("prefill", "rows", 16, 1, 1): 220.0,
            ("prefill", "box", 16, 16, 1): 240.0,
            ("prefill", "box", 16, 16, 4): 200.0,
        }
    )


def test_the_best_way_to_gather_is_compared_with_the_contiguous_cache(paged):
    assert found.paged_best_over_contiguous(paged, 64).ratio == pytest.approx(100 / 105)
    with pytest.raises(NotMeasured, match="page_rows 32"):
        found.paged_best_over_contiguous(paged, 32)


def test_unhidden_cost_is_what_exceeds_the_same_round_without_copies(paged):
    table = found.unhidden(paged).set_index(found.WAY)
    assert table.loc[(128, "rows", 1, 1), "unhidden_us"] == pytest.approx(20)
    assert table.loc[(128, "rows", 1, 1), "median"] == pytest.approx(1.1)


def test_isolated_ratios_take_as_many_issuing_warps_as_were_measured(paged):
    assert found.isolated_ratio(paged, "prefill", 128).ratio == pytest.approx(220 / 230)
    assert found.isolated_ratio(paged, "prefill", 16).ratio == pytest.approx(1.1)


def fa3_rows(ways):
    rows = []
    for (seqlen_q, route, mechanism, page_rows), kernel_us in ways.items():
        for number in range(ROUNDS):
            rows.append(
                {"run_id": "run", "gpu": "GPU", "phase": "decode" if seqlen_q == 1 else "prefill", "batch": 1}
                | {"seqlen_q": seqlen_q, "seqlen_k": 8192, "heads": 32, "kv_heads": 8, "num_splits": 1}
                | {"page_rows": page_rows, "route": route, "mechanism": mechanism, "round": number}
                | {"kernel_us": kernel_us * (1 + 0.001 * (number % 3)), "beside_us": 0.0}
            )
    return pd.DataFrame(rows)


@pytest.fixture
def fa3():
    return fa3_rows(
        {
            (1, "contiguous", "tma_tile", 0): 50.0,
            (1, "rule", "cp_async", 16): 70.0,
            (1, "rule", "cp_async", 128): 66.0,
            (1, "bound", "tma_tile", 128): 60.0,
            (2048, "rule", "tma_tile", 128): 80.0,
            (2048, "leftpad", "cp_async", 128): 88.0,
            (64, "rule", "tma_tile", 128): 80.0,
            (64, "leftpad", "cp_async", 128): 80.0,
        }
    )


def test_regret_counts_only_cells_with_a_choice_and_differences_beyond_the_interval(fa3):
    cells = found.fa3_cells(fa3).set_index("seqlen_q")
    assert list(cells.index) == [1, 64, 2048]
    assert cells["best"].to_dict() == {1: "tma_tile", 64: "", 2048: "tma_tile"}
    assert cells.loc[1, "regret"] == pytest.approx(1.1)
    assert cells.loc[[64, 2048], "regret"].tolist() == [1, 1]
    regret = found.fa3_rule_regret(fa3)
    assert (regret.cells, regret.wrong) == (3, 1)
    assert regret.mean == pytest.approx(1.1 ** (1 / 3)) and regret.worst == pytest.approx(1.1)


def test_what_a_choice_causes_beside_its_kernel_counts(fa3):
    slow = fa3.assign(beside_us=np.where(fa3["route"].eq("bound"), 12.0, 0.0))
    (cell,) = found.fa3_cells(slow[slow["seqlen_q"].eq(1)]).to_dict("records")
    assert (
        cell["best"] == "cp_async"
        and cell["ratio"] == pytest.approx(66 / 72, rel=1e-3)
        and cell["regret"] == 1
    )


def test_shapes_are_compared_in_the_same_call_and_the_librarys_choice_beside_it():
    ways = {
        (1, "rule", "cp_async", 128): (50.0, 64),
        (1, "bound", "tma_tile", 128): (60.0, 128),
        (1, "leftpad", "cp_async", 128): (66.0, 128),
        (2048, "rule", "tma_tile", 128): (80.0, 128),
        (2048, "leftpad", "cp_async", 128): (80.0, 128),
        (64, "rule", "cp_async", 128): (80.0, 128),  # nothing loads it by TMA
        (64, "leftpad", "cp_async", 128): (80.0, 128),
    }
    frame = fa3_rows({way: us for way, (us, _) in ways.items()})
    tiles = {way[:2]: tile for way, (_, tile) in ways.items()}
    keys = zip(frame["seqlen_q"], frame["route"], strict=True)
    frame = frame.assign(head_dim=128, head_dim_v=128, tile_n=128, tile_m=[tiles[key] for key in keys])
    cells = found.shape_cells(frame).set_index("seqlen_q")
    assert sorted(cells.index) == [1, 2048]
    decode, prefill = cells.loc[1], cells.loc[2048]
    assert (decode["ratio"], decode["chosen"]) == pytest.approx((1.1, 50 / 60))
    assert (decode["rule_tile"], decode["tma_tile"], decode["gather_tile"]) == (
        "64 × 128",
        "128 × 128",
        "128 × 128",
    )
    assert (decode["best"], prefill["best"]) == ("tma_tile", "")
    assert (prefill["rule"], prefill["chosen"]) == ("tma_tile", 1)
    with pytest.raises(NotMeasured):
        found.shape_cells(frame[frame["seqlen_q"].eq(64)])


def test_a_page_table_costs_what_its_rows_take_beyond_the_contiguous_ones_of_their_own_dtype_and_head_dim():
    def rows(dtype, head_dim, tile_n, pages):
        frame = fa3_rows({(2048, "rule", "tma_tile", page): us for page, us in pages.items()})
        return frame.assign(dtype=dtype, head_dim=head_dim, tile_n=tile_n)

    frame = pd.concat(
        [
            rows("bf16", 96, 144, {0: 100.0, 144: 102.0, 288: 100.0}),
            rows("fp8", 96, 128, {0: 50.0, 128: 60.0}),
            rows("fp8", 64, 160, {160: 50.0}),  # its contiguous cache was not measured
        ]
    )
    costs = found.page_table_cost(frame).set_index(["dtype", "page_rows"])
    assert costs["ratio"].to_dict() == pytest.approx(
        {("bf16", 144): 1.02, ("bf16", 288): 1, ("fp8", 128): 1.2}
    )
    assert costs["page_tiles"].tolist() == [1, 2, 1]
    assert (costs["ratio_low"] <= costs["ratio"]).all() and (costs["ratio"] <= costs["ratio_high"]).all()
    assert found.page_table_cost(frame[frame["page_rows"].eq(0)]).empty


def test_signs_agree_where_isolated_and_real_kernels_say_the_same(paged, fa3):
    other = paged_rows(
        ways={("decode_mma", "rows", 128, 1, 1): 105.0, ("decode_mma", "box", 128, 128, 1): 100.0}
    )
    signs = found.predicted_signs(pd.concat([paged, other]), fa3).set_index("seqlen_q")["agrees"]
    assert signs[1] and not signs[2048] and pd.isna(signs[64])


def stored(experiment):
    rows = select.latest_rows(Store(), experiment, gpus()[0])
    if rows.empty:
        pytest.skip(f"no rows of {experiment} yet")
    return rows


def test_stored_rows_show_the_mechanism_that_the_rules_say():
    rows = stored("fa3")
    rule = rows[rows["route"].eq("rule")]
    assert rule["mechanism"].tolist() == rule["rule_mechanism"].tolist()
    forced = rows[rows["route"].isin(["leftpad", "bound"])]
    assert not forced["mechanism"].eq(forced["rule_mechanism"]).any()
    assert np.all(rows["max_difference"] <= 4e-3)


def test_stored_shapes_differ_in_the_mechanism_alone():
    rows = stored("fa3_shapes")
    assert rows["error"].max() <= 0.02
    assert set(rows.loc[rows["route"].eq("leftpad"), "mechanism"]) == {"cp_async"}
    assert set(rows.loc[rows["route"].eq("bound"), "mechanism"]) == {"tma_tile"}
    assert len(found.shape_cells(rows)) > 40


def test_stored_page_table_costs_compare_one_kernel_with_itself():
    rows = select.latest_rows(Store(), "fa3_fwd", gpus()[0])
    if rows.empty:
        pytest.skip("no rows of fa3_fwd yet")
    assert set(rows["mechanism"]) == {"tma_tile"}
    assert rows.groupby([*found.PROBLEM, "dtype", "head_dim"])["kernel"].nunique().eq(1).all()
    assert len(found.page_table_cost(rows))
