"""How many bytes does a GEMM take from L2 and memory, by cluster shape and transport?"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from labkernels.device import Gpu, counters
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.studies.gemm.family import GemmKernel
from labkernels.studies.gemm.library import Library, require_library
from labkernels.studies.gemm.pairs import PairKernel

METRICS = {
    "lts__t_sectors_op_read.sum": "l2_read_bytes",
    "l1tex__m_xbar2l1tex_read_bytes.sum": "sm_read_bytes",
    "dram__bytes_read.sum": "dram_read_bytes",
    "sm__cycles_elapsed.max": "cycles",
}


@dataclass(frozen=True)
class Parameters:
    """What is counted.

    Attributes:
        shapes: (M, N, K) in bf16.
        tiles: Of the kernels.
        swizzles: Most neighboring columns of tiles walked together.
    """

    shapes: tuple[tuple[int, int, int], ...] = ((8192, 8192, 8192),)
    tiles: tuple[tuple[int, int], ...] = ((128, 128), (128, 256))
    swizzles: tuple[int, ...] = (1, 8)


PRESETS = {"quick": Parameters(tiles=((128, 256),), swizzles=(8,)), "full": Parameters()}


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Count one launch of every bf16 kernel of the tiles at every shape, L2 flushed before it.

    Raises:
        NoCounters: No `ncu`, or it refuses.
    """
    library = Library(gpu.facts.arch)
    kernels = [k for k in library.kernels if k.dtype == "bf16" and k.tile in parameters.tiles]
    rows = []
    for shape, swizzle in progress(list(product(parameters.shapes, parameters.swizzles)), "count"):
        m, n, k = shape
        for kernel, values in zip(kernels, count(kernels, shape, swizzle, METRICS), strict=True):
            rows.append({"kernel": kernel.name, "m": m, "n": n, "k": k, "swizzle": swizzle, **values})
    return Result({"gemm_traffic": rows}, [library])


def count(
    kernels: Sequence[GemmKernel | PairKernel],
    shape: tuple[int, int, int],
    swizzle: int,
    metrics: Mapping[str, str],
) -> list[dict[str, int]]:
    """Counters of one launch of each kernel, from a process of its own under Nsight Compute, L2 flushed before.

    Args:
        kernels: Built, of any of the libraries.
        shape: M, N, K.
        swizzle: As in `Library.plan`.
        metrics: Nsight Compute's, each with the name of its column.

    Returns:
        For each kernel its counters.

    Raises:
        NoCounters: No `ncu`, or it refuses.
    """
    target = [
        sys.executable,
        "-m",
        "labkernels.studies.gemm.once",
        *map(str, shape),
        *(k.name for k in kernels),
    ]
    return counters.count([*target, "--swizzle", str(swizzle)], metrics, flush=True)


EXPERIMENT = Experiment(
    "gemm_traffic",
    "How many bytes does a GEMM take from L2 and memory, by cluster shape and transport?",
    ("gemm_traffic",),
    PRESETS,
    measure,
    needs(Gpu, counters.ncu, require_library),
)
