"""When is one transfer visible in each CTA of a cluster: a copy, a multicast, a push, a store, an arrival?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from labkernels.device import Gpu
from labkernels.kernels.build import assemble
from labkernels.kernels.registry import KernelSpec, kernel
from labkernels.operand import KIB, MIB
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.memory import Memory
from labkernels.protocols.rounds import interleaved
from labkernels.protocols.visibility import Sighting, sight

WARM_UP_STEPS = 8
STORE_BYTES = 16
COMPLETIONS = ("async", "word", "arrival", "release")


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        clusters: CTAs of a cluster.
        transfer_bytes: of a copy from L2, unicast or multicast.
        push_bytes: of a bulk push.
        receivers: CTAs, from the second on, to which pushes and stores of the first are measured.
        steps: transfers of one launch.
        pollers: warps of a CTA that watch.
        rounds: launches of each transfer.
    """

    clusters: tuple[int, ...] = (2, 8, 16)
    transfer_bytes: tuple[int, ...] = (128, 2 * KIB, 16 * KIB)
    push_bytes: tuple[int, ...] = (16, 2 * KIB)
    receivers: int = 1
    steps: int = 64
    pollers: int = 8
    rounds: int = 9


PRESETS = {
    "quick": Parameters(),
    "full": Parameters(
        clusters=(2, 4, 8, 16),
        transfer_bytes=tuple(128 << power for power in range(9)),
        push_bytes=(16, 128, KIB, 4 * KIB, 16 * KIB),
        receivers=15,
        steps=128,
    ),
}


class Transfer(NamedTuple):
    """One kind of transfer, from the first CTA or of each CTA for itself, to the CTAs of `mask`."""

    spec: KernelSpec
    cluster: int
    mask: int
    transfer_bytes: int


def transfers(p: Parameters) -> Iterator[Transfer]:
    """All that is measured."""
    tile, multicast = kernel("tma_tile", "visibility"), kernel("tma_multicast", "visibility")
    for cluster in p.clusters:
        everyone = (1 << cluster) - 1
        for nbytes, spec, mask in product(p.transfer_bytes, (tile, multicast), (1, everyone)):
            yield Transfer(spec, cluster, mask, nbytes)
        for receiver in range(1, min(cluster, p.receivers + 1)):
            for completion in COMPLETIONS:
                spec = kernel("dsm_store", "visibility", completion=completion)
                yield Transfer(spec, cluster, 1 << receiver, STORE_BYTES)
            for nbytes in p.push_bytes:
                yield Transfer(kernel("dsm_bulk", "visibility"), cluster, 1 << receiver, nbytes)


def rows(transfer: Transfer, seen: Sighting, p: Parameters, number: int) -> Iterator[dict[str, Any]]:
    """A row for each CTA that receives; of several, also of the first, the last, and what is between them."""
    spec, cluster, mask, nbytes = transfer
    receivers = [rank for rank in range(cluster) if mask >> rank & 1]
    cycles = seen.cycles[WARM_UP_STEPS:, receivers]
    grain = seen.grain_cycles[WARM_UP_STEPS:, receivers]
    quantities = [("arrival", rank, cycles[:, at], grain[:, at]) for at, rank in enumerate(receivers)]
    if len(receivers) > 1:
        first, last = cycles.min(axis=1), cycles.max(axis=1)
        quantities += [("first", 0, first, grain), ("last", 0, last, grain), ("skew", 0, last - first, grain)]
    for quantity, receiver, values, width in quantities:
        low, median, high = np.quantile(values, (0.05, 0.5, 0.95))
        yield {
            "kernel": spec.name,
            "mechanism": spec.mechanism,
            "completion": str(dict(spec.constants).get("completion", "bytes")),
            "quantity": quantity,
            "cluster": cluster,
            "destinations": len(receivers),
            "receiver": receiver,
            "receiver_sm": int(seen.sms[receiver]),
            "transfer_bytes": nbytes,
            "pollers": p.pollers,
            "round": number,
            "n": len(values),
            "cycles_p05": round(float(low), 1),
            "cycles_median": round(float(median), 1),
            "cycles_p95": round(float(high), 1),
            "grain_cycles": round(float(np.nanmedian(width)), 1),
            "clock_error_cycles": round(seen.clock_error_cycles, 2),
        }


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Measure every transfer in every round, in random order; the bytes of each launch are checked."""
    p, chosen = parameters, list(transfers(parameters))
    memory = Memory(gpu, max(16 * MIB, p.steps * max(p.transfer_bytes)))
    found = []
    for number, turn in enumerate(progress(interleaved(chosen, p.rounds), "rounds")):
        for transfer in turn:
            seen = sight(gpu, *transfer, p.steps, memory.buffer, memory.seed, p.pollers)
            found.extend(rows(transfer, seen, p, number))
    memory.close()
    specs = dict.fromkeys(transfer.spec for transfer in chosen)
    return Result({"visibility": found}, [assemble(spec, gpu.facts.arch) for spec in specs])


EXPERIMENT = Experiment(
    "visibility",
    "When is one transfer visible in each CTA of a cluster?",
    ("visibility",),
    PRESETS,
    measure,
    needs(Gpu),
)
