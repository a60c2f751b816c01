"""The chapters and what they show: where they are, and what has to be true before they are committed."""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nbformat

from labkernels.book.typed import typed_numbers, unseen_figures
from labkernels.paths import BOOK, PACKAGE, ROOT
from labkernels.store import RUNS, Store, StoreError
from labkernels.store.files import read_file
from labkernels.studies.experiments import STUDIES, experiment, studies

#: Tags that fold a cell's code away, or leave it out.
FOLDED = {"hide-input", "remove-input"}


def chapters() -> list[Path]:
    """The book's notebooks, in the order of their names."""
    return sorted(BOOK.glob("*.ipynb"))


def _parameter_problems(source: str) -> list[str]:
    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        return [f"parameters cell, line {error.lineno}: {error.msg}"]
    problems = [
        f"parameters cell, line {statement.lineno}: not an annotated default such as `measure: bool = False`"
        for statement in statements
        if not (isinstance(statement, ast.AnnAssign) and statement.value is not None)
    ]
    defaults = {ast.unparse(s.target): s.value for s in statements if isinstance(s, ast.AnnAssign)}
    measure = defaults.get("measure")
    if not (isinstance(measure, ast.Constant) and measure.value is False):
        problems.append("parameters cell: needs `measure: bool = False`")
    return problems


def _code_problems(source: str) -> list[str]:
    try:
        return [*typed_numbers(source), *unseen_figures(source)]
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]


def hygiene_problems(path: Path) -> list[str]:
    """What a chapter's file has that it must not have, or lacks; empty if it is clean."""
    try:
        content = json.loads(text := read_file(path).decode())
        version = (
            [content.get(key) for key in ("nbformat", "nbformat_minor")] if isinstance(content, dict) else []
        )
        if version != [4, 5]:
            raise ValueError(f"its format is {version or 'none'}, cell ids need [4, 5]")
        nbformat.validate(content)
        notebook = nbformat.reads(text, as_version=4)
    except (OSError, ValueError, TypeError, RecursionError, nbformat.ValidationError) as error:
        return [f"is no notebook: {str(error).splitlines()[0]}"]
    problems = []
    if (kernel := notebook.metadata.get("kernelspec", {}).get("name")) != "python3":
        problems.append(f"kernel {kernel!r} is not 'python3'")
    for name, count in Counter(cell.get("id") for cell in notebook.cells).items():
        if count > 1:
            problems.append(f"cell id {name!r} is used {count} times")
    for cell in notebook.cells:
        where = f"cell {cell.get('id')!r}"
        if cell.get("outputs") or cell.get("execution_count") is not None:
            problems.append(f"{where}: carries outputs or an execution count; clear them")
        if cell.cell_type == "code" and not FOLDED & set(cell.metadata.get("tags", [])):
            problems.append(f"{where}: its code would stand open; tag it {' or '.join(sorted(FOLDED))}")
        if any(mark in cell.source for mark in ("<script", "cdn.", "//unpkg")):
            problems.append(f"{where}: loads a script or a CDN; the book works with no network")
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", []):
            problems += [f"{where}: {problem}" for problem in _code_problems(cell.source)]
    tagged = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) == 1:
        problems += _parameter_problems(tagged[0].source)
    else:
        problems.append(f"{len(tagged)} cells are tagged `parameters`; exactly one must be")
    return problems


def contents_problems() -> Iterator[str]:
    """Chapters and other pages that the table of contents lacks, and entries without a page."""
    listed = set(re.findall(r"(?:root|file): (\S+)", _text(ROOT / "_toc.yml")))
    pages = {f"{BOOK.name}/{path.stem}": path.suffix for path in [*chapters(), *BOOK.glob("*.md")]}
    lost, absent = sorted(pages.keys() - listed), sorted(listed - pages.keys())
    yield from (f"{name}{pages[name]} is not in _toc.yml: no reader finds it" for name in lost)
    yield from (f"_toc.yml lists {name}: there is no {name}.ipynb" for name in absent)


def experiment_problems(store: Store) -> Iterator[str]:
    """What the experiments lack between their modules, the tables of a store and the book, a sentence each."""
    read = [_text(path) for path in chapters()]
    read += [path.read_text("utf8") for path in PACKAGE.glob("model/*.py")]
    read += [path.read_text("utf8") for path in STUDIES.glob("*/rules.py")]
    for path in sorted(STUDIES.glob("*/*.py")):
        if "\nPRESETS = " in path.read_text("utf8") and path.stem not in studies():
            yield f"{_shown(path)} has PRESETS and no EXPERIMENT: nobody can measure it"
    for study in sorted(set(studies().values())):
        if not (STUDIES / study / "__init__.py").exists():
            yield f"{_shown(STUDIES / study)} has no __init__.py: an installed package would be without it"
        if not (BOOK / f"{study}.ipynb").exists():
            yield f"{_shown(STUDIES / study)} has no chapter: write book/{study}.ipynb"
    try:
        measured = set(store.read(RUNS)["experiment"])
    except StoreError:  # the store says what is wrong with it
        measured = set()
    for name, study in studies().items():
        path = _shown(STUDIES / study / f"{name}.py")
        try:
            one = experiment(name)
        except Exception as error:
            yield f"{path}: {type(error).__name__}: {error}"
            continue
        if one.name != name:
            yield f"{path}: its experiment is called {one.name}; give it the module's name"
        if lacking := {"quick", "full"} - set(one.presets):
            yield f"{path}: no preset {' and '.join(sorted(lacking))}; every experiment has both"
        for table in one.tables:
            if table not in store.tables:
                yield f"{path} fills table {table}: describe it in {store.root.name}/datapackage.json"
        if name in measured and not any(re.search(rf"\"{name}\\?\"", text) for text in read):
            yield f"{path}: no chapter, rule or model reads the rows of experiment {name}; show its answer"


def _text(path: Path) -> str:
    """A file's text as far as it is one; what is wrong with a chapter's is said by `hygiene_problems`."""
    try:
        return read_file(path).decode("utf8", "replace")
    except OSError:
        return ""


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def book_problems(store: Store | None) -> Iterator[str]:
    """All that is wrong with chapters, table of contents and, where there is a store, experiments."""
    yield from contents_problems()
    if store:
        yield from experiment_problems(store)
    yield from (f"{path.name}: {problem}" for path in chapters() for problem in hygiene_problems(path))
