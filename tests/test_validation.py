"""What is published of model and advisor: targets on held-out cells, other experiments, real kernels, other GPUs."""

import pandas as pd
import pytest

from labkernels.model import project, validate
from labkernels.model.advisor import PREFERENCE, gpus, run_ids
from labkernels.model.fit import streams
from labkernels.store import Store
from labkernels.studies.select import latest_rows, latest_run

GPU = gpus()[0]


@pytest.fixture(scope="module")
def held_out():
    return validate.held_out(Store(), GPU)


def test_times_and_choices_on_held_out_configurations_meet_their_targets(held_out):
    assert validate.within(held_out.ratio) >= 0.9
    found = validate.score(validate.choices(held_out))
    assert found.cells >= 50 and found.agreement >= 0.95
    assert found.regret_p95 <= 1.05 and found.regret_worst <= 1.15


@pytest.mark.parametrize(
    ("table", "agreement"),
    [
        (lambda: validate.choices(validate.broadcast(Store(), GPU)), 0.95),
        (lambda: validate.choices(validate.paged(Store(), GPU)), 0.9),
        (lambda: validate.choices(validate.paged(Store(), GPU, "prefill")), 0.95),
        (lambda: validate.flash_attention(Store(), GPU), 0.95),
    ],
)
def test_choices_on_experiments_without_a_fitted_row(table, agreement):
    cells = table()
    found = validate.score(cells)
    assert found.agreement >= agreement and found.regret_p95 <= 1.05 and found.regret_worst <= 1.15
    assert set(cells.choice) <= set(PREFERENCE)


def test_times_of_gathers_are_predicted():
    table = validate.paged(Store(), GPU)
    single = validate.single_runs(table)
    assert validate.within(table.ratio) >= 0.9 and validate.within(table[single].ratio) >= 0.98


def test_tiles_handed_over_are_predicted_on_the_grid_that_was_not_fitted():
    table = validate.broadcast(Store(), GPU)
    passed = table[validate.handed_over(table)]
    assert set(passed.source) == {"hbm", "l2", "computed"}
    assert validate.within(passed.ratio) >= 0.9 and validate.within(table.ratio) >= 0.9
    made = validate.choices(table[table.source.eq("computed")])
    assert len(made) == 16 and set(made.choice) == {"dsm_bulk", "tma_multicast"} and made.agrees.all()


def test_no_row_of_a_test_was_fitted():
    fitted = set(run_ids(GPU))
    for experiment in ("paged", "broadcast", "fa3", "fa3_fwd"):
        assert latest_run(Store(), experiment, GPU) not in fitted


def test_an_earlier_model_is_judged_on_rows_that_came_after_it(held_out):
    told = validate.forecast(Store(), GPU)
    assert len(told) == len(held_out) and set(told.commit) == {"0afd00e"}
    assert validate.within(told.ratio) < validate.within(held_out.ratio)


def test_a_page_table_of_whole_tiles_costs_what_the_model_says():
    table = validate.page_table(Store(), GPU)
    assert table.predicted.between(1, 1.01).all()
    assert (table.ratio / table.predicted - 1).abs().le(0.03).mean() >= 0.9


def test_every_disagreement_has_an_explanation():
    cells = validate.all_choices(Store(), GPU)
    assert set(cells.set) == set(validate.SETS)
    assert [row.cell for row in cells[~cells.agrees].itertuples() if not validate.explain(row)] == []


def test_regret_and_agreement_are_computed_from_the_measured_rates():
    table = pd.DataFrame(
        {
            "set": "s", "cell": ["a", "a", "b", "b", "c"], "mechanism": ["tma_tile", "cp_async"] * 2 + ["ldg"],
            "median": [100.0, 110.0, 100.0, 101.0, 50.0], "p05": [99.0, 109.0, 98.0, 99.5, 49.0],
            "p95": [101.0, 111.0, 100.0, 102.0, 51.0], "predicted_gbps": [120.0, 100.0, 100.0, 101.0, 1.0],
            "instructions": [1.0, 8.0] * 2 + [8.0],
        }
    )  # fmt: skip
    cells = validate.choices(table).set_index("cell")
    assert list(cells.index) == ["a", "b"]
    assert cells.loc["a", "choice"] == "tma_tile" and cells.loc["a", "regret"] == pytest.approx(1.1)
    assert not cells.loc["a", "agrees"]
    assert (
        cells.loc["b", "choice"] == "tma_tile" and cells.loc["b", "agrees"]
    )  # within 2 %: fewer instructions


def test_production_agrees_where_features_are_known():
    rows = validate.production(GPU)
    assert len(rows) > 50 and rows.agrees.mean() >= 0.9
    assert (rows[~rows.agrees].why != "").all()


def test_a_projection_takes_one_number_and_predicts_the_others():
    for target in project.SMS:
        table = project.projected(target, GPU)
        assert len(table) > 5 and table.ratio.gt(0).all()
    b200 = project.projected("B200", GPU)
    assert (b200.ratio - 1).abs().max() < 0.2
    assert 16384 < project.crossover_bytes("B200", GPU) < 131072


def test_rows_of_a_new_run_become_configurations():
    table = streams(latest_rows(Store(), "throughput", GPU))
    assert not table.duplicated(
        ["mechanism", "source", "tile_bytes", "tiles_in_flight", "ctas_per_sm", "threads"]
    ).any()
