"""What an experiment is: a question, the tables it fills, its parameter sets, how it is put to a GPU. Types only."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from labkernels.errors import BadArgument, LabError

if TYPE_CHECKING:
    from labkernels.device import Gpu

Item = TypeVar("Item")


class Progress(Protocol):
    """Wraps the items of a long loop, so that a bar with the time left can be drawn."""

    def __call__(self, items: Iterable[Item], what: str) -> Iterable[Item]:
        """The same items, one step of the bar each."""
        ...


def silent(items: Iterable[Item], what: str) -> Iterable[Item]:
    """No bar."""
    return items


class Measured(Protocol):
    """What was measured: a kernel, or a library of them, that knows the hash of the code it is made from."""

    @property
    def ptx_sha256(self) -> str:
        """Hash of the code."""
        ...


@dataclass
class Result:
    """Rows of each table that the experiment names (without run_id), and the kernels that produced them."""

    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    kernels: Sequence[Measured] = field(default_factory=list)


def needs(*required: Callable[[], object]) -> Callable[[], str | None]:
    """An experiment's `available`: each requirement, when called, raises a `LabError` that says what is missing."""

    def missing() -> str | None:
        for require in required:
            try:
                require()
            except LabError as error:
                return str(error)
        return None

    return missing


@dataclass(frozen=True)
class Experiment:
    """One question, put to a GPU.

    Attributes:
        name: as on the command line and in the run table; the name of its module.
        question: one line.
        tables: those it fills, in `data/datapackage.json`; the first is the main one.
        presets: parameter sets by name; `quick` and `full` at least. A parameter set is a frozen dataclass.
        measure: takes the GPU, a parameter set and a progress bar; checks correctness before it times.
        available: None where it can run, or in one sentence what this machine lacks.
    """

    name: str
    question: str
    tables: tuple[str, ...]
    presets: Mapping[str, Any]
    measure: "Callable[[Gpu, Any, Progress], Result]"
    available: Callable[[], str | None]

    def table(self, name: str | None = None) -> str:
        """The table of that name, or the main one.

        Raises:
            BadArgument: it fills no such table.
        """
        if name not in (None, *self.tables):
            raise BadArgument(f"{self.name} fills no table {name!r}; it fills {', '.join(self.tables)}")
        return name or self.tables[0]
