"""Energy that the GPU has used, from NVML's counter."""

import ctypes
from functools import cache


@cache
def _nvml() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    device = ctypes.c_void_p()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
        return None
    return nvml, device


def energy_j() -> float | None:
    """Joules since the driver was loaded; None where NVML does not count them."""
    if (found := _nvml()) is None:
        return None
    nvml, device = found
    millijoules = ctypes.c_ulonglong()
    if nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules)):
        return None
    return millijoules.value / 1000
