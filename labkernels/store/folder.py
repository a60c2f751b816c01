"""What lies in a folder of tables, and all that is wrong with it. Only reads, and needs no pandas."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkernels.store.files import UNFINISHED, read_file
from labkernels.store.run import Run, hexdigest, joined, parse_run
from labkernels.store.schema import MARKS, RUNS, Problem, StoreError, Table, load_package, refuse
from labkernels.store.text import RESTORE, Text, parse, records

#: Checksums of the tables without runs, as sha256sum writes and checks them.
SUMS = "SHA256SUMS"
_GIVE = f"give the folder that holds {RUNS}/"
_NEWER = "use the version of the project that wrote it"


class Folder:
    """A folder of tables.

    Args:
        root: The folder.
        package: `datapackage.json` that describes the tables.

    Raises:
        StoreError: The package is broken, or of another version.
    """

    def __init__(self, root: Path, package: Path) -> None:
        self.root, self.package = root, package
        self.tables = load_package(package)
        self._own_package = self._of_own_package()
        self._runs_read: dict[Path, tuple[tuple, Run | None, list[Problem]]] = {}

    def records(self, table: str) -> list[dict[str, Any]]:
        """Rows of a table without runs as values by column name, None where a cell is empty; `read` without pandas.

        Raises:
            StoreError: Its file does not match its schema or its checksum.
        """
        return records(self._schema(table), self._cells(table))

    def check(self) -> list[Problem]:
        """All that is wrong.

        In a folder with a `datapackage.json` of its own every table without runs has to be there, with its checksum.
        """
        if not self.root.is_dir():
            return [Problem(str(self.root), 0, "is no folder", _GIVE)]
        problems = self._run_problems()
        if not self._files(RUNS):
            problems.append(Problem(str(self.root), 0, "holds no runs", _GIVE))
        sums, faults = self._sums()
        known = {table.path for table in self.tables.values()}
        faults += [
            Problem(SUMS, 0, f"names {path}, which is no table", RESTORE) for path in sums.keys() - known
        ]
        for name, table in self.tables.items():
            if not table.is_folder:
                problems += self._text(name).problems
                if not faults and table.path not in sums and (self.root / self.package.name).exists():
                    problems.append(Problem(SUMS, 0, f"lacks {table.path}", f"{RESTORE}, or add its line"))
        return problems + faults + self._strays()

    def leftovers(self) -> list[str]:
        """Files that a killed writer left, or one writes just now: no reader sees them, and they may be removed."""
        paths = [*self._walk()]
        unfinished = [path for path in paths if path.endswith(UNFINISHED)]
        begun = {_run_id(path) for path in unfinished if path.startswith(f"{RUNS}/")}
        begun -= {path.stem for path in self._files(RUNS)}
        return unfinished + [path for path in paths if path.endswith(".csv") and _run_id(path) in begun]

    def _schema(self, table: str) -> Table:
        if table not in self.tables:
            raise ValueError(f"no table {table!r}; {self.package.name} describes {', '.join(self.tables)}")
        return self.tables[table]

    def _file(self, table: str, stem: str) -> Path:
        return self.root / table / f"{stem}.csv"

    def _files(self, table: str) -> list[Path]:
        schema = self._schema(table)
        return sorted((self.root / table).glob("*.csv")) if schema.is_folder else [self.root / schema.path]

    def _parts(self, table: str, run_id: str) -> list[Path]:
        """Files of a run's table: one, and more where it is long."""
        parts = [self._file(table, run_id)]
        while (path := self._file(table, f"{run_id}.{len(parts) + 1}")).exists():
            parts.append(path)
        return parts

    def _name(self, path: Path | str) -> str:
        return Path(path).relative_to(self.root).as_posix()

    def _walk(self) -> Iterator[str]:
        for folder, _, names in os.walk(self.root):
            yield from (self._name(Path(folder, name)) for name in sorted(names))

    def _refuse(self, problems: Sequence[Problem]) -> None:
        refuse([replace(problem, file=str(self.root / problem.file)) for problem in problems])

    def _unreadable(self, error: OSError) -> Problem:
        return Problem(self._name(error.filename), 0, f"cannot be read: {error.strerror}", RESTORE)

    def _holds(self, table: Table) -> bool:
        return any(self.root.glob(table.path))

    def _of_own_package(self) -> list[Problem]:
        """What is wrong when the folder itself describes a table that it holds, in another way."""
        own = self.root / self.package.name
        if not own.exists() or own.samefile(self.package):
            return []
        try:
            theirs = load_package(own).items()
            differing = [
                name for name, table in theirs if table != self.tables.get(name) and self._holds(table)
            ]
        except StoreError as error:
            return [replace(problem, file=own.name) for problem in error.problems]
        return [Problem(own.name, 0, f"table {name} has another schema", _NEWER) for name in differing]

    # --- runs ---

    def _runs(self) -> tuple[dict[str, Run], list[Problem]]:
        """All runs in the order of their ids, and what is wrong with their files; read again only after a change."""
        runs, problems = {}, list(self._own_package)
        for path in self._files(RUNS):
            if self._runs_read.get(path, (None,))[0] != (now := stamp(path)):
                self._runs_read[path] = (now, *self._run(path))
            _, run, faults = self._runs_read[path]
            problems += faults
            if run and not faults:
                runs[run.id] = run
        return runs, problems

    def _sound_runs(self) -> dict[str, Run]:
        runs, problems = self._runs()
        self._refuse(problems)
        return runs

    def _run(self, path: Path) -> tuple[Run | None, list[Problem]]:
        try:
            run, problems = parse_run(self.tables[RUNS], read_file(path), file := self._name(path))
        except OSError as error:
            return None, [self._unreadable(error)]
        unknown = [name for name in (run.rows if run else ()) if name not in self.tables]
        fix = f"describe it in {self.package.name}, or {_NEWER}"
        return run, problems + [Problem(file, 2, f"rows names table {name}", fix) for name in unknown]

    def _rows(self, table: str, run: Run) -> Text:
        """Rows of a run in one table, with all that is wrong with them."""
        try:
            files = {self._name(path): read_file(path) for path in self._parts(table, run.id)}
        except OSError as error:
            return Text(problems=[self._unreadable(error)])
        return self._rows_in(files, table, run)

    def _rows_in(self, files: Mapping[str, bytes], table: str, run: Run) -> Text:
        text = Text()
        for file, data in files.items():
            part = parse(self.tables[table], data, file)
            text.cells += part.cells
            text.problems += part.problems or self._strangers(table, part, run, file)
        if not text.problems and len(text.cells) != run.rows[table]:
            what = f"the run was stored with {run.rows[table]} rows and {len(text.cells)} are here"
            text.problems.append(Problem(file, len(part.cells) + 2, what, RESTORE))
        if not text.problems and hexdigest(joined([*files.values()])) != run.sha256[table]:
            what = f"is not what was stored: its SHA-256 in {RUNS}/{run.id}.csv is another"
            text.problems.append(Problem(file, 0, what, RESTORE))
        return text

    def _strangers(self, table: str, text: Text, run: Run, file: str) -> list[Problem]:
        """Cells that say something else than their run: its id, or another column that both have."""
        shared = [(at, name) for at, name in enumerate(self.tables[table].columns) if name in run.cells]
        return [
            Problem(
                file,
                line,
                f"{name} is {cells[at]!r} and {run.cells[name]!r} in run {run.id}",
                f"correct it, or take {name} out of the table",
            )
            for line, cells in enumerate(text.cells, start=2)
            for at, name in shared
            if cells[at] != run.cells[name]
        ]

    def _run_problems(self) -> list[Problem]:
        """What is wrong with runs, their rows and their marks."""
        runs, problems = self._runs()
        problems += [
            p for run in runs.values() for table in run.rows for p in self._rows(table, run).problems
        ]
        for path in self._files(MARKS):
            try:
                problems += self._mark_problems(read_file(path), self._name(path), runs)
            except OSError as error:
                problems.append(self._unreadable(error))
        return problems

    def _mark_problems(self, data: bytes, file: str, runs: Mapping[str, Run]) -> list[Problem]:
        text = parse(self.tables[MARKS], data, file)
        if text.problems:
            return text.problems
        if not file.endswith(f"-{hexdigest(data)[:8]}.csv"):
            return [Problem(file, 0, "is not what was stored: its name ends in another SHA-256", RESTORE)]
        faults = [self._mark_fault(mark, runs) for mark in records(self.tables[MARKS], text.cells)]
        return [Problem(file, line, *fault) for line, fault in enumerate(faults, start=2) if fault]

    def _mark_fault(self, mark: Mapping[str, Any], runs: Mapping[str, Run]) -> tuple[str, str] | None:
        run, table, where = runs.get(mark["run_id"]), mark["table"], mark["where"] or {}
        if run is None:
            return f"there is no run {mark['run_id']}", "name one that is stored"
        if table is None:
            return ("where is given without a table", "say whose rows are meant") if where else None
        if table not in run.rows:
            return f"run {run.id} has no rows in {table}", f"it has {', '.join(run.rows)}"
        if unknown := where.keys() - {*(columns := self.tables[table].columns)}:
            return f"{table} has no column {', '.join(unknown)}", f"the columns are {', '.join(columns)}"
        rows = self._rows(table, run)
        if not rows.problems and not any(are_under([where], self.tables[table], rows.cells)):
            return f"no row of {table} has {where}", "give values as they are stored"
        return None

    # --- tables without runs ---

    def _text(self, table: str) -> Text:
        """A table without runs, with all that is wrong with it."""
        text, (sums, _) = Text(), self._sums()
        for path in self._files(table):
            file = self._name(path)
            try:
                data = read_file(path)
            except OSError as error:
                if file in sums or not isinstance(error, FileNotFoundError):
                    text.problems.append(self._unreadable(error))
                continue
            part = parse(self.tables[table], data, file)
            text.cells += part.cells
            text.problems += part.problems
            if file in sums and not part.problems and (now := hexdigest(data)) != sums[file]:
                fix = f"{RESTORE}; if the change is meant, put {now} there"
                text.problems.append(Problem(file, 0, f"is not what {SUMS} says", fix))
        return text

    def _cells(self, table: str) -> list[list[str]]:
        text = self._text(table)
        self._refuse(text.problems)
        return text.cells

    def _sums(self) -> tuple[dict[str, str], list[Problem]]:
        """Checksums by path, and what is wrong with their file."""
        try:
            lines = read_file(self.root / SUMS).decode().splitlines()
            return {path: digest for digest, path in (line.split("  ") for line in lines)}, []
        except FileNotFoundError:
            return {}, []
        except (OSError, ValueError) as error:
            return {}, [Problem(SUMS, 0, f"is no list of SHA-256 and path ({error})", RESTORE)]

    def _strays(self) -> list[Problem]:
        """Files of tables that belong to no run and no table.

        What is there is listed before the runs are, so that those of a run that just comes are known.
        """
        paths = [path for path in self._walk() if path.endswith(".csv")]
        known = {*self.leftovers(), *(table.path for table in self.tables.values())}
        runs, _ = self._runs()
        known |= {self._name(path) for table in (RUNS, MARKS) for path in self._files(table)}
        for run_id in (path.stem for path in self._files(RUNS)):
            for table in runs[run_id].rows if run_id in runs else self.tables:
                known |= {self._name(path) for path in self._parts(table, run_id)}
        problems = []
        for path in paths:
            if path not in known and os.path.lexists(self.root / path):
                what, fix = "is no table of the store", f"describe it in {self.package.name} or remove it"
                if path.partition("/")[0] in self.tables:
                    what = f"belongs to no run of {RUNS}/"
                    fix = "restore the run's file from version control, or remove this one"
                problems.append(Problem(path, 0, what, fix))
        return problems


def are_under(wheres: Sequence[Mapping[str, Any]], table: Table, cells: list[list[str]]) -> Iterator[bool]:
    """Of each row, whether one of some conditions, each a value by column, holds for it."""
    for row in records(table, cells):
        yield any(all(row[column] == value for column, value in where.items()) for where in wheres)


def stamp(path: Path) -> tuple:
    """What changes when a file does."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _run_id(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0]
