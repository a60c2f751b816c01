"""When is one transfer visible in each CTA of a cluster? Polls of several warps bracket the moment."""

from dataclasses import dataclass

import numpy as np

from labkernels.device import Buffer, Gpu, Statuses
from labkernels.device.random_fill import random_words
from labkernels.device.tensor_map import place
from labkernels.kernels.registry import KernelSpec
from labkernels.operand import WARP, Pipeline, boxed_operand
from labkernels.protocols.cluster_launch import ClusterLaunch
from labkernels.protocols.cluster_pipeline import HASH
from labkernels.protocols.stream import POISON, STAGE_ALIGNMENT_BYTES, WrongBytes

SMALLEST_BOX_BYTES = 128
EXCHANGES = 32  # of arrivals between the first CTA and each other one, to align their clocks
RECORD = 4  # 64-bit words of a log's record, in this order
SENT, MISSED, ASKED, SEEN = range(RECORD)
MEDIAN_ERROR = 1.25  # standard error of a median over that of a mean


@dataclass(frozen=True)
class Sighting:
    """What was seen of one launch's transfers.

    Attributes:
        cycles: from just before the transfer's instruction until a thread of the CTA knows that it is there, on
            the sender's clock, shape (steps, CTAs); NaN where a CTA receives nothing.
        grain_cycles: between the last poll of any warp that failed and the first that did not; same shape.
        clock_error_cycles: standard error of the offset between two CTAs' clocks, the largest; 0 where each CTA
            reads its own.
        sms: SM of each CTA.
    """

    cycles: np.ndarray
    grain_cycles: np.ndarray
    clock_error_cycles: float
    sms: np.ndarray


def sight(
    gpu: Gpu,
    spec: KernelSpec,
    cluster: int,
    mask: int,
    transfer_bytes: int,
    steps: int,
    memory: Buffer,
    seed: int,
    pollers: int = 8,
) -> Sighting:
    """Make `steps` transfers, one at a time, and check what the last one brought.

    Args:
        gpu: where.
        spec: a kernel of protocol `visibility`; where its mechanism crosses CTAs the first sends, else each CTA
            of `mask` loads for itself.
        cluster: CTAs of the cluster.
        mask: CTAs that receive, a bit each; of DSM one of them, not the first.
        transfer_bytes: of one transfer.
        steps: transfers.
        memory: filled by `labkernels.device.random_fill.fill` with `seed`; `steps` × `transfer_bytes` of it are read.
        seed: of the words.
        pollers: warps of a CTA that poll.

    Raises:
        StalledWait: a transfer never arrived.
        WrongBytes: the last one brought wrong bytes, or bytes to a CTA that was not to receive any.
    """
    pipeline = Pipeline(threads=WARP, cluster=cluster, shared_alignment_bytes=128)
    nbytes = max(transfer_bytes, SMALLEST_BOX_BYTES)
    operand = boxed_operand(steps * nbytes, nbytes, pipeline)
    where = ClusterLaunch(gpu, spec, WARP * pollers, transfer_bytes + STAGE_ALIGNMENT_BYTES, cluster)
    words = RECORD * cluster * (1 + 2 * EXCHANGES + steps * pollers)
    with (
        Buffer(8 * words) as log,
        Statuses(gpu, spec.name, cluster) as statuses,
        Buffer(cluster * transfer_bytes) as dump,
        place(operand, memory.address) as tensor_map,
    ):
        dump.set_bytes(POISON)
        log.set_bytes(0)
        for _ in range(2):  # the first launch brings the data into L2 and the code into the instruction cache
            where.launch(
                where.config(cluster),
                source=tensor_map,
                mask=mask,
                steps=steps,
                transfer_bytes=transfer_bytes,
                transfer_rows=operand.tile[1],
                dump=dump,
                log=log,
                statuses=statuses,
            )
            statuses.require_arrived()
        logged, arrived = log.read(np.int64), dump.read(np.uint32).reshape(cluster, -1)
    _require_right(spec, mask, steps, arrived, seed)
    return read_log(logged, cluster, steps, pollers, own=not spec.traits.crosses_ctas)


def expected_words(spec: KernelSpec, steps: int, words: int, seed: int) -> np.ndarray:
    """What the last of `steps` transfers brings, `words` 32-bit words."""
    index = np.arange(words)
    if spec.traits.touches_global:
        return random_words((steps - 1) * words + index, seed)
    if spec.traits.by_threads:
        return np.full(words, steps, np.uint32)
    return index.astype(np.uint32) * HASH + np.uint32(1)


def _require_right(spec: KernelSpec, mask: int, steps: int, arrived: np.ndarray, seed: int) -> None:
    expected = expected_words(spec, steps, arrived.shape[1], seed)
    poison = np.full(arrived.shape[1], 0x01010101 * POISON, np.uint32)
    for rank, words in enumerate(arrived):
        wrong = np.flatnonzero(words != (expected if mask >> rank & 1 else poison))
        if wrong.size:
            raise WrongBytes(
                f"{spec.name}: CTA {rank} of {len(arrived)}, byte {4 * wrong[0]}: {words[wrong[0]]:#010x} arrived"
            )


def read_log(logged: np.ndarray, cluster: int, steps: int, pollers: int, own: bool) -> Sighting:
    """Arrivals from a kernel's log (macros/cluster_visibility.ptx).

    Clocks of SMs differ: a question and its answer are taken to travel for the same time, so that an offset is wrong by
    half of the difference between the two ways. Each was there between two polls: in the middle, on average.

    Args:
        logged: 64-bit words.
        cluster: CTAs of the cluster.
        steps: transfers.
        pollers: warps of a CTA that polled.
        own: whether each CTA sent to itself: its own clock then tells all.
    """
    records = logged.reshape(-1, RECORD)
    sms, exchanged, stepped = np.split(records, [cluster, cluster * (1 + 2 * EXCHANGES)])
    exchanged = exchanged.reshape(cluster, EXCHANGES, 2, RECORD)[1:]
    sent, answered = exchanged[:, :, 0, SENT], exchanged[:, :, 1, SENT]
    back, there = ((exchanged[:, :, side, MISSED] + exchanged[:, :, side, ASKED]) / 2 for side in (0, 1))
    apart = (there - sent + answered - back) / 2
    offsets = np.concatenate([[0.0], np.median(apart, axis=1)])
    error = 0.0 if own else float(MEDIAN_ERROR * apart.std(axis=1).max() / np.sqrt(EXCHANGES))
    stepped = stepped.reshape(steps, cluster, pollers, RECORD)
    asked = np.where(stepped[..., SEEN] > 0, stepped[..., ASKED], np.iinfo(np.int64).max)
    first = asked.argmin(axis=2)[..., None, None]
    asked, seen = (np.take_along_axis(stepped, first, 2)[:, :, 0, word] for word in (ASKED, SEEN))
    missed = stepped[..., MISSED].max(axis=2)
    began = stepped[:, :, 0, SENT] if own else stepped[:, :1, 0, SENT] + offsets
    cycles = np.where(seen > 0, seen - began, np.nan)
    grain = np.where(missed > 0, np.maximum(asked - missed, 1.0), np.nan)
    return Sighting(cycles, grain, error, sms[:, 0])
