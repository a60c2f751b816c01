"""How long is the issuing thread busy handing transfers over?"""

from dataclasses import dataclass

import numpy as np

from labkernels.device import Gpu
from labkernels.kernels.registry import KernelSpec, kernel, kernels
from labkernels.operand import KIB, MIB
from labkernels.protocols.chase import LARGEST_EXPECTATION_BYTES, IssueBurst
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.memory import Memory
from labkernels.protocols.rounds import interleaved
from labkernels.studies.stats import summarize

WARP_COPY_BYTES = 512  # 16 bytes from each lane


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        transfer_bytes: of the copy engine's transfers.
        trains: lengths of bursts: transfers issued back to back.
        step_bytes: of the transfers that come with barrier operations or a page-table load.
        step_trains: the same, for those.
        repeats: bursts per launch; the first is left out.
        rounds: launches of each, in random order.
        footprint_bytes: memory read, in L2.
    """

    transfer_bytes: tuple[int, ...]
    trains: tuple[int, ...]
    step_bytes: tuple[int, ...] = (128, KIB)
    step_trains: tuple[int, ...] = (1, 8, 32, 64)
    repeats: int = 5
    rounds: int = 9
    footprint_bytes: int = 8 * MIB


PRESETS = {
    "quick": Parameters(transfer_bytes=(128, 4 * KIB), trains=(1, 8, 32)),
    "full": Parameters(
        transfer_bytes=(128, KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB),
        trains=(1, 2, 4, 8, 16, 32, 48, 64, 128),
    ),
}


def plan(parameters: Parameters) -> list[tuple[KernelSpec, int, int]]:
    """(kernel, transfer bytes, length of the burst) for all that one barrier phase counts and memory holds."""
    chosen = []
    for spec in (*kernels("tma_bulk", "issue"), *kernels("tma_tile", "issue")):
        alone = dict(spec.constants)["per_copy"] == "copy"
        sizes = parameters.transfer_bytes if alone else parameters.step_bytes
        trains = parameters.trains if alone else parameters.step_trains
        chosen += [(spec, size, length) for size in sizes for length in trains]
    chosen += [(kernel("cp_async", "issue"), WARP_COPY_BYTES, length) for length in parameters.trains]
    chosen += [(kernel("ldg", "issue", chunks=c, policy="nc"), WARP_COPY_BYTES * c, 1) for c in (1, 4, 16)]
    return [
        (spec, size, length)
        for spec, size, length in chosen
        if length * size <= LARGEST_EXPECTATION_BYTES
        and length * size * parameters.repeats <= parameters.footprint_bytes
    ]


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Time bursts; see `Parameters`."""
    memory = Memory(gpu, parameters.footprint_bytes)
    chosen = plan(parameters)
    bursts = {(spec, size): IssueBurst(gpu, spec, memory.buffer, size) for spec, size, _ in chosen}
    samples: dict[tuple, list[np.ndarray]] = {}
    memory.warm(parameters.footprint_bytes)
    for turn in progress(interleaved(chosen, parameters.rounds), "time"):
        for spec, size, length in turn:
            cycles = bursts[spec, size].cycles(length, parameters.repeats)[1:]
            samples.setdefault((spec, size, length), []).append(cycles)
    rows = []
    for (spec, size, length), parts in samples.items():
        issued, arrived = np.concatenate(parts).T
        copies = dict(spec.constants).get("chunks", length)
        rows.append(
            {
                "kernel": spec.name,
                "mechanism": spec.mechanism,
                "variant": dict(spec.constants).get("per_copy", "copy"),
                "transfer_bytes": size // (copies // length),
                "train_length": copies,
                **summarize(issued).cycles(),
                "arrived_cycles_median": round(float(np.median(arrived)), 1),
            }
        )
    memory.close()
    return Result({"issue_cost": rows}, [burst.kernel for burst in bursts.values()])


EXPERIMENT = Experiment(
    "issue",
    "How long is a thread busy handing transfers over?",
    ("issue_cost",),
    PRESETS,
    measure,
    needs(Gpu),
)
