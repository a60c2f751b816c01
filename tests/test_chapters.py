"""Every chapter is stored clean and runs from stored data with no GPU."""

import os
import re
import shutil
from datetime import UTC, datetime
from functools import cache

import nbformat
import pytest
from executed import execute

from labkernels import charts
from labkernels.book.chapter import ParameterError
from labkernels.book.hygiene import chapters, hygiene_problems
from labkernels.charts.tables import Table
from labkernels.paths import DATA
from labkernels.store import Store, new_run_id
from labkernels.studies import cluster_rows, select
from labkernels.studies.experiments import experiment

CHAPTERS = {path.stem: path for path in chapters()}


def each(*names):
    """A test for each chapter."""
    return pytest.mark.parametrize("name", names or CHAPTERS)


def test_there_are_chapters():
    assert CHAPTERS


@each()
def test_chapter_is_clean(name):
    assert hygiene_problems(CHAPTERS[name]) == []


def files():
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size) for path in DATA.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="session")
def stored():
    """Chapters executed from the stored data, each once in this process."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield cache(lambda name: execute(CHAPTERS[name], monkeypatch))


@each()
def test_chapter_shows_charts_from_stored_data_and_writes_nothing(name, stored):
    before = files()
    shown = stored(name).charts
    assert files() == before, "a run from stored data wrote into data/"
    assert shown or "charts.figure(" not in CHAPTERS[name].read_text("utf8"), "a chapter without a chart"
    for chart in shown:
        page = charts.book_renderer(chart.to_dict())["text/html"]
        assert "lab-chart" in page
        assert "nan" not in re.findall(r'aria-label="(.*?)"|<figcaption>(.*?)</figcaption>', page)


@each()
def test_the_text_asks_for_what_the_chapter_says(name, stored):
    text = "".join(
        c.source for c in nbformat.read(CHAPTERS[name], as_version=4).cells if c.cell_type == "markdown"
    )
    said = stored(name).said
    assert set(re.findall(r"{glue:text}`(\w+)`", text)) == set(said)
    assert not [key for key, value in said.items() if re.search(r"\bnan\b", value)]


def units(spec):
    """Marks and encodings of a specification, those of enclosing layers included."""
    for part in (spec, *(one for key in ("layer", "hconcat", "vconcat") for one in spec.get(key, []))):
        if part is not spec:
            yield from units(part)
    if "spec" in spec:
        yield from units(spec["spec"])
    if "mark" in spec:
        yield spec["mark"]["type"], spec.get("encoding", {})


@each()
def test_every_legend_has_symbols_and_stands_once(name, stored):
    for chart in stored(name).charts:
        drawn = list(units(chart.to_dict()))
        with_stroke = {
            encoding["color"].get("field")
            for mark, encoding in drawn
            if "color" in encoding and mark in ("line", "rule")
        }
        for mark, encoding in drawn:
            color, dash = encoding.get("color", {}), encoding.get("strokeDash")
            if (
                "field" in color
                and color.get("legend", True) is not None
                and color["field"] not in with_stroke
            ):
                symbol = (color.get("legend") or {}).get("symbolType", "stroke")
                assert symbol != "stroke" or color["type"] == "quantitative", (
                    f"{chart.title}: {mark} without a symbol"
                )
            if dash and dash.get("field") == color.get("field"):
                assert dash["scale"]["domain"] == color["scale"]["domain"], f"{chart.title}: two legends"


#: What a quick run has of each experiment's full one; of the others a run has all.
QUICK = {
    "multicast": "tile_bytes.isin([8192, 32768]) and stages.isin([4, 6]) and producers == 1 and consumers <= 2 "
    "and lag_cycles.isin([0, 200, 1000, 5000]) and delay_cycles.isin([0, 1000]) "
    "and (fan_out == 4 or (lag_cycles == 0 and delay_cycles == 0 and consumers == 1))",
    "handshake": "fan_out == 4",
    "crowding": "fan_out.isin([4, 8])",
    "cluster_counters": "fan_out.isin([1, 4]) and tile_bytes == 32768 and stages == 6 and lag_cycles.isin([0, 1000])",
    "cluster_latency": "asker == 0 and transfer_bytes.isin([4, 8, 16, 256, 2048, 16384])",
    "residency": "shared_bytes.isin([50176, 107520, 214016])",
    "broadcast": "fan_out.isin([2, 4, 8]) and tile_bytes.isin([8192, 32768]) and hold_cycles.isin([0, 512, 2048])",
    "dsm": "command_bytes.isin([16, 256, 1024, 4096, 8192, 16384])",
}
#: Chapters that draw what the reader measured: in every chart, or in the first.
DRAWN = {"multicast": all, "broadcast": all} | dict.fromkeys(
    ("crossover", "index", "decide", "paged", "latency", "stores", "l2"), any
)


def stand_in(stored_data, measured):
    """`run`, without a GPU: rows of the stored run, a tenth slower, as of another GPU."""

    def run(name, preset, store):
        measured.append((name, preset))
        run_id = select.latest_run(stored_data, name)
        tables = {table: stored_data.read(table, run_ids=[run_id]) for table in experiment(name).tables}
        main = experiment(name).tables[0]
        if name in QUICK:
            tables[main] = tables[main].query(QUICK[name])
        if cluster_rows.RATE in tables[main]:
            tables[main] = tables[main].assign(
                **{cluster_rows.RATE: (tables[main][cluster_rows.RATE] * 0.9).round(3)}
            )
        rows = {
            table: frame.drop(columns="run_id").astype(object).where(frame.notna(), None).to_dict("records")
            for table, frame in tables.items()
        }
        described = stored_data.read("runs", run_ids=[run_id]).astype(object)
        described = described.where(described.notna(), None).iloc[0].to_dict()
        began = datetime.now(UTC)
        changed = {
            "run_id": new_run_id(began),
            "started_utc": began,
            "gpu_name": "GPU of a test",
            "preset": preset,
        }
        return store.record(described | changed, rows)

    return run


@each(
    "multicast",
    "broadcast",
    "crossover",
    "index",
    "decide",
    "paged",
    "latency",
    "stores",
    "l2",
    "method",
    "gemm",
    "validation",
)
def test_a_chapter_measures_and_draws_what_it_measured(name, stored, tmp_path, monkeypatch):
    measured = []
    shutil.copytree(DATA, tmp_path / "data", copy_function=os.link)
    monkeypatch.setattr("labkernels.studies.run.run", stand_in(Store(), measured))
    before = stored(name)
    after = execute(CHAPTERS[name], monkeypatch, measure=True, data_dir=str(tmp_path / "data"))
    assert measured and {preset for _, preset in measured} == {"quick"}
    assert len(after.charts) == len(before.charts)
    assert not any("triangle-up" in str(chart.to_dict()) for chart in before.charts)
    if name in DRAWN:
        specs = [str(chart.to_dict()) for chart in after.charts]
        assert DRAWN[name]("triangle-up" in spec and "GPU of a test" in spec for spec in specs)
    for one, two in zip(before.shown, after.shown, strict=False):
        if isinstance(one, Table) and "idle SMs" in one.frame:
            assert len(two.frame) > len(one.frame) and two.frame["run"].str.contains("GPU of a test").any()


@each("crossover", "latency", "index", "machine")
def test_what_another_gpu_measured_is_nowhere_said_of_the_first(name, tmp_path, monkeypatch):
    shutil.copytree(DATA, tmp_path / "data", copy_function=os.link)
    store, first = Store(tmp_path / "data"), select.gpus(Store())[-1]
    streams = ("throughput", "row_shape", "l2_footprint", "stream_counters")
    at_equal_cost = ("pipelines", "plain_loads", "pipeline_counters")
    for measured in (*streams, *at_equal_cost, "latency", "issue", "issue_inline", "descriptors"):
        stand_in(Store(), [])(measured, "full", store)
    done = execute(CHAPTERS[name], monkeypatch, gpu="GPU of a test", data_dir=str(store.root))
    assert "GPU of a test" in f"{done.said} {[chart.to_dict() for chart in done.charts]}"
    for spec in (chart.to_dict() for chart in done.charts):
        assert (
            first.removeprefix("NVIDIA ") not in f"{spec['title']} {spec['description']} {spec['usermeta']}"
        )
    assert first not in done.said.values()


def notebook(*, parameters="measure: bool = False", copies=1, **changes):
    code = nbformat.v4.new_code_cell
    cells = [
        code(parameters, metadata={"tags": ["parameters", "remove-input"]}, id=f"p{i}") for i in range(copies)
    ]
    cells.append(code(changes.pop("source", "1"), metadata={"tags": ["hide-input"]}, id="body"))
    cells[-1].update(changes.pop("cell", {}))
    metadata = {"kernelspec": {"name": changes.pop("kernel", "python3"), "display_name": "Python 3"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"copies": 0}, "0 cells are tagged"),
        ({"copies": 2}, "2 cells are tagged"),
        ({"parameters": "measure = False"}, "not an annotated default"),
        ({"parameters": "measure: bool = True"}, "needs `measure: bool = False`"),
        ({"parameters": "measure: bool ="}, "parameters cell, line 1: invalid syntax"),
        ({"cell": {"execution_count": 3}}, "'body': carries outputs"),
        ({"cell": {"outputs": [nbformat.v4.new_output("stream", text="x")]}}, "'body': carries outputs"),
        ({"cell": {"metadata": {}}}, "'body': its code would stand open; tag it hide-input or remove-input"),
        ({"kernel": "julia"}, "kernel 'julia'"),
        ({"source": "'https://cdn.example.org/x.js'"}, "'body': loads a script"),
        (
            {"source": "figure(x, title='Up to 4.5 TB/s')"},
            "'body': title has '4.5 TB/s' typed in; put in the",
        ),
        (
            {"source": "charts.figure(x, description=f'{n} lines: 1.07 to {y}')"},
            "'body': description has '1.07' typed",
        ),
        ({"source": "figure(x, held_fixed='GPU, 132 SMs')"}, "'body': held_fixed has '132 SMs' typed"),
        ({"source": "figure(x, title='falls to a quarter')"}, "'body': title has 'a quarter' typed"),
        ({"source": "charts.figure(x)\ny = 1"}, "'body': line 1: a figure that is not"),
        ({"source": "figure("}, "'body': line 1: '(' was never closed"),
    ],
)
def test_hygiene_names_what_is_wrong(tmp_path, changes, problem):
    path = tmp_path / "chapter.ipynb"
    nbformat.write(notebook(**changes), path)
    found = hygiene_problems(path)
    assert len([line for line in found if problem in line]) == 1, found


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe{",
        b"[]",
        b'{"nbformat": 4}',
        b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [3]}',
        b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"id": "a"}]}',
        b'{"nbformat": 4, "nbformat_minor": 5, "cells": [], "metadata": '
        + b'{"a":' * 700
        + b"1"
        + b"}" * 701,
        b"[" * 60_000,
    ],
)
def test_a_damaged_notebook_is_a_problem_and_no_error(tmp_path, content):
    (tmp_path / "chapter.ipynb").write_bytes(content)
    (problem,) = hygiene_problems(tmp_path / "chapter.ipynb")
    assert problem.startswith("is no notebook: ")


@pytest.mark.parametrize(
    "source",
    [
        "1",
        "say('4.5 TB/s')",
        "figure(x, title='Tiles of 16 KiB', description=f'{a:.1f} TB/s', held_fixed='4096³, 8 stages; 95% intervals')",
    ],
)
def test_hygiene_passes_a_clean_notebook(tmp_path, source):
    nbformat.write(notebook(source=source), tmp_path / "chapter.ipynb")
    assert hygiene_problems(tmp_path / "chapter.ipynb") == []


@each()
def test_an_unknown_parameter_stops_a_chapter_with_its_name(name, monkeypatch):
    with pytest.raises(ParameterError, match="unknown parameter mesure"):
        execute(CHAPTERS[name], monkeypatch, mesure=True)
