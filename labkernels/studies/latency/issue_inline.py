"""What does a copy cost the warp that issues it, written out as an unrolled kernel has it?"""

from dataclasses import dataclass

import numpy as np

from labkernels.device import Gpu
from labkernels.kernels.registry import KernelSpec, kernels
from labkernels.legality import SHARED_BYTES_PER_CTA
from labkernels.operand import KIB, MIB
from labkernels.protocols.burst import Burst
from labkernels.protocols.cell import WARP_COPY_BYTES
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.memory import Memory
from labkernels.protocols.rounds import interleaved
from labkernels.studies.stats import summarize


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        warps: of the block that issue at once, one per scheduler up to four.
        repeats: bursts per launch; the first is left out.
        rounds: launches of each, in random order.
        footprint_bytes: memory read, in L2.
    """

    warps: tuple[int, ...]
    repeats: int = 9
    rounds: int = 9
    footprint_bytes: int = 8 * MIB


PRESETS = {"quick": Parameters(warps=(1,), repeats=5), "full": Parameters(warps=(1, 4))}


def plan(parameters: Parameters) -> list[tuple[KernelSpec, int]]:
    """(kernel, warps) for every burst that shared memory and the footprint hold."""
    chosen = []
    for mechanism in ("ldg", "cp_async", "tma_bulk", "tma_tile"):
        for spec in kernels(mechanism, "burst"):
            constants = dict(spec.constants)
            burst = constants["train"] * constants.get("bytes", WARP_COPY_BYTES)
            for warps in parameters.warps:
                fits = warps * burst + 2 * KIB <= SHARED_BYTES_PER_CTA
                if fits and warps * burst * parameters.repeats <= parameters.footprint_bytes:
                    chosen.append((spec, warps))
    return chosen


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Time bursts; see `Parameters`."""
    memory = Memory(gpu, parameters.footprint_bytes)
    bursts = [Burst(gpu, spec, memory.buffer, memory.seed, warps) for spec, warps in plan(parameters)]
    for burst in progress(bursts, "check"):
        burst.check()
    memory.warm(parameters.footprint_bytes)
    samples: dict[Burst, list[np.ndarray]] = {}
    for turn in progress(interleaved(bursts, parameters.rounds), "time"):
        for burst in turn:
            cycles = burst.cycles(parameters.repeats)[1:]
            samples.setdefault(burst, []).append(cycles.reshape(-1, 2))
    rows = []
    for burst in bursts:
        issued, arrived = np.concatenate(samples[burst]).T
        rows.append(
            {
                "kernel": burst.spec.name,
                "mechanism": burst.spec.mechanism,
                "warps": burst.warps,
                "transfer_bytes": burst.transfer_bytes,
                "train_length": burst.copies,
                **summarize(issued).cycles(),
                "arrived_cycles_median": round(float(np.median(arrived)), 1),
            }
        )
        burst.close()
    memory.close()
    return Result({"issue_inline": rows}, [burst.kernel for burst in bursts])


EXPERIMENT = Experiment(
    "issue_inline",
    "What does a copy cost the warp that issues it, written out as an unrolled kernel has it?",
    ("issue_inline",),
    PRESETS,
    measure,
    needs(Gpu),
)
