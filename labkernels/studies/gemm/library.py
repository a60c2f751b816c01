"""The built GEMMs, callable: plans over device addresses, launches, and stamps of the SMs' clocks."""

import ctypes
from collections.abc import Sequence
from functools import cached_property

from labkernels.device import Gpu
from labkernels.errors import LabError, NotInstalled
from labkernels.studies.gemm.build import key, library_path
from labkernels.studies.gemm.family import GemmKernel, family
from labkernels.studies.gemm.pairs import CONTROLLED, PAIRS, PairKernel

STAMP_FIELDS = 2  # cycle counter and nanoseconds
ROW_ALIGNMENT_BYTES = 16  # for TMA


class GemmError(LabError):
    """CUTLASS or CUDA refused a kernel; the message names kernel, shape and reason."""


class Plan:
    """One kernel bound to operands, ready to be launched; made by `Library.plan`."""

    def __init__(self, library: "Library", index: int, handle: ctypes.c_void_p) -> None:
        self._library, self._index, self._handle = library, index, handle

    def launch(self, stream: int) -> None:
        """Queue one launch on a stream (its handle as an integer).

        Raises:
            GemmError: The launch was refused.
        """
        self._library.require(self._library.c.gemm_launch(self._index, self._handle, stream), "launch")

    def close(self) -> None:
        """Free the plan."""
        self._library.c.gemm_destroy(self._index, self._handle)


class Library:
    """The kernels of one architecture.

    Args:
        arch: `sm_90a` or `sm_100a`; must be the GPU's.
        kernels: Those the library was built from; by default the architecture's family.

    Raises:
        NotInstalled: Not built; the message says how to build it.
        ValueError: An unknown architecture.
    """

    def __init__(self, arch: str, kernels: Sequence[GemmKernel | PairKernel] | None = None) -> None:
        self.arch = arch
        listed = family(arch) if kernels is None else kernels
        self.path, self._key = library_path(arch, listed), key(arch, listed)
        known = {kernel.name: kernel for kernel in listed}
        if not self.path.exists():
            raise NotInstalled(
                f"no GEMM library {self.path}: run python -m labkernels.studies.gemm.build --arch {arch}, "
                "which needs nvcc and '.[gemm]'"
            )
        self.c = ctypes.CDLL(str(self.path))
        self._declare()
        names = [self.c.gemm_name(i).decode() for i in range(self.c.gemm_count())]
        self._index = {name: index for index, name in enumerate(names)}
        self.kernels = tuple(known[name] for name in known if name in self._index)

    def _declare(self) -> None:
        address, number = ctypes.c_void_p, ctypes.c_int
        self.c.gemm_name.restype = self.c.gemm_error.restype = ctypes.c_char_p
        self.c.gemm_create.argtypes = [
            number,
            ctypes.POINTER(address),
            *[address] * 3,
            *[number] * 6,
            address,
        ]
        self.c.gemm_launch.argtypes = [number, address, address]
        self.c.gemm_destroy.argtypes = [number, address]
        self.c.gemm_stamp.argtypes = [address, number, number, address]

    @property
    def ptx_sha256(self) -> str:
        """Hash of what the kernels are made from."""
        return self._key

    @cached_property
    def _resident(self) -> dict[str, int]:
        return {name: self.c.gemm_max_clusters(index) for name, index in self._index.items()}

    def resident_clusters(self, kernel: GemmKernel | PairKernel) -> int:
        """Clusters of a kernel that the GPU holds at once (cudaOccupancyMaxActiveClusters).

        Raises:
            GemmError: The kernel does not run on this GPU.
        """
        if (count := self._resident[kernel.name]) <= 0:
            raise GemmError(
                f"{kernel.name} does not run here (CUDA error {-count}); the library is for {self.arch}"
            )
        return count

    def stages(self, kernel: GemmKernel | PairKernel) -> int:
        """Stages of a kernel's pipeline."""
        return self._info(kernel)[0]

    def shared_bytes(self, kernel: GemmKernel | PairKernel) -> int:
        """Dynamic shared memory of a kernel's CTA."""
        return self._info(kernel)[1]

    def threads(self, kernel: GemmKernel | PairKernel) -> int:
        """Threads of a kernel's CTA."""
        return self._info(kernel)[2]

    def _info(self, kernel: GemmKernel | PairKernel) -> list[int]:
        out = (ctypes.c_int * 3)()
        self.c.gemm_info(self._index[kernel.name], out)
        return list(out)

    def plan(
        self,
        kernel: GemmKernel | PairKernel,
        addresses: tuple[int, int, int],
        shape: tuple[int, int, int],
        *,
        sms: int,
        swizzle: int = 1,
    ) -> Plan:
        """Bind a kernel to operands.

        Args:
            kernel: Which.
            addresses: Of A (M×K), B (N×K) and D (M×N), all row major.
            shape: M, N, K.
            sms: SMs that the persistent grid may use; as many whole clusters are launched as are resident.
            swizzle: Most neighboring columns of tiles walked together, so that they share operands in L2.

        Raises:
            GemmError: CUTLASS refuses the shape, or K is not a multiple of 16 bytes.
        """
        clusters = min(self.resident_clusters(kernel), sms // kernel.cluster_size)
        handle = ctypes.c_void_p()
        status = self.c.gemm_create(
            self._index[kernel.name], ctypes.byref(handle), *addresses, *shape, sms, clusters, swizzle, None
        )
        self.require(
            status,
            f"{kernel.name} for M, N, K = {shape}; rows must be multiples of {ROW_ALIGNMENT_BYTES} bytes",
        )
        return Plan(self, self._index[kernel.name], handle)

    def stamp(self, stamps: int, slot: int, sms: int, stream: int) -> None:
        """Queue a stamp of every SM's cycle counter and nanoseconds.

        Args:
            stamps: Address of uint64[slots, sms, STAMP_FIELDS].
            slot: Which of the slots to write.
            sms: SMs of the GPU.
            stream: Handle.
        """
        if error := self.c.gemm_stamp(stamps, slot, sms, stream):
            raise GemmError(f"clock stamp: CUDA error {error}")

    def require(self, status: int, what: str) -> None:
        """Turn a CUTLASS status into an error.

        Raises:
            GemmError: The status is not success.
        """
        if status:
            raise GemmError(f"{what}: {self.c.gemm_error(status).decode()} ({status})")


def require_library() -> Library:
    """The kernels for this machine's GPU.

    Raises:
        NoGpu: There is none.
        NotInstalled: See `Library`.
    """
    return Library(Gpu().facts.arch)


def pair_libraries(arch: str) -> list[Library]:
    """The pairs of kernels, and the controls beside them.

    Raises:
        NotInstalled: See `Library`.
    """
    return [Library(arch, kernels) for kernels in (PAIRS, *CONTROLLED.values())]


def require_pairs() -> list[Library]:
    """Those for this machine's GPU.

    Raises:
        NoGpu: There is none.
        NotInstalled: See `Library`.
    """
    return pair_libraries(Gpu().facts.arch)
