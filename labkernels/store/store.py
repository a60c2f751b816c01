"""The store: runs and their rows as CSV in one folder, every change whole or not at all."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import Timeout

from labkernels.errors import LabError
from labkernels.paths import DATA
from labkernels.store.journal import Journal
from labkernels.store.schema import Problem, Table, load_package
from labkernels.store.text import Text, frame, header, parse, render

PACKAGE = DATA / "datapackage.json"
RUNS = "runs"
_RESTORE = "restore the file from version control"

Rows = pd.DataFrame | Sequence[Mapping[str, Any]]


class StoreError(LabError, ValueError):
    """Rows or files that the store refuses; nothing was written.

    Attributes:
        problems: Each with file, line and remedy.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        more = f"\n… and {len(self.problems) - 10} more" if len(self.problems) > 10 else ""
        super().__init__("\n".join(map(str, self.problems[:10])) + more)


def new_run_id() -> str:
    """An identifier for a run that sorts by time and never repeats, like 20260131T120000Z-9f86d081."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


class Store:
    """A folder of measurements.

    Reading and writing are safe beside other processes, and a kill at any moment loses and tears nothing:
    `record` either happened or did not. A file that does not match its schema is refused by name and line and
    left as it is.

    Args:
        root: Folder of the CSV files; made by the first write.
        package: `datapackage.json` that describes the tables.
    """

    def __init__(self, root: Path | str = DATA, *, package: Path | str = PACKAGE) -> None:
        self.root = Path(root)
        self.package = Path(package)
        self.tables = load_package(self.package)
        self._journal = Journal(self.root)
        self._frames: dict[str, tuple[tuple, dict[str, Text], pd.DataFrame]] = {}

    def read(
        self, table: str, *, run_ids: Iterable[str] | None = None, run_columns: Sequence[str] = ()
    ) -> pd.DataFrame:
        """Read one table.

        Args:
            table: Name of the table in `datapackage.json`.
            run_ids: Only rows of these runs.
            run_columns: Columns of the run table to put beside each row (`gpu_name`, say).

        Returns:
            One row per line, dtypes by the schema; no rows but all columns when nothing is stored yet.

        Raises:
            StoreError: The file does not match its schema, or lost rows.
            ValueError: An unknown table, run or column.
        """
        schema = self._schema(table)
        texts, rows = self._loaded(table)
        if (run_ids is not None or run_columns) and not schema.of_run and table != RUNS:
            raise ValueError(
                f"table {table} does not belong to runs; read it without run_ids and run_columns"
            )
        if run_ids is not None:
            wanted = set(run_ids)
            if unknown := wanted - _ids(texts[RUNS]):
                raise ValueError(
                    f"no run {', '.join(sorted(unknown))} in {self.root}; see {self._schema(RUNS).path}"
                )
            rows = rows[rows["run_id"].isin(wanted)].reset_index(drop=True)
        if run_columns:
            runs = self._loaded(RUNS)[1]
            if unknown := set(run_columns) - set(runs):
                raise ValueError(f"runs have no column {', '.join(unknown)}; they have {', '.join(runs)}")
            rows = rows.merge(runs[["run_id", *run_columns]], on="run_id", how="left")
        return rows

    def record(self, run: Mapping[str, Any], tables: Mapping[str, Rows]) -> str:
        """Store a run and all its rows, or nothing.

        Args:
            run: The run's row: environment, parameters and its `run_id`; the column `rows` is filled in here.
            tables: Rows by table name; their `run_id` is filled in here.

        Returns:
            The run's id.

        Raises:
            StoreError: The rows or the files they would join do not match the schema, or the run is stored
                already.
            OSError: The disk is full, say. The message tells whether the run is safe.
        """
        run_id = run.get("run_id")
        rows = {name: _records(given) for name, given in tables.items()}
        counts = {name: len(records) for name, records in sorted(rows.items()) if records}
        if not counts:
            raise ValueError(f"run {run_id} has no rows; a run is stored with at least one")
        for name in rows:
            if not self._schema(name).of_run:
                raise ValueError(
                    f"table {name} does not hold rows of runs; record rows of a table with a run_id"
                )
        new = {
            name: render(self._schema(name), ({"run_id": run_id, **record} for record in rows[name]))
            for name in counts
        }
        described = {**run, "rows": ";".join(f"{name}={count}" for name, count in counts.items())}
        new[RUNS] = render(self._schema(RUNS), [described])
        _refuse([problem for text in new.values() for problem in text.problems])
        _refuse(
            [
                replace(problem, file=f"new rows for {problem.file}", line=problem.line - 1)
                for name in counts
                for problem in self._relations(name, new[name], new[RUNS])
            ]
        )
        self.root.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._settle()
            if run_id in _ids(self._sound(counts)[RUNS]):
                raise StoreError([self._duplicate(run_id, "is already stored")])
            self._commit({name: text.lines for name, text in new.items()})
        return str(run_id)

    def merge(self, other: Path | str) -> list[str]:
        """Take over the runs of another store folder that are not here, all of them or none.

        Args:
            other: Folder of the other store; only read.

        Returns:
            Ids of the runs that are new here.

        Raises:
            StoreError: A file on either side does not match its schema, or a run is on both sides with
                different content.
            FileNotFoundError: There is no run table in the other folder.
        """
        source = Store(other, package=self.package)
        names = [name for name, table in self.tables.items() if table.of_run]
        with source._locked():
            texts = source._sound([RUNS, *names])
        _refuse(source._undescribed(texts[RUNS]))
        theirs = _by_run(texts)
        if not theirs:
            raise FileNotFoundError(
                f"no runs in {source.root}; give the folder that holds {self._schema(RUNS).path}"
            )
        self.root.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._settle()
            ours = _by_run(self._sound(names))
            _refuse(
                [
                    self._duplicate(run_id, f"differs from the run of that id in {source.root}")
                    for run_id in theirs.keys() & ours.keys()
                    if theirs[run_id] != ours[run_id]
                ]
            )
            new = sorted(theirs.keys() - ours.keys())
            if new:
                lines: dict[str, list[str]] = {}
                for run_id in new:
                    for name, added in theirs[run_id].items():
                        lines.setdefault(name, []).extend(added)
                self._commit(lines)
        return new

    def check(self) -> list[Problem]:
        """Finish what a killed writer began, then list all that is wrong in the folder.

        A folder inside it that has a `datapackage.json` of its own holds tables without runs.
        """
        with self._locked():
            # What stops it is found below, with everything else.
            with suppress(StoreError, OSError):
                self._settle()
            pending = self._journal.pending()
            texts = {name: self._text(name, pending) for name in self.tables}
        problems = [problem for text in texts.values() for problem in text.problems]
        if pending:
            what = f"lines of {', '.join(pending)} wait here to be written into their tables"
            fix = "mend the other problems, or free the disk, and check again"
            problems.append(Problem(self._journal.name, 1, what, fix))
        if not texts[RUNS].problems:
            problems += self._undescribed(texts[RUNS])
            for name, table in self.tables.items():
                if table.of_run and not texts[name].problems:
                    problems += self._relations(name, texts[name], texts[RUNS])
        known = {table.path for table in self.tables.values()}
        for package in sorted(self.root.glob("*/datapackage.json")):
            folder = package.parent.relative_to(self.root).as_posix()
            for table in load_package(package).values():
                name = f"{folder}/{table.path}"
                known.add(name)
                problems += parse(table, (self.root / name).read_bytes(), name).problems
        for path in sorted(self.root.rglob("*.csv")):
            if (name := path.relative_to(self.root).as_posix()) not in known:
                fix = f"describe it in {self.package.name} or remove it"
                problems.append(Problem(name, 1, "the file is no table of the store", fix))
        return problems

    def _schema(self, name: str) -> Table:
        if name not in self.tables:
            raise ValueError(f"no table {name!r}; {self.package.name} describes {', '.join(self.tables)}")
        return self.tables[name]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._journal.lock():
                yield
        except Timeout as error:
            raise TimeoutError(
                f"{error.lock_file} is held by another process; end it, or wait for it"
            ) from error

    def _loaded(self, table: str) -> tuple[dict[str, Text], pd.DataFrame]:
        """A table, with the run table where it needs it; parsed again only when a file has changed."""
        with self._locked():
            files = (
                self.root / self._schema(table).path,
                self.root / self._schema(RUNS).path,
                self.root / self._journal.name,
            )
            stamp = tuple(
                (found.st_ino, found.st_mtime_ns, found.st_size)
                if file.exists() and (found := file.stat())
                else ()
                for file in files
            )
            if self._frames.get(table, ((),))[0] != stamp:
                texts = self._sound([table])
                self._frames[table] = (stamp, texts, frame(self._schema(table), texts[table].cells))
        _, texts, rows = self._frames[table]
        return texts, rows.copy()

    def _text(self, name: str, pending: Mapping[str, list[str]]) -> Text:
        """A table's file with what is pending for it, which is there already if one of its runs is."""
        table = self.tables[name]
        try:
            text = parse(table, (self.root / table.path).read_bytes(), table.path)
        except FileNotFoundError:
            text = Text()
        added = pending.get(name, [])
        if added and not text.problems and added[0].split(",")[0] not in _ids(text):
            more = parse(table, _bytes(table, added), self._journal.name)
            text = Text(text.lines + more.lines, text.cells + more.cells, more.problems)
        return text

    def _sound(self, names: Iterable[str]) -> dict[str, Text]:
        """Tables, with the run table where they need it, refused when anything is wrong with them."""
        pending = self._journal.pending()
        needed = dict.fromkeys([*names, *([RUNS] if any(self.tables[name].of_run for name in names) else [])])
        texts = {name: self._text(name, pending) for name in needed}
        _refuse([problem for text in texts.values() for problem in text.problems])
        _refuse(
            [
                problem
                for name in names
                if self.tables[name].of_run
                for problem in self._relations(name, texts[name], texts[RUNS])
            ]
        )
        return texts

    def _relations(self, name: str, text: Text, runs: Text) -> list[Problem]:
        """Rows against runs: none without a run, none lost or added, shared columns (the GPU, say) equal."""
        table, run_table = self.tables[name], self.tables[RUNS]
        known = {cells[0]: dict(zip(run_table.columns, cells, strict=True)) for cells in runs.cells}
        shared = [(at, column) for at, column in enumerate(table.columns) if column in run_table.columns]
        problems = []
        found: Counter[str] = Counter()
        for line, cells in enumerate(text.cells, start=2):
            run = known.get(cells[0])
            if run is None:
                what = f"run {cells[0]} is not in {run_table.path}"
                problems.append(Problem(table.path, line, what, "restore its line there, or remove this row"))
                continue
            found[cells[0]] += 1
            for at, column in shared:
                if cells[at] != run[column]:
                    what = f"{column} is {cells[at]!r} and {run[column]!r} in run {cells[0]}"
                    problems.append(
                        Problem(table.path, line, what, f"correct it, or take {column} out of the table")
                    )
        for run_id, run in known.items():
            expected = _counts(run["rows"]).get(name, 0)
            if found[run_id] != expected:
                what = f"run {run_id} was stored with {expected} rows and {found[run_id]} are here"
                problems.append(Problem(table.path, len(text.cells) + 1, what, _RESTORE))
        return problems

    def _undescribed(self, runs: Text) -> list[Problem]:
        """Runs with rows in a table that the package does not know, so that nobody checks or merges them."""
        at = self.tables[RUNS].columns.index("rows")
        return [
            Problem(
                self.tables[RUNS].path,
                line,
                f"rows names table {name}",
                f"describe it in {self.package.name}",
            )
            for line, cells in enumerate(runs.cells, start=2)
            for name in _counts(cells[at])
            if name not in self.tables
        ]

    def _duplicate(self, run_id: str, what: str) -> Problem:
        runs = self._text(RUNS, self._journal.pending())
        line = next(line for line, cells in enumerate(runs.cells, start=2) if cells[0] == run_id)
        return Problem(
            self.tables[RUNS].path, line, f"run {run_id} {what}", "give the new run an id of its own"
        )

    def _commit(self, lines: dict[str, list[str]]) -> None:
        try:
            self._journal.begin(lines)
            self._settle()
        except OSError as error:
            outcome = (
                f"the run is stored, in {self.root / '.store'}, and the next write brings it into its tables"
                if self._journal.pending()
                else "nothing was stored; record it again when that is mended"
            )
            raise OSError(error.errno, f"{error.strerror}; {outcome}", str(self.root)) from error

    def _settle(self) -> None:
        """Write pending lines into their tables. Call with the lock held."""
        self._journal.tidy()
        pending = self._journal.pending()
        if not pending:
            return
        for name in pending:
            table = self._schema(name)
            text = self._text(name, pending)
            _refuse(text.problems)
            self._journal.write(self.root / table.path, _bytes(table, text.lines))
        self._journal.end()


def published(
    quantity: str | None = None, mechanism: str | None = None, gpu: str | None = None
) -> pd.DataFrame:
    """Numbers of others, each with its conditions and source, to be drawn as such.

    Args:
        quantity: Only this quantity (`latency`, `hbm_read_bandwidth`, …).
        mechanism: Only this mechanism of the project's vocabulary.
        gpu: Only this GPU, spelled as in the table (`H200 NVL`).

    Returns:
        The rows of table `published`; none where nothing is published for the mechanism or the GPU.

    Raises:
        ValueError: No one published such a quantity.
    """
    rows = Store().read("published")
    if quantity is not None and quantity not in set(rows["quantity"]):
        raise ValueError(f"no published {quantity!r}; there are {', '.join(sorted(set(rows['quantity'])))}")
    for column, wanted in {"quantity": quantity, "mechanism": mechanism, "gpu": gpu}.items():
        if wanted is not None:
            rows = rows[rows[column] == wanted]
    return rows.reset_index(drop=True)


def _records(rows: Rows) -> list[dict[str, Any]]:
    return rows.to_dict("records") if isinstance(rows, pd.DataFrame) else [dict(row) for row in rows]


def _counts(rows: str) -> dict[str, int]:
    return {name: int(count) for name, count in (part.split("=") for part in rows.split(";"))}


def _ids(text: Text) -> set[str]:
    return {cells[0] for cells in text.cells}


def _bytes(table: Table, lines: Iterable[str]) -> bytes:
    return (header(table) + "".join(f"{line}\n" for line in lines)).encode()


def _by_run(texts: Mapping[str, Text]) -> dict[str, dict[str, list[str]]]:
    runs: dict[str, dict[str, list[str]]] = {}
    for name, text in texts.items():
        for line, cells in zip(text.lines, text.cells, strict=True):
            runs.setdefault(cells[0], {}).setdefault(name, []).append(line)
    return runs


def _refuse(problems: Sequence[Problem]) -> None:
    if problems:
        raise StoreError(problems)
