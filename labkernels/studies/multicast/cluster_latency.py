"""How long does one transfer inside a cluster take: a DSM load, a push, a multicast and its arrival in each CTA?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from labkernels.device import Gpu
from labkernels.kernels.registry import KernelSpec, kernel
from labkernels.operand import KIB, MIB
from labkernels.protocols.exchange import Arrivals, arrivals, pair_cycles
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.memory import Memory
from labkernels.studies.stats import summarize

WARM_UP_STEPS = 8
STORE_BYTES = 16


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        clusters: CTAs of a cluster.
        transfer_bytes: of a bulk push, and of a multicast.
        steps: transfers of one launch.
        askers: ranks whose loads from every other CTA are measured.
        rounds: launches of each measurement.
    """

    clusters: tuple[int, ...] = (2, 4, 8, 16)
    transfer_bytes: tuple[int, ...] = (256, 2 * KIB, 16 * KIB)
    steps: int = 128
    askers: int = 1
    rounds: int = 9


PRESETS = {
    "quick": Parameters(clusters=(2, 4, 8, 16)),
    "full": Parameters(
        transfer_bytes=(128, 256, 512, KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB),
        askers=16,
        steps=256,
    ),
}


def _row(spec: KernelSpec, protocol: str, where: dict[str, int], cycles: np.ndarray) -> dict[str, Any]:
    return {
        "kernel": spec.name,
        "mechanism": spec.mechanism,
        "protocol": protocol,
        **where,
        **summarize(cycles).cycles(),
    }


def loads_and_pushes(gpu: Gpu, p: Parameters, progress: Progress) -> Iterator[dict[str, Any]]:
    """Loads between all pairs, then pushes by size: half of a round trip."""
    spec = kernel("dsm_load", "pair")
    pairs = [(c, a, b) for c in p.clusters for a in range(min(c, p.askers)) for b in range(c) if a != b]
    for cluster, asker, answerer in progress(pairs, "loads"):
        seen = [pair_cycles(gpu, spec, cluster, asker, answerer, 16, p.steps) for _ in range(p.rounds)]
        where = dict(cluster=cluster, destinations=1, asker=asker, answerer=answerer, transfer_bytes=4)
        yield _row(spec, "load", where, np.concatenate([cycles[WARM_UP_STEPS:] for cycles in seen]))
    pushes = [("dsm_store", STORE_BYTES), *(("dsm_bulk", size) for size in (STORE_BYTES, *p.transfer_bytes))]
    for cluster, (mechanism, size) in progress(list(product(p.clusters, pushes)), "pushes"):
        spec = kernel(mechanism, "pair")
        seen = [pair_cycles(gpu, spec, cluster, 0, 1, size, p.steps) / 2 for _ in range(p.rounds)]
        where = dict(cluster=cluster, destinations=1, asker=0, answerer=1, transfer_bytes=size)
        yield _row(spec, "push", where, np.concatenate([cycles[WARM_UP_STEPS:] for cycles in seen]))


def multicasts(gpu: Gpu, p: Parameters, progress: Progress) -> Iterator[dict[str, Any]]:
    """One copy from L2: to the sender alone, then to all CTAs by multicast; its arrival in each, and their spread."""
    memory = Memory(gpu, 16 * MIB)
    for cluster, size in progress(list(product(p.clusters, p.transfer_bytes)), "arrivals"):
        everyone = (1 << cluster) - 1
        for spec, mask in (
            (kernel("tma_tile", "arrival"), 1),
            (kernel("tma_multicast", "arrival"), 1),
            (kernel("tma_multicast", "arrival"), everyone),
        ):
            seen: list[Arrivals] = [
                arrivals(gpu, spec, cluster, mask, size, p.steps, memory.buffer) for _ in range(p.rounds)
            ]
            cycles = np.concatenate([one.cycles[WARM_UP_STEPS:] for one in seen])
            where = dict(cluster=cluster, destinations=mask.bit_count(), asker=0, transfer_bytes=size)
            for rank in range(cluster):
                if mask >> rank & 1:
                    yield _row(spec, "arrival", where | {"answerer": rank}, cycles[:, rank])
            if mask == everyone:
                spread = cycles.max(axis=1) - cycles.min(axis=1)
                yield _row(spec, "spread", where | {"answerer": 0}, spread)
        if size == min(p.transfer_bytes):
            answers = np.concatenate([one.answer_cycles.ravel() for one in seen]) / 2
            where = dict(cluster=cluster, destinations=1, asker=0, answerer=1, transfer_bytes=8)
            yield _row(spec, "remote_arrive", where, answers)
    memory.close()


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Measure every pair, size and cluster; see `Parameters`."""
    from labkernels.kernels.build import assemble

    rows = [*loads_and_pushes(gpu, parameters, progress), *multicasts(gpu, parameters, progress)]
    specs = [kernel(name, "pair") for name in ("dsm_load", "dsm_store", "dsm_bulk")]
    specs += [kernel(name, "arrival") for name in ("tma_tile", "tma_multicast")]
    return Result({"cluster_latency": rows}, [assemble(spec, gpu.facts.arch) for spec in specs])


EXPERIMENT = Experiment(
    "cluster_latency",
    "How long does one transfer inside a cluster take?",
    ("cluster_latency",),
    PRESETS,
    measure,
    needs(Gpu),
)
