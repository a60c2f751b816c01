"""The first cell of every chapter: parameters checked by name and type, rows chosen, no measuring without a GPU."""

import pandas as pd
import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from labkernels.book.chapter import Chapter, ParameterError, check_parameters
from labkernels.errors import NoGpu
from labkernels.paths import BOOK


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


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"tiles": 4}, "unknown parameter tiles"),
        ({"measure": "maybe"}, "parameter measure is 'maybe', a str; give a bool"),
    ],
)
def test_papermill_stops_with_the_parameters_name(tmp_path, parameters, message):
    with pytest.raises(PapermillExecutionError, match=message):
        papermill.execute_notebook(
            BOOK / "crossover.ipynb", tmp_path / "out.ipynb", parameters, cwd=tmp_path, progress_bar=False
        )


def test_measuring_without_a_gpu_is_a_sentence():
    try:
        Chapter(namespace(measure=True), {"latency": "latency"})
    except NoGpu as error:
        assert "measure=False" in str(error)
    else:
        pytest.skip("this machine has a GPU")


def test_rows_of_the_shown_gpu_come_with_what_a_chart_needs():
    chapter = Chapter(namespace(), {"throughput": "throughput"})
    frame = chapter.stored("throughput")
    assert set(frame.gpu) == {chapter.published_gpu} and frame.run_id.nunique() == 1
    assert {"sm_count", "sm_clock_mhz_median", "l2_bytes"} <= set(frame)
    assert chapter.measured("throughput").empty
    assert set(frame.run_id) <= set(chapter.machine().index)


def test_a_gpu_without_rows_is_named_with_the_way_to_measure():
    with pytest.raises(
        LookupError, match="no rows of latency for Unknown GPU: run python -m labkernels measure latency"
    ):
        Chapter(namespace(gpu="Unknown GPU"), {"latency": "latency"}).stored("latency")


def test_a_gpu_with_quick_runs_alone_does_not_become_the_shown_one():
    class Stub:
        runs = pd.DataFrame(
            {
                "run_id": ["1", "2", "3"],
                "gpu_name": ["A", "A", "B"],
                "experiment": ["latency", "issue", "latency"],
                "preset": ["full", "full", "quick"],
            }
        )

        def read(self, table):
            return self.runs

    chapter = Chapter.__new__(Chapter)
    chapter.store, chapter.tables = Stub(), {"latency": "latency", "issue": "issue_cost"}
    assert chapter._best_covered_gpu() == "A"
    Stub.runs = Stub.runs.assign(preset="full")
    assert chapter._best_covered_gpu() == "A"
    Stub.runs = Stub.runs[Stub.runs["experiment"].ne("issue")]
    assert chapter._best_covered_gpu() == "B"
