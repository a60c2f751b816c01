"""What is published of model and advisor: targets on held-out cells, other experiments, real kernels, other GPUs."""

import pandas as pd
import pytest

from labkernels import projection, validation
from labkernels.advisor import PREFERENCE, gpus
from labkernels.fit import streams
from labkernels.selection import latest_rows
from labkernels.store import Store

GPU = gpus()[0]


@pytest.fixture(scope="module")
def held_out():
    return validation.held_out(Store(), GPU)


def test_times_and_choices_on_held_out_configurations_meet_their_targets(held_out):
    assert validation.within(held_out.ratio) >= 0.9
    found = validation.score(validation.choices(held_out))
    assert found.cells >= 50 and found.agreement >= 0.95
    assert found.regret_p95 <= 1.05 and found.regret_worst <= 1.15


@pytest.mark.parametrize(
    ("table", "regret_p95"),
    [
        (lambda: validation.choices(validation.broadcast(Store(), GPU)), 1.05),
        (lambda: validation.choices(validation.paged(Store(), GPU, "prefill")), 1.05),
        (lambda: validation.flash_attention(Store(), GPU), 1.05),
    ],
)
def test_choices_on_experiments_without_a_fitted_row(table, regret_p95):
    cells = table()
    found = validation.score(cells)
    assert found.agreement >= 0.95 and found.regret_p95 <= regret_p95
    assert set(cells.choice) <= set(PREFERENCE)


def test_the_setting_that_gives_the_look_up_is_no_test_and_the_rest_of_the_pages_is_met():
    table = validation.paged(Store(), GPU)
    single = table.issuers.eq(1) & table.piece_rows.eq(1) & table.row_bytes.eq(256)
    assert not (
        single
        & table.kv_heads.eq(8)
        & table.layout.eq("nhd")
        & table.page_order.eq("shuffled")
        & table.splits.eq(1)
    ).any()
    found = validation.score(validation.choices(table))
    assert found.cells > 50 and found.agreement >= 0.9 and found.regret_p95 <= 1.05
    assert validation.within(table.ratio) >= 0.85


def test_every_disagreement_has_an_explanation():
    cells = validation.all_choices(Store(), GPU)
    assert set(cells.set) == set(validation.SETS)
    assert [row.cell for row in cells[~cells.agrees].itertuples() if not validation.explain(row)] == []


def test_regret_and_agreement_are_computed_from_the_measured_rates():
    table = pd.DataFrame(
        {
            "set": "s", "cell": ["a", "a", "b", "b", "c"], "mechanism": ["tma_tile", "cp_async"] * 2 + ["ldg"],
            "measured_gbps": [100.0, 110.0, 100.0, 101.0, 50.0], "measured_low": [99.0, 109.0, 98.0, 99.5, 49.0],
            "measured_high": [101.0, 111.0, 100.0, 102.0, 51.0], "predicted_gbps": [120.0, 100.0, 100.0, 101.0, 1.0],
        }
    )  # fmt: skip
    cells = validation.choices(table).set_index("cell")
    assert list(cells.index) == ["a", "b"]
    assert cells.loc["a", "choice"] == "tma_tile" and cells.loc["a", "regret"] == pytest.approx(1.1)
    assert not cells.loc["a", "agrees"]
    assert (
        cells.loc["b", "choice"] == "tma_tile" and cells.loc["b", "agrees"]
    )  # within 2 %: fewer instructions


def test_production_agrees_where_features_are_known():
    rows = validation.production(GPU)
    assert len(rows) > 50 and rows.agrees.mean() >= 0.9
    assert (rows[~rows.agrees].why != "").all()


def test_a_projection_takes_one_number_and_predicts_the_others():
    for target in projection.SMS:
        table = projection.projected(target, GPU)
        assert len(table) > 5 and table.ratio.gt(0).all()
    b200 = projection.projected("B200", GPU)
    assert (b200.ratio - 1).abs().max() < 0.2
    assert 16384 < projection.crossover_bytes("B200", GPU) < 131072


def test_rows_of_a_new_run_become_configurations():
    table = streams(latest_rows(Store(), "throughput", "throughput", GPU))
    assert not table.duplicated(
        ["mechanism", "source", "tile_bytes", "tiles_in_flight", "ctas_per_sm", "threads"]
    ).any()
