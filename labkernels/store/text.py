"""CSV text of one table: lines to checked cells, cells to values. Nothing here needs pandas.

Every cell sits on one line (no line break inside quotes), so a fault has a line number.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from labkernels.store.schema import Problem, Table

RESTORE = "restore the file from version control"
_MEND = f"{RESTORE}, or mend this line"
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass
class Text:
    """A table as it stands in a file.

    Attributes:
        cells: Its rows, a cell for each column of the table; row i is line i + 2 of the file.
        problems: What is wrong with them. Lines that do not split into the columns are left out above.
    """

    cells: list[list[str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def parse(table: Table, data: bytes, file: str) -> Text:
    """Split and check the bytes of a table's file.

    Args:
        table: Schema to check against.
        data: The whole file.
        file: How problems name it.

    Returns:
        Rows and problems; never raises on bad content.
    """
    text = Text()

    def problem(line: int, what: str, fix: str = _MEND) -> None:
        text.problems.append(Problem(file, line, what, fix))

    try:
        decoded = data.decode("utf-8")
    except UnicodeDecodeError as error:
        problem(data.count(b"\n", 0, error.start) + 1, "is not UTF-8", "save the file as UTF-8")
        return text
    if decoded.startswith("\ufeff"):
        problem(1, "begins with a byte order mark", "save the file as UTF-8 without one")
        return text
    first, *lines = decoded.split("\n")
    columns = first.split(",")
    if fault := _header_fault(table, columns):
        problem(1, *fault)
        return text
    if not lines:
        problem(1, "the file ends inside this line")
    elif lines.pop() != "":
        problem(len(lines) + 2, "the file ends inside this line")
    for number, line in enumerate(lines, start=2):
        if not line.isprintable() and (control := CONTROL.search(line)):
            problem(
                number, f"holds the control character {control[0]!r}", "save the file with plain LF line ends"
            )
            continue
        try:
            cells = next(csv.reader([line], strict=True)) if '"' in line else line.split(",")
        except csv.Error as error:
            problem(number, f"is no CSV ({error})")
            continue
        if len(cells) != len(columns):
            problem(number, f"has {len(cells)} cells and the table {len(columns)} columns")
            continue
        text.cells.append(cells)
    if columns != table.columns:
        at = [columns.index(name) if name in columns else -1 for name in table.columns]
        text.cells = [[cells[i] if i >= 0 else "" for i in at] for cells in text.cells]
    if not text.problems:
        text.problems = list(_cell_problems(table, text, file))
    return text


def _header_fault(table: Table, columns: list[str]) -> tuple[str, str] | None:
    """What is wrong with a header, and the remedy. A file may be older than a column that may be empty."""
    if columns == [""]:
        return "has no header", RESTORE
    if columns[-1].endswith("\r"):
        return "ends in CR LF instead of LF", _MEND
    missing = [field.name for field in table.fields if field.required and field.name not in columns]
    unknown = [name for name in columns if name not in table.columns]
    if missing or unknown:
        faults = [f"lacks {', '.join(missing)}"] * bool(missing)
        faults += [f"has unknown {', '.join(unknown)}"] * bool(unknown)
        newer = ", or use the version of the project that measured it" if unknown else ""
        return f"the header {' and '.join(faults)}", _MEND + newer
    if columns != [name for name in table.columns if name in columns]:
        return f"the header's columns are not in the order {', '.join(table.columns)}", _MEND
    return None


def _cell_problems(table: Table, text: Text, file: str) -> Iterable[Problem]:
    for column, spec in zip(zip(*text.cells, strict=True), table.fields, strict=False):
        faults = {cell: fault for cell in set(column) if (fault := spec.fault(cell))}
        if faults:
            for number, cell in enumerate(column, start=2):
                if cell in faults:
                    what, fix = faults[cell]
                    yield Problem(file, number, f"column {spec.name}: {what}", fix)


def records(table: Table, cells: list[list[str]]) -> list[dict[str, Any]]:
    """Rows as values by column name, None where a cell is empty."""
    return [
        {spec.name: spec.parse(cell) for spec, cell in zip(table.fields, row, strict=True)} for row in cells
    ]
