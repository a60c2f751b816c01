"""What every chapter does first: check its parameters, measure if asked, find the rows to show."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from labkernels import charts
from labkernels.errors import LabError
from labkernels.store import RUNS, Store, select

# What IPython puts into a fresh namespace.
_OF_IPYTHON = {"In", "Out", "exit", "quit", "open", "get_ipython"}


class ParameterError(LabError, ValueError):
    """A papermill parameter is unknown or has the wrong type; the message names it."""


def check_parameters(namespace: Mapping[str, Any], imported: Iterable[str]) -> dict[str, Any]:
    """The chapter's parameters, checked against the annotations of its parameters cell.

    Args:
        namespace: `globals()` of the notebook, before anything but imports and parameters has been executed.
        imported: names that the notebook imported so far.

    Raises:
        ParameterError: an injected name that the parameters cell does not have, or a value of another type.
    """
    known = namespace["__annotations__"]
    given = {n for n in namespace if not n.startswith("_")} - _OF_IPYTHON - set(imported)
    if unknown := sorted(given - set(known)):
        raise ParameterError(f"unknown parameter {', '.join(unknown)}; this chapter has {', '.join(known)}")
    for name, kind in known.items():
        value = namespace[name]
        if type(value) is not kind:
            raise ParameterError(
                f"parameter {name} is {value!r}, a {type(value).__name__}; give a {kind.__name__}"
            )
    return {name: namespace[name] for name in known}


class Chapter:
    """The rows a chapter shows: stored ones, and the reader's own when it measured.

    Args:
        namespace: `globals()` of the notebook; its parameters are `measure`, `preset`, `data_dir` and `gpu`.
        experiments: what the chapter measures; each experiment's table has the name given.

    Raises:
        ParameterError: see `check_parameters`.
        NoGpu: `measure` is set and there is no usable GPU; the stored chapter needs none.
    """

    def __init__(self, namespace: Mapping[str, Any], experiments: Mapping[str, str] | None = None) -> None:
        parameters = check_parameters(namespace, imported={"Chapter"})
        charts.enable()
        self.tables = dict(experiments or {})
        self.store = Store(Path(parameters["data_dir"])) if parameters.get("data_dir") else Store()
        self.published_gpu = parameters.get("gpu") or self._best_covered_gpu()
        self.own: dict[str, str] = {}
        if parameters.get("measure"):
            from labkernels.studies.run import run

            self.own = {name: run(name, parameters["preset"], self.store) for name in self.tables}

    def _best_covered_gpu(self) -> str | None:
        """The GPU with full runs of most of the chapter's experiments; of several, that with the newest rows."""
        runs = self.store.read(RUNS)
        full = runs[runs["preset"].eq("full") & runs["experiment"].isin(list(self.tables))]
        covered = full.groupby("gpu_name")["experiment"].nunique()
        names = select.gpus(self.store)
        return max(reversed(names), key=lambda name: covered.get(name, 0), default=None)

    def stored(self, experiment: str) -> pd.DataFrame:
        """Rows of the newest full run of the shown GPU, the reader's own run left out.

        Raises:
            LookupError: there are none; the message says how to measure.
        """
        runs = self.store.read(RUNS)
        runs = runs[runs["experiment"].eq(experiment) & runs["gpu_name"].eq(self.published_gpu)]
        runs = runs[~runs["run_id"].isin(self.own.values())]
        full = runs[runs["preset"].eq("full")]
        chosen = (full if len(full) else runs)["run_id"]
        if chosen.empty:
            raise LookupError(
                f"no rows of {experiment} for {self.published_gpu}: run python -m labkernels measure {experiment}"
            )
        return select.rows(self.store, self.tables[experiment], [str(chosen.max())])

    def measured(self, experiment: str) -> pd.DataFrame:
        """Rows that this execution measured; empty in stored mode."""
        run_ids = [self.own[experiment]] if experiment in self.own else []
        return select.rows(self.store, self.tables[experiment], run_ids)

    def machine(self) -> pd.DataFrame:
        """The run rows behind the chapter, one line each, for its last section."""
        runs = self.store.read(RUNS)
        shown = set(self.own.values())
        for experiment in self.tables:
            shown |= set(self.stored(experiment)["run_id"])
        columns = ["run_id", "experiment", "preset", "gpu_name", "driver_version", "toolkit_version",
                   "sm_clock_mhz_median", "power_w_max", "temperature_c_max", "throttle_reasons", "wall_s"]  # fmt: skip
        return runs[runs["run_id"].isin(shown)][columns].set_index("run_id")
