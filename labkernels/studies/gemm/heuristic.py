"""Which cluster shape a GEMM should take, from its shape, its tile and the SMs that clusters keep."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from labkernels.studies.gemm.family import CLUSTERS

SWIZZLES = (8, 1)
DECODE = (((1, 4), 8), ((1, 4), 1), ((1, 2), 8), ((1, 2), 1), ((1, 1), 8), ((1, 1), 1))
LOADED = (
    *(((2, 2), 1), ((4, 1), 1), ((1, 4), 1), ((2, 2), 8), ((4, 1), 8), ((1, 4), 8)),
    *(((1, 1), 8), ((2, 1), 1), ((1, 2), 1), ((1, 1), 1)),
)
"""Clusters and swizzles in the order in which the rule takes them, if they cost no tile and no wave."""


@dataclass(frozen=True)
class Choice:
    """A cluster shape, CTAs along M and N, and the scheduler's swizzle."""

    cluster: tuple[int, int]
    swizzle: int


def scheduled_tiles(
    shape: tuple[int, int, int], tile: tuple[int, int], cluster: tuple[int, int], swizzle: int
) -> int:
    """Tiles that CUTLASS's persistent scheduler hands out, the empty ones of its padding included.

    It rounds both sides of the grid up to the cluster times the swizzle, where the swizzle is 8, 4 or 2 if it is
    allowed and the shorter side has at least 6, 3 or 2 tiles.
    """
    sides = [_up(ceil(extent / t), c) for extent, t, c in zip(shape, tile, cluster, strict=False)]
    step = next((s for s, least in ((8, 6), (4, 3), (2, 2)) if swizzle >= s and min(sides) >= least), 1)
    rows, columns = (_up(side, step * c) for side, c in zip(sides, cluster, strict=True))
    return rows * columns


def waves(
    shape: tuple[int, int, int],
    tile: tuple[int, int],
    choice: Choice,
    resident: Mapping[int, int],
) -> int:
    """Tiles that the busiest SM computes.

    Args:
        shape: M, N, K.
        tile: Output rows and columns of a CTA.
        choice: Cluster shape and swizzle.
        resident: SMs that clusters of each size keep, as in {1: 132, 2: 132, 4: 120}.
    """
    size = choice.cluster[0] * choice.cluster[1]
    return ceil(scheduled_tiles(shape, tile, choice.cluster, choice.swizzle) / resident[size])


def choose(shape: tuple[int, int, int], tile: tuple[int, int], resident: Mapping[int, int]) -> Choice:
    """The rule: no empty tiles, then fewest waves, then by one of two orders.

    With one row of tiles (decode), the widest cluster along N: it divides the work of loading A, rows outside the
    tensor included. Else a cluster of four, which needs fewer SMs for the same waves and leaves the others' power to
    them; else no cluster, but a tile order that shares operands in L2; where that order would pad the grid, a pair,
    which walks neighboring tiles at the same time.

    Args:
        shape: M, N, K.
        tile: Output rows and columns of a CTA.
        resident: SMs that clusters of each size keep.

    Raises:
        ValueError: An extent or a tile that is not positive, or a cluster size without its SMs.
    """
    if min(*shape, *tile) < 1:
        raise ValueError(f"shape {shape} and tile {tile} must be positive")
    if missing := {cm * cn for cm, cn in CLUSTERS} - resident.keys():
        raise ValueError(f"resident has no SMs for clusters of {', '.join(map(str, sorted(missing)))} CTAs")
    rows, columns = ceil(shape[0] / tile[0]), ceil(shape[1] / tile[1])
    unpadded = [
        choice
        for choice in (Choice(cluster, swizzle) for cluster in CLUSTERS for swizzle in SWIZZLES)
        if scheduled_tiles(shape, tile, choice.cluster, choice.swizzle) == rows * columns
    ]
    fewest = min(waves(shape, tile, choice, resident) for choice in unpadded)
    quickest = [choice for choice in unpadded if waves(shape, tile, choice, resident) == fewest]
    order = DECODE if rows == 1 else LOADED
    return next(choice for choice in (Choice(*pair) for pair in order) if choice in quickest)


def without_cluster(
    shape: tuple[int, int, int], tile: tuple[int, int], resident: Mapping[int, int]
) -> Choice:
    """No cluster, CUTLASS's default tile order."""
    return Choice((1, 1), 1)


def cutlass_example(
    shape: tuple[int, int, int], tile: tuple[int, int], resident: Mapping[int, int]
) -> Choice:
    """A pair along M and the default tile order: what CUTLASS's collective-builder example for Hopper takes."""
    return Choice((2, 1), 1)


def deepgemm(shape: tuple[int, int, int], tile: tuple[int, int], resident: Mapping[int, int]) -> Choice:
    """DeepGEMM's heuristic for Hopper at a given tile (its sm90.hpp, late 2025), for bf16.

    The cluster, of at most two, with the fewest cycles of the larger of L2 traffic and shared-memory traffic; none
    when the tiles are one wave. The swizzle is the larger one that pads nothing.
    """
    m, n, k = shape
    tm, tn = tile
    sms = resident[1]
    blocks = ceil(m / tm) * ceil(n / tn)
    if blocks <= sms:
        return Choice((1, 1), _swizzle(shape, tile, (1, 1)))

    def cycles(cluster: tuple[int, int]) -> int:
        out = 2 * tm * tn
        l2_bytes = 2 * k * (tm // cluster[1] + tn // cluster[0]) + out
        shared_bytes = 2 * k * (tm + tn) + 2 * k * (max(64, tm) + tn) + 2 * out
        l2_rate, shared_rate = min(64 * sms, 8e6 / 1.3e3), 128 * sms
        return max(int(shared_bytes * blocks / shared_rate), int(l2_bytes * blocks / l2_rate))

    cluster = min(((1, 1), (1, 2), (2, 1)), key=cycles)
    return Choice(cluster, _swizzle(shape, tile, cluster))


OTHERS: dict[str, Callable[[tuple[int, int, int], tuple[int, int], Mapping[int, int]], Choice]] = {
    "1×1, default order": without_cluster,
    "2×1, default order (CUTLASS example)": cutlass_example,
    "DeepGEMM": deepgemm,
}
"""What others do, for comparison, by name."""


def _swizzle(shape: tuple[int, int, int], tile: tuple[int, int], cluster: tuple[int, int]) -> int:
    return min(SWIZZLES, key=lambda swizzle: (scheduled_tiles(shape, tile, cluster, swizzle), -swizzle))


def _up(value: int, multiple: int) -> int:
    return ceil(value / multiple) * multiple
