"""Run an experiment on this machine's GPU and store it with its environment."""

import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from tqdm.auto import tqdm

from labkernels.device import Gpu
from labkernels.device.environment import Monitor, describe, started
from labkernels.kernels.build import SANITIZER
from labkernels.protocols.experiment import Item
from labkernels.store import Store, new_run_id
from labkernels.store.provenance import digest
from labkernels.studies.experiments import experiment


def bar(items: Iterable[Item], what: str) -> Iterable[Item]:
    """A progress bar on stderr, with the time left."""
    return tqdm(items, desc=what, file=sys.stderr, leave=False)


def parameters_of(name: str, preset: str, overrides: Mapping[str, Any] | None = None) -> Any:
    """An experiment's parameter set: a preset, with some fields replaced.

    Raises:
        ValueError: unknown preset or field; the message lists those there are.
        TypeError: a field of another type than the preset's.
    """
    presets = experiment(name).presets
    if preset not in presets:
        raise ValueError(f"{name} has no preset {preset!r}; choose one of {', '.join(presets)}")
    chosen = presets[preset]
    known = {field.name for field in fields(chosen)}
    values = {}
    for key, value in (overrides or {}).items():
        if key not in known:
            raise ValueError(f"{name} has no parameter {key!r}; it has {', '.join(sorted(known))}")
        before = getattr(chosen, key)
        value = tuple(value) if isinstance(value, list) and isinstance(before, tuple) else value
        if type(value) is not type(before):
            raise TypeError(
                f"{name}: parameter {key} is {value!r}, a {type(value).__name__}; give a {type(before).__name__} "
                f"like {before!r}"
            )
        values[key] = value
    return replace(chosen, **values)


def run(
    name: str, preset: str = "quick", store: Store | None = None, overrides: Mapping[str, Any] | None = None
) -> str:
    """Measure and store; returns the run's id.

    Raises:
        NoGpu: there is no usable GPU here.
        ValueError, TypeError: see `parameters_of`; or the environment asks for kernels for sanitizers.
        WrongBytes, StalledWait: a kernel failed its check; nothing is stored.
    """
    parameters = parameters_of(name, preset, overrides)
    if os.environ.get(SANITIZER):
        raise ValueError(f"{SANITIZER} is set: its kernels are slower than those measured; unset it")
    store = store or Store()
    gpu = Gpu()
    record = {"run_id": new_run_id(), "started_utc": started(), "experiment": name, "preset": preset}
    began = time.monotonic()
    with Monitor() as monitor:
        result = experiment(name).measure(gpu, parameters, bar)
    record |= describe(gpu) | monitor.summary()
    record |= {
        "kernels_sha256": digest(kernel.ptx_sha256 for kernel in result.kernels),
        "parameters": asdict(parameters),
        "wall_s": round(time.monotonic() - began, 1),
    }
    return store.record(record, result.tables)
