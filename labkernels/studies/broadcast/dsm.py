"""How fast do CTAs of a cluster move bytes between their shared memories, by pattern, cluster and size of a copy?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from labkernels.device import Gpu
from labkernels.kernels.registry import KernelSpec, kernel
from labkernels.operand import KIB, MIB
from labkernels.protocols.exchange import PATTERNS, Exchange, ExchangeConfiguration
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.rounds import timed_rounds

THREADS = {"dsm_bulk": 64, "dsm_store": 32 + 256, "dsm_load": 256}
ALL_TO_ALL_SHARE_BYTES = {
    2: 16 * KIB,
    4: 16 * KIB,
    8: 8 * KIB,
    16: 4 * KIB,
}  # as many destination buffers as fit
SPECS = (
    kernel("dsm_bulk", "exchange"),
    kernel("dsm_store", "exchange", completion="async"),
    kernel("dsm_store", "exchange", completion="plain"),
    kernel("dsm_load", "exchange"),
)


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        clusters: CTAs of a cluster.
        patterns: who sends to whom.
        command_bytes: of one bulk copy, varied for pairs of a cluster of two.
        share_bytes: from one CTA to one other per lap; less where everybody sends to everybody.
        bytes_per_sender: moved by each sender in a timed launch.
        rounds: timed launches of each configuration.
    """

    clusters: tuple[int, ...] = (2, 4, 8, 16)
    patterns: tuple[str, ...] = PATTERNS
    command_bytes: tuple[int, ...] = (256, KIB, 4 * KIB, 16 * KIB)
    share_bytes: int = 16 * KIB
    bytes_per_sender: int = 4 * MIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters(),
    "full": Parameters(
        command_bytes=(64, 128, 256, 512, KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB),
        bytes_per_sender=8 * MIB,
        rounds=15,
    ),
}


def configurations(parameters: Parameters) -> Iterator[tuple[ExchangeConfiguration, int | None]]:
    """Exchanges with their number of clusters: one alone, or (None) as many as are resident."""
    p = parameters

    def exchange(
        spec: KernelSpec, cluster: int, pattern: str, command: int | None = None
    ) -> ExchangeConfiguration:
        share, stages = p.share_bytes, 4
        if pattern == "all_to_all":
            share, stages = ALL_TO_ALL_SHARE_BYTES[cluster], 2
        threads = THREADS[spec.mechanism]
        return ExchangeConfiguration(spec, cluster, pattern, share, command or share, stages, threads)

    for cluster, pattern, spec, alone in product(p.clusters, p.patterns, SPECS, (1, None)):
        yield exchange(spec, cluster, pattern), alone
    for command in p.command_bytes:
        if command < p.share_bytes:
            yield exchange(kernel("dsm_bulk", "exchange"), 2, "pair_one_way", command), 1


def _row(exchange: Exchange, laps: int, cycles: int) -> dict[str, Any]:
    c = exchange.configuration
    sent = laps * c.share_bytes * c.peers
    received = laps * c.stage_bytes
    return {
        "kernel": c.spec.name,
        "mechanism": c.spec.mechanism,
        "variant": str(dict(c.spec.constants).get("completion", "")),
        "pattern": c.pattern,
        "cluster": c.cluster,
        "clusters": exchange.clusters,
        "senders_per_tpc": exchange.senders_per_tpc,
        "share_bytes": c.share_bytes,
        "command_bytes": c.command_bytes if c.spec.mechanism == "dsm_bulk" else 16,
        "threads": c.threads,
        "bytes_sent": sent,
        "cycles": cycles,
        "sent_bytes_per_clock": round(sent / cycles, 3),
        "received_bytes_per_clock": round(received / cycles, 3),
    }


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Check every exchange, then time all of them in every round, in random order."""
    exchanges = []
    for configuration, clusters in progress(list(configurations(parameters)), "check"):
        exchange = Exchange(gpu, configuration, clusters)
        exchange.check()
        exchanges.append(exchange)

    def once(exchange: Exchange) -> dict[str, Any]:
        c = exchange.configuration
        laps = parameters.bytes_per_sender // (c.share_bytes * c.peers)
        exchange.cycles(4)
        return _row(exchange, laps, exchange.cycles(laps))

    rows = timed_rounds(exchanges, once, parameters.rounds, progress)
    for exchange in exchanges:
        exchange.close()
    return Result({"dsm_bandwidth": rows}, [exchange.kernel for exchange in exchanges])


EXPERIMENT = Experiment(
    "dsm",
    "How fast do CTAs of a cluster move bytes between their shared memories?",
    ("dsm_bandwidth",),
    PRESETS,
    measure,
    needs(Gpu),
)
