"""One module per command of `python -m labkernels`, imported when its command is given and not before.

Each has `options()`, what may stand behind the command's name, and `run(arguments)`, which returns an `Answer`.
"""

import os
import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from labkernels.errors import LabError
from labkernels.forms import entries
from labkernels.paths import DATA, IS_CHECKOUT

Form = TypeVar("Form")


class Answer(NamedTuple):
    """What a command found.

    Attributes:
        value: for `--json`.
        text: for people; nothing if it is written already.
        status: exit status.
        notes: lines for stderr.
    """

    value: Any
    text: str
    status: int = 0
    notes: tuple[str, ...] = ()


Option = tuple[tuple[str, ...], dict[str, Any]]


def option(*names: str, **how: Any) -> Option:
    """One argument, as `ArgumentParser.add_argument` takes it."""
    return names, how


def _folder(text: str) -> Path:
    if not (path := Path(text)).is_dir():
        raise ArgumentTypeError(f"{text!r} is no folder: name one that holds tables")
    return path


def _data(kind: Callable[[str], Path], written: bool) -> Option:
    """The folder of the tables; those that were installed without a checkout are not for writing."""
    required = written and not IS_CHECKOUT
    default = "" if required else f" (default: {'data/' if IS_CHECKOUT else 'what was installed'})"
    about = f"folder of the tables{default}"
    return option("--data", type=kind, default=DATA, required=required, metavar="DIR", help=about)


READS = _data(_folder, written=False)
WRITES = _data(Path, written=True)  # into a new folder, too
UPDATES = _data(_folder, written=True)
GPU = option("--gpu", help="name of a GPU (default: all that have rows)")


def form_options(form: type) -> Iterator[Option]:
    """An option for each field of a form."""
    for one in entries(form):
        text = one.help.replace("%", "%%").replace("`", "")
        if one.kind is bool:
            yield option(option_name(one.name), action="store_true", default=None, help=text)
            continue
        if not one.required and one.default is not None:
            text += f" (default: {one.default:g})" if one.kind is float else f" (default: {one.default})"
        shown = (
            f"{{{','.join(map(str, one.choices))}}}" if one.choices else "TEXT" if one.kind is str else "N"
        )
        yield option(option_name(one.name), required=one.required, metavar=shown, help=text)


def filled(form: type[Form], arguments: Namespace) -> Form:
    """A form with what was given on the command line.

    Raises:
        BadArgument: a value that cannot be.
    """
    given = {one: getattr(arguments, one.name) for one in entries(form)}
    return form(**{one.name: one.read(text) for one, text in given.items() if text is not None})


def option_name(name: str) -> str:
    """How a field is written on the command line: `--row-bytes`."""
    return "--" + name.replace("_", "-")


def printable(text: str, keep: str = "\t\n") -> str:
    """A text with its control characters, but those to keep, written out: names inside a file may hold any."""

    def written(found: re.Match) -> str:
        return found[0] if found[0] in keep else f"\\x{ord(found[0]):02x}"

    return re.sub(r"[\x00-\x1f\x7f-\x9f]", written, text)


def write(text: str) -> None:
    """Write to the end now: a full disk is an error here, and not one that nobody hears at exit."""
    try:
        sys.stdout.write(printable(text))
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is flushed at exit
        if isinstance(error, BrokenPipeError):
            raise
        raise LabError(f"standard output cannot be written: {error.strerror}") from None
