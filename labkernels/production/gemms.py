"""How vLLM, SGLang and DeepGEMM choose tile and cluster of a matrix product on Hopper, and so how A and B are loaded.

vLLM: `csrc/libtorch_stable/quantization/w8a8/cutlass/c3x/scaled_mm_sm90_{fp8,int8}_dispatch.cuh` at commit 1051220e,
SGLang: `sgl-kernel/csrc/cutlass_extensions/gemm/fp8_gemm_sm90_dispatch.cuh` at 812a916a, DeepGEMM:
`csrc/jit_kernels/heuristics/{sm90,common}.hpp` at 54e22612.
"""

from dataclasses import dataclass, field
from math import ceil

from labkernels import forms
from labkernels.errors import BadArgument
from labkernels.forms import entry
from labkernels.production.single import single

INT = 2**31 - 1
SHARED_BYTES = 232448  # most of a CTA
MOST_STAGES = 16
ELEMENT_BYTES = {"bf16": 2, "fp8": 1}


@dataclass(frozen=True, kw_only=True)
class Product:
    """D[M,N] = A[M,K] · B[N,K]ᵀ, result in bf16."""

    m: int = entry(help="rows of A and D", least=1, most=INT)
    n: int = entry(help="columns of D", least=1, most=INT)
    k: int = entry(help="columns of A", least=1, most=INT)

    def __post_init__(self) -> None:
        forms.require(self)


@dataclass(frozen=True, kw_only=True)
class ScaledProduct(Product):
    """A product of 8-bit operands with scales."""

    dtype: str = entry("fp8", help="type of A and B", choices=("fp8", "int8"))


@dataclass(frozen=True, kw_only=True)
class DeepProduct(Product):
    """A product as DeepGEMM is asked for it."""

    dtype: str = entry(
        "bf16", help="type of A and B; fp8 with scales of 1 × 128 and 128 × 128", choices=tuple(ELEMENT_BYTES)
    )
    sm_count: int = entry(132, help="SMs of the GPU", least=2, most=INT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sm_count % 2:
            raise BadArgument(
                f"`sm_count` is {self.sm_count}, DeepGEMM takes an even number: give {self.sm_count - 1}"
            )


@dataclass(frozen=True)
class GemmChoice:
    """What a product was chosen to do: mechanisms by this book's names.

    Attributes:
        a: what loads A.
        b: what loads B.
        tile: rows and columns of D of a CTA, and K of a stage.
        cluster: CTAs along M and N.
        schedule: how the warps share the work, where the library has several; else empty.
        stages: of the pipeline, where the library says; else 0.
        reasons: why, for each of the fields above.
    """

    a: str
    b: str
    tile: tuple[int, int, int]
    cluster: tuple[int, int]
    schedule: str
    stages: int
    reasons: dict[str, str] = field(compare=False)


# CUTLASS's names of tile and cluster are those of the product that it is given: operands may be swapped.
_WS, _PINGPONG, _COOPERATIVE = "warp-specialized", "ping-pong", "cooperative"
FP8 = {
    "M ≤ 16, N ≤ 1280": ((64, 16, 256), (1, 2), _WS, True),
    "M ≤ 16, N > 1280": ((64, 16, 256), (1, 1), _WS, True),
    "16 < M ≤ 64, N ≤ 1280": ((64, 16, 256), (1, 4), _WS, True),
    "16 < M ≤ 64, N > 1280": ((64, 64, 256), (1, 1), _WS, True),
    "64 < M ≤ 128": ((64, 128, 128), (2, 1), _PINGPONG, False),
    "M ≥ 8192, K ≥ 6144": ((256, 128, 128), (2, 1), _COOPERATIVE, False),
    "M > 128": ((128, 128, 128), (2, 1), _PINGPONG, False),
}
INT8 = {
    "M ≤ 32, N < 8192": ((64, 64, 256), (1, 8), _WS, False),
    "M ≤ 32, N ≥ 8192": ((64, 128, 256), (1, 4), _WS, False),
    "32 < M ≤ 64": ((64, 64, 256), (1, 1), _WS, False),
    "64 < M ≤ 128": ((64, 128, 128), (2, 1), _PINGPONG, False),
    "M > 128": ((128, 128, 128), (2, 1), _PINGPONG, False),
}
"""Tile, cluster and schedule as compiled, and whether A and B are swapped, by the shapes that take them."""


def vllm(product: ScaledProduct) -> GemmChoice:
    """VLLM's choice for a product with scales."""
    if product.dtype == "int8":
        small = "M ≤ 32, N < 8192" if product.n < 8192 else "M ≤ 32, N ≥ 8192"
        limits = ((32, small), (64, "32 < M ≤ 64"), (128, "64 < M ≤ 128"))
        case = next((case for limit, case in limits if product.m <= limit), "M > 128")
        return _compiled(case, INT8[case])
    case = _fp8_case(product)
    if case == "M > 128" and product.m >= 8192 and product.k >= 6144:
        case = "M ≥ 8192, K ≥ 6144"
    return _compiled(case, FP8[case])


def sglang(product: ScaledProduct) -> GemmChoice:
    """SGLang's choice for an fp8 product with scales, adapted from vLLM's.

    Raises:
        BadArgument: for int8, whose choice is not repeated here.
    """
    if product.dtype != "fp8":
        raise BadArgument(
            f"`dtype` is {product.dtype!r}: only SGLang's choice for fp8 is repeated here; give fp8"
        )
    case = _fp8_case(product)
    return _compiled(case, FP8[case])


def _fp8_case(product: Product) -> str:
    width = "N ≤ 1280" if product.n <= 1280 else "N > 1280"
    limits = ((16, f"M ≤ 16, {width}"), (64, f"16 < M ≤ 64, {width}"), (128, "64 < M ≤ 128"))
    return next((case for limit, case in limits if product.m <= limit), "M > 128")


def _compiled(case: str, how: tuple[tuple[int, int, int], tuple[int, int], str, bool]) -> GemmChoice:
    tile, cluster, schedule, swapped = how
    if swapped:
        tile, cluster = (tile[1], tile[0], tile[2]), cluster[::-1]
    also = ", A and B swapped: tokens are the narrow side of the tile" if swapped else ""
    return _choice(tile, cluster, schedule, 0, case + also, case + also, "as many as fit")


def _choice(
    tile: tuple[int, int, int],
    cluster: tuple[int, int],
    schedule: str,
    stages: int,
    why_tile: str,
    why_cluster: str,
    why_stages: str,
) -> GemmChoice:
    shared = {
        True: "CTAs {} of the cluster need the same tile",
        False: "no other CTA {} of the cluster needs it",
    }
    return GemmChoice(
        a="tma_multicast" if cluster[1] > 1 else "tma_tile",
        b="tma_multicast" if cluster[0] > 1 else "tma_tile",
        tile=tile,
        cluster=cluster,
        schedule=schedule,
        stages=stages,
        reasons={
            "a": shared[cluster[1] > 1].format("along N"),
            "b": shared[cluster[0] > 1].format("along M"),
            "tile": why_tile,
            "cluster": why_cluster,
            "schedule": why_tile if schedule else "one for all",
            "stages": why_stages,
        },
    )


def deepgemm(product: DeepProduct) -> GemmChoice:
    """DeepGEMM's choice for a plain product, both operands with K contiguous.

    Raises:
        BadArgument: no tile fits, as its source asserts.
    """
    best, fewest = None, 0
    for cluster in ((1, 1), (1, 2), (2, 1)):
        for tile_m in _rows(product):
            for tile_n in range(16, (256 if product.dtype == "bf16" else 192) + 1, 16):
                tile = (tile_m, tile_n, 128 // ELEMENT_BYTES[product.dtype])
                if not _fits(product, tile):
                    continue
                cycles = _cycles(product, tile, cluster)
                if best is None or cycles < fewest:
                    best, fewest = (tile, cluster), cycles
    if best is None:
        raise BadArgument(f"`k` is {product.k}: no tile leaves room for the scales of B; give less")
    tile, cluster = best
    one_wave = _tiles(product, tile) <= product.sm_count
    return _choice(
        tile,
        cluster,
        "",
        _stages(product, tile),
        "fewest cycles of the larger of L2 traffic and shared-memory traffic, over how full the waves are",
        "none in a single wave" if one_wave else "as the tile: traffic from L2 counts what is shared once",
        "as many as fit, 16 at most",
    )


def _rows(product: DeepProduct) -> list[int]:
    return [64, 128, *([16] if product.m <= 16 else []), *([32] if product.m <= 32 else []), 256]


def _stages(product: DeepProduct, tile: tuple[int, int, int]) -> int:
    tile_m, tile_n, tile_k = tile
    stage = (tile_m + tile_n) * tile_k * ELEMENT_BYTES[product.dtype]
    beside = _up(tile_m * tile_n * 2, 1024) + MOST_STAGES * 16
    if product.dtype == "fp8":
        stage += _up(tile_m * 4, 128)
        beside += _up(ceil(product.k / tile_k) * 4 * (1 if tile_k % tile_n == 0 else 2), 8)
    return min((SHARED_BYTES - beside) // stage, MOST_STAGES)


def _fits(product: DeepProduct, tile: tuple[int, int, int]) -> bool:
    tile_m, tile_n, tile_k = tile
    if tile_m > 128 and tile_n > 128:
        return False
    if (
        product.dtype == "fp8"
        and tile_n > tile_k
        and tile_n % (tile_n - tile_k)
        and tile_k % (tile_n - tile_k)
    ):
        return False
    stages = _stages(product, tile)
    return stages >= 3 and (tile_m * tile_n >= 128 * 192 or stages >= 4)


def _tiles(product: DeepProduct, tile: tuple[int, int, int]) -> int:
    return ceil(product.m / tile[0]) * ceil(product.n / tile[1])


def _cycles(product: DeepProduct, tile: tuple[int, int, int], cluster: tuple[int, int]) -> int:
    """In the integers and single floats that its source counts with."""
    (tile_m, tile_n, _), sms, size = tile, product.sm_count, ELEMENT_BYTES[product.dtype]
    tiles = _tiles(product, tile)
    waves = ceil(tiles / sms)
    if cluster != (1, 1) and waves <= 1:
        return 2**63 - 1
    out = tile_m * tile_n * 2
    l2_bytes = product.k * (tile_m // cluster[1] + tile_n // cluster[0]) * size
    shared_bytes = product.k * (tile_m + tile_n) * size + product.k * (max(64, tile_m) + tile_n) * size + out
    l2 = (l2_bytes + out) * tiles // int(min(64.0 * sms, 8e6 / 1.3e3))
    shared = (shared_bytes + out) * tiles // (128 * sms)
    return int(single(single(max(shared, l2)) / single(tiles / (waves * sms))))


def _up(value: int, multiple: int) -> int:
    return ceil(value / multiple) * multiple
