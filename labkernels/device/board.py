"""The GPU as NVML knows it: clocks, power, energy, temperature, who else has it open."""

import os
import threading
from collections.abc import Callable
from statistics import median
from types import TracebackType
from typing import Any, Self

from cuda.bindings import nvml

SAMPLE_S = 0.1

#: Bits of nvmlClocksEventReasons.
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
# What a driver does not offer, or a machine without one.
_MISSING = (nvml.NvmlError, RuntimeError)


class Board:
    """One GPU by its UUID, since NVML counts all GPUs and CUDA those of CUDA_VISIBLE_DEVICES, in its order.

    A reading is None where NVML is missing or does not tell it.

    Args:
        uuid: as CUDA tells it.
    """

    def __init__(self, uuid: str) -> None:
        self._handle = None
        for prefix in ("GPU", "MIG"):
            try:
                nvml.init_v2()
                self._handle = nvml.device_get_handle_by_uuid(f"{prefix}-{uuid}")
                if prefix == "MIG":  # an instance has no clocks of its own
                    self._handle = nvml.device_get_device_handle_from_mig_device_handle(self._handle)
                break
            except _MISSING:
                continue

    def _ask(self, call: Callable[..., Any], *arguments: int) -> Any:
        try:
            return None if self._handle is None else call(self._handle, *arguments)
        except _MISSING:
            return None

    def sm_clock_mhz(self) -> int | None:
        """SM clock now."""
        return self._ask(nvml.device_get_clock_info, nvml.ClockType.CLOCK_SM)

    def memory_clock_mhz(self) -> int | None:
        """Memory clock now."""
        return self._ask(nvml.device_get_clock_info, nvml.ClockType.CLOCK_MEM)

    def power_w(self) -> float | None:
        """Board power, averaged by the driver over up to a second."""
        return _thousandth(self._ask(nvml.device_get_power_usage))

    def power_limit_w(self) -> float | None:
        """Board power that the driver keeps to."""
        return _thousandth(self._ask(nvml.device_get_enforced_power_limit))

    def energy_j(self) -> float | None:
        """Energy used since the driver was loaded; the counter moves in steps (see `labkernels.device.energy`)."""
        return _thousandth(self._ask(nvml.device_get_total_energy_consumption))

    def temperature_c(self) -> int | None:
        """Temperature of the die, degrees Celsius."""
        return self._ask(nvml.device_get_temperature_v, nvml.TemperatureSensors.TEMPERATURE_GPU)

    def clock_reasons(self) -> int | None:
        """Why the clock is not higher: bits of `REASONS`."""
        return self._ask(nvml.device_get_current_clocks_event_reasons)

    def ecc(self) -> bool | None:
        """Whether device memory is error-correcting."""
        modes = self._ask(nvml.device_get_ecc_mode)
        return None if modes is None else bool(modes[0])

    def mig(self) -> bool | None:
        """Whether the GPU is partitioned (MIG), so that others may use parts of it."""
        modes = self._ask(nvml.device_get_mig_mode)
        return None if modes is None else bool(modes[0])

    def other_processes(self) -> int | None:
        """Processes besides this one that have the GPU open; None where not even this one is seen."""
        found = self._ask(nvml.device_get_compute_running_processes_v3)
        return len(found) - 1 if found else None


def driver_version() -> str | None:
    """Version of the GPU driver."""
    try:
        nvml.init_v2()
        return nvml.system_get_driver_version()
    except _MISSING:
        return None


def gpu_uuids() -> list[str]:
    """UUIDs of the GPUs that NVML lists, in its order, as CUDA_VISIBLE_DEVICES takes them."""
    try:
        nvml.init_v2()
        handles = map(nvml.device_get_handle_by_index_v2, range(nvml.device_get_count_v2()))
        return [nvml.device_get_uuid(handle) for handle in handles]
    except _MISSING:
        return []


def visible_gpus() -> list[str]:
    """This machine's GPUs by UUID; where CUDA_VISIBLE_DEVICES is set, those that it names, as it names them."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
        return gpu_uuids()
    return [one for one in named.split(",") if one not in ("", "-1")]


class Monitor:
    """Samples a GPU's state in the background, every 100 ms while the block runs."""

    def __init__(self, board: Board) -> None:
        self._readings = {
            name: getattr(board, name)
            for name in (
                "sm_clock_mhz",
                "memory_clock_mhz",
                "power_w",
                "temperature_c",
                "clock_reasons",
                "other_processes",
            )
        }
        self._samples: dict[str, list[float]] = {name: [] for name in self._readings}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            for name, read in self._readings.items():
                if (value := read()) is not None:
                    self._samples[name].append(value)
            if self._ended.wait(SAMPLE_S):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def summary(self) -> dict[str, Any]:
        """Columns of the run table; empty where NVML tells nothing."""

        def over(function: Callable[[list[float]], float], name: str) -> float | None:
            return function(self._samples[name]) if self._samples[name] else None

        reasons = 0
        for bits in self._samples["clock_reasons"]:
            reasons |= int(bits)
        return {
            "sm_clock_mhz_min": over(min, "sm_clock_mhz"),
            "sm_clock_mhz_median": over(median, "sm_clock_mhz"),
            "sm_clock_mhz_max": over(max, "sm_clock_mhz"),
            "memory_clock_mhz": over(median, "memory_clock_mhz"),
            "power_w_median": over(median, "power_w"),
            "power_w_max": over(max, "power_w"),
            "temperature_c_max": over(max, "temperature_c"),
            "throttle_reasons": ";".join(
                name for bit, name in REASONS.items() if reasons & bit and name != "idle"
            ),
            "other_processes": over(max, "other_processes"),
        }


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
