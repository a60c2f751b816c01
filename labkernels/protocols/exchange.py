"""Traffic between the CTAs of a cluster: exchanges with many transfers under way, and single ones."""

from dataclasses import dataclass

import numpy as np

from labkernels.device import Buffer, Gpu, Statuses
from labkernels.device.tensor_map import place
from labkernels.errors import BadArgument
from labkernels.kernels.registry import KernelSpec
from labkernels.kernels.render import declared
from labkernels.operand import WARP, Pipeline, boxed_operand
from labkernels.protocols.cluster_launch import ClusterLaunch
from labkernels.protocols.cluster_pipeline import HASH
from labkernels.protocols.stream import POISON, STAGE_ALIGNMENT_BYTES, WrongBytes

EXCHANGES = 32  # of arrivals, to align two SMs' clocks
PATTERNS = ("pair_one_way", "pair_two_way", "ring", "all_to_all", "one_to_all")


@dataclass(frozen=True)
class ExchangeConfiguration:
    """CTAs of a cluster that copy their source buffers into each other's destination buffers.

    Attributes:
        spec: a kernel of protocol `exchange`.
        cluster: CTAs of a cluster.
        pattern: one of `PATTERNS`; who sends to whom.
        share_bytes: from one CTA to one other per lap.
        command_bytes: of one copy of the copy engine.
        stages: laps that may be under way.
        threads: of a CTA.
    """

    spec: KernelSpec
    cluster: int
    pattern: str
    share_bytes: int
    command_bytes: int
    stages: int
    threads: int

    @property
    def peers(self) -> int:
        """CTAs that a sender sends to."""
        return self.cluster - 1 if self.pattern in ("all_to_all", "one_to_all") else 1

    @property
    def stage_bytes(self) -> int:
        """What one CTA receives per lap, at most."""
        return self.share_bytes * (self.cluster - 1 if self.pattern == "all_to_all" else 1)

    def sources(self, rank: int) -> list[int]:
        """Ranks whose shares lie in this CTA's destination buffer, in their order there."""
        before, n = lambda back: (rank - back) % self.cluster, self.cluster
        return {
            "pair_one_way": [before(1)] if rank % 2 else [],
            "pair_two_way": [rank ^ 1],
            "ring": [before(1)],
            "all_to_all": [before(back) for back in range(1, n)],
            "one_to_all": [0] if rank else [],
        }[self.pattern]


class Exchange:
    """An exchange ready to run on `clusters` clusters, by default as many as are resident at once."""

    def __init__(self, gpu: Gpu, configuration: ExchangeConfiguration, clusters: int | None = None) -> None:
        c = configuration
        if c.share_bytes % c.command_bytes or c.command_bytes % 16:
            raise BadArgument(
                f"{c.spec.name}: commands of {c.command_bytes} bytes do not divide {c.share_bytes} bytes in "
                f"multiples of 16; give a divisor"
            )
        if c.cluster < 2 or c.cluster % 2:
            raise BadArgument(f"{c.spec.name}: cluster {c.cluster} has no pairs; give 2, 4, 8 or 16")
        declared(c.spec).require(stages=c.stages)
        self.gpu, self.configuration = gpu, c
        shared_bytes = c.share_bytes + c.stages * c.stage_bytes + STAGE_ALIGNMENT_BYTES
        self._launcher = ClusterLaunch(gpu, c.spec, c.threads, shared_bytes, c.cluster)
        self.kernel = self._launcher.kernel
        self.clusters = clusters or self._launcher.resident_clusters
        self.blocks = self.clusters * c.cluster
        self._config = self._launcher.config(self.blocks)
        self._log = Buffer(8 * self.blocks)
        self._statuses = Statuses(gpu, c.spec.name, self.blocks)

    def launch(self, laps: int, dump: int = 0) -> None:
        """Queue one launch."""
        c = self.configuration
        self._launcher.launch(
            self._config,
            cluster=c.cluster,
            pattern=PATTERNS.index(c.pattern),
            share_bytes=c.share_bytes,
            command_bytes=c.command_bytes,
            slot_bytes=c.stage_bytes,
            stages=c.stages,
            laps=laps,
            dump=dump,
            log=self._log,
            statuses=self._statuses,
        )

    def cycles(self, laps: int) -> int:
        """SM cycles of the slowest block, from one barrier of its cluster to the next.

        Raises:
            StalledWait: a barrier was never completed.
        """
        self.launch(laps)
        self._statuses.require_arrived()
        return int(self._log.read(np.uint32)[::2].max())

    @property
    def senders_per_tpc(self) -> int:
        """Most CTAs that sent from one pair of neighboring SMs (a TPC) during the last launch."""
        c = self.configuration
        sends = np.array(
            [any(rank in c.sources(other) for other in range(c.cluster)) for rank in range(c.cluster)]
        )
        sms = self._log.read(np.uint32)[1::2][np.resize(sends, self.blocks)]
        return int(np.bincount(sms // 2).max())

    def check(self) -> None:
        """Compare every byte of every destination buffer after a few laps; what nobody writes must still be poison.

        Raises:
            WrongBytes: with block, stage and offset of the first difference.
            StalledWait: a barrier was never completed.
        """
        c = self.configuration
        with Buffer(self.blocks * c.stages * c.stage_bytes) as dump:
            dump.set_bytes(0)
            self.launch(c.stages + 2, dump.address)
            self._statuses.require_arrived()
            arrived = dump.read(np.uint32).reshape(self.blocks, c.stages, -1)
        words = c.share_bytes // 4
        expected = np.full((self.blocks, c.stage_bytes // 4), 0x01010101 * POISON, np.uint32)
        for block in range(self.blocks):
            rank = block % c.cluster
            for part, source in enumerate(c.sources(rank)):
                index = np.arange(words, dtype=np.uint32) + np.uint32((block - rank + source) * words)
                expected[block, part * words : (part + 1) * words] = index * HASH
        wrong = arrived != expected[:, None]
        if wrong.any():
            block, stage, word = np.argwhere(wrong)[0]
            raise WrongBytes(
                f"{c.spec.name}, {c.pattern}, cluster {c.cluster}: block {block}, stage {stage}, byte {4 * word}: "
                f"{arrived[block, stage, word]:#010x} arrived instead of {expected[block, word]:#010x}"
            )

    def close(self) -> None:
        """Free what the exchange holds on the GPU."""
        self._log.close()
        self._statuses.close()


def pair_cycles(
    gpu: Gpu, spec: KernelSpec, cluster: int, asker: int, answerer: int, transfer_bytes: int, steps: int
) -> np.ndarray:
    """SM cycles of each of `steps` single transfers between two CTAs of one cluster; of a ping-pong, both ways.

    Raises:
        StalledWait: a transfer never arrived.
    """
    shared_bytes = max(2 * transfer_bytes, 4096) + STAGE_ALIGNMENT_BYTES
    where = ClusterLaunch(gpu, spec, WARP, shared_bytes, cluster)
    with Buffer(4 * steps) as log, Statuses(gpu, spec.name, cluster) as statuses:
        log.set_bytes(0xFF)
        where.launch(
            where.config(cluster),
            asker=asker,
            answerer=answerer,
            steps=steps,
            transfer_bytes=transfer_bytes,
            log=log,
            statuses=statuses,
        )
        statuses.require_arrived()
        return log.read(np.uint32)


@dataclass
class Arrivals:
    """When copies of the first CTA arrived.

    Attributes:
        cycles: from sending to arrival, shape (steps, CTAs), on the first CTA's clock; NaN where a CTA is not
            among the destinations.
        answer_cycles: from an arrival at another CTA's barrier until its answer is seen, shape (CTAs - 1, n).
    """

    cycles: np.ndarray
    answer_cycles: np.ndarray


def arrivals(
    gpu: Gpu, spec: KernelSpec, cluster: int, mask: int, transfer_bytes: int, steps: int, memory: Buffer
) -> Arrivals:
    """Send `steps` copies from the first CTA to those in `mask`, one at a time, over data that is in L2.

    Raises:
        StalledWait: a copy never arrived.
    """
    pipeline = Pipeline(threads=WARP, cluster=cluster, shared_alignment_bytes=128)
    operand = boxed_operand(steps * transfer_bytes, transfer_bytes, pipeline)
    where = ClusterLaunch(gpu, spec, WARP, transfer_bytes + STAGE_ALIGNMENT_BYTES, cluster)
    words = cluster * (4 * EXCHANGES + 2 * steps)
    with (
        Buffer(8 * words) as log,
        Statuses(gpu, spec.name, cluster) as statuses,
        place(operand, memory.address) as tensor_map,
    ):
        log.set_bytes(0)
        for _ in range(2):  # the first launch brings the data into L2 and the code into the instruction cache
            where.launch(
                where.config(cluster),
                source=tensor_map,
                mask=mask,
                steps=steps,
                transfer_bytes=transfer_bytes,
                transfer_rows=operand.tile[1],
                log=log,
                statuses=statuses,
            )
            statuses.require_arrived()
        logged = log.read(np.int64)
    return align(logged, cluster, steps, mask)


def align(logged: np.ndarray, cluster: int, steps: int, mask: int) -> Arrivals:
    """Put all CTAs on the clock of the first: an answer is taken to lie midway between question and reply."""
    exchanged = logged[: cluster * 4 * EXCHANGES].reshape(cluster, EXCHANGES, 4)[1:]
    sent, there, seen = exchanged[..., 0], exchanged[..., 1], exchanged[..., 2]
    quickest = (seen - sent) <= np.quantile(seen - sent, 0.5, axis=1, keepdims=True)
    gap = np.where(quickest, there - (sent + seen) / 2, np.nan)
    offset = np.concatenate([[0.0], np.nanmedian(gap, axis=1)])
    stepped = logged[cluster * 4 * EXCHANGES :].reshape(steps, cluster, 2)
    cycles = stepped[..., 1] - offset - stepped[:, :1, 0]
    missing = [rank for rank in range(cluster) if not mask >> rank & 1]
    cycles[:, missing] = np.nan
    return Arrivals(cycles, seen - sent)
