"""The chapters: where they are, and what has to be true of each before it is committed."""

import ast
from collections import Counter
from pathlib import Path

import nbformat

from labkernels.paths import BOOK

#: Tags that fold a cell's code away, or leave it out.
FOLDED = {"hide-input", "remove-input"}


def chapters() -> list[Path]:
    """The book's notebooks, in the order of their names."""
    return sorted(BOOK.glob("*.ipynb"))


def _parameter_problems(source: str) -> list[str]:
    statements = ast.parse(source).body
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


def hygiene_problems(path: Path) -> list[str]:
    """What a chapter's file has that it must not have, or lacks; empty if it is clean.

    Raises:
        nbformat.ValidationError: The file is no notebook of format 4.5.
    """
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    problems = []
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        problems.append(f"notebook format {notebook.nbformat}.{notebook.nbformat_minor}: cell ids need 4.5")
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
    tagged = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) == 1:
        problems += _parameter_problems(tagged[0].source)
    else:
        problems.append(f"{len(tagged)} cells are tagged `parameters`; exactly one must be")
    return problems
