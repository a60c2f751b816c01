"""Every chapter is stored clean and runs from stored data with no GPU."""

import hashlib

import nbformat
import papermill
import pytest

from labkernels.book.chapter import ParameterError
from labkernels.book.hygiene import chapters, hygiene_problems
from labkernels.paths import BOOK

DATA = BOOK.parent / "data"
each_chapter = pytest.mark.parametrize("chapter", chapters(), ids=lambda path: path.stem)


def test_there_are_chapters():
    assert chapters()


@each_chapter
def test_chapter_is_clean(chapter):
    assert hygiene_problems(chapter) == []


def hashes():
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in DATA.rglob("*") if path.is_file()}


@each_chapter
def test_chapter_runs_from_stored_data(chapter, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = hashes()
    done = papermill.execute_notebook(
        chapter, tmp_path / chapter.name, {"measure": False}, cwd=tmp_path, progress_bar=False
    )
    assert any(
        "lab-chart" in output.get("data", {}).get("text/html", "")
        for cell in done.cells
        for output in cell.get("outputs", [])
    ), "a chapter without a chart"
    assert hashes() == before, "a run from stored data wrote into data/"


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


def test_hygiene_passes_a_clean_notebook(tmp_path):
    nbformat.write(notebook(), tmp_path / "chapter.ipynb")
    assert hygiene_problems(tmp_path / "chapter.ipynb") == []


@each_chapter
def test_an_unknown_parameter_stops_a_chapter_with_its_name(chapter):
    code = [cell for cell in nbformat.read(chapter, as_version=4).cells if cell.cell_type == "code"]
    at = next(i for i, cell in enumerate(code) if "parameters" in cell.metadata.get("tags", []))
    namespace = {}
    exec(code[at].source, namespace)
    namespace["mesure"] = True  # as papermill would inject it
    with pytest.raises(ParameterError, match="unknown parameter mesure"):
        exec(code[at + 1].source, namespace)
