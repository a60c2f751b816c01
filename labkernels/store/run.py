"""The row of a run, which says what its other files hold."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from labkernels.store.schema import RUNS, Problem, Table
from labkernels.store.text import RESTORE, parse

#: A longer table of a run goes on in a second file: repositories do not like large ones.
PART_BYTES = 2 << 20
_ID_TIME = "%Y%m%dT%H%M%SZ"
_CLOCK_S = 60  # most between the time in a run's id and its started_utc


@dataclass(frozen=True)
class Run:
    """A run as its file tells it.

    Attributes:
        cells: Its row, by column.
        rows: Number of rows in each table.
        sha256: Of each of these tables: hash of its header and its rows.
    """

    cells: Mapping[str, str]
    rows: Mapping[str, int]
    sha256: Mapping[str, str]

    @property
    def id(self) -> str:
        """Identifier."""
        return self.cells["run_id"]


def id_time(at: datetime) -> str:
    """What the identifier of a run that began at this time begins with."""
    return at.astimezone(UTC).strftime(_ID_TIME)


def hexdigest(data: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(data).hexdigest()


def own_hash(data: bytes) -> str:
    """SHA-256 of a run's file, of which the hash itself, the last of `rows_sha256`, is no part."""
    return hexdigest(re.sub(rb";runs=[0-9a-f]{64}", b"", data))


def split(data: bytes) -> list[bytes]:
    """A table's bytes as files of at most `PART_BYTES`, each with the header."""
    head, _, rows = data.partition(b"\n")
    room, parts = PART_BYTES - len(head) - 1, []
    while len(rows) > room:
        at = max(rows.rfind(b"\n", 0, room), rows.find(b"\n")) + 1
        parts.append(rows[:at])
        rows = rows[at:]
    return [head + b"\n" + part for part in (*parts, rows)]


def joined(parts: list[bytes]) -> bytes:
    """What `split` divided."""
    return b"".join([*parts[:1], *(part.partition(b"\n")[2] for part in parts[1:])])


def listed(of: Mapping[str, object]) -> str:
    """A mapping as one cell: name=value, separated by semicolons."""
    return ";".join(f"{name}={value}" for name, value in of.items())


def parse_run(table: Table, data: bytes, file: str) -> tuple[Run | None, list[Problem]]:
    """Read a run's file, `runs/<run_id>.csv`; gives the run, or None, and what is wrong with it."""
    text = parse(table, data, file)
    if text.problems:
        return None, text.problems
    if len(text.cells) != 1:
        return None, [Problem(file, 0, f"holds {len(text.cells)} runs instead of one", RESTORE)]
    cells = dict(zip(table.columns, text.cells[0], strict=True))
    counts, sha256 = (
        dict(part.split("=") for part in cells[name].split(";")) for name in ("rows", "rows_sha256")
    )
    faults = []
    if file != f"{RUNS}/{cells['run_id']}.csv":
        faults.append((f"run_id is {cells['run_id']}", "name the file like the run"))
    if not _is_close(cells["run_id"], cells["started_utc"]):
        what = f"run_id {cells['run_id']} and started_utc {cells['started_utc']} tell two times"
        faults.append((what, f"name a run by the time it began, at most {_CLOCK_S} s apart"))
    if sha256.pop(RUNS, "") != own_hash(data) or sha256.keys() != counts.keys():
        faults.append(("is not what was stored: its SHA-256 in rows_sha256 is another", RESTORE))
    run = Run(cells, {name: int(count) for name, count in counts.items()}, sha256)
    return run, [Problem(file, 2, what, fix) for what, fix in faults]


def _is_close(run_id: str, started_utc: str) -> bool:
    try:
        named = datetime.strptime(run_id.partition("-")[0], _ID_TIME).replace(tzinfo=UTC)
    except ValueError:  # the 99th of a month
        return False
    return abs((named - datetime.fromisoformat(started_utc)).total_seconds()) <= _CLOCK_S
