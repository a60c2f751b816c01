"""How long does one transfer take, alone, from its first instruction to the use of its first word?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.device import Buffer, Gpu
from labkernels.errors import LabError
from labkernels.kernels.registry import KernelSpec, kernel
from labkernels.operand import GIB, KIB, MIB
from labkernels.protocols.chase import MAX_THREADS, Chain, Chase
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.memory import Memory
from labkernels.protocols.rounds import interleaved
from labkernels.studies.stats import summarize

LINE_BYTES = 128
FAR_GAP_CYCLES = 40  # between the slowest hit in the near partition and the fastest in the far one
WARM_UP_STEPS = 8


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        transfer_bytes: of one transfer.
        ranks: of tensor tiles, measured at `rank_transfer_bytes`.
        rank_transfer_bytes: a size that every rank can have.
        slots: transfers of one chain, at most.
        l2_footprint_bytes: memory of a chain that stays in L2.
        hbm_stride_bytes: distance of slots of a chain that comes from memory.
        rounds: chains per kernel and place, all kernels in random order.
        launches: single transfers, each in a launch of its own, over pages used before and over untouched ones.
        cold_span_bytes: memory whose pages no kernel has touched; 0 leaves that protocol out.
    """

    transfer_bytes: tuple[int, ...]
    ranks: tuple[int, ...] = (1, 2, 3, 4, 5)
    rank_transfer_bytes: int = 2 * KIB
    slots: int = 2048
    l2_footprint_bytes: int = 16 * MIB
    hbm_stride_bytes: int = 64 * KIB
    rounds: int = 9
    launches: int = 33
    cold_span_bytes: int = 16 * GIB


PRESETS = {
    "quick": Parameters(transfer_bytes=(16, 2 * KIB, 16 * KIB), ranks=(2,), slots=1024, cold_span_bytes=0),
    "full": Parameters(
        transfer_bytes=(16, 128, KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB),
    ),
}


def chunks_for(transfer_bytes: int) -> int:
    """16-byte pieces per thread: one, until a block has no more threads."""
    return next(
        (c for c in (1, 4, 8) if transfer_bytes <= 16 * c * (MAX_THREADS if c == 1 else MAX_THREADS // 2)), 8
    )


def specs(transfer_bytes: int) -> Iterator[KernelSpec]:
    """The kernels compared at one size."""
    chunks = chunks_for(transfer_bytes)
    if transfer_bytes == 16:
        for policy in ("nc", "cg", "L1::no_allocate"):
            yield kernel("ldg", "chase", destination="register", chunks=1, policy=policy)
        yield kernel("tma_bulk", "chase", wait="test_wait")
    yield kernel("ldg", "chase", destination="shared", chunks=chunks, policy="nc")
    yield kernel("cp_async", "chase", completion="group", chunks=chunks)
    yield kernel("cp_async", "chase", completion="mbarrier", chunks=chunks)
    yield kernel("tma_bulk", "chase", wait="try_wait")
    yield kernel("tma_tile", "chase", rank=2, wait="try_wait")


WHOLE_CHAINS = (
    kernel("ldg", "chase", destination="register", chunks=1, policy="nc", clock="chain"),
    kernel("tma_bulk", "chase", wait="try_wait", clock="chain"),
    kernel("tma_tile", "chase", rank=2, wait="try_wait", clock="chain"),
)


def variant(spec: KernelSpec) -> str:
    """What tells kernels of one mechanism apart."""
    constants = dict(spec.constants)
    if spec.mechanism == "ldg":
        return f"{constants['destination']} {constants['policy']}"
    if spec.mechanism == "tma_tile":
        return f"{constants['rank']}d"
    return str(constants.get("completion") or constants["wait"])


class Sampler:
    """Chases with their samples, collected over rounds."""

    def __init__(self, gpu: Gpu, memory: Memory) -> None:
        self.gpu, self.memory = gpu, memory
        self.samples: dict[tuple, list[np.ndarray]] = {}

    def add(self, chase: Chase, protocol: str, source: str, cycles: np.ndarray) -> None:
        """Keep the cycles of some steps."""
        columns = {
            "kernel": chase.spec.name,
            "mechanism": chase.spec.mechanism,
            "variant": variant(chase.spec),
            "protocol": protocol,
            "source": source,
            "footprint_bytes": chase.chain.footprint_bytes,
            "transfer_bytes": chase.transfer_bytes,
            "threads": chase.threads,
        }
        self.samples.setdefault(tuple(columns.items()), []).append(cycles)

    def in_l2(self, chase: Chase) -> None:
        """The chain until it is near, and once more after its resident lines were written, when half of them are far.

        Resident first: of a line that is not, writing 16 bytes leaves half a sector to be fetched from memory.
        """
        chase.link()
        _, _, near = (chase.cycles()[WARM_UP_STEPS:] for _ in range(3))
        chase.link()
        first = chase.cycles()[WARM_UP_STEPS:]
        self.add(chase, "chain", "l2_near", near)
        if chase.transfer_bytes <= LINE_BYTES:
            # A line that was written lies in the partition its address belongs to, and nowhere else.
            far = first[(first > np.quantile(near, 0.99) + FAR_GAP_CYCLES) & (first < 2 * np.median(near))]
            if far.size:
                self.add(chase, "chain", "l2_far", far)

    def from_hbm(self, chase: Chase) -> None:
        """The chain once, after its lines have left L2."""
        chase.link()
        self.memory.evict()
        self.add(chase, "chain", "hbm", chase.cycles()[WARM_UP_STEPS:])

    def whole_chain(self, chase: Chase) -> None:
        """Near transfers with no clock between them: cycles of the chain over its steps, loop included."""
        chase.link()
        for _ in range(2):
            chase.cycles()
        self.add(chase, "whole_chain", "l2_near", chase.cycles()[:1] / chase.chain.slots)

    def after_writes(self, chase: Chase) -> None:
        """The chain a third time, after L2 was filled with written lines: were the first two kept?"""
        chase.link()
        self.memory.evict(by_writing=True)
        _, _, third = (chase.cycles()[WARM_UP_STEPS:] for _ in range(3))
        self.add(chase, "third_pass_after_writes", "l2", third)

    def first_of_launch(self, chase: Chase, launches: int) -> None:
        """One transfer per launch: instructions and descriptor are not yet in the SM's caches."""
        chase.link()
        chase.cycles()
        self.add(chase, "first", "l2_near", np.concatenate([chase.cycles(1) for _ in range(launches)]))
        cold = []
        for _ in range(launches):
            self.memory.evict()
            cold.append(chase.cycles(1))
        self.add(chase, "first", "hbm", np.concatenate(cold))

    def on_cold_pages(self, chase: Chase, launches: int) -> None:
        """Over pages that no kernel touched: single transfers, each in a launch and on a page of its own; a chain."""
        chase.link()
        cold = []
        for slot in range(launches):
            self.memory.evict()
            cold.append(chase.cycles(1, start=slot))
        self.add(chase, "first_cold_page", "hbm", np.concatenate(cold))
        self.add(chase, "cold_pages", "hbm", chase.cycles()[launches:])

    def rows(self, clock_mhz: float) -> Iterator[dict[str, Any]]:
        """One row per kernel, protocol, place and size."""
        for columns, parts in self.samples.items():
            summary = summarize(np.concatenate(parts))
            ns = round(summary.median / clock_mhz * 1e3, 1)
            yield {**dict(columns), **summary.cycles(), "ns_median": ns}


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Follow chains of every size with every kernel; see `Parameters`."""
    memory = Memory(gpu, max(parameters.slots * parameters.hbm_stride_bytes, parameters.l2_footprint_bytes))
    sampler = Sampler(gpu, memory)
    plan = [(size, spec) for size in parameters.transfer_bytes for spec in specs(size)]
    size = parameters.rank_transfer_bytes
    plan += [
        (size, spec)
        for rank in parameters.ranks
        if (size, spec := kernel("tma_tile", "chase", rank=rank, wait="try_wait")) not in plan
    ]
    near, far = {}, {}
    for size, spec in progress(plan, "check"):
        stride = max(size, LINE_BYTES)
        near_slots = min(parameters.slots, parameters.l2_footprint_bytes // stride)
        near[size, spec] = Chase(gpu, spec, Chain(memory.buffer, near_slots, stride, size), size)
        chain = Chain(memory.buffer, parameters.slots, max(size, parameters.hbm_stride_bytes), size)
        far[size, spec] = Chase(gpu, spec, chain, size)
        for chase in (near[size, spec], far[size, spec]):
            memory.refill()
            chase.check()
    for turn in progress(interleaved(plan, parameters.rounds), "time"):
        for one in turn:
            sampler.in_l2(near[one])
            sampler.from_hbm(far[one])
    smallest = min(parameters.transfer_bytes)
    for size, spec in plan:
        if size == smallest:
            sampler.first_of_launch(far[size, spec], parameters.launches)
            for _ in range(parameters.rounds):
                sampler.after_writes(near[size, spec])
    slots = min(parameters.slots, parameters.l2_footprint_bytes // LINE_BYTES)
    whole = [
        Chase(gpu, spec, Chain(memory.buffer, slots, LINE_BYTES, smallest), smallest) for spec in WHOLE_CHAINS
    ]
    for chase in whole:
        for _ in range(parameters.rounds):
            sampler.whole_chain(chase)
    if parameters.cold_span_bytes:
        for spec in progress([spec for size, spec in plan if size == smallest], "cold pages"):
            with Buffer(parameters.cold_span_bytes) as untouched:
                chain = Chain(
                    untouched, parameters.slots, parameters.cold_span_bytes // parameters.slots, smallest
                )
                chase = Chase(gpu, spec, chain, smallest)
                sampler.on_cold_pages(chase, parameters.launches)
    if (clock_mhz := gpu.board.sm_clock_mhz()) is None:  # right after kernels, while it is up
        raise LabError("NVML does not tell the SM clock, so that cycles have no length in ns")
    rows = list(sampler.rows(clock_mhz))
    memory.close()
    return Result({"latency": rows}, [chase.kernel for chase in (*near.values(), *whole)])


EXPERIMENT = Experiment(
    "latency",
    "How long does one transfer take, alone?",
    ("latency",),
    PRESETS,
    measure,
    needs(Gpu),
)
