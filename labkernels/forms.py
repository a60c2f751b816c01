"""Forms: frozen dataclasses whose fields say what they mean and may be.

Their checks, the options of a command and the inputs of a page all follow from the fields.
"""

import operator
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from math import isfinite
from typing import Any, get_args, get_type_hints

from labkernels.errors import BadArgument


def entry(
    default: Any = MISSING,
    *,
    help: str,
    least: float | None = None,
    most: float | None = None,
    choices: tuple = (),
    power_of_two: bool = False,
    label: str = "",
    unit: str = "",
    group: str = "",
) -> Any:
    """A field of a form.

    Args:
        default: its value where none is given; without one it has to be given.
        help: what it means, without a full stop.
        least: smallest value.
        most: largest value.
        choices: all values there are.
        power_of_two: whether it has to be one.
        label: its name on a page, two or three words.
        unit: of its value.
        group: of fields that a page shows together.
    """
    limits = {"least": least, "most": most, "choices": choices, "power_of_two": power_of_two}
    return field(
        default=default, metadata={"help": help, **limits, "label": label, "unit": unit, "group": group}
    )


@dataclass(frozen=True)
class Entry:
    """What a form knows of one field; arguments as `entry`, `kind` is int, float, str or bool."""

    name: str
    kind: type
    default: Any
    help: str
    least: float | None
    most: float | None
    choices: tuple
    power_of_two: bool
    label: str
    unit: str
    group: str

    @property
    def required(self) -> bool:
        """Whether it has to be given."""
        return self.default is MISSING

    def read(self, text: str) -> Any:
        """The value that a text stands for.

        Raises:
            BadArgument: it is no number.
        """
        try:
            return self.kind(text)
        except ValueError:
            raise BadArgument(f"`{self.name}` is {_shown(text)}, not {self._article()}") from None

    def require(self, value: Any) -> None:
        """Refuse a value that the field cannot have.

        Raises:
            BadArgument: with the value, the limit and what to give.
        """
        if value is None and self.default is None:
            return
        said = f"`{self.name}` is {_shown(value)}"
        if self.choices:
            if value not in self.choices:
                raise BadArgument(f"{said}: give one of {', '.join(map(str, self.choices))}")
            return
        if not self._fits(value):
            raise BadArgument(f"{said}, not {self._article()}")
        if self.least is not None and value < self.least:
            raise BadArgument(f"{said}, below the limit of {self.least}: give {self.least} or more")
        if self.most is not None and value > self.most:
            raise BadArgument(f"{said}, above the limit of {self.most}: give {self.most} or less")
        if self.power_of_two and value & (value - 1):
            raise BadArgument(f"{said}, not a power of two: give {value & -value}, which divides it")

    def _fits(self, value: Any) -> bool:
        if self.kind in (bool, str) or isinstance(value, bool):
            return isinstance(value, self.kind)
        try:
            return isfinite(value) if self.kind is float else operator.index(value) is not None
        except (TypeError, OverflowError):
            return False

    def _article(self) -> str:
        return {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}[
            self.kind
        ]


@cache
def entries(form: type) -> tuple[Entry, ...]:
    """The fields of a form, in order."""
    hints = get_type_hints(form)
    kinds = {
        name: next((kind for kind in get_args(hint) if kind is not type(None)), hint)
        for name, hint in hints.items()
    }
    return tuple(Entry(one.name, kinds[one.name], one.default, **one.metadata) for one in fields(form))


def require(form: Any) -> None:
    """Refuse a form with a field that cannot be; for `__post_init__`.

    Raises:
        BadArgument: for the first such field.
    """
    for one in entries(type(form)):
        one.require(getattr(form, one.name))


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…{text[-1]}"
