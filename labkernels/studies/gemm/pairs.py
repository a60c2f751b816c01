"""CUTLASS kernels that differ in nothing but how a CTA loads its operands, or how it stores its result."""

from dataclasses import dataclass
from itertools import product

from labkernels.studies.gemm.family import ELEMENT_BYTES, ELEMENTS, TILE_K_BYTES

ARCH = "sm_90a"
LOADS = ("tma", "cp_async")
CONTROLS = {"cp_async_bypass": "bypass.h", "cp_async_unpredicated": "unpredicated.h"}
"""CUTLASS's cp.async with one thing changed, by the header that does it: `.cg` for `.ca`; then no zero fill either."""
STORES = ("tma", "direct")
TILES = {"pingpong": (128, 128), "cooperative": (128, 256), "plain": (128, 128)}
"""CUTLASS's warp specializations, with the tile of each. `plain` has one consumer group, and a CTA for each tile."""
PERSISTENT = ("pingpong", "cooperative")


@dataclass(frozen=True)
class PairKernel:
    """One compiled kernel, D[M,N] = A[M,K] · B[N,K]ᵀ, no cluster.

    Attributes:
        dtype: Of A and B; D is bf16, the accumulator float32.
        schedule: One of TILES.
        loads: `tma`, or `cp_async` by one warp group (`plain`: by two), or one of CONTROLS.
        stores: `tma` from shared memory, or `direct` from registers.
    """

    dtype: str
    schedule: str
    loads: str
    stores: str

    cluster_size = 1

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of an output tile."""
        return TILES[self.schedule]

    @property
    def name(self) -> str:
        """As in `bf16_pingpong_cp_async_loads_tma_stores`."""
        return f"{self.dtype}_{self.schedule}_{self.loads}_loads_{self.stores}_stores"

    def takes(self, shape: tuple[int, int, int]) -> bool:
        """Whether it computes M, N, K: without predicates, whole tiles alone."""
        whole = all(extent % tile == 0 for extent, tile in zip(shape, self.tile, strict=False))
        return whole or self.loads != "cp_async_unpredicated"

    def swizzle(self, shape: tuple[int, int, int], most: int) -> int:
        """Columns of tiles to walk together: CUTLASS pads a grid of tiles to whole groups, which must not add any."""
        tiles = [-(-extent // tile) for extent, tile in zip(shape, self.tile, strict=False)]
        return most if all(count % most == 0 for count in tiles) else 1

    @property
    def header(self) -> str | None:
        """Of `controls/`: included before the unit."""
        return CONTROLS.get(self.loads)

    @property
    def line(self) -> str:
        """The kernel's line in the list that `kernels.cu` includes."""
        kind = "" if self.schedule == "plain" else self.schedule.capitalize()
        if self.loads == "tma":
            loads = f"KernelTmaWarpSpecialized{kind}" + ("FP8FastAccum" if self.dtype == "e4m3" else "")
        else:
            loads = f"KernelCpAsyncWarpSpecialized{kind}"
        together = "Cooperative" if kind == "Cooperative" else ""
        stores = f"TmaWarpSpecialized{together}" if self.stores == "tma" else "NoSmemWarpSpecialized"
        shape = ", ".join(map(str, (*self.tile, TILE_K_BYTES // ELEMENT_BYTES[self.dtype], 1, 1)))
        return f"K({self.name}, {ELEMENTS[self.dtype]}, {shape}, multicast, {loads}, {stores})"


PAIRS = (
    *(PairKernel("bf16", *axes) for axes in product(TILES, LOADS, STORES)),
    *(PairKernel("e4m3", schedule, loads, "tma") for schedule, loads in product(PERSISTENT, LOADS)),
)

CONTROLLED = {
    loads: tuple(PairKernel(dtype, schedule, loads, "tma") for dtype in ELEMENTS for schedule in PERSISTENT)
    for loads in CONTROLS
}
"""Kernels of each control: a library of its own, since the header changes what a template's name means."""
