"""Rows of another GPU: none of them breaks what is said of the first, and all that goes by GPU takes them."""

import json
import shutil
from datetime import datetime

import pytest

from labkernels.book.chapter import Chapter
from labkernels.book.headline import FIGURES, headline
from labkernels.cli import main
from labkernels.model import validate
from labkernels.model.advisor import gpus
from labkernels.model.closed_form import constants
from labkernels.model.configurations import EXPERIMENTS
from labkernels.model.fit import save
from labkernels.paths import DATA
from labkernels.store import RUNS, Store, new_run_id
from labkernels.studies import select
from labkernels.studies.experiments import experiment, studies
from labkernels.studies.rules import RULES, judge
from labkernels.studies.stats import having

FIRST, SECOND = gpus()[0], "A second GPU"


def copied(store, names):
    """Put the first GPU's newest run of some experiments into a store, as another GPU's."""
    of = Store()
    for name in names:
        run_id = select.latest_run(of, name, FIRST)
        run = of.read(RUNS, run_ids=[run_id]).astype(object).where(lambda frame: frame.notna(), None)
        tables = {}
        for table in experiment(name).tables:
            rows = of.read(table, run_ids=[run_id]).drop(columns="run_id").astype(object)
            tables[table] = rows.where(rows.notna(), None).to_dict("records")
        described = run.iloc[0].to_dict()
        began = datetime.fromisoformat(str(described["started_utc"]))
        described |= {"run_id": new_run_id(began), "started_utc": began, "gpu_name": SECOND}
        store.record(described, {table: rows for table, rows in tables.items() if rows})


MEASURED = [name for name in studies() if select.latest_run(Store(), name, FIRST)]


@pytest.mark.parametrize("name", MEASURED)
def test_one_run_alone_gives_its_figures_and_verdicts_and_no_others(name, tmp_path):
    store = Store(tmp_path)
    copied(store, [name])
    figures = headline(store)[SECOND]
    assert list(figures) == list(FIGURES)
    assert figures.pop("cards").value == 1
    for figure in figures.values():
        missing = f"on {SECOND}" in figure.note or "no model" in figure.note
        assert missing or figure.run_id  # a figure of a run may say that there is none, and why
    judged = judge(store, SECOND)
    assert [v.rule for v in judged] == list(RULES)
    for verdict in judged:
        assert (verdict.outcome != "not measured") == (verdict.rule.experiments == (name,))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The stored rows and, of a second GPU, what the first has, but no model yet."""
    root = tmp_path_factory.mktemp("both") / "data"
    shutil.copytree(DATA, root)
    store = Store(root)
    copied(store, MEASURED)
    return store


def test_a_gpu_without_a_model_is_the_one_that_is_not_shown(both):
    parameters = {"measure": False, "preset": "quick", "data_dir": str(both.root), "gpu": ""}
    namespace = {"__annotations__": {name: type(value) for name, value in parameters.items()}, **parameters}
    for experiments in ((), ("throughput",), tuple(MEASURED)):
        assert Chapter(namespace | {"Chapter": Chapter}, *experiments).gpu == FIRST


def test_all_that_goes_by_gpu_takes_the_second(both):
    before = {name: both.read(name) for name in ("constants", "verdicts")}
    save(both, SECOND, scores=having(both.read("splits"), gpu=FIRST))
    for name, rows in before.items():
        assert both.read(name).head(len(rows)).equals(rows), "rows of the first GPU were changed"
    assert constants(SECOND, both.root) == pytest.approx(constants(FIRST), rel=5e-3)
    verdicts = {gpu: rows.set_index("rule") for gpu, rows in both.read("verdicts").groupby("gpu")}
    assert verdicts[SECOND].outcome.equals(verdicts[FIRST].outcome)
    assert not set(verdicts[SECOND].run_id) & set(verdicts[FIRST].run_id)

    figures = headline(both)
    assert figures[FIRST].pop("cards").value >= figures[SECOND].pop("cards").value
    for name in figures[FIRST]:
        one, two = figures[FIRST][name], figures[SECOND][name]
        assert two.run_id != one.run_id
        if one.value is None:  # a run that says that there is none says so on both
            assert (two.value, two.note) == (None, one.note)
        else:
            assert two.value == pytest.approx(one.value, rel=1e-3)

    # one run of each experiment: there is no other card
    assert set(validate.all_choices(both, SECOND).set) == set(validate.SETS) - {"another card"}
    assert validate.explanations(both, SECOND).empty


def test_a_first_fit_needs_no_table_of_a_model(tmp_path, monkeypatch):
    store = Store(tmp_path)
    copied(store, EXPERIMENTS)
    monkeypatch.setattr("labkernels.model.fit.fit", lambda rows, progress: (constants(FIRST), None))
    save(store, SECOND)
    assert gpus(tmp_path) == [SECOND]


@pytest.mark.parametrize("command", [["rules"], ["fit"]])
def test_an_unknown_gpu_is_one_sentence_with_those_there_are(command, capsys):
    assert main([*command, "--gpu", "NVIDIA H9999"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and FIRST in told.err and len(told.err.splitlines()) == 1


@pytest.mark.parametrize("command", [["headline"], ["rules"], ["fit"]])
def test_a_folder_without_runs_is_one_sentence(command, tmp_path, capsys):
    assert main([*command, "--data", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and "holds no runs" in told.err and len(told.err.splitlines()) == 1


def test_advice_for_an_unknown_gpu_names_those_that_have_a_model(capsys):
    assert main(["advise", "--gpu", "NVIDIA H9999"]) == 2
    assert f"choose {FIRST}" in capsys.readouterr().err


def test_machines_are_told_what_is_missing_and_why(tmp_path, capsys):
    copied(Store(tmp_path), ["latency"])
    assert main(["headline", "--data", str(tmp_path), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)[SECOND]
    assert figures["tma_latency_premium_cycles"]["value"] is not None
    assert "measure throughput" in figures["hbm_read_gbps"]["note"]

    assert main(["rules", "--data", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rules"]
    assert {row["id"] for row in rows} == {rule.id for rule in RULES}
    for row in rows:
        assert row["operands"] and row["take"] and row["scope"] and row["statement"].endswith(".")
        assert row["run_ids"] if row["outcome"] != "not measured" else "measure" in row["evidence"]
