"""Experiments that count: the same launches once under Nsight Compute in a process of their own, and once here.

Run as `python -m labkernels.protocols.counted MODULE PARAMETERS`, it makes the launches of an experiment's module,
which defines `EXPERIMENT` and `ready`, for Nsight Compute to count.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any

from labkernels.device import Gpu, counters
from labkernels.protocols.experiment import Experiment, Progress, Result, needs

#: Of a stream: bytes that leave memory, L2, the request coalescer and arrive in SMs, and the cycles they had.
STREAM_COUNTERS = {
    **{
        name: column
        for name, column in counters.MEMORY_PATH.items()
        if "multicast" not in name and "programmatic" not in name
    },
    "lts__cycles_elapsed.max": "l2_cycles",
    "lts__t_sectors_op_read.sum.peak_sustained": "l2_peak_bytes_per_l2_cycle",
    "l1tex__m_xbar2l1tex_read_bytes.sum.peak_sustained": "sm_ingest_peak_bytes_per_cycle",
}

#: Kernels bound to their arguments, each with the tiles to launch, its data where they are to be.
Ready = Callable[[Gpu, Any], Iterator[tuple[Any, int]]]


def counted_experiment(
    module: str,
    name: str,
    question: str,
    presets: Mapping[str, Any],
    metrics: Mapping[str, str],
    ready: Ready,
) -> Experiment:
    """What is `ready`, counted in a process of its own; described and checked here. The table has the name.

    `module` is the `__name__` of that which defines it; `metrics` are Nsight Compute's, each with its column.
    """

    def measure(gpu: Gpu, parameters: Any, progress: Progress) -> Result:
        target = [sys.executable, "-m", __name__, module, json.dumps(asdict(parameters))]
        counted = counters.count(target, metrics)
        rows, kernels = [], []
        here = launched(ready(gpu, parameters))
        for (one, tiles), values in zip(here, progress(counted, "count"), strict=True):
            one.check_sums(tiles)
            rows.append({**one.row(tiles), **values})
            kernels.append(one.kernel)
        return Result({name: rows}, kernels)

    return Experiment(name, question, (name,), presets, measure, needs(Gpu, counters.ncu))


def launched(bound: Iterator[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
    """Each after one launch, which is counted under Nsight Compute."""
    for one, tiles in bound:
        one.gpu.sync()
        counters.begin()
        one.launch(tiles)
        one.require_arrived()
        counters.end()
        yield one, tiles
        one.close()


def given(experiment: Experiment, text: str) -> Any:
    """Parameters from JSON, of the class of the experiment's presets; lists become tuples."""
    made = type(next(iter(experiment.presets.values())))
    values = json.loads(text).items()
    return made(**{key: tuple(value) if isinstance(value, list) else value for key, value in values})


if __name__ == "__main__":
    named = import_module(sys.argv[1])
    for _ in launched(named.ready(Gpu(), given(named.EXPERIMENT, sys.argv[2]))):
        pass
