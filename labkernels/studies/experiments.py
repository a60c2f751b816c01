"""One module per question: parameters, plan, measure."""

from importlib import import_module

from labkernels.protocols.experiment import Experiment

#: Experiments and the study each belongs to: `labkernels/studies/<study>/<experiment>.py` defines `EXPERIMENT`.
MODULES = {
    "latency": "latency",
    "issue": "latency",
    "throughput": "crossover",
    "row_shape": "crossover",
    "l2_footprint": "crossover",
    "stream_counters": "crossover",
    "paged": "paged",
    "fa3": "paged",
    "gemm": "gemm",
    "gemm_traffic": "gemm",
    "multicast": "multicast",
    "handshake": "multicast",
    "crowding": "multicast",
    "handover": "broadcast",
    "residency": "multicast",
    "cluster_latency": "multicast",
    "cluster_counters": "multicast",
    "dsm": "broadcast",
    "broadcast": "broadcast",
    "fa3_fwd": "paged",
}


def experiment(name: str) -> Experiment:
    """An experiment by its name; its module is imported only now.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name not in MODULES:
        raise ValueError(f"no experiment {name!r}; choose one of {', '.join(MODULES)}")
    return import_module(f"labkernels.studies.{MODULES[name]}.{name}").EXPERIMENT
