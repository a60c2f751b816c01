"""How many bytes does a GEMM take from L2 and memory, by cluster shape and transport?"""

import csv
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from labkernels.device import Gpu
from labkernels.experiments.base import Experiment, Progress, Result
from labkernels.gemm.family import GemmKernel, of_symbol
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
        tile: Of the kernels.
        swizzle: Neighbouring columns of tiles walked together.
    """

    shapes: tuple[tuple[int, int, int], ...] = ((8192, 8192, 8192), (2048, 2048, 8192), (4096, 14336, 4096))
    tile: tuple[int, int] = (128, 256)
    swizzle: int = 8


PRESETS = {"quick": Parameters(shapes=((2048, 2048, 8192),)), "full": Parameters()}


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Count one launch of every bf16 kernel of a tile at every shape, L2 flushed before it.

    Raises:
        NoCounters: No `ncu`, or it refuses.
    """
    library = Library(gpu.facts.arch)
    kernels = [k for k in library.kernels if k.dtype == "bf16" and k.tile == parameters.tile]
    rows = []
    for m, n, k in progress(parameters.shapes, "count"):
        counted = count(kernels, (m, n, k), parameters.swizzle)
        shape = {"m": m, "n": n, "k": k, "swizzle": parameters.swizzle}
        rows += [{"kernel": kernel.name, **shape, **values} for kernel, values in counted]
    return Result({"gemm_traffic": rows}, [library])


def count(
    kernels: list[GemmKernel], shape: tuple[int, int, int], swizzle: int
) -> list[tuple[GemmKernel, dict[str, int]]]:
    """Counters of one launch of each kernel, from a process of its own under Nsight Compute.

    Returns:
        For each kernel its bytes read from L2, into the SMs and from memory, and its cycles.

    Raises:
        NoCounters: No `ncu`, or it refuses.
    """
    if (ncu := shutil.which("ncu")) is None:
        raise NoCounters("no ncu on the PATH: install Nsight Compute, or read the stored rows")
    options = ["--csv", "--print-units", "base", "--clock-control", "none", "--metrics", ",".join(METRICS)]
    options += ["--print-kernel-base", "demangled", "--kernel-name", "regex:device_kernel"]
    target = [sys.executable, "-m", "labkernels.gemm.once", *map(str, shape), *(k.name for k in kernels)]
    command = [ncu, *options, *target, "--swizzle", str(swizzle)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if done.returncode or not lines:
        raise NoCounters(f"ncu failed ({done.returncode}): {(done.stdout + done.stderr).strip()[-400:]}")
    return parse(lines, kernels[0].arch)


def parse(lines: list[str], arch: str) -> list[tuple[GemmKernel, dict[str, int]]]:
    """Kernels and their counters, in order of launch, from the lines of `ncu --csv`."""
    launches: dict[str, tuple[GemmKernel, dict[str, int]]] = {}
    for row in csv.DictReader(lines):
        kernel = of_symbol(arch, row["Kernel Name"])
        if kernel is None or row["Metric Name"] not in METRICS:
            continue
        values = launches.setdefault(row["ID"], (kernel, {}))[1]
        value = round(float(row["Metric Value"].replace(",", "")))
        scale: Any = SECTOR_BYTES if "sectors" in row["Metric Name"] else 1
        values[METRICS[row["Metric Name"]]] = value * scale
    return list(launches.values())


EXPERIMENT = Experiment(
    "gemm_traffic",
    "How many bytes does a GEMM take from L2 and memory, by cluster shape and transport?",
    PRESETS,
    measure,
)
