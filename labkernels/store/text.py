"""CSV text of one table: values to lines, lines to checked cells, cells to a frame.

Every cell sits on one line (no line break inside quotes), so a fault has a line number and old lines can be
kept byte for byte.
"""

from __future__ import annotations

import csv
import io
import json
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from labkernels.store.schema import Field, Problem, Table

_RESTORE = "restore the file from version control, or mend this line"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass
class Text:
    """A table as it stands in a file.

    Attributes:
        lines: Rows as they are written, no header, no line ends; row i is line i + 2 of the file.
        cells: The same rows split into cells.
        problems: What is wrong with them. Lines that do not split into the columns are left out above.
    """

    lines: list[str] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def header(table: Table) -> str:
    """The header line of a table's file."""
    return ",".join(table.columns) + "\n"


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

    def problem(line: int, what: str, fix: str = _RESTORE) -> None:
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
    if first != header(table).rstrip("\n"):
        problem(1, _header_fault(table, first))
        return text
    if not lines:
        problem(1, "the file ends inside this line")
    elif lines.pop() != "":
        problem(len(lines) + 2, "the file ends inside this line")
    for number, line in enumerate(lines, start=2):
        if not line.isprintable() and (control := _CONTROL.search(line)):
            problem(
                number, f"holds the control character {control[0]!r}", "save the file with plain LF line ends"
            )
            continue
        try:
            cells = next(csv.reader([line], strict=True)) if '"' in line else line.split(",")
        except csv.Error as error:
            problem(number, f"is no CSV ({error})")
            continue
        if len(cells) != len(table.fields):
            problem(number, f"has {len(cells)} cells and the table {len(table.fields)} columns")
            continue
        text.lines.append(line)
        text.cells.append(cells)
    if not text.problems:
        text.problems = [*_cell_problems(table, text, file), *_key_problems(table, text, file)]
    return text


def _header_fault(table: Table, first: str) -> str:
    if not first:
        return "has no header"
    if first.endswith("\r"):
        return "ends in CR LF instead of LF"
    columns = first.split(",")
    missing = [name for name in table.columns if name not in columns]
    unknown = [name for name in columns if name not in table.columns]
    if missing or unknown:
        faults = [f"lacks {', '.join(missing)}"] * bool(missing) + [
            f"has unknown {', '.join(unknown)}"
        ] * bool(unknown)
        return f"the header {' and '.join(faults)}"
    return f"the header's columns are not in the order {', '.join(table.columns)}"


def _cell_problems(table: Table, text: Text, file: str) -> Iterable[Problem]:
    for column, spec in zip(zip(*text.cells, strict=True), table.fields, strict=False):
        faults = {cell: fault for cell in set(column) if (fault := spec.fault(cell))}
        if faults:
            for number, cell in enumerate(column, start=2):
                if cell in faults:
                    what, fix = faults[cell]
                    yield Problem(file, number, f"column {spec.name}: {what}", fix)


def _key_problems(table: Table, text: Text, file: str) -> Iterable[Problem]:
    if table.key:
        at = table.columns.index(table.key)
        seen: dict[str, int] = {}
        for number, cells in enumerate(text.cells, start=2):
            if cells[at] in seen:
                what = f"{table.key} {cells[at]} is already on line {seen[cells[at]]}"
                yield Problem(file, number, what, "keep the right one of the two")
            seen.setdefault(cells[at], number)


def render(table: Table, rows: Iterable[Mapping[str, Any]]) -> Text:
    """Write rows as lines of a table's file, and check them as they would be read back.

    Args:
        table: Schema of the rows.
        rows: Column name to value; None, NaN and NA are empty cells.

    Returns:
        The rows and what is wrong with them, `Problem.line` being the number of the row, from 1.
    """
    file = f"new rows for {table.path}"
    problems = []
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for number, row in enumerate(rows, start=1):
        for name in row.keys() - set(table.columns):
            fix = f"the columns are {', '.join(table.columns)}"
            problems.append(Problem(file, number, f"column {name} is not in the table", fix))
        cells = []
        for spec in table.fields:
            try:
                cells.append(_cell(spec, row.get(spec.name)))
            except (TypeError, ValueError) as error:
                problems.append(
                    Problem(file, number, f"column {spec.name}: {error}", f"give a value of type {spec.type}")
                )
        if not problems:
            writer.writerow(cells)
    if problems:
        return Text(problems=problems)
    text = parse(table, (header(table) + buffer.getvalue()).encode(), file)
    text.problems = [replace(problem, line=problem.line - 1) for problem in text.problems]
    return text


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (numbers.Integral,),
    "number": (numbers.Real,),
    "boolean": (bool, np.bool_),
    "datetime": (datetime, str),
    "object": (dict, str),
}


def _cell(spec: Field, value: Any) -> str:
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return ""
    truth = isinstance(value, bool | np.bool_)
    # A column of integers with a gap is a float column in pandas.
    if spec.type == "integer" and isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    if not isinstance(value, _PYTHON_TYPES[spec.type]) or (truth and spec.type != "boolean"):
        raise ValueError(f"{value!r} is no {spec.type}")
    if truth:
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True, allow_nan=False)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, str):
        if control := _CONTROL.search(value):
            raise ValueError(f"{value!r} holds the control character {control[0]!r}")
        value.encode()  # a lone surrogate is refused here, by name
        return value
    if isinstance(value, numbers.Integral):
        return str(int(value))
    return repr(float(value))


def frame(table: Table, cells: list[list[str]]) -> pd.DataFrame:
    """Rows as a frame whose dtypes come from the schema, also when there are none."""
    columns = list(zip(*cells, strict=True)) or [()] * len(table.fields)
    return pd.DataFrame(
        {spec.name: _series(spec, column) for spec, column in zip(table.fields, columns, strict=True)}
    )


def _series(spec: Field, column: Sequence[str]) -> pd.Series:
    """A column's values; each text is parsed once, as most stand in many rows."""
    dtype = spec.dtype
    value = {cell: cell or None if dtype == "str" else spec.parse(cell) for cell in set(column)}
    return pd.Series([value[cell] for cell in column], dtype=dtype)
