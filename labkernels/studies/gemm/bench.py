"""Candidates of one shape, each checked, then timed in interleaved rounds between clock stamps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from labkernels.protocols.rounds import interleaved
from labkernels.studies.gemm.family import GemmKernel
from labkernels.studies.gemm.library import STAMP_FIELDS, Library, Plan
from labkernels.studies.gemm.operands import Operands, require_torch
from labkernels.studies.gemm.pairs import PairKernel

LIBRARY = "library"
SLOT_PAIR = 2  # a stamp before and one after


@dataclass(frozen=True)
class Candidate:
    """A way to compute the product.

    Attributes:
        kernel: Of the family; None for the library's own choice.
        sms: Most SMs that its persistent grid may use.
        swizzle: As in `Library.plan`.
    """

    kernel: GemmKernel | PairKernel | None
    sms: int
    swizzle: int = 1

    @property
    def name(self) -> str:
        """Of the kernel, or `library`."""
        return self.kernel.name if self.kernel else LIBRARY


class Prepared:
    """A candidate bound to operands: checked once, and captured as one graph that goes through all sets."""

    def __init__(self, library: Library, candidate: Candidate, operands: Operands, sample_us: float) -> None:
        torch = require_torch()
        self.candidate = candidate
        self.library, self._operands = library, operands
        self._stream = torch.cuda.current_stream()
        self._plans: list[Plan] = []
        if kernel := candidate.kernel:
            limits = {"sms": candidate.sms, "swizzle": candidate.swizzle}
            shape = operands.shape
            self._plans = [
                library.plan(kernel, operands.addresses(i), shape, **limits) for i in range(operands.sets)
            ]
        operands.poison()
        self._launch(0)
        self.relative_error = operands.relative_error(candidate.name)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        self._launch(0)
        ended.record()
        ended.synchronize()
        once_us = max(began.elapsed_time(ended) * 1000, 1.0)
        laps = max(1, round(sample_us / (once_us * operands.sets)))
        self.launches = laps * operands.sets
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(capture_error_mode="relaxed")
        for number in range(self.launches):
            self._launch(number % operands.sets)
        self._graph.capture_end()

    def _launch(self, number: int) -> None:
        if self._plans:
            self._plans[number].launch(self._stream.cuda_stream)
        else:
            self._operands.library_product(number)

    def replay(self) -> None:
        """Queue all launches."""
        self._graph.replay()

    def close(self) -> None:
        """Free plans and graph."""
        for plan in self._plans:
            plan.close()
        self._graph.reset()


class Busy:
    """Keeps the GPU busy with one candidate, without waiting: a few replays are queued beyond the one that runs.

    Attributes:
        replays: Queued so far.
    """

    BATCH = 4

    def __init__(self, one: Prepared) -> None:
        self._one, self._queued = one, deque[Any]()
        self.replays = 0

    def __call__(self) -> None:
        """Queue a batch when fewer than two are left."""
        while self._queued and self._queued[0].query():
            self._queued.popleft()
        if len(self._queued) < 2:
            for _ in range(self.BATCH):
                self._one.replay()
            self.replays += self.BATCH
            self._queued.append(require_torch().cuda.Event())
            self._queued[-1].record()


class Clocks:
    """Stamps of all SMs' cycle counters, in pairs around what is timed.

    Args:
        library: That stamps.
        sms: Of the GPU.
        pairs: How many intervals can be held.
    """

    def __init__(self, library: Library, sms: int, pairs: int) -> None:
        torch = require_torch()
        self._library, self._sms = library, sms
        self._stamps = torch.zeros((pairs, SLOT_PAIR, sms, STAMP_FIELDS), dtype=torch.int64, device="cuda")
        self._stream = torch.cuda.current_stream().cuda_stream

    def around(self, pair: int, work: Callable[[], Any]) -> Any:
        """Queue a stamp, the work, and a stamp; gives what the work gives."""
        self._stamp(SLOT_PAIR * pair)
        given = work()
        self._stamp(SLOT_PAIR * pair + 1)
        return given

    def _stamp(self, slot: int) -> None:
        self._library.stamp(self._stamps.data_ptr(), slot, self._sms, self._stream)

    def mhz(self) -> np.ndarray:
        """Mean SM clock of each interval: the median over the SMs that left both stamps."""
        before, after = np.moveaxis(self._stamps.cpu().numpy().astype(float), 1, 0)
        both = (before[..., 0] > 0) & (after[..., 0] > 0)
        cycles, nanoseconds = np.moveaxis(after - before, -1, 0)
        rates = np.where(both, cycles / np.where(nanoseconds > 0, nanoseconds, np.nan) * 1000, np.nan)
        return np.nanmedian(rates, axis=1)


def time_rounds(
    library: Library, prepared: Sequence[Prepared], rounds: int, sms: int
) -> list[dict[str, Any]]:
    """Time every candidate in every round, in random order.

    Args:
        library: For the stamps.
        prepared: The candidates.
        rounds: After one that is not timed.
        sms: Of the GPU.

    Returns:
        For each candidate and round: its index, the round, launches, microseconds of a launch, SM clock.
    """
    torch = require_torch()
    rows = []
    for number, turns in enumerate(interleaved(range(len(prepared)), rounds + 1), -1):
        clocks = Clocks(library, sms, len(prepared))
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in prepared]
        prepared[
            turns[0]
        ].replay()  # the first sample of a round would find an idle GPU and wait for its launch
        for turn, index in enumerate(turns):
            clocks.around(turn, partial(between, events[index], prepared[index].replay))
        torch.cuda.synchronize()
        mhz = clocks.mhz()
        if number < 0:
            continue
        for turn, index in enumerate(turns):
            began, ended = events[index]
            launches = prepared[index].launches
            rows.append(
                {
                    "index": index,
                    "round": number,
                    "launches": launches,
                    "duration_us": began.elapsed_time(ended) * 1000 / launches,
                    "sm_clock_mhz": float(mhz[turn]),
                }
            )
    return rows


def between(events: Sequence[Any], work: Callable[[], Any]) -> Any:
    """Queue an event, the work, and an event; gives what the work gives."""
    began, ended = events
    began.record()
    given = work()
    ended.record()
    return given
