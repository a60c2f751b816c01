"""Values to the CSV text of a table, and cells to a frame."""

from __future__ import annotations

import csv
import io
import json
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from labkernels.store.schema import Field, Problem, Table, refuse
from labkernels.store.text import CONTROL, parse

Rows = pd.DataFrame | Sequence[Mapping[str, Any]]


def plain(rows: Rows) -> list[dict[str, Any]]:
    """Rows as dicts of values by column name."""
    return rows.to_dict("records") if isinstance(rows, pd.DataFrame) else [dict(row) for row in rows]


def render(table: Table, rows: Sequence[Mapping[str, Any]], as_text: bool = False) -> bytes:
    """Write rows as a table's file, checked as it would be read back.

    Args:
        table: Schema of the rows.
        rows: Column name to value; None, NaN and NA are empty cells.
        as_text: Take a text for the cell's text, whatever the type of its column.

    Raises:
        StoreError: What is wrong with them, `Problem.line` being the number of the row, from 1.
    """
    file = f"new rows for {table.name}"
    problems = []
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.columns)
    for number, row in enumerate(rows, start=1):
        for name in row.keys() - set(table.columns):
            fix = f"the columns are {', '.join(table.columns)}"
            problems.append(Problem(file, number, f"column {name} is not in the table", fix))
        cells = []
        for spec in table.fields:
            value = row.get(spec.name)
            try:
                cells.append(value if as_text and isinstance(value, str) else _cell(spec, value))
            except (TypeError, ValueError) as error:
                problems.append(
                    Problem(file, number, f"column {spec.name}: {error}", f"give a value of type {spec.type}")
                )
        writer.writerow(cells)
    refuse(problems)
    data = buffer.getvalue().encode()
    refuse([replace(problem, line=problem.line - 1) for problem in parse(table, data, file).problems])
    return data


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
        if control := CONTROL.search(value):
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


def stacked(table: Table, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Frames of one table below each other, for the caller to change."""
    return pd.concat(frames, ignore_index=True) if frames else frame(table, [])


def _series(spec: Field, column: Sequence[str]) -> pd.Series:
    """A column's values; each text is parsed once, as most stand in many rows."""
    dtype = spec.dtype
    value = {cell: cell or None if dtype == "str" else spec.parse(cell) for cell in set(column)}
    return pd.Series([value[cell] for cell in column], dtype=dtype)
