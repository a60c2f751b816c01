"""One module per question: parameters, plan, measure."""

from importlib import import_module

from labkernels.experiments.base import Experiment

#: Experiment name -> module of this package that defines it as `EXPERIMENT`.
MODULES = {
    "latency": "latency",
    "issue": "issue",
    "throughput": "throughput",
    "row_shape": "row_shape",
    "l2_footprint": "l2_footprint",
    "paged": "paged",
    "fa3": "fa3",
    "gemm": "gemm",
    "gemm_traffic": "gemm_traffic",
    "multicast": "multicast",
    "handshake": "handshake",
    "residency": "residency",
    "cluster_latency": "cluster_latency",
    "cluster_counters": "cluster_counters",
    "dsm": "dsm",
    "broadcast": "broadcast",
}


def experiment(name: str) -> Experiment:
    """An experiment by its name; its module is imported only now.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name not in MODULES:
        raise ValueError(f"no experiment {name!r}; choose one of {', '.join(MODULES)}")
    return import_module(f"labkernels.experiments.{MODULES[name]}").EXPERIMENT
