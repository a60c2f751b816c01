"""The store: a folder of runs, one CSV file per run and table; a run is there whole or not at all.

A run's tables are written first, its own row last: the rename of `runs/<run_id>.csv` is the moment it counts, and no
reader looks at rows of a run that is not there. No two runs share a file, so writers need no lock, a merge is a copy,
and nothing is ever rewritten: a run or row that is not to be used any more gets a mark, and stays.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkernels.errors import NotMeasured
from labkernels.paths import DATA
from labkernels.store.files import UNFINISHED, commit, read_file, stage, write_file
from labkernels.store.folder import SUMS, Folder, are_under, stamp
from labkernels.store.run import Run, hexdigest, id_time, listed, own_hash, parse_run, split
from labkernels.store.schema import MARKS, RUNS, Problem, refuse

if TYPE_CHECKING:  # the advisor reads its tables without pandas, which takes a second to import
    import pandas as pd

    from labkernels.store.values import Rows

PACKAGE = DATA / "datapackage.json"


def new_run_id(at: datetime | None = None) -> str:
    """An identifier for a run that sorts by time and never repeats, like 20260131T120000Z-9f86d081.

    Args:
        at: When the run began; now by default.
    """
    return f"{id_time(at or datetime.now(UTC))}-{secrets.token_hex(4)}"


class Store(Folder):
    """A folder of measurements.

    Reading and writing are safe beside other processes, and a kill at any moment loses and tears nothing. A file that
    does not match its schema or its checksum is refused by name and line and left as it is.

    Args:
        root: Folder of the tables; made by the first write.
        package: `datapackage.json` that describes the tables.
    """

    def __init__(self, root: Path | str = DATA, *, package: Path | str = PACKAGE) -> None:
        super().__init__(Path(root), Path(package))
        self._frames: dict[tuple[str, str], tuple[Any, pd.DataFrame]] = {}

    def read(
        self,
        table: str,
        *,
        run_ids: Iterable[str] | None = None,
        run_columns: Sequence[str] = (),
        marked: bool = False,
    ) -> pd.DataFrame:
        """Read one table, runs in the order of their ids.

        Args:
            table: Name of the table in `datapackage.json`.
            run_ids: Only rows of these runs; by default of all but those with a mark on the whole run.
            run_columns: Columns of the run table to put beside each row (`gpu_name`, say).
            marked: Take runs and rows with a mark as well.

        Returns:
            One row per line, dtypes by the schema; no rows but all columns when nothing is stored yet.

        Raises:
            StoreError: A file does not match its schema or its checksum, or is lost.
            ValueError: An unknown table, run or column.
        """
        from labkernels.store.values import frame, stacked

        schema = self._schema(table)
        if not schema.of_run and table != RUNS:
            if run_ids is not None or run_columns:
                raise ValueError(
                    f"table {table} does not belong to runs; read it without run_ids and run_columns"
                )
            return frame(schema, self._cells(table))
        runs = self._sound_runs()
        marks = [] if marked else self.records(MARKS)
        if run_ids is None:
            chosen = runs.keys() - {mark["run_id"] for mark in marks if mark["table"] is None}
        elif unknown := (chosen := set(run_ids)) - runs.keys():
            raise ValueError(f"no run {', '.join(sorted(unknown))} in {self.root / RUNS}")
        if table == RUNS:
            rows = self._run_rows(runs)
            return rows[rows["run_id"].isin(chosen)].reset_index(drop=True)
        wheres: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for mark in marks:
            wheres.setdefault((mark["run_id"], mark["table"]), []).append(mark["where"] or {})
        of_table = [run for run in runs.values() if run.id in chosen and table in run.rows]
        rows = stacked(schema, [self._frame(table, run, wheres.get((run.id, table), [])) for run in of_table])
        if run_columns:
            beside = self._run_rows(runs)
            if unknown := set(run_columns) - set(beside):
                raise ValueError(f"runs have no column {', '.join(unknown)}; they have {', '.join(beside)}")
            rows = rows.merge(beside[["run_id", *run_columns]], on="run_id", how="left")
        return rows

    def require_runs(self) -> None:
        """Make sure that there is something to read.

        Raises:
            NotMeasured: The folder is missing or holds no runs.
        """
        if not self._files(RUNS):
            what = "holds no runs" if self.root.is_dir() else "is no folder"
            raise NotMeasured(f"{self.root} {what}: give the folder that holds {RUNS}/, or measure into it")

    def record(self, run: Mapping[str, Any], tables: Mapping[str, Rows]) -> str:
        """Store a run and all its rows, or nothing.

        Args:
            run: The run's row: environment, parameters and its `run_id`; `rows` and `rows_sha256` are filled in here.
            tables: Rows by table name; their `run_id` is filled in here.

        Returns:
            The run's id.

        Raises:
            StoreError: The rows do not match the schema, or the run is stored already.
            OSError: The disk is full, say. The message tells whether the run is safe.
        """
        from labkernels.store.values import plain, render

        run_id = run.get("run_id")
        given = {name: plain(rows) for name, rows in sorted(tables.items())}
        counts = {name: len(rows) for name, rows in given.items() if rows}
        if not counts:
            raise ValueError(f"run {run_id} has no rows; a run is stored with at least one")
        for name in given:
            if not self._schema(name).of_run:
                raise ValueError(
                    f"table {name} does not hold rows of runs; record rows of a table with a run_id"
                )
        made = {
            name: render(self.tables[name], [{"run_id": run_id, **row} for row in given[name]])
            for name in counts
        }
        sums = {name: hexdigest(data) for name, data in made.items()}
        row = {**run, "rows": listed(counts), "rows_sha256": listed(sums)}
        sums[RUNS] = own_hash(render(self.tables[RUNS], [row]))
        data = render(self.tables[RUNS], [row | {"rows_sha256": listed(sums)}])
        final = self._file(RUNS, str(run_id))
        read, problems = parse_run(self.tables[RUNS], data, f"{RUNS}/{run_id}.csv")
        for name in made if read else ():
            problems += self._rows_in({f"new rows for {name}": made[name]}, name, read).problems
        refuse(problems)
        if final.exists():
            self._refuse([self._duplicate(final, "is already stored")])
        try:
            self._add(final.stem, {name: split(data) for name, data in made.items()}, data)
        except BaseException as error:
            told = "the run is stored"
            if not final.exists():
                self._discard(final, made)
                told = "nothing was stored; record it again when that is mended"
            if isinstance(error, OSError):
                raise OSError(error.errno, f"{error.strerror}; {told}", str(self.root)) from error
            raise
        return final.stem

    def mark(
        self,
        run_id: str,
        kind: str,
        reason: str,
        *,
        table: str | None = None,
        where: Sequence[Mapping[str, Any]] = (),
    ) -> Path:
        """Say that a run or some of its rows are not to be used any more; they stay where they are.

        Args:
            run_id: The run.
            kind: `superseded`, by a later run, or `suspect`.
            reason: One sentence for those who find the mark.
            table: Only rows of this table.
            where: Which rows: those whose columns have the values of one of these; all by default.

        Returns:
            The file of the mark.

        Raises:
            StoreError: There is no such run, table or row.
        """
        from labkernels.store.values import render

        mark = {
            "run_id": run_id,
            "table": table,
            "kind": kind,
            "reason": reason,
            "marked_utc": datetime.now(UTC),
        }
        data = render(self.tables[MARKS], [mark | {"where": dict(one) or None} for one in where or [{}]])
        path = self._file(MARKS, f"{run_id}-{hexdigest(data)[:8]}")
        refuse(self._mark_problems(data, path.name, self._sound_runs()))
        write_file(path, data)
        return path

    def write(self, table: str, rows: Rows, *, replacing: Mapping[str, Any] | None = None) -> Path:
        """Write a table without runs anew, and its checksum.

        Args:
            table: Of the tables that hold no rows of runs.
            rows: Its new rows; a text is written as it is.
            replacing: Which rows go: those whose columns have these values, all by default. The new ones stand where
                the first of them stood; others stay as they are.

        Returns:
            Its file.

        Raises:
            StoreError: The rows do not match the schema.
            ValueError: The table's rows belong to runs, which are never replaced.
        """
        from labkernels.store.values import plain, render

        schema = self._schema(table)
        if schema.is_folder:
            raise ValueError(
                f"table {table} belongs to runs, whose rows are never replaced; record a new run"
            )
        cells = self._cells(table) if replacing else []
        under = list(are_under([replacing or {}], schema, cells))
        at = under.index(True) if True in under else len(under)
        kept = [
            dict(zip(schema.columns, row, strict=True))
            for row, goes in zip(cells, under, strict=True)
            if not goes
        ]
        data = render(schema, [*kept[:at], *plain(rows), *kept[at:]], as_text=True)
        sums, problems = self._sums()
        self._refuse(problems)
        sums[schema.path] = hexdigest(data)
        write_file(self.root / schema.path, data)
        write_file(self.root / SUMS, "".join(f"{sums[path]}  {path}\n" for path in sorted(sums)).encode())
        return self.root / schema.path

    def merge(self, other: Path | str) -> list[str]:
        """Copy the runs and marks of another store folder that are not here.

        A merge that is cut short leaves whole runs; the next one takes the rest.

        Args:
            other: Folder of the other store; only read.

        Returns:
            Ids of the runs that are new here.

        Raises:
            StoreError: A file of the other folder does not match its schema or its checksum, or a run is on both
                sides with different content. Nothing was copied.
            NotMeasured: There are no runs in the other folder.
        """
        theirs = Store(other, package=self.package)
        theirs.require_runs()
        theirs._refuse(theirs._run_problems())
        mine = {path: self._file(kind, path.stem) for kind in (RUNS, MARKS) for path in theirs._files(kind)}
        differing = [at for path, at in mine.items() if at.exists() and read_file(at) != read_file(path)]
        self._refuse([self._duplicate(path, f"differs from that of {theirs.root}") for path in differing])
        new = [run for run in theirs._sound_runs().values() if not self._file(RUNS, run.id).exists()]
        for run in new:
            files = {name: [*map(read_file, theirs._parts(name, run.id))] for name in run.rows}
            self._add(run.id, files, read_file(theirs._file(RUNS, run.id)))
        for path in theirs._files(MARKS):
            if not mine[path].exists():
                write_file(mine[path], read_file(path))
        return [run.id for run in new]

    def _frame(self, table: str, run: Run, wheres: list[Mapping[str, Any]]) -> pd.DataFrame:
        """Rows of a run in one table without those under marks; read again only when a file or a mark has changed."""
        from labkernels.store.values import frame

        now = (wheres, *map(stamp, self._parts(table, run.id)))
        if self._frames.get((table, run.id), (None,))[0] != now:
            schema, text = self.tables[table], self._rows(table, run)
            self._refuse(text.problems)
            under = are_under(wheres, schema, text.cells) if wheres else repeat(False)
            kept = [cells for cells, is_under in zip(text.cells, under, strict=False) if not is_under]
            self._frames[table, run.id] = now, frame(schema, kept)
        return self._frames[table, run.id][1]

    def _run_rows(self, runs: dict[str, Run]) -> pd.DataFrame:
        """The run table; made again only when a run came or changed."""
        from labkernels.store.values import frame

        if self._frames.get((RUNS, ""), (None,))[0] != runs:
            cells = [[*run.cells.values()] for run in runs.values()]
            self._frames[RUNS, ""] = runs, frame(self.tables[RUNS], cells)
        return self._frames[RUNS, ""][1]

    def _duplicate(self, path: Path, what: str) -> Problem:
        return Problem(self._name(path), 0, what, "give the new one an id of its own")

    def _add(self, run_id: str, files: Mapping[str, Sequence[bytes]], run: bytes) -> None:
        """Write a run's files, its own last; while that is staged it says whose the others are."""
        final = self._file(RUNS, run_id)
        staged = stage(final, run)
        for name, parts in files.items():
            for number, part in enumerate(parts, start=1):
                write_file(self._file(name, run_id if number == 1 else f"{run_id}.{number}"), part)
        commit(staged, final)

    def _discard(self, final: Path, tables: Iterable[str]) -> None:
        """Remove what there is of a run that could not be stored; no one else has its id."""
        staged = final.parent.glob(f"{final.name}.*{UNFINISHED}")
        for path in [*staged, *(part for name in tables for part in self._parts(name, final.stem))]:
            with suppress(OSError):
                path.unlink(missing_ok=True)


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
