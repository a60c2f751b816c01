"""What of the device layer shows without a GPU: errors in sentences, which GPU is asked, power, the filling kernel."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from cuda.bindings import driver, nvml

from labkernels.device import Gpu, NoGpu, board, energy, environment, gpu
from labkernels.device.random_fill import random_words
from labkernels.errors import StalledWait
from labkernels.kernels import entry
from labkernels.kernels.render import BadArgument, Parameter
from labkernels.paths import ROOT
from labkernels.store import Store

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


def test_without_a_gpu_its_tests_are_skipped_for_one_reason():
    try:
        Gpu()
    except NoGpu as error:
        missing = str(error)
    else:
        pytest.skip("this machine has a GPU")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-rs", "tests/gpu/test_cluster_gpu.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    reasons = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(reasons) == 1 and missing in reasons[0] and "error" not in done.stdout


def test_a_stalled_wait_names_kernel_barrier_and_block():
    error = StalledWait("tma_bulk.stream", 0x103, 17, 4)
    assert (error.barrier, error.stage, error.block) == ("full", 3, 17)
    assert "tma_bulk.stream: block 17" in str(error) and "full[3]" in str(error)


class Refused(nvml.NvmlError):
    """NVML's own needs its library for a text."""

    def __init__(self):
        Exception.__init__(self)


GPUS = {
    "GPU-aaaa": {"clock": 1000, "power": 100_000, "energy": 1_000_000, "processes": ["ours", "another's"]},
    "GPU-bbbb": {"clock": 1980, "power": 650_500, "energy": 7_000_000, "processes": ["ours"]},
    "MIG-cccc": {},
}


class TwoGpus:
    """NVML of a machine with two GPUs, of which it lists the slow one first."""

    NvmlError, ClockType, TemperatureSensors = nvml.NvmlError, nvml.ClockType, nvml.TemperatureSensors

    def init_v2(self):
        pass

    def device_get_handle_by_uuid(self, uuid):
        if uuid not in GPUS:
            raise Refused
        return uuid

    def device_get_count_v2(self):
        return 2

    def device_get_handle_by_index_v2(self, index):
        return [*GPUS][index]

    def device_get_uuid(self, handle):
        return handle

    def device_get_device_handle_from_mig_device_handle(self, handle):
        return {"MIG-cccc": "GPU-bbbb"}[handle]

    def device_get_clock_info(self, handle, kind):
        return GPUS[handle]["clock"] if kind == nvml.ClockType.CLOCK_SM else 3201

    def device_get_power_usage(self, handle):
        return GPUS[handle]["power"]

    def device_get_enforced_power_limit(self, handle):
        return 700_000

    def device_get_total_energy_consumption(self, handle):
        return GPUS[handle]["energy"]

    def device_get_temperature_v(self, handle, sensor):
        raise RuntimeError("function nvmlDeviceGetTemperatureV is not found")  # a driver older than it

    def device_get_current_clocks_event_reasons(self, handle):
        return 0x5 if handle == "GPU-bbbb" else 0x80

    def device_get_ecc_mode(self, handle):
        return (1, 1)

    def device_get_mig_mode(self, handle):
        raise Refused

    def device_get_compute_running_processes_v3(self, handle):
        return GPUS[handle]["processes"]

    def system_get_driver_version(self):
        return "580.1"


class CudaDevice:
    """CUDA's device 0 where CUDA_VISIBLE_DEVICES names the GPUs in the other order."""

    device_id = 0
    uuid = "bbbb"


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(board, "nvml", TwoGpus())
    gpu = Gpu.__new__(Gpu)
    gpu.device = CudaDevice()
    return gpu


def test_clock_power_and_energy_are_those_of_cudas_gpu_whatever_its_number(two_gpus):
    here = two_gpus.board
    assert (here.sm_clock_mhz(), here.power_w(), here.energy_j()) == (1980, 650.5, 7000)
    assert (here.memory_clock_mhz(), here.power_limit_w(), here.ecc()) == (3201, 700, True)
    assert here.temperature_c() is None and here.mig() is None
    assert here.other_processes() == 0 and board.Board("aaaa").other_processes() == 1
    assert board.driver_version() == "580.1"


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, ["GPU-aaaa", "GPU-bbbb"]),
        ("", []),
        ("-1", []),
        ("1", ["1"]),
        ("GPU-bbbb,MIG-cccc", ["GPU-bbbb", "MIG-cccc"]),
    ],
)
def test_gpus_are_named_by_uuid_unless_the_user_names_them(two_gpus, monkeypatch, visible, found):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert board.visible_gpus() == found


def test_the_monitor_watches_cudas_gpu(two_gpus):
    with board.Monitor(two_gpus.board) as monitor:
        pass
    summary = monitor.summary()
    assert summary["sm_clock_mhz_min"] == summary["sm_clock_mhz_max"] == 1980
    assert summary["power_w_max"] == 650.5 and summary["throttle_reasons"] == "power_cap"
    assert summary["temperature_c_max"] is None and summary["other_processes"] == 0
    assert set(summary) < set(Store().tables["runs"].columns)


def test_an_instance_of_a_partitioned_gpu_has_the_clock_of_the_whole(two_gpus):
    assert board.Board("cccc").sm_clock_mhz() == 1980


@pytest.mark.parametrize("uuid", ["dddd", "bbbb"])
def test_what_nvml_does_not_tell_is_empty(monkeypatch, uuid):
    class NoLibrary(TwoGpus):
        def init_v2(self):
            raise RuntimeError("nvml can only be found with a driver")

    monkeypatch.setattr(board, "nvml", NoLibrary() if uuid == "bbbb" else TwoGpus())
    unknown = board.Board(uuid)
    with board.Monitor(unknown) as monitor:
        pass
    assert set(monitor.summary().values()) == {None, ""}
    assert unknown.energy_j() is None and unknown.ecc() is None


class Clock:
    """Time that passes when the GPU is kept busy, and a counter of its energy that moves every 0.1 s."""

    def __init__(self, monkeypatch, watts, began):
        self.now, self.watts = began, watts
        monkeypatch.setattr(energy.time, "perf_counter", lambda: self.now)

    def energy_j(self):
        self.now += 0.0003
        return self.watts * round(self.now // 0.1 * 0.1, 1)

    def keep_busy(self):
        self.now += 0.0005


@pytest.mark.parametrize("began", [0.013 * n for n in range(8)])
def test_power_is_that_between_two_steps_of_the_counter(monkeypatch, began):
    clock = Clock(monkeypatch, 700, began)
    power = energy.power_while(clock.energy_j, 0.2, clock.keep_busy)
    assert power.watts == pytest.approx(700, rel=0.02) and 0.2 <= power.seconds < 0.32
    assert clock.now - began < 0.45


def test_power_off_the_steps_is_what_the_marked_rows_have(monkeypatch):
    """0.2035 s hold two steps of the counter or three."""
    found = set()
    for n in range(100):
        clock = Clock(monkeypatch, 700, n * 0.001)
        before = clock.energy_j()
        energy.keep_busy_for(0.2035, clock.keep_busy)
        found.add(round((clock.energy_j() - before) / 0.2035))
    assert found == {688, 1032}


def test_a_counter_that_is_missing_or_stands_still_gives_no_power(monkeypatch):
    clock = Clock(monkeypatch, 0, 0.0)
    assert energy.power_while(lambda: None, 0.2, clock.keep_busy) is None
    assert clock.now >= 0.2, "the work is timed all the same"
    assert energy.power_while(clock.energy_j, 0.2, clock.keep_busy) is None


def test_no_stored_power_is_beyond_what_the_board_may_take():
    limits = {row["gpu"]: row["power_limit_w"] for row in Store().records("gpus") if row["power_limit_w"]}

    def beyond(**marked):
        rows = Store().read("gemm_sustained", run_columns=("gpu_name",), **marked)
        return rows["power_w"] > 1.15 * rows["gpu_name"].map(limits)

    assert not beyond().any()
    runs = Store().read("runs", marked=True)
    assert not (runs["power_w_max"] > 1.15 * runs["gpu_name"].map(limits)).any()
    left_out = len(Store().read("gemm_sustained", marked=True)) - len(Store().read("gemm_sustained"))
    assert beyond(marked=True).sum() == left_out, "no row is left out for another reason"


# --- commit ---


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the project without its repository, inside a folder that is not one either."""
    root = tmp_path / "outer" / "project"
    (root / "labkernels").mkdir(parents=True)
    (root / "labkernels" / "__init__.py").write_text("")
    monkeypatch.setattr(environment, "ROOT", root)
    monkeypatch.delenv("LABKERNELS_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return root


def committed(folder, *files):
    git = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", *files], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "x"], check=True)
    return subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


NO_COMMIT = {"commit": None, "dirty": None}


def test_the_commit_is_this_projects_or_none(copied, monkeypatch):
    assert environment.commit() == NO_COMMIT, "no repository"
    committed(copied.parent, "project")
    assert environment.commit() == NO_COMMIT, "another repository, although it has the files"
    committed(copied)
    assert environment.commit() == NO_COMMIT, "a repository here that does not have the files"
    own = committed(copied, "labkernels")
    assert environment.commit() == {"commit": own, "dirty": False}
    (copied / "labkernels" / "__init__.py").write_text("1")
    assert environment.commit() == {"commit": own, "dirty": True}
    monkeypatch.setenv("LABKERNELS_COMMIT", "a" * 40)
    assert environment.commit() == {"commit": "a" * 40, "dirty": False}


def test_the_filling_kernel_and_numpy_agree(monkeypatch):
    function = entry.fill()
    words = np.zeros(257, np.uint32)

    class OneThread:
        grid = staticmethod(lambda dimensions: 0)
        gridsize = staticmethod(lambda dimensions: 1)

    monkeypatch.setitem(function.__globals__, "cuda", OneThread)
    monkeypatch.setitem(function.__globals__, "types", np)
    function(words, 257, np.uint32(12345))
    assert np.array_equal(words, random_words(np.arange(257), 12345))


def test_a_package_that_is_not_installed_is_left_out_of_the_record(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("numpy", "no such package"))
    assert {"numpy", "numba-cuda"} <= set(environment.package_versions())
    assert "no such package" not in environment.package_versions()


def test_a_kernel_is_permitted_what_a_launch_takes_and_never_less(monkeypatch):
    limits = {"CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": 48 << 10}
    success = (RESULT.CUDA_SUCCESS,)
    monkeypatch.setattr(gpu.driver, "cuKernelGetAttribute", lambda name, *_: (*success, limits[name.name]))
    monkeypatch.setattr(
        gpu.driver,
        "cuKernelSetAttribute",
        lambda name, value, *_: limits.update({name.name: value}) or success,
    )
    monkeypatch.setattr(gpu, "LaunchConfig", SimpleNamespace)
    where = SimpleNamespace(device=SimpleNamespace(device_id=0))
    kernel = gpu.LoadedKernel(where, "k", None, "k", ())
    kernel.__dict__["_kernel"] = SimpleNamespace(handle=0)
    assert vars(kernel.config(132, 64, 1 << 10)) == {"grid": 132, "block": 64, "shmem_size": 1 << 10}
    kernel.config(132, 64, 200 << 10)
    kernel.config(132, 64, 100 << 10)
    assert limits == {"CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": 200 << 10}
    wide = kernel.config(128, 64, 0, cluster=16)
    assert (wide.grid, wide.cluster) == (8, 16)
    assert limits["CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"] == 1
    with pytest.raises(ValueError, match="130 blocks are not a multiple of cluster 4"):
        kernel.config(130, 64, 0, cluster=4)


def test_a_launch_that_lacks_an_argument_never_reaches_the_gpu(monkeypatch):
    monkeypatch.delattr(gpu, "launch")
    kernel = gpu.LoadedKernel(None, "k", None, "k", (Parameter("tiles", "int32"),))
    with pytest.raises(BadArgument, match="k: 'tiles' is missing"):
        kernel.launch(None)
