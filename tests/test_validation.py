"""What is published of model and advisor: targets on held-out cells, other experiments, real kernels, other GPUs."""

from functools import cache

import pandas as pd
import pytest

from labkernels.errors import NotMeasured
from labkernels.model import project, validate
from labkernels.model.advisor import PREFERENCE, Question, advise, gpus, run_ids
from labkernels.store import Store
from labkernels.studies.select import latest_run, require_rows
from labkernels.studies.stats import having, where

GPU = gpus()[0]  # as good as any: these tests hold of the others too
TARGETS = Store().read("targets")


@cache
def table(gpu, name):
    """Predictions beside measurements of one set, or of a part of one."""
    store = Store()
    if name in ("handed over", "computed"):
        rows = table(gpu, "broadcast")
        return rows[validate.forwarded(rows)] if name == "handed over" else where(rows, source="computed")
    if name == "single runs":
        rows = table(gpu, "paged decode")
        return rows[validate.single_runs(rows)]
    return {
        "held out": validate.held_out,
        "broadcast": validate.broadcast,
        "paged decode": validate.paged,
        "paged prefill": lambda store, gpu: validate.paged(store, gpu, "prefill"),
    }[name](store, gpu)


@cache
def cells(gpu, name):
    return (
        validate.flash_attention(Store(), gpu)
        if name == "FlashAttention-3"
        else validate.choices(table(gpu, name))
    )


@pytest.mark.parametrize(
    "target", list(TARGETS.itertuples()), ids=lambda row: f"{row.gpu}, {row.set}: {row.quantity}"
)
def test_targets_are_met(target):
    if target.quantity == "within":
        found = validate.within(table(target.gpu, target.set).ratio)
    else:
        found = getattr(validate.score(cells(target.gpu, target.set)), target.quantity)
    assert pd.isna(target.least) or found >= target.least
    assert pd.isna(target.most) or found <= target.most


def test_every_set_that_is_published_has_targets():
    assert set(having(TARGETS, gpu=GPU).set) >= set(validate.SETS)


def test_choices_are_of_mechanisms_that_the_model_knows():
    found = validate.all_choices(Store(), GPU)
    assert set(found.set) == set(validate.SETS) and set(found.choice) <= set(PREFERENCE)
    assert set(cells(GPU, "computed").choice) <= {"dsm_bulk", "tma_multicast"}


def test_a_gpu_without_rows_or_model_has_no_choices():
    with pytest.raises(NotMeasured, match="No such GPU"):
        validate.all_choices(Store(), "No such GPU")


def test_among_ctas_that_share_a_tile_the_model_beats_every_policy():
    for held_out in (True, False):
        cells = validate.sharing(Store(), GPU, held_out)
        assert cells.model.quantile(0.95) <= 1.03 and cells.model.mean() <= 1.01
        for policy in validate.POLICIES:
            assert cells[policy].mean() > 1.01 and cells[policy].quantile(0.95) > 1.1


def test_out_of_step_the_model_takes_what_multicast_gains():
    fair = require_rows(Store(), "multicast_fair", GPU)
    apart = where(fair, lag_cycles=5000, producers=1)
    for (source, fan_out), rows in apart.groupby(["source", "fan_out"]):
        rates = rows.groupby("mechanism")["gbps"].median()
        one = rows.iloc[0]
        asked = dict(row_bytes=2048, rows=one.tile_bytes // 2048, element_bytes=8, stages=one.stages)
        asked |= {"cluster": fan_out, "source": source, "pace": "apart", "tensor_mib": 24}
        taken = advise(Question(**asked), GPU)
        assert rates[taken.choice] >= 0.98 * rates.max(), (source, fan_out)


def test_forwarded_tiles_come_from_everywhere():
    assert set(table(GPU, "handed over").source) == {"hbm", "l2", "computed"}


def test_no_row_of_a_test_was_fitted():
    for gpu in gpus():
        fitted = set(run_ids(gpu))
        for experiment in ("paged", "broadcast", "fa3", "fa3_fwd"):
            assert latest_run(Store(), experiment, gpu) not in fitted


def test_an_earlier_model_is_judged_on_rows_that_came_after_it():
    told = validate.forecast(Store(), GPU)
    assert set(told.cell) <= set(table(GPU, "held out").cell) and told.commit.nunique() == 1
    assert validate.within(told.ratio) < validate.within(table(GPU, "held out").ratio)
    with pytest.raises(NotMeasured, match="gpu No such GPU"):
        validate.forecast(Store(), "No such GPU")


def test_a_page_table_of_whole_tiles_costs_what_the_model_says():
    costs = validate.page_table(Store(), GPU)
    assert costs.predicted.between(1, 1.01).all()
    assert (costs.ratio / costs.predicted - 1).abs().le(0.03).mean() >= 0.9


def test_every_explanation_is_of_a_cell_in_which_the_choice_was_not_the_best():
    for gpu, told in Store().read("explanations").groupby("gpu"):
        found = validate.all_choices(Store(), gpu)
        wrong = found[~found.agrees]
        assert set(zip(told.set, told.cell, strict=True)) <= set(zip(wrong.set, wrong.cell, strict=True))
        shown = {row.cell: validate.explain(row, told) for row in wrong.itertuples()}
        assert set(told.why) <= set(shown.values())


def test_a_cell_that_nobody_looked_into_has_no_explanation():
    row = cells(GPU, "held out").assign(agrees=False, tied=False, cell="somewhere").iloc[0]
    assert validate.explain(row, validate.explanations(Store(), GPU)) == ""
    assert validate.explain(row, validate.explanations(Store(), "No such GPU")) == ""


def test_regret_and_agreement_are_computed_from_the_measured_rates():
    rows = pd.DataFrame(
        {
            "set": "s", "cell": ["a", "a", "b", "b", "c"], "mechanism": ["tma_tile", "cp_async"] * 2 + ["ldg"],
            "median": [100.0, 110.0, 100.0, 101.0, 50.0], "p05": [99.0, 109.0, 98.0, 99.5, 49.0],
            "p95": [101.0, 111.0, 100.0, 102.0, 51.0], "predicted_gbps": [120.0, 100.0, 100.0, 101.0, 1.0],
            "instructions": [1.0, 8.0] * 2 + [8.0],
        }
    )  # fmt: skip
    found = validate.choices(rows).set_index("cell")
    assert list(found.index) == ["a", "b"]
    assert found.loc["a", "choice"] == "tma_tile" and found.loc["a", "regret"] == pytest.approx(1.1)
    assert not found.loc["a", "agrees"]
    # within 2 %: fewer instructions
    assert found.loc["b", "choice"] == "tma_tile" and found.loc["b", "agrees"]
    with pytest.raises(NotMeasured, match="several mechanisms"):
        validate.choices(rows.tail(1))


def test_production_agrees_where_features_are_known():
    rows = validate.production(GPU)
    assert len(rows) > 50 and rows.agrees.mean() >= 0.9
    assert (rows[~rows.agrees].why != "").all()


def test_a_projection_takes_one_number_and_predicts_the_others():
    for target in ("H100 SXM5", "B200"):
        projected = project.projected(target, GPU)
        assert len(projected) > 5 and projected.ratio.gt(0).all()
    b200 = project.projected("B200", GPU)
    assert (b200.ratio - 1).abs().max() < 0.2
    assert 16384 < project.crossover_bytes("B200", GPU) < 131072
