"""The first cell of every chapter: parameters checked by name and type, rows chosen, no measuring without a GPU."""

import json
from datetime import UTC, datetime
from itertools import count

import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from labkernels.book.chapter import Chapter, ParameterError, check_parameters
from labkernels.errors import NoGpu, NotInstalled, NotMeasured
from labkernels.paths import BOOK
from labkernels.store import RUNS, Store, new_run_id
from labkernels.studies import select

SECONDS = count()


def namespace(**values):
    annotations = {"measure": bool, "preset": str, "data_dir": str, "gpu": str}
    defaults = {"measure": False, "preset": "quick", "data_dir": "", "gpu": ""}
    return {
        "__annotations__": annotations,
        "__name__": "__main__",
        "In": [],
        "Chapter": Chapter,
        **defaults,
        **values,
    }


def test_known_parameters_pass():
    assert check_parameters(namespace(preset="full"), {"Chapter"})["preset"] == "full"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mesure": True}, "unknown parameter mesure; this chapter has measure, preset"),
        ({"measure": "yes"}, "parameter measure is 'yes', a str; give a bool"),
        ({"measure": 1}, "parameter measure is 1, a int; give a bool"),
        ({"preset": 3}, "parameter preset is 3"),
    ],
)
def test_other_parameters_are_named(values, message):
    with pytest.raises(ParameterError, match=message):
        Chapter(namespace(**values))


def test_papermill_runs_a_chapter_and_stops_it_with_a_parameters_name(tmp_path):
    def run(**parameters):
        path, out = BOOK / "decide.ipynb", tmp_path / "out.ipynb"
        return papermill.execute_notebook(path, out, parameters, cwd=tmp_path, progress_bar=False)

    assert run(measure=False).metadata.papermill.exception is None
    with pytest.raises(PapermillExecutionError, match="unknown parameter tiles"):
        run(tiles=4)


def test_annotations_may_come_as_a_function():
    known = namespace()
    annotations = known.pop("__annotations__")
    assert check_parameters(known | {"__annotate__": lambda format: annotations}, {"Chapter"})["gpu"] == ""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preset": "slow"}, "parameter preset is 'slow', which latency does not have; give quick or full"),
        (
            {"gpu": "NVIDIA H9999"},
            "parameter gpu is 'NVIDIA H9999', of which there are no runs; give NVIDIA ",
        ),
        (
            {"data_dir": "/nonexistent"},
            "parameter data_dir: /nonexistent holds no runs; give a folder that does",
        ),
    ],
)
def test_what_does_not_exist_is_named_before_any_work(values, message):
    with pytest.raises(ParameterError, match=message):
        Chapter(namespace(**values), "latency")


def test_what_a_batch_has_measured_is_not_measured_again(monkeypatch):
    run_id = select.latest_run(Store(), "latency", preset="quick")
    monkeypatch.setenv("LABKERNELS_MEASURED", json.dumps({"latency": run_id}))
    monkeypatch.setattr("labkernels.studies.run.run", lambda *_: pytest.fail("it measured"))
    chapter = Chapter(namespace(measure=True), "latency")
    chapter.measure()
    assert set(chapter.measured("latency")["run_id"]) == {run_id}


def test_measuring_without_a_gpu_is_a_sentence():
    chapter = Chapter(namespace(measure=True), "latency")
    try:
        chapter.measure()
    except NoGpu as error:
        assert "measure=False" in str(error)
    else:
        pytest.skip("this machine has a GPU")


@pytest.fixture
def without_ncu(monkeypatch):
    """Measuring where some experiments lack something."""
    lacking = {"stream_counters", "hints_counters"}

    def run(name, preset, store):
        if name in lacking:
            raise NotInstalled("ncu is not here:\ninstall it")
        return f"run of {name}"

    monkeypatch.setattr("labkernels.studies.run.run", run)


def test_what_this_machine_lacks_is_said_and_the_rest_measured(without_ncu, capsys):
    chapter = Chapter(namespace(measure=True), "stream_counters", "latency")
    chapter.measure()
    assert capsys.readouterr().out == "not measured here: stream_counters: ncu is not here: install it\n"
    assert chapter._own == {"latency": "run of latency"}


def test_a_chapter_that_can_measure_nothing_says_why_once(without_ncu):
    with pytest.raises(NotInstalled, match=r"^ncu is not here:\ninstall it$"):
        Chapter(namespace(measure=True), "stream_counters", "hints_counters").measure()


def test_making_a_chapter_writes_nothing(tmp_path, monkeypatch):
    store = Store(tmp_path)
    record(store, experiment="latency")
    before = sorted(tmp_path.rglob("*"))
    Chapter(namespace(measure=True, data_dir=str(tmp_path)), "latency", "issue")
    assert sorted(tmp_path.rglob("*")) == before


def test_rows_of_the_shown_gpu_come_with_what_a_chart_needs():
    chapter = Chapter(namespace(), "throughput")
    frame = chapter.stored("throughput")
    assert set(frame.gpu) == {chapter.gpu} and frame.run_id.nunique() == 1
    assert {"sm_count", "sm_clock_mhz_median", "l2_bytes"} <= set(frame)
    assert chapter.measured("throughput").empty
    assert set(frame.run_id) == set(chapter.machine().frame["run"])


def record(store, **described):
    """A run of one row, described like a stored one."""
    runs, rows = (Store().read(table).head(1) for table in (RUNS, "latency"))
    run, row = (frame.astype(object).where(frame.notna(), None).iloc[0].to_dict() for frame in (runs, rows))
    del run["rows"], row["run_id"]
    began = datetime(2026, 1, 31, 12, 0, next(SECONDS), tzinfo=UTC)
    named = {"run_id": new_run_id(began), "started_utc": began, "preset": "full"}
    return store.record(run | named | described, {"latency": [row]})


def test_what_was_not_measured_is_named_with_the_way_to_measure(tmp_path):
    record(Store(tmp_path), experiment="latency")
    chapter = Chapter(namespace(data_dir=str(tmp_path)), "latency")
    with pytest.raises(
        NotMeasured, match=r"no rows of issue for NVIDIA .*: run python -m labkernels measure issue"
    ):
        chapter.stored("issue")
    assert chapter.stored("issue", required=False).empty


def test_a_gpu_with_quick_runs_alone_does_not_become_the_shown_one(tmp_path):
    store = Store(tmp_path)

    def shown():
        return Chapter(namespace(data_dir=str(tmp_path)), "latency", "issue").gpu

    record(store, gpu_name="A", experiment="latency")
    record(store, gpu_name="A", experiment="issue")
    record(store, gpu_name="B", experiment="latency", preset="quick")
    assert shown() == "A"
    record(store, gpu_name="B", experiment="latency")
    assert shown() == "A"
    record(store, gpu_name="B", experiment="issue")
    assert shown() == "B"


def test_words_are_said_as_they_are_and_numbers_rounded(monkeypatch):
    said = {}
    monkeypatch.setattr(
        "labkernels.book.chapter.glue", lambda name, value, display: said.update({name: value})
    )
    Chapter(namespace(), "latency").say_all({"gpu": "A", "cycles": 1234.5, "count": 7})
    assert said == {"gpu": "A", "cycles": "1,234", "count": "7"}
