"""Which experiments there are: every module of a study that defines `EXPERIMENT`, under the module's name."""

from functools import cache
from importlib import import_module
from pathlib import Path

from labkernels.errors import LabError
from labkernels.protocols.experiment import Experiment

STUDIES = Path(__file__).parent


class UnknownExperiment(LabError, ValueError):
    """There is no experiment of that name; the message lists those there are."""


@cache
def studies() -> dict[str, str]:
    """The experiments by name, in order, with the study each belongs to; no module is imported for it."""
    files = sorted(STUDIES.glob("*/*.py"))
    return {file.stem: file.parent.name for file in files if "\nEXPERIMENT = " in file.read_text("utf8")}


def experiment(name: str) -> Experiment:
    """An experiment by its name; its module is imported only now.

    Raises:
        UnknownExperiment: there is none.
    """
    if name not in studies():
        raise UnknownExperiment(f"no experiment {name!r}; choose one of {', '.join(studies())}")
    return import_module(f"labkernels.studies.{studies()[name]}.{name}").EXPERIMENT
