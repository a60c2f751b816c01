"""A folder of tables as one file, to send to others: made here, and looked at with care where it arrives."""

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from labkernels.errors import LabError
from labkernels.store.files import read_file

#: More than a full set of all experiments unpacks to, by far.
MOST_BYTES = 1 << 30


class BadArchive(LabError, ValueError):
    """A file that is no archive of tables; the message says why."""


def packed(folder: Path) -> bytes:
    """All tables of a folder."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for path in sorted(folder.rglob("*.csv")):
            archive.add(path, path.relative_to(folder).as_posix())
    return made.getvalue()


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """The folder of tables at a path, or in the archive there, unpacked for as long as the block runs.

    Raises:
        BadArchive: it is neither, or holds something else than tables.
        OSError: it cannot be read.
    """
    if path.is_dir():
        yield path
        return
    content = read_file(path)
    with TemporaryDirectory(prefix="labkernels-") as folder:
        try:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                members = archive.getmembers()
                for one in members:
                    if not (one.isdir() or (one.isfile() and one.name.endswith(".csv"))):
                        raise BadArchive(f"{path} holds {one.name}, which is no table: send what batch wrote")
                if (total := sum(one.size for one in members)) > MOST_BYTES:
                    raise BadArchive(f"{path} unpacks to {total:,} bytes; at most {MOST_BYTES:,} are taken")
                archive.extractall(folder, members, filter="data")
        except (tarfile.TarError, EOFError) as error:
            raise BadArchive(
                f"{path} is no folder and no archive of tables: {str(error).splitlines()[0]}"
            ) from None
        yield Path(folder)
