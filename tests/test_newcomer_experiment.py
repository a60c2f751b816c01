"""A newcomer's experiment with its chapter: short, shown by `check` to be sound, and each forgotten step named."""

import json
import os
import shutil
import subprocess
import sys
from textwrap import dedent

import nbformat
import pytest

from labkernels.paths import BOOK, DATA, PACKAGE, ROOT

MODULE = '''
"""How fast does a wave run?"""

from dataclasses import dataclass

from labkernels.device import Gpu
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.rounds import timed_rounds


@dataclass(frozen=True)
class Parameters:
    """Heights, and rounds of each."""

    heights: tuple[int, ...] = (1, 2)
    rounds: int = 3


PRESETS = {"quick": Parameters(), "full": Parameters(heights=(1, 2, 4))}


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Time every height; see `Parameters`."""
    waves = timed_rounds(parameters.heights, lambda height: {"height": height}, parameters.rounds, progress)
    return Result({"wave_speed": waves})


EXPERIMENT = Experiment("velocity", "How fast does a wave run?", ("wave_speed",), PRESETS, measure, needs(Gpu))
'''
TABLE = {
    "name": "wave_speed",
    "path": "wave_speed/*.csv",
    "description": "Waves; one row per round.",
    "schema": {
        "fields": [
            {"name": "run_id", "type": "string", "constraints": {"required": True}},
            {"name": "height", "type": "integer", "constraints": {"required": True}},
            {"name": "round", "type": "integer", "constraints": {"required": True}},
        ],
        "foreignKeys": [{"fields": "run_id", "reference": {"resource": "runs", "fields": "run_id"}}],
    },
}
PARAMETERS = """
measure: bool = False  # measure on this machine's GPU
preset: str = "quick"  # quick or full
data_dir: str = ""  # folder of the tables; empty for the book's own
gpu: str = ""  # whose stored rows to show
"""
CELLS = {
    "from labkernels.book.chapter import Chapter": [],
    PARAMETERS: ["parameters"],
    'chapter = Chapter(globals(), "velocity")\nif measure:\n    chapter.measure()': [],
    'heights = chapter.stored("velocity")["height"]': [],
}


def edit(path, change):
    path.write_text(change(path.read_text()))


@pytest.fixture
def copy(tmp_path):
    """The repository with the newcomer's experiment in it: a study's folder, a table, a chapter in the contents."""
    shutil.copytree(PACKAGE, tmp_path / "labkernels", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(BOOK, tmp_path / "book", ignore=shutil.ignore_patterns(".*"))
    (tmp_path / "data").mkdir()
    for path in DATA.iterdir():
        (tmp_path / "data" / path.name).symlink_to(path)
    for path in (ROOT / "_toc.yml", ROOT / "pyproject.toml"):
        shutil.copy(path, tmp_path)
    package = tmp_path / "data" / "datapackage.json"
    described = json.loads(package.read_text())
    package.unlink()
    package.write_text(json.dumps(described | {"resources": [*described["resources"], TABLE]}))
    study = tmp_path / "labkernels" / "studies" / "wave"
    study.mkdir()
    (study / "__init__.py").write_text('"""Waves."""\n')
    (study / "velocity.py").write_text(MODULE)
    cells = [
        nbformat.v4.new_code_cell(source.strip(), metadata={"tags": ["remove-input", *tags]})
        for source, tags in CELLS.items()
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "book" / "wave.ipynb")
    edit(tmp_path / "_toc.yml", lambda text: text + "- file: book/wave\n")
    return tmp_path


def python(folder, text):
    """What a program prints as JSON in its last line, in the copy."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(text)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def problems(folder, data="data"):
    return python(
        folder,
        f"""
        import json
        from labkernels.book.hygiene import book_problems
        from labkernels.store import Store
        print(json.dumps(list(book_problems(Store("{data}")))))
        """,
    )


def measured(folder):
    """The id of a run of the experiment on a GPU made up, in a store of its own."""
    return python(
        folder,
        """
        import json, shutil
        from contextlib import nullcontext
        from pathlib import Path
        from types import SimpleNamespace
        from labkernels.store import Store
        from labkernels.studies import run
        from labkernels.studies.wave import velocity

        stored = Store().read("runs").astype(object)
        like = stored.where(stored.notna(), None).iloc[-1].to_dict()
        run.Gpu = velocity.Gpu = lambda: SimpleNamespace(board=None)
        run.Monitor = lambda board: nullcontext(type("Monitor", (), {"summary": dict}))
        run.describe = lambda gpu: {name: value for name, value in like.items() if name not in
                                    ("run_id", "started_utc", "experiment", "preset", "rows")}
        object.__setattr__(velocity.EXPERIMENT, "available", lambda: None)
        Path("own").mkdir()
        shutil.copy("data/datapackage.json", "own")
        print(json.dumps(run.run("velocity", "full", Store("own"))))
        """,
    )


def test_module_table_chapter_and_contents_are_all_it_takes(copy):
    assert problems(copy) == []
    assert measured(copy)
    assert problems(copy, "own") == []
    shown = python(
        copy,
        """
        import json
        import nbformat
        names = {"__name__": "__main__", "__annotations__": {}}
        for cell in nbformat.read("book/wave.ipynb", as_version=4).cells:
            exec(cell.source.replace('data_dir: str = ""', 'data_dir: str = "own"'), names)
        print(json.dumps(sorted(names["heights"])))
        """,
    )
    assert shown == [1, 1, 1, 2, 2, 2, 4, 4, 4]


def drop_table(folder):
    path = folder / "data" / "datapackage.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps(described | {"resources": described["resources"][:-1]}))


def in_module(old, new):
    return lambda folder: edit(
        folder / "labkernels" / "studies" / "wave" / "velocity.py", lambda text: text.replace(old, new)
    )


SPEED = "labkernels/studies/wave/velocity.py"
FORGOTTEN = {
    "EXPERIMENT": (
        in_module("\nEXPERIMENT = ", "\n"),
        f"{SPEED} has PRESETS and no EXPERIMENT: nobody can measure it",
    ),
    "available": (
        in_module(", needs(Gpu))", ")"),
        f"{SPEED}: TypeError: Experiment.__init__() missing 1 required positional argument: 'available'",
    ),
    "its name": (
        in_module('"velocity"', '"celerity"'),
        f"{SPEED}: its experiment is called celerity; give it the module's name",
    ),
    "a preset": (in_module('"full"', '"all"'), f"{SPEED}: no preset full; every experiment has both"),
    "the table": (
        drop_table,
        f"{SPEED} fills table wave_speed: describe it in data/datapackage.json",
    ),
    "the package": (
        lambda folder: (folder / "labkernels" / "studies" / "wave" / "__init__.py").unlink(),
        "labkernels/studies/wave has no __init__.py: an installed package would be without it",
    ),
    "the contents": (
        lambda folder: edit(folder / "_toc.yml", lambda text: text.replace("- file: book/wave\n", "")),
        "book/wave.ipynb is not in _toc.yml: no reader finds it",
    ),
}


@pytest.mark.parametrize("step", FORGOTTEN)
def test_a_forgotten_step_is_named_in_one_sentence(copy, step):
    forget, sentence = FORGOTTEN[step]
    forget(copy)
    assert problems(copy) == [sentence]


def test_rows_that_nobody_reads_are_named(copy):
    measured(copy)
    edit(copy / "book" / "wave.ipynb", lambda text: text.replace('\\"velocity\\"', '\\"issue\\"'))
    assert problems(copy, "own") == [
        f"{SPEED}: no chapter, rule or model reads the rows of experiment velocity; show its answer"
    ]


def test_a_study_without_a_chapter_is_named(copy):
    (copy / "book" / "wave.ipynb").unlink()
    assert problems(copy) == [
        "_toc.yml lists book/wave: there is no book/wave.ipynb",
        "labkernels/studies/wave has no chapter: write book/wave.ipynb",
    ]
