"""The Table Schema of every table in `data/`, read from its one place, `data/datapackage.json`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from labkernels.errors import LabError
from labkernels.store.files import read_file

RUNS, MARKS = "runs", "marks"
#: Of the layout and the schema; a folder that says another major version is not read.
VERSION = 2


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a file or in rows offered for storing.

    Attributes:
        file: File, relative to the store, or the name of the offered rows.
        line: Line of the file, the header being line 1; of offered rows their number, from 1; 0 of the whole file.
        what: What is wrong there.
        fix: What to do about it.
    """

    file: str
    line: int
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file}{f', line {self.line}' if self.line else ''}: {self.what}; {self.fix}"


class StoreError(LabError, ValueError):
    """Rows or files that the store refuses; nothing was written.

    Attributes:
        problems: Each with file, line and remedy.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        more = f"\n… and {len(self.problems) - 10} more" if len(self.problems) > 10 else ""
        super().__init__("\n".join(map(str, self.problems[:10])) + more)


def refuse(problems: Sequence[Problem]) -> None:
    """Raise a `StoreError` when there are problems."""
    if problems:
        raise StoreError(problems)


#: What makes a spreadsheet take a text for a formula.
FORMULA = "=+-@"


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


@dataclass(frozen=True)
class _Type:
    form: str
    example: str
    parse: Callable[[str], Any]


_TYPES = {
    "string": _Type(r".+", "text", str),
    "integer": _Type(r"0|-?[1-9][0-9]{0,17}", "128", int),
    "number": _Type(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", "4580.25", float),
    "boolean": _Type(r"true|false", "true or false", lambda text: text == "true"),
    "datetime": _Type(
        r"[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}Z", "2026-01-31T12:00:00Z", datetime.fromisoformat
    ),
    "object": _Type(r"\{.*\}", '{"threads": 128}', _object),
}


@dataclass(frozen=True)
class Field:
    """One column: name, Table Schema type and the constraints the store enforces.

    Attributes:
        name: Column name, unit included.
        type: string, integer, number, boolean, datetime or object (JSON).
        required: Whether an empty cell is a fault.
        minimum: Least value allowed, of a number.
        enum: The values allowed, all of them when empty.
        pattern: Regular expression the whole cell must match.
    """

    name: str
    type: str
    required: bool = False
    minimum: float | None = None
    enum: tuple[str, ...] = ()
    pattern: str = ""

    def parse(self, text: str) -> Any:
        """Value of one cell, None when it is empty."""
        return _TYPES[self.type].parse(text) if text else None

    def fault(self, text: str) -> tuple[str, str] | None:
        """What is wrong with one cell and how to mend it; None when it is good."""
        if not text:
            return ("is empty and required", "give it a value") if self.required else None
        kind = _TYPES[self.type]
        try:
            value = kind.parse(text) if re.fullmatch(kind.form, text) else None
        except (ValueError, RecursionError):  # of JSON nested too deeply
            value = None
        if value is None or value in (math.inf, -math.inf):
            return f"{text!r} is no {self.type}", f"write it like {kind.example}"
        if self.minimum is not None and value < self.minimum:
            return f"{text} is below the minimum {self.minimum}", f"give a value of at least {self.minimum}"
        if self.enum and text not in self.enum:
            return f"{text!r} is not allowed", f"use one of {', '.join(self.enum)}"
        if self.type == "string" and text[0] in FORMULA:
            return f"{text!r} is a formula to a spreadsheet", f"do not begin it with {text[0]}"
        if self.pattern and not re.fullmatch(self.pattern, text):
            return f"{text!r} does not match {self.pattern}", "write it in that form"
        return None

    @property
    def dtype(self) -> str:
        """The pandas dtype of the column; nullable where a cell may be empty and NaN cannot say so."""
        return {
            "integer": "int64" if self.required else "Int64",
            "number": "float64",
            "boolean": "bool" if self.required else "boolean",
            "datetime": "datetime64[us, UTC]",
        }.get(self.type, "str")


@dataclass(frozen=True)
class Table:
    """One table: where it lies, its columns in order, and how it hangs together with the others.

    Attributes:
        name: Resource name, the one `Store.read` takes.
        path: CSV file, relative to the store; `name/*.csv` of a table with a file for each run.
        fields: Columns in file order.
        of_run: Whether its rows are stored with a run, and all of them name it in `run_id`.
    """

    name: str
    path: str
    fields: tuple[Field, ...]
    of_run: bool

    @property
    def columns(self) -> list[str]:
        """Column names in file order."""
        return [field.name for field in self.fields]

    @property
    def is_folder(self) -> bool:
        """Whether the table is a folder of files."""
        return self.path.endswith("/*.csv")


def _field(spec: dict[str, Any]) -> Field:
    if spec["type"] not in _TYPES:
        raise ValueError(
            f"field {spec['name']}: type {spec['type']!r} is unknown; use one of {', '.join(_TYPES)}"
        )
    constraints = dict(spec.get("constraints", {}))
    field = Field(
        name=spec["name"],
        type=spec["type"],
        required=constraints.pop("required", False),
        minimum=constraints.pop("minimum", None),
        enum=tuple(constraints.pop("enum", ())),
        pattern=constraints.pop("pattern", ""),
    )
    if constraints:
        raise ValueError(
            f"field {field.name}: constraint {', '.join(constraints)} is not enforced; take it out"
        )
    return field


def load_package(path: Path) -> dict[str, Table]:
    """Read every table's schema.

    Args:
        path: A Data Package descriptor (`datapackage.json`).

    Returns:
        The tables by name.

    Raises:
        StoreError: The file is none, is of another version, or a field has a type or a constraint that the store
            would not enforce.
    """
    try:
        package = json.loads(read_file(path))
        if str(package.get("version")).partition(".")[0] != str(VERSION):
            raise ValueError(f"version is {package.get('version')}, this program reads {VERSION}")
        return {resource["name"]: _table(resource) for resource in package["resources"]}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = (
            f"lacks {error}" if isinstance(error, KeyError) else getattr(error, "strerror", None) or error
        )
        fix = "restore the file from version control, or use the version of the project that wrote it"
        raise StoreError([Problem(str(path), 0, str(reason), fix)]) from error


def _table(resource: dict[str, Any]) -> Table:
    schema = resource["schema"]
    name, path = resource["name"], resource["path"]
    if "foreignKeys" in schema and path != f"{name}/*.csv":
        raise ValueError(
            f"table {name}: rows of runs lie in a file each, so that path is {name}/*.csv, not {path}"
        )
    fields = tuple(_field(spec) for spec in schema["fields"])
    return Table(name, path, fields, "foreignKeys" in schema and name != MARKS)
