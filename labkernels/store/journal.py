"""Writing several files so that a kill at any moment leaves all of the change or none of it.

A change is first written whole into one journal file; the rename that puts it in place is the moment it
counts. Only then are the tables rewritten, one after the other, and the journal taken away. Whoever comes
after a kill finds the journal and finishes; readers add what it holds to what they read. Merely writing the
run table last would leave rows without a run after a kill, and telling those from a run deleted by hand
needs a note of what was under way, which is this journal already.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from filelock import FileLock

LOCK_TIMEOUT_S = 60.0


def replace_file(path: Path, data: bytes, scratch: Path) -> None:
    """Give a file new content in one step that survives a power cut.

    Args:
        path: File to replace or create.
        data: All of its bytes.
        scratch: Temporary file, on the same file system, that no one else uses; gone afterwards.

    Raises:
        OSError: The disk is full, say; `path` is then as it was.
    """
    try:
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Journal:
    """The change under way in a store, kept in its hidden folder `.store/` with the lock.

    Args:
        root: Folder of the store.
    """

    name = ".store/journal.json"

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / ".store"
        self._file = root / self.name
        self._scratch = self._folder / "scratch"

    def lock(self) -> AbstractContextManager[object]:
        """The store-wide lock; the system frees it when its holder dies.

        Where nothing can be written (a read-only checkout) no one else writes either, and none is taken.

        Raises:
            filelock.Timeout: On entering, when another process held it for a minute.
        """
        if not os.access(self._root, os.W_OK):
            return nullcontext()
        self._folder.mkdir(exist_ok=True)
        return FileLock(self._folder / "lock", timeout=LOCK_TIMEOUT_S)

    def tidy(self) -> None:
        """Remove what a killed writer left half written. Call with the lock held."""
        self._scratch.unlink(missing_ok=True)

    def pending(self) -> dict[str, list[str]]:
        """Lines still to be added, by table; empty when no change is under way."""
        try:
            return json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}

    def begin(self, lines: dict[str, list[str]]) -> None:
        """Make a change count: lines to be added, by table. Call with the lock held and none pending."""
        replace_file(self._file, json.dumps(lines).encode(), self._scratch)

    def write(self, path: Path, data: bytes) -> None:
        """Replace one of the store's files. Call with the lock held."""
        replace_file(path, data, self._scratch)

    def end(self) -> None:
        """Forget the change: every table holds its lines."""
        self._file.unlink()
