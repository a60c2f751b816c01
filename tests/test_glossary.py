"""The glossary: what its last column says is stored is stored under that name."""

import json
import re

import nbformat
import pytest

from labkernels.mechanisms import MECHANISMS
from labkernels.paths import BOOK, DATA
from labkernels.store import Store
from labkernels.studies.experiments import studies

ROWS = [
    [cell.strip() for cell in line[1:-1].split("|")]
    for cell in nbformat.read(BOOK / "glossary.ipynb", as_version=4).cells
    for line in cell.source.splitlines()
    if line.startswith("| ") and not line.startswith(("| word", "| ---"))
]
STORED = [name for row in ROWS for name in re.findall("`(.*?)`", row[-1])]


@pytest.fixture(scope="module")
def fields():
    tables = json.loads((DATA / "datapackage.json").read_text("utf8"))["resources"]
    values = {table["name"]: set() for table in tables}
    for field in (field for table in tables for field in table["schema"]["fields"]):
        values.setdefault(field["name"], set()).update(field.get("constraints", {}).get("enum", ()))
    return values


def test_a_word_is_explained_once():
    words = [row[0] for row in ROWS if len(row) == 4]
    assert len(words) > 30 and len(set(words)) == len(words)
    assert all(len(row) in (3, 4) and row[0] and row[-2] for row in ROWS)


@pytest.mark.parametrize("stored", STORED)
def test_what_is_said_to_be_stored_is_stored(stored, fields):
    name, _, value = stored.partition(" = ")
    if value:
        assert value in fields[name]
    else:
        constants = set(Store().read("constants")["constant"])
        assert name in {*fields, *studies(), *MECHANISMS, *constants}
