"""How many bytes does a GEMM take from L2 and memory, by cluster shape and transport?"""

import csv
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import product

from labkernels.device import Gpu
from labkernels.experiments.base import Experiment, Progress, Result
from labkernels.gemm.family import GemmKernel
from labkernels.gemm.library import Library

SECTOR_BYTES = 32
METRICS = {
    "lts__t_sectors_op_read.sum": "l2_read_bytes",
    "l1tex__m_xbar2l1tex_read_bytes.sum": "sm_read_bytes",
    "dram__bytes_read.sum": "dram_read_bytes",
    "sm__cycles_elapsed.max": "cycles",
}


class NoCounters(RuntimeError):
    """Nsight Compute is missing or may not read the counters; the message carries what it said."""


@dataclass(frozen=True)
class Parameters:
    """What is counted.

    Attributes:
        shapes: (M, N, K) in bf16.
        tiles: Of the kernels.
        swizzles: Most neighbouring columns of tiles walked together.
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
        for kernel, values in zip(kernels, count(kernels, shape, swizzle), strict=True):
            rows.append({"kernel": kernel.name, "m": m, "n": n, "k": k, "swizzle": swizzle, **values})
    return Result({"gemm_traffic": rows}, [library])


def count(kernels: list[GemmKernel], shape: tuple[int, int, int], swizzle: int) -> list[dict[str, int]]:
    """Counters of one launch of each kernel, from a process of its own under Nsight Compute.

    Returns:
        For each kernel its bytes read from L2, into the SMs and from memory, and its cycles.

    Raises:
        NoCounters: No `ncu`, or it refuses.
    """
    if (ncu := shutil.which("ncu")) is None:
        raise NoCounters("no ncu on the PATH: install Nsight Compute, or read the stored rows")
    options = ["--csv", "--print-units", "base", "--clock-control", "none", "--metrics", ",".join(METRICS)]
    options += ["--kernel-name", "regex:device_kernel"]
    target = [sys.executable, "-m", "labkernels.gemm.once", *map(str, shape), *(k.name for k in kernels)]
    command = [ncu, *options, *target, "--swizzle", str(swizzle)]
    done = subprocess.run(command, capture_output=True, text=True)
    launches = parse(done.stdout)
    if done.returncode or len(launches) != len(kernels):
        said = (done.stdout + done.stderr).strip()[-400:]
        raise NoCounters(f"ncu counted {len(launches)} of {len(kernels)} kernels ({done.returncode}): {said}")
    return launches


def parse(text: str) -> list[dict[str, int]]:
    """The counters of each launch, in their order, from what `ncu --csv` prints."""
    launches: dict[int, dict[str, int]] = {}
    for row in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
        name = row["Metric Name"]
        scale = SECTOR_BYTES if "sectors" in name else 1
        value = round(float(row["Metric Value"].replace(",", ""))) * scale
        launches.setdefault(int(row["ID"]), {})[METRICS[name]] = value
    return [launches[number] for number in sorted(launches)]


EXPERIMENT = Experiment(
    "gemm_traffic",
    "How many bytes does a GEMM take from L2 and memory, by cluster shape and transport?",
    PRESETS,
    measure,
)
