"""The kernels of the study: their names, how CUTLASS builds them, which loads their code must contain."""

import re
from dataclasses import dataclass
from itertools import product

ARCHES = ("sm_90a", "sm_100a")
ELEMENTS = {"bf16": "bfloat16_t", "e4m3": "float_e4m3_t"}
ELEMENT_BYTES = {"bf16": 2, "e4m3": 1}
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
TILES = ((128, 128), (128, 256), (256, 128))
TILE_K_BYTES = 128  # one row of a 128-byte swizzle
TRANSPORTS = ("multicast", "handshake", "independent")
"""How the CTAs of a cluster get their operands. `multicast` is CUTLASS's own kernel. The others are its
controls, in which each CTA loads its whole tiles itself: with `handshake` a stage is still released
by all CTAs that would share its load, with `independent` by its own consumers alone."""


@dataclass(frozen=True)
class GemmKernel:
    """One compiled kernel, D[M,N] = A[M,K] · B[N,K]ᵀ.

    Attributes:
        arch: `sm_90a` or `sm_100a`.
        dtype: of A and B; D is bf16, the accumulator float32.
        tile: output rows and columns of one MMA tile: of a CTA, or of the CTA pair where `sms_per_tile` is 2.
        cluster: CTAs along M and N.
        transport: one of TRANSPORTS.
        sms_per_tile: 2 where a pair of SMs works on one tile (sm_100a).
    """

    arch: str
    dtype: str
    tile: tuple[int, int]
    cluster: tuple[int, int]
    transport: str = "multicast"
    sms_per_tile: int = 1

    @property
    def name(self) -> str:
        """As in `bf16_128x256_2x1`, with `_2sm` or the transport if it is not the usual one."""
        (tm, tn), (cm, cn) = self.tile, self.cluster
        parts = [self.dtype, f"{tm}x{tn}", f"{cm}x{cn}"]
        parts += ["2sm"] if self.sms_per_tile == 2 else []
        parts += [self.transport] if self.transport != "multicast" else []
        return "_".join(parts)

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1]

    @property
    def schedule(self) -> str:
        """CUTLASS's warp specialization: two consumer groups in turn, or together on one tile."""
        if self.arch == "sm_100a":
            return f"{self.sms_per_tile}sm"
        return "pingpong" if self.tile == (128, 128) else "cooperative"

    @property
    def expected_loads(self) -> dict[str, int]:
        """Tensor copies that the code must contain: A is shared along N, B along M, both else loaded plainly.

        A tile of an SM pair already spans two CTAs along M, so B is shared between pairs only. On sm_100a CUTLASS
        has the loop of loads twice: once for the first stages, once for the rest.
        """
        shared = 0
        if self.transport == "multicast":
            shared = (self.cluster[1] > 1) + (self.cluster[0] > self.sms_per_tile)
        loops = 2 if self.arch == "sm_100a" else 1
        return {"tma_tile": loops * (2 - shared), "tma_multicast": loops * shared}

    header = None

    @property
    def line(self) -> str:
        """The kernel's line in the list that `kernels.cu` includes."""
        if self.arch == "sm_100a":
            loads = f"KernelTmaWarpSpecialized{self.sms_per_tile}SmSm100"
            stores = f"TmaWarpSpecialized{self.sms_per_tile}Sm"
        else:
            kind = self.schedule.capitalize()
            fast = "FP8FastAccum" if self.dtype == "e4m3" else ""
            loads = f"KernelTmaWarpSpecialized{kind}{fast}"
            stores = "TmaWarpSpecialized" + ("Cooperative" if kind == "Cooperative" else "")
        (tm, tn), (cm, cn) = self.tile, self.cluster
        tk = TILE_K_BYTES // ELEMENT_BYTES[self.dtype]
        shape = f"{tm}, {tn}, {tk}, {cm}, {cn}"
        return f"K({self.name}, {ELEMENTS[self.dtype]}, {shape}, {self.transport}, {loads}, {stores})"


def family(arch: str) -> tuple[GemmKernel, ...]:
    """All kernels of an architecture.

    Raises:
        ValueError: An architecture for which there are none.
    """
    if arch == "sm_90a":
        plain = [
            GemmKernel(arch, dtype, tile, cluster)
            for dtype, tile, cluster in product(ELEMENTS, TILES, CLUSTERS)
        ]
        controls = [
            GemmKernel(arch, "bf16", tile, cluster, transport)
            for tile, cluster, transport in product(TILES[:2], CLUSTERS[1:], TRANSPORTS[1:])
        ]
        return (*plain, *controls)
    if arch == "sm_100a":
        one = [GemmKernel(arch, "bf16", (128, 256), cluster) for cluster in CLUSTERS]
        two = [
            GemmKernel(arch, "bf16", (256, 256), c, sms_per_tile=2) for c in ((2, 1), (2, 2), (4, 1), (4, 2))
        ]
        return (*one, *two)
    raise ValueError(f"no GEMM kernels for {arch!r}; give one of {', '.join(ARCHES)}")


def find(arch: str, name: str) -> GemmKernel:
    """The kernel of that name.

    Raises:
        ValueError: There is none; the message lists some that are.
    """
    known = {kernel.name: kernel for kernel in family(arch)}
    if name not in known:
        raise ValueError(f"no GEMM kernel {name!r} for {arch}; there are {', '.join(list(known)[:6])}, …")
    return known[name]


_SYMBOL = re.compile(
    r"Gemm<cutlass::(?P<element>\w+), (?P<tm>\d+), (?P<tn>\d+), \d+, (?P<cm>\d+), (?P<cn>\d+), "
    r"\(Transport\)(?P<transport>\d), cutlass::gemm::(?P<loads>\w+)"
)


def of_symbol(arch: str, symbol: str) -> GemmKernel | None:
    """The kernel that a demangled name of the machine code stands for, or None."""
    found = _SYMBOL.search(symbol.replace("(int)", ""))  # as Nsight Compute writes it
    if found is None:
        return None
    dtype = {element: name for name, element in ELEMENTS.items()}[found["element"]]
    return GemmKernel(
        arch,
        dtype,
        (int(found["tm"]), int(found["tn"])),
        (int(found["cm"]), int(found["cn"])),
        TRANSPORTS[int(found["transport"])],
        2 if "2Sm" in found["loads"] else 1,
    )
