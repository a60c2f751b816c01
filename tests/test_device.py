"""What of the device layer shows without a GPU: errors in sentences, nvidia-smi's lines, the filling kernel."""

import subprocess
import sys

import numpy as np
import pytest
from cuda.bindings import driver

from labkernels.device import Gpu, NoGpu, gpu
from labkernels.device.environment import summarize_samples
from labkernels.device.random_fill import random_words
from labkernels.errors import StalledWait
from labkernels.kernels import entry

RESULT = driver.CUresult


def answers(monkeypatch, init, version=13000, capability=(9, 0)):
    class Device:
        name = "Some GPU"
        compute_capability = capability

        def __init__(self, ordinal):
            pass

        def set_current(self):
            pass

    monkeypatch.setattr(gpu.driver, "cuInit", lambda flags: (init,))
    monkeypatch.setattr(gpu.driver, "cuDriverGetVersion", lambda: (RESULT.CUDA_SUCCESS, version))
    monkeypatch.setattr(gpu, "Device", Device)


def test_no_gpu(monkeypatch):
    answers(monkeypatch, RESULT.CUDA_ERROR_NO_DEVICE)
    with pytest.raises(NoGpu, match=r"sees no GPU. Stored measurements need no GPU"):
        Gpu()


def test_a_driver_that_does_not_start(monkeypatch):
    answers(monkeypatch, RESULT.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
    with pytest.raises(NoGpu, match=r"did not start .CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"):
        Gpu()


def test_a_driver_that_is_too_old(monkeypatch):
    answers(monkeypatch, RESULT.CUDA_SUCCESS, version=11080)
    with pytest.raises(NoGpu, match=r"speaks CUDA 11.*need 1[23].*update the driver"):
        Gpu()


def test_a_gpu_before_hopper(monkeypatch):
    answers(monkeypatch, RESULT.CUDA_SUCCESS, capability=(8, 0))
    with pytest.raises(NoGpu, match="Some GPU is sm_80; TMA needs sm_90"):
        Gpu()


def test_no_driver_at_all_is_one_sentence_on_the_command_line():
    code = "from labkernels.cli import main; raise SystemExit(main(['measure', 'latency']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 0:
        pytest.skip("this machine has a GPU")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "Stored measurements need no GPU" in done.stderr


def test_a_stalled_wait_names_kernel_barrier_and_block():
    error = StalledWait("tma_bulk.stream", 0x103, 17, 4)
    assert (error.barrier, error.stage, error.block) == ("full", 3, 17)
    assert "tma_bulk.stream: block 17" in str(error) and "full[3]" in str(error)


def test_samples_of_the_monitor():
    text = "1980, 3201, 350.5, 48, 0x0\n1755, 3201, 690.0, 61, 0x0000000000000004\n1900, 3201, [N/A], 60, 0x1\n19"
    summary = summarize_samples(text)
    assert summary["sm_clock_mhz_min"] == 1755 and summary["sm_clock_mhz_max"] == 1980
    assert summary["power_w_max"] == 690 and summary["temperature_c_max"] == 61
    assert summary["throttle_reasons"] == "power_cap"


def test_no_samples_are_empty_columns():
    assert set(summarize_samples("").values()) == {None, ""}


def test_the_filling_kernel_and_numpy_agree(monkeypatch):
    function, _ = entry.fill()
    words = np.zeros(257, np.uint32)

    class OneThread:
        grid = staticmethod(lambda dimensions: 0)
        gridsize = staticmethod(lambda dimensions: 1)

    monkeypatch.setitem(function.__globals__, "cuda", OneThread)
    monkeypatch.setitem(function.__globals__, "types", np)
    function(words, 257, np.uint32(12345))
    assert np.array_equal(words, random_words(np.arange(257), 12345))
