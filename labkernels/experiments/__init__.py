"""One module per question: parameters, plan, measure."""

from importlib import import_module

from labkernels.experiments.base import Experiment

#: Experiments, each a module of this package that defines `EXPERIMENT`.
MODULES = (
    "latency",
    "issue",
    "throughput",
    "row_shape",
    "l2_footprint",
    "stream_counters",
    "paged",
    "fa3",
    "gemm",
    "gemm_traffic",
    "multicast",
    "handshake",
    "crowding",
    "handover",
    "residency",
    "cluster_latency",
    "cluster_counters",
    "dsm",
    "broadcast",
    "fa3_fwd",
)


def experiment(name: str) -> Experiment:
    """An experiment by its name; its module is imported only now.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name not in MODULES:
        raise ValueError(f"no experiment {name!r}; choose one of {', '.join(MODULES)}")
    return import_module(f"labkernels.experiments.{name}").EXPERIMENT
