"""One GPU: facts, memory, launches with clusters, and times of launches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, EventOptions, LaunchConfig, ObjectCode, StreamOptions, launch

from labkernels.device.board import Board
from labkernels.errors import BadArgument, NoGpu, StalledWait
from labkernels.kernels.build import BuiltKernel
from labkernels.kernels.render import Parameter, pack

OLDEST_CAPABILITY = (9, 0)
PORTABLE_CLUSTER = 8  # blocks of a cluster that every GPU with clusters runs


@dataclass(frozen=True)
class GpuFacts:
    """What a kernel author must know of a GPU; sizes in bytes."""

    name: str
    arch: str
    sm_count: int
    l2_bytes: int
    memory_bytes: int
    shared_bytes_per_block: int
    driver_api: str


class Buffer:
    """Device memory from cuMemAlloc, freed with the object. `address` is its device address as an integer."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.address = nbytes, 0
        self.address = int(_check(driver.cuMemAlloc(nbytes)))

    def write(self, array: np.ndarray, offset_bytes: int = 0) -> Self:
        """Copy a contiguous host array to the device; returns the buffer."""
        array = np.ascontiguousarray(array)
        _check(driver.cuMemcpyHtoD(self.address + offset_bytes, array.ctypes.data, array.nbytes))
        return self

    def write_strided(self, items: np.ndarray, stride_bytes: int) -> Self:
        """Copy the items of a 1-D host array to every `stride_bytes` bytes of the device; returns the buffer."""
        items = np.ascontiguousarray(items)
        copy = driver.CUDA_MEMCPY2D()
        copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        copy.srcHost = items.ctypes.data
        copy.srcPitch = copy.WidthInBytes = items.itemsize
        copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.dstDevice = self.address
        copy.dstPitch = stride_bytes
        copy.Height = items.size
        _check(driver.cuMemcpy2DUnaligned(copy))
        return self

    def read(self, dtype: np.dtype | type, count: int | None = None, offset_bytes: int = 0) -> np.ndarray:
        """Copy `count` items (all by default) to a host array."""
        dtype = np.dtype(dtype)
        count = (self.nbytes - offset_bytes) // dtype.itemsize if count is None else count
        array = np.empty(count, dtype)
        _check(driver.cuMemcpyDtoH(array.ctypes.data, self.address + offset_bytes, array.nbytes))
        return array

    def set_bytes(self, value: int) -> Self:
        """Set every byte; returns the buffer."""
        _check(driver.cuMemsetD8(self.address, value, self.nbytes))
        return self

    def close(self) -> None:
        """Free the memory now."""
        if self.address:
            driver.cuMemFree(self.address)
            self.address = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    __del__ = close


class Statuses(Buffer):
    """One word per block of a kernel: 0, or which barrier a wait gave up on.

    Args:
        gpu: where it runs.
        kernel: its name.
        blocks: most blocks of a launch.
    """

    def __init__(self, gpu: "Gpu", kernel: str, blocks: int) -> None:
        super().__init__(4 * blocks)
        self.gpu, self.kernel = gpu, kernel
        self.set_bytes(0)

    def require_arrived(self) -> None:
        """Wait for the launches and check what their blocks reported.

        Raises:
            StalledWait: a block's wait gave up.
        """
        self.gpu.sync()
        reported = self.read(np.uint32)
        if failed := np.flatnonzero(reported).tolist():
            self.set_bytes(0)
            raise StalledWait(self.kernel, int(reported[failed[0]]), failed[0], len(failed))


@dataclass
class LoadedKernel:
    """A kernel loaded on the GPU, ready to be launched.

    Attributes:
        gpu: where.
        name: for messages.
        code: machine code.
        entry: name of its entry point.
        parameters: what a launch gives it, in order.
    """

    gpu: "Gpu"
    name: str
    code: ObjectCode
    entry: str
    parameters: tuple[Parameter, ...]

    @cached_property
    def _kernel(self):  # noqa: ANN202 - cuda.core's Kernel
        return self.code.get_kernel(self.entry)

    def config(self, blocks: int, threads: int, shared_bytes: int, cluster: int = 1) -> LaunchConfig:
        """Launch configuration, which the kernel is permitted; `blocks` counts blocks whatever the cluster size.

        Raises:
            BadArgument: the blocks do not fill whole clusters.
        """
        if blocks % cluster:
            raise BadArgument(
                f"{blocks} blocks are not a multiple of cluster {cluster}: launch whole clusters"
            )
        self._permit(shared_bytes, cluster)
        clusters = {} if cluster == 1 else {"cluster": cluster}
        return LaunchConfig(grid=blocks // cluster, block=threads, shmem_size=shared_bytes, **clusters)

    def _permit(self, shared_bytes: int, cluster: int) -> None:
        """Raise, never lower, the driver's limit of dynamic shared memory; permit clusters above the portable 8."""
        attribute, device = driver.CUfunction_attribute, self.gpu.device.device_id
        handle = driver.CUkernel(int(self._kernel.handle))
        limit = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if shared_bytes and shared_bytes > _check(driver.cuKernelGetAttribute(limit, handle, device)):
            _check(driver.cuKernelSetAttribute(limit, shared_bytes, handle, device))
        if cluster > PORTABLE_CLUSTER:
            permitted = attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            _check(driver.cuKernelSetAttribute(permitted, 1, handle, device))

    def resident_clusters(self, threads: int, shared_bytes: int, cluster: int) -> int:
        """Clusters that the whole GPU holds at once (cuOccupancyMaxActiveClusters)."""
        config = self.config(cluster, threads, shared_bytes, cluster)
        return self._kernel.occupancy.max_active_clusters(config, stream=self.gpu.stream)

    def blocks_per_sm(self, threads: int, shared_bytes: int) -> int:
        """Blocks that one SM holds at once."""
        self._permit(shared_bytes, cluster=1)
        return self._kernel.occupancy.max_active_blocks_per_multiprocessor(threads, shared_bytes)

    def launch(self, config: LaunchConfig, **arguments: Any) -> None:
        """Queue one launch.

        Args:
            config: from `config`.
            arguments: by name, as in the PTX; a buffer stands for its address.

        Raises:
            BadArgument: one is missing, unknown or does not fit; nothing is launched.
        """
        packed = pack(self.name, self.parameters, arguments)
        launch(self.gpu.stream, config, self._kernel, *packed)


class Gpu:
    """The first GPU of this machine, opened.

    Raises:
        NoGpu: no driver, no GPU, a driver too old for the installed CUDA packages, or a GPU before sm_90.
    """

    def __init__(self) -> None:
        self.device = _open()
        # A blocking stream: copies and memsets, which go to the default stream, are ordered with its launches.
        self.stream = self.device.create_stream(options=StreamOptions(nonblocking=False))
        self._gatekeeper = self.device.create_stream(options=StreamOptions(nonblocking=True))
        self._gate, self._gates_opened = Buffer(4).set_bytes(0), 0
        self._loaded: dict[str, LoadedKernel] = {}

    @cached_property
    def facts(self) -> GpuFacts:
        """Name, sizes and limits."""
        properties = self.device.properties
        major, minor = self.device.compute_capability
        version = _check(driver.cuDriverGetVersion())
        return GpuFacts(
            name=self.device.name,
            arch=f"sm_{major}{minor}a",
            sm_count=properties.multiprocessor_count,
            l2_bytes=properties.l2_cache_size,
            memory_bytes=int(_check(driver.cuDeviceTotalMem(self.device.device_id))),
            shared_bytes_per_block=properties.max_shared_memory_per_block_optin,
            driver_api=f"{version // 1000}.{version % 1000 // 10}",
        )

    @cached_property
    def board(self) -> Board:
        """This GPU's clocks, power and energy."""
        return Board(self.device.uuid)

    def load(self, kernel: BuiltKernel) -> LoadedKernel:
        """A kernel on this GPU, loaded once."""
        if kernel.entry not in self._loaded:
            self._loaded[kernel.entry] = self.load_cubin(
                kernel.spec.name, kernel.cubin, kernel.entry, kernel.parameters
            )
        return self._loaded[kernel.entry]

    def load_cubin(
        self, name: str, cubin: bytes, entry: str, parameters: tuple[Parameter, ...]
    ) -> LoadedKernel:
        """A kernel from machine code."""
        return LoadedKernel(self, name, ObjectCode.from_cubin(cubin), entry, parameters)

    def sync(self) -> None:
        """Wait for everything queued."""
        self.stream.sync()

    @contextmanager
    def timed(self) -> Iterator[Callable[[], float]]:
        """Time what is queued inside the block between two events; the yielded call gives microseconds after it.

        The stream stands still until the block ends, so that the events see the GPU's time alone: of an idle GPU they
        also time the host's way to the launch (10 to 35 microseconds). Queue only kernels that ran before: whatever
        waits for the GPU inside the block (a copy, a first load of a kernel) would wait forever.
        """
        options = EventOptions(timing_enabled=True)
        began, ended = (self.device.create_event(options) for _ in range(2))

        def elapsed_us() -> float:
            ended.sync()
            return (ended - began) * 1000.0

        with self._closed_gate():
            self.stream.record(began)
            yield elapsed_us
            self.stream.record(ended)

    @contextmanager
    def _closed_gate(self) -> Iterator[None]:
        """Hold the stream back until the block ends, however it ends."""
        self._gates_opened += 1
        gate, opened = self._gate.address, self._gates_opened
        reached = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        _check(driver.cuStreamWaitValue32(int(self.stream.handle), gate, opened, reached))
        try:
            yield
        finally:
            _check(driver.cuStreamWriteValue32(int(self._gatekeeper.handle), gate, opened, 0))


def _check(result: tuple) -> object:
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(error)
        raise RuntimeError(f"{error.name}: {text.decode() if text else 'no description'}")
    return values[0] if values else None


def _open() -> Device:
    without = (
        "Stored measurements need no GPU: every command but measure works, and chapters do with measure=False"
    )
    try:
        (error,) = driver.cuInit(0)
    except Exception as missing:
        raise NoGpu(f"No NVIDIA driver here ({_first_line(missing)}). {without}") from None
    if error == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        raise NoGpu(f"The NVIDIA driver sees no GPU. {without}")
    if error != driver.CUresult.CUDA_SUCCESS:
        raise NoGpu(f"The NVIDIA driver did not start ({error.name}). {without}")
    installed, needed = int(_check(driver.cuDriverGetVersion())), driver.CUDA_VERSION // 1000
    if installed // 1000 < needed:
        package = f"numba-cuda[cu{installed // 1000}]"
        raise NoGpu(
            f"The driver speaks CUDA {installed // 1000}, the installed packages need {needed}: "
            f"update the driver or install {package}. {without}"
        )
    device = Device(0)
    device.set_current()
    capability = tuple(device.compute_capability)
    if capability < OLDEST_CAPABILITY:
        raise NoGpu(
            f"{device.name} is sm_{capability[0]}{capability[1]}; TMA needs sm_90 (Hopper) or newer. {without}"
        )
    return device


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
