"""What every chapter does: check its parameters, find the rows to show, measure if asked, give the text its numbers."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from myst_nb import glue

from labkernels import charts
from labkernels.book import MEASURED, NOT_HERE
from labkernels.book.verdicts import verdict_table
from labkernels.charts.tables import Table
from labkernels.errors import LabError, NotInstalled, NotMeasured
from labkernels.model import advisor
from labkernels.store import RUNS, Store
from labkernels.studies import select
from labkernels.studies.experiments import experiment as named
from labkernels.studies.rules import judge
from labkernels.studies.stats import having

# What IPython puts into a fresh namespace.
_OF_IPYTHON = {"In", "Out", "exit", "quit", "open", "get_ipython"}


class ParameterError(LabError, ValueError):
    """A papermill parameter is unknown, or its value is none of those it may have; the message names it."""


def check_parameters(namespace: Mapping[str, Any], imported: Iterable[str]) -> dict[str, Any]:
    """The chapter's parameters, checked against the annotations of its parameters cell.

    Args:
        namespace: `globals()` of the notebook, before anything but imports and parameters has been executed.
        imported: names that the notebook imported so far.

    Raises:
        ParameterError: an injected name that the parameters cell does not have, or a value of another type.
    """
    # From Python 3.14 on a module's annotations are a function, asked for their values by 1.
    known = namespace["__annotations__"] if "__annotations__" in namespace else namespace["__annotate__"](1)
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
    """The rows a chapter shows: stored ones, and the reader's own once it has measured.

    Making one reads the run table and nothing else; only `measure` needs a GPU and writes.

    Args:
        namespace: `globals()` of the notebook; of its parameters `preset`, `data_dir` and `gpu` are looked at.
        experiments: what the chapter measures, and whose runs it lists at its end.

    Attributes:
        gpu: GPU whose stored rows are shown: the one asked for, else that with most full runs of these experiments.
        store: where rows are read, and the reader's own are written.
        said: what the text was given, for titles and captions.

    Raises:
        ParameterError: see `check_parameters`; or a preset, a GPU or a folder that does not exist, with those that do.
    """

    def __init__(self, namespace: Mapping[str, Any], *experiments: str) -> None:
        parameters = check_parameters(namespace, imported={"Chapter"})
        self.experiments = experiments
        self._preset = parameters.get("preset", "quick")
        for name in experiments:
            if self._preset not in (presets := named(name).presets):
                raise ParameterError(
                    f"parameter preset is {self._preset!r}, which {name} does not have; give {' or '.join(presets)}"
                )
        self.store = Store(Path(parameters["data_dir"])) if parameters.get("data_dir") else Store()
        self.gpu = self._shown(parameters["gpu"]) if "gpu" in parameters else ""
        self.said: dict[str, str] = {}
        self._own: dict[str, str] = {}
        self._tell_cards()

    def _tell_cards(self) -> None:
        runs = self.store.read(RUNS).set_index("run_id")
        charts.tell_cards(runs["gpu_uuid_hash"].fillna(runs["gpu_name"]).to_dict())

    def _shown(self, wanted: str) -> str:
        """The wanted GPU; of none, that with most full experiments, the chapter's own before the others.

        Of several, one that the model was fitted to, then the newest.
        """
        names = select.gpus(self.store)
        if not names:
            raise ParameterError(
                f"parameter data_dir: {self.store.root} holds no runs; give a folder that does, such as a copy of "
                "the book's data/, or leave it empty for the book's own"
            )
        if wanted and wanted not in names:
            raise ParameterError(
                f"parameter gpu is {wanted!r}, of which there are no runs; give {' or '.join(names)}"
            )
        full = (
            having(self.store.read(RUNS), preset="full").groupby("gpu_name")["experiment"].agg(set).to_dict()
        )
        fitted = advisor.gpus(self.store.root)

        def rank(name: str) -> tuple[int, int, bool]:
            covered = full.get(name, set())
            return len(covered & {*self.experiments}), len(covered), name in fitted

        return wanted or max(reversed(names), key=rank)

    def measure(self, *experiments: str) -> None:
        """Measure on this machine's GPU, all of the chapter's experiments if none is named, and store the rows.

        An experiment that this machine lacks something for is left out, and a line says so. In a batch, one that
        another chapter has just measured is taken from there.

        Raises:
            NoGpu: there is no usable GPU; the stored chapter needs none.
            NotInstalled: something is missing for every one of them.
        """
        from labkernels.studies.run import run

        missing, measured = {}, json.loads(os.environ.get(MEASURED, "{}"))
        for name in experiments or self.experiments:
            try:
                self._own[name] = measured.get(name) or run(name, self._preset, self.store)
            except NotInstalled as lacks:
                missing[name] = str(lacks)
        self._tell_cards()
        if missing and not self._own:
            raise NotInstalled("; ".join(dict.fromkeys(missing.values())))
        for name, why in missing.items():
            print(f"{NOT_HERE}{name}: {' '.join(why.split())}")

    def _stored_run(self, experiment: str, preset: str | None = None) -> str | None:
        return select.latest_run(self.store, experiment, self.gpu, without=self._own.values(), preset=preset)

    def stored(
        self, experiment: str, table: str | None = None, *, preset: str | None = None, required: bool = True
    ) -> pd.DataFrame:
        """Rows of the newest full run of the shown GPU, the reader's own run left out.

        Args:
            experiment: whose; the chapter need not measure it.
            table: which of its tables; by default the main one.
            preset: of which preset, where it is not the fullest.
            required: whether there have to be any.

        Raises:
            NotMeasured: there are none; the message says how to measure.
        """
        run_id = self._stored_run(experiment, preset)
        if required and run_id is None:
            command = f"python -m labkernels measure {experiment}" + (f" --preset {preset}" if preset else "")
            raise NotMeasured(f"no rows of {experiment} for {self.gpu}: run {command}")
        return self._rows(experiment, table, run_id)

    def measured(self, experiment: str) -> pd.DataFrame:
        """Rows that this execution measured; none in stored mode."""
        return self._rows(experiment, None, self._own.get(experiment))

    def _rows(self, experiment: str, table: str | None, run_id: str | None) -> pd.DataFrame:
        return select.rows(self.store, experiment, [run_id] if run_id else [], table=table)

    def say(self, name: str, value: str | float) -> None:
        """Put a value into the text, at its {glue:text}`name`: words as they are, a number rounded to a whole."""
        self.said[name] = value if isinstance(value, str) else f"{value:,.0f}"
        glue(name, self.said[name], display=False)

    def say_all(self, values: Mapping[str, str | float]) -> None:
        """Put several values into the text, each under its name."""
        for name, value in values.items():
            self.say(name, value)

    def rules(self, chapter: str) -> Table:
        """The rules of a chapter, judged on the newest rows of the shown GPU, the reader's own run left out."""
        return verdict_table(judge(self.store, self.gpu, chapter, without=self._own.values()))

    def stored_runs(self) -> pd.DataFrame:
        """The run rows behind what is shown as stored, one line for each experiment that has one."""
        run_ids = {self._stored_run(name) for name in self.experiments}
        runs = self.store.read(RUNS)
        return runs[runs["run_id"].isin(run_ids)]

    def machine(self) -> Table:
        """The runs behind the chapter, the reader's own too, for its last section."""
        runs = self.store.read(RUNS)
        shown = runs[runs["run_id"].isin({*self._own.values(), *self.stored_runs()["run_id"]})]
        table = pd.DataFrame(
            {
                "experiment": shown["experiment"],
                "run": shown["run_id"],
                "preset": shown["preset"],
                "GPU": shown["gpu_name"],
                "driver": shown["driver_version"],
                "SM clock, MHz": [_whole(value) for value in shown["sm_clock_mhz_median"]],
                "most power, W": [_whole(value) for value in shown["power_w_max"]],
                "throttled": shown["throttle_reasons"],
            }
        )
        return Table(
            table, description="The runs behind this chapter; the page *The machine* has the rest of each"
        )


def _whole(value: float) -> str:
    return "" if pd.isna(value) else f"{value:,.0f}"
