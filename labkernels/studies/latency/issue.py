"""How long is the issuing thread busy handing transfers over?"""

from dataclasses import dataclass

import numpy as np

from labkernels.device import Gpu
from labkernels.kernels.registry import KernelSpec, kernel, kernels
from labkernels.operand import KIB, MIB
from labkernels.protocols.chase import LARGEST_EXPECTATION_BYTES, Train
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
        trains: transfers handed over back to back.
        step_bytes: of the transfers that come with a handshake or a look-up.
        step_trains: the same, handed over back to back.
        repeats: trains per launch; the first is left out.
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
    """(kernel, transfer bytes, train) for everything that one barrier phase can count and memory holds."""
    chosen = []
    for spec in (*kernels("tma_bulk", "issue"), *kernels("tma_tile", "issue")):
        alone = dict(spec.constants)["per_copy"] == "copy"
        sizes = parameters.transfer_bytes if alone else parameters.step_bytes
        trains = parameters.trains if alone else parameters.step_trains
        chosen += [(spec, size, train) for size in sizes for train in trains]
    chosen += [(kernel("cp_async", "issue"), WARP_COPY_BYTES, train) for train in parameters.trains]
    chosen += [(kernel("ldg", "issue", chunks=c, policy="nc"), WARP_COPY_BYTES * c, 1) for c in (1, 4, 16)]
    return [
        (spec, size, train)
        for spec, size, train in chosen
        if train * size <= LARGEST_EXPECTATION_BYTES
        and train * size * parameters.repeats <= parameters.footprint_bytes
    ]


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Time trains; see `Parameters`."""
    memory = Memory(gpu, parameters.footprint_bytes)
    chosen = plan(parameters)
    trains = {(spec, size): Train(gpu, spec, memory.buffer, size) for spec, size, _ in chosen}
    samples: dict[tuple, list[np.ndarray]] = {}
    memory.warm(parameters.footprint_bytes)
    for turn in progress(interleaved(chosen, parameters.rounds), "time"):
        for spec, size, train in turn:
            cycles = trains[spec, size].cycles(train, parameters.repeats)[1:]
            samples.setdefault((spec, size, train), []).append(cycles)
    rows = []
    for (spec, size, train), parts in samples.items():
        issued, arrived = np.concatenate(parts).T
        handed_over = dict(spec.constants).get("chunks", train)
        rows.append(
            {
                "kernel": spec.name,
                "mechanism": spec.mechanism,
                "variant": dict(spec.constants).get("per_copy", "copy"),
                "transfer_bytes": size // (handed_over // train),
                "train_length": handed_over,
                **summarize(issued).cycles(),
                "arrived_cycles_median": round(float(np.median(arrived)), 1),
            }
        )
    memory.close()
    return Result({"issue_cost": rows}, [train.kernel for train in trains.values()])


EXPERIMENT = Experiment(
    "issue",
    "How long is a thread busy handing transfers over?",
    ("issue_cost",),
    PRESETS,
    measure,
    needs(Gpu),
)
