"""Files that come into being whole: written beside their place, then renamed into it."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

#: Ends the name of a file that is being written, or that a killed writer left; no reader looks at one.
UNFINISHED = ".new"


def read_file(path: Path) -> bytes:
    """All bytes of a file.

    Raises:
        OSError: It cannot be read; a pipe or a device, which might never end, is not.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return path.read_bytes()
    except OSError as error:
        raise OSError(
            error.errno, error.strerror, str(path)
        ) from None  # a failed read does not name its file


def stage(path: Path, data: bytes) -> Path:
    """Write a file's content beside its place, under a name that no one else uses.

    Args:
        path: Where the file will be; its folder is made.
        data: All of its bytes.

    Returns:
        The staged file, safe from a power cut.

    Raises:
        OSError: The disk is full, say; nothing is left.
    """
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        _sync(path.parent.parent)
    staged = path.with_name(f"{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        with staged.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    return staged


def commit(staged: Path, path: Path) -> None:
    """Put a staged file in its place in one step that survives a power cut."""
    try:
        os.replace(staged, path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_file(path: Path, data: bytes) -> None:
    """Stage and commit a file.

    Raises:
        OSError: As `stage`; `path` is then as it was.
    """
    commit(stage(path, data), path)
