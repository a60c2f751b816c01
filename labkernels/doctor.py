"""What this machine has, what is missing, and what works without it."""

import shutil
import sys
from dataclasses import dataclass
from importlib import metadata

from labkernels.errors import NoGpu
from labkernels.kernels import sass


@dataclass(frozen=True)
class Finding:
    """One thing looked at; `optional` when the stored book works without it."""

    what: str
    ok: bool
    detail: str
    optional: bool = False


def findings() -> list[Finding]:
    """Python, packages, assembler, disassembler, driver and GPU, in that order."""
    return [_python(), _packages(), _assembler(), _disassembler(), _gpu(), _counters()]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("Python", sys.version_info >= (3, 11), f"{version} (3.11 or newer is needed)")


def _packages() -> Finding:
    missing = []
    for name in ("numba-cuda", "cuda-core", "numpy", "pandas", "altair", "papermill", "jupyter-book"):
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding("packages", False, f"{', '.join(missing)} missing: pip install -r requirements.txt")
    numpy = tuple(map(int, metadata.version("numpy").split(".")[:2]))
    return Finding(
        "packages", numpy < (2, 5), f"NumPy {'.'.join(map(str, numpy))} (numba-cuda needs one before 2.5)"
    )


def _assembler() -> Finding:
    from labkernels.kernels.build import assemble
    from labkernels.kernels.registry import kernel

    try:
        built = assemble(kernel("tma_bulk", "issue", per_copy="copy"))
    except Exception as error:
        return Finding("assembler", False, str(error).splitlines()[0])
    return Finding("assembler", True, f"{built.spec.name} built for {built.arch}, {len(built.cubin)} bytes")


def _disassembler() -> Finding:
    try:
        return Finding("disassembler", True, sass.tool("nvdisasm"))
    except FileNotFoundError as error:
        return Finding("disassembler", False, str(error))


def _gpu() -> Finding:
    from labkernels.device import Gpu

    try:
        facts = Gpu().facts
    except NoGpu as error:
        return Finding("GPU", False, str(error), optional=True)
    return Finding(
        "GPU", True, f"{facts.name}, {facts.sm_count} SMs, {facts.arch}, CUDA {facts.driver_api}", True
    )


def _counters() -> Finding:
    path = shutil.which("ncu")
    return Finding(
        "counters", path is not None, path or "ncu is not on the PATH: counter tables stay as stored", True
    )
