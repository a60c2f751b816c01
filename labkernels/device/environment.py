"""The environment record of a run: GPU, software, and the clocks, power and temperature while it ran."""

import csv
import hashlib
import os
import platform
import statistics
import subprocess
from importlib import metadata
from types import TracebackType
from typing import Any, Self

from labkernels.device.gpu import Gpu
from labkernels.kernels.build import toolchain
from labkernels.paths import ROOT

PACKAGES = ("numpy", "pandas", "altair", "papermill")
#: Packages whose kernels are measured, where they are installed.
MEASURED_PACKAGES = ("jax", "flash-attn3-jax", "torch", "fa3_fwd")
SAMPLE_MS = 100

# nvidia-smi's bits of clocks_event_reasons.active (NVML, nvmlClocksEventReasons)
REASONS = {
    0x1: "idle",
    0x2: "applications_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "hardware_power_brake",
    0x100: "display_clocks",
}
SAMPLED = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_event_reasons.active")


class Monitor:
    """Samples the GPU's state in the background (nvidia-smi, every 100 ms) while the block runs."""

    def __enter__(self) -> Self:
        query = ["--query-gpu=" + ",".join(SAMPLED), "--format=csv,noheader,nounits", "--id=0"]
        try:
            self._process = subprocess.Popen(
                ["nvidia-smi", *query, f"--loop-ms={SAMPLE_MS}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except FileNotFoundError:
            self._process = None
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.text = ""
        if self._process:
            self._process.terminate()
            self.text, _ = self._process.communicate()

    def summary(self) -> dict[str, Any]:
        """Columns of the run table; empty where nvidia-smi is missing or says «N/A»."""
        return summarize_samples(self.text)


def summarize_samples(text: str) -> dict[str, Any]:
    """Columns of the run table from nvidia-smi's CSV lines; a line cut short is left out."""
    lines = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if len(row) == len(SAMPLED)]
    clocks, memory, power, temperature = (
        [*map(_number, column)] for column in [*zip(*lines, strict=True)][:4] or [[]] * 4
    )
    reasons = 0
    for row in lines:
        reasons |= int(row[4], 16) if row[4].startswith("0x") else 0
    return {
        "sm_clock_mhz_min": _over(min, clocks),
        "sm_clock_mhz_median": _over(statistics.median, clocks),
        "sm_clock_mhz_max": _over(max, clocks),
        "memory_clock_mhz": _over(statistics.median, memory),
        "power_w_median": _over(statistics.median, power),
        "power_w_max": _over(max, power),
        "temperature_c_max": _over(max, temperature),
        "throttle_reasons": ";".join(
            name for bit, name in REASONS.items() if reasons & bit and name != "idle"
        ),
    }


def describe(gpu: Gpu) -> dict[str, Any]:
    """What does not change during a run: columns of the run table."""
    facts = gpu.facts
    installed = {
        distribution.metadata["Name"]: distribution.version for distribution in metadata.distributions()
    }
    measured = {name: installed[name] for name in MEASURED_PACKAGES if name in installed}
    names = {**toolchain(), **{name: metadata.version(name) for name in PACKAGES}, **measured}
    return {
        "gpu_name": facts.name,
        "gpu_uuid_hash": hashlib.sha256(str(gpu.device.uuid).encode()).hexdigest()[:12],
        "sm_count": facts.sm_count,
        "compute_capability": ".".join(facts.arch.removeprefix("sm_").rstrip("a")),
        "l2_bytes": facts.l2_bytes,
        "memory_bytes": facts.memory_bytes,
        "driver_version": _smi("driver_version") or f"CUDA {facts.driver_api}",
        "cuda_driver_api": facts.driver_api,
        "toolkit_version": linker_version(),
        "python_version": platform.python_version(),
        "package_versions": ";".join(f"{name}=={version}" for name, version in sorted(names.items())),
        "ecc": {"Enabled": True, "Disabled": False}.get(_smi("ecc.mode.current")),
        **commit(),
    }


def sm_clock_mhz() -> float:
    """SM clock now, in MHz; meant for right after a kernel, while the clock is still up.

    Raises:
        RuntimeError: nvidia-smi does not tell.
    """
    clock = _number(_smi("clocks.sm") or "")
    if clock is None:
        raise RuntimeError("nvidia-smi does not tell the SM clock, so that cycles have no length in ns")
    return clock


def linker_version() -> str:
    """Version of the nvJitLink that turns PTX into machine code."""
    from cuda.bindings import nvjitlink

    return ".".join(map(str, nvjitlink.version()))


def commit() -> dict[str, Any]:
    """Commit of this repository and whether the tree differs from it; `LABKERNELS_COMMIT` where .git did not travel."""
    if given := os.environ.get("LABKERNELS_COMMIT"):
        return {"commit": given, "dirty": False}
    try:
        head = _git("rev-parse", "HEAD")
        return {
            "commit": head,
            "dirty": bool(_git("status", "--porcelain", "--untracked-files=no", "--", "labkernels")),
        }
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def _smi(field: str) -> str | None:
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        return subprocess.run(query, check=True, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _over(function: Any, values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return function(known) if known else None
