"""The environment record of a run: GPU, software, commit."""

import hashlib
import os
import platform
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from labkernels.device.board import driver_version
from labkernels.device.gpu import Gpu
from labkernels.kernels.build import toolchain
from labkernels.paths import ROOT

#: Recorded where they are installed: what makes the rows, and what runs chapters and draws.
PACKAGES = ("numpy", "pandas", "altair", "papermill", "jax", "flash-attn3-jax", "torch", "fa3_fwd", "vllm")


def package_versions() -> dict[str, str]:
    """Versions of the toolchain and of those `PACKAGES` that are installed."""
    found = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)  # of several, the one that is imported
    return toolchain() | found


def describe(gpu: Gpu) -> dict[str, Any]:
    """What does not change during a run: columns of the run table."""
    facts = gpu.facts
    return {
        "gpu_name": facts.name,
        "gpu_uuid_hash": hashlib.sha256(str(gpu.device.uuid).encode()).hexdigest()[:12],
        "sm_count": facts.sm_count,
        "compute_capability": ".".join(facts.arch.removeprefix("sm_").rstrip("a")),
        "l2_bytes": facts.l2_bytes,
        "memory_bytes": facts.memory_bytes,
        "driver_version": driver_version() or f"CUDA {facts.driver_api}",
        "cuda_driver_api": facts.driver_api,
        "toolkit_version": linker_version(),
        "python_version": platform.python_version(),
        "package_versions": ";".join(
            f"{name}=={version}" for name, version in sorted(package_versions().items())
        ),
        "ecc": gpu.board.ecc(),
        "mig": gpu.board.mig(),
        "power_limit_w": gpu.board.power_limit_w(),
        **commit(),
    }


def linker_version() -> str:
    """Version of the nvJitLink that turns PTX into machine code."""
    from cuda.bindings import nvjitlink

    return ".".join(map(str, nvjitlink.version()))


def commit() -> dict[str, Any]:
    """Commit of this repository and whether the tree differs from it; `LABKERNELS_COMMIT` where .git did not travel.

    None of a copy that lies in another repository: that one's commit says nothing about it.
    """
    if given := os.environ.get("LABKERNELS_COMMIT"):
        return {"commit": given, "dirty": False}
    try:
        is_own = Path(_git("rev-parse", "--show-toplevel")).resolve() == ROOT.resolve()
        if is_own and _git("ls-files", "labkernels"):
            changed = _git("status", "--porcelain", "--untracked-files=no", "--", "labkernels")
            return {"commit": _git("rev-parse", "HEAD"), "dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        pass
    return {"commit": None, "dirty": None}


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()
