"""Run an experiment on this machine's GPU and store it with its environment."""

import os
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from labkernels.device import Gpu
from labkernels.device.board import Monitor
from labkernels.device.environment import describe
from labkernels.errors import LabError, NoGpu, NotInstalled
from labkernels.kernels.build import SANITIZER
from labkernels.protocols.progress import track
from labkernels.store import Store, new_run_id
from labkernels.store.provenance import digest
from labkernels.studies.experiments import experiment, studies


class BadParameter(LabError, ValueError):
    """There is no such preset or parameter, or its value has another type; the message says what there is."""


class WrongTables(LabError):
    """An experiment did not fill the tables it names; nothing is stored."""


class Outcome(NamedTuple):
    """What became of an experiment: its run's id, or the sentence that says why there is none."""

    experiment: str
    run_id: str | None = None
    skipped: str | None = None
    failed: str | None = None


def parameters_of(name: str, preset: str, overrides: Mapping[str, Any] | None = None) -> Any:
    """An experiment's parameter set: a preset, with some fields replaced.

    Raises:
        UnknownExperiment: no such experiment.
        BadParameter: unknown preset or field, or a value of another type than the preset's.
    """
    presets = experiment(name).presets
    if preset not in presets:
        raise BadParameter(f"{name} has no preset {preset!r}; choose one of {', '.join(presets)}")
    chosen = presets[preset]
    known = {field.name for field in fields(chosen)}
    values = {}
    for key, value in (overrides or {}).items():
        if key not in known:
            raise BadParameter(f"{name} has no parameter {key!r}; it has {', '.join(sorted(known))}")
        before = getattr(chosen, key)
        value = _tuples(value)
        if not _alike(value, before):
            raise BadParameter(
                f"{name}: parameter {key} is {value!r}; give a {type(before).__name__} like {before!r}"
            )
        values[key] = value
    return replace(chosen, **values)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _alike(value: Any, before: Any) -> bool:
    """Whether a value has the type of another, and a tuple items of the types that the other's have."""
    if type(value) is not type(before) or not isinstance(before, tuple) or not before:
        return type(value) is type(before)
    if len({type(item) for item in before}) == 1:
        return all(_alike(item, before[0]) for item in value)
    return len(value) == len(before) and all(map(_alike, value, before))


def run(
    name: str, preset: str = "quick", store: Store | None = None, overrides: Mapping[str, Any] | None = None
) -> str:
    """Measure and store; returns the run's id.

    Raises:
        UnknownExperiment, BadParameter: see `parameters_of`.
        NoGpu: there is no usable GPU here.
        NotInstalled: something else that the experiment needs is missing here.
        WrongTables: the experiment did not fill the tables that it names.
        LabError: the environment asks for kernels for sanitizers; or a kernel failed its check. Nothing is stored.
    """
    one, parameters = experiment(name), parameters_of(name, preset, overrides)
    gpu = _gpu()
    store = store or Store()
    if missing := one.available():
        raise NotInstalled(missing)
    started = datetime.now(UTC)
    record = {"run_id": new_run_id(started), "started_utc": started, "experiment": name, "preset": preset}
    record |= describe(gpu)  # before minutes of measuring, since this can fail
    began = time.monotonic()
    with Monitor(gpu.board) as monitor:
        result = one.measure(gpu, parameters, track)
    if set(result.tables) != set(one.tables):
        raise WrongTables(
            f"{name} filled {', '.join(sorted(result.tables))}, but names {', '.join(sorted(one.tables))}: "
            "make its `tables` and its Result agree"
        )
    record |= monitor.summary() | {
        "kernels_sha256": digest(kernel.ptx_sha256 for kernel in result.kernels),
        "parameters": asdict(parameters),
        "wall_s": round(time.monotonic() - began, 1),
    }
    return store.record(record, result.tables)


def _gpu() -> Gpu:
    if os.environ.get(SANITIZER):
        raise LabError(f"{SANITIZER} is set: its kernels are slower than those measured; unset it")
    return Gpu()


def run_all(
    preset: str = "quick", store: Store | None = None, overrides: Mapping[str, Any] | None = None
) -> Iterator[Outcome]:
    """Measure every experiment that can run here, one after the other; one that fails does not end the rest.

    Raises:
        BadParameter: an experiment has no such preset or parameter; nothing is measured.
        NoGpu, LabError: no experiment can run here; see `run`.
    """
    for name in studies():
        parameters_of(name, preset, overrides)
    _gpu()
    for name in studies():
        try:
            yield Outcome(name, run_id=run(name, preset, store, overrides))
        except (NoGpu, NotInstalled) as missing:
            yield Outcome(name, skipped=str(missing))
        except LabError as error:
            yield Outcome(name, failed=str(error))
        except Exception as bug:
            traceback.print_exc()
            yield Outcome(name, failed=f"{type(bug).__name__}: {bug}")
