"""Rules of thumb on GEMM: when clusters and multicast pay, and what they cost."""

import numpy as np
import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.production.practice import Practice
from labkernels.studies.gemm.findings import (
    PARTS,
    Mnk,
    Rounds,
    decompose,
    medians,
    multicast_shares,
    with_kernels,
)
from labkernels.studies.rule import Rules
from labkernels.studies.stats import Ratio, bootstrap_ratio, where

RULES = Rules("gemm", "gemm")
COMPUTE_BOUND = 2048  # least extent
LARGE = (8192, 8192, 8192)
DECODE = (64, 28672, 8192)
CUTLASS = "CUTLASS warp-specialized kernels, bf16"


def _rounds(frame: pd.DataFrame) -> Rounds:
    return Rounds(with_kernels(frame))


def _ratio(rounds: Rounds, mnk: Mnk, first: tuple[str, int], second: tuple[str, int], column: str) -> Ratio:
    """Column of one kernel and swizzle over that of another, on all SMs, paired by round."""

    def of(kernel: str, swizzle: int) -> np.ndarray:
        size = where(rounds.frame, kernel=kernel)["cluster_size"].iloc[0]
        return rounds.of(mnk, kernel, column, swizzle, rounds.sms(size))

    return bootstrap_ratio(of(*first), of(*second))


@RULES.rule(
    "gemm_no_gain",
    operands="A and B of a compute-bound GEMM",
    take="multicast or not: the same",
    statement="In a compute-bound GEMM, multicast itself changes less than 1% (19 of 20 cases).",
    scope=f"{CUTLASS}, tiles of 128×128 and 128×256, every cluster of two and four and both swizzles where no tile is "
    "padded, M, N and K of at least 2048, against the same launch with multicast switched off",
    practice=Practice(
        "direction == 'load' and operand in ['A', 'B', 'A, B'] and access == 'regular'",
        "mechanism != 'tma_multicast'",
    ),
)
def _no_gain(frame: pd.DataFrame) -> tuple[bool, str]:
    shares = multicast_shares(_rounds(frame))
    shares = shares[shares["least"].ge(COMPUTE_BOUND)]
    if shares.empty:
        raise NotMeasured("multicast was not switched off at any large shape")
    small = (shares["ratio"] - 1).abs().le(0.01)
    low, middle, high = shares["ratio"].quantile([0.05, 0.5, 0.95])
    effect = f"{small.sum()} of {len(shares)} cases; median {middle:.4f}×, 5% to 95% {low:.4f} to {high:.4f}"
    return small.mean() >= 0.95, effect


@RULES.rule(
    "gemm_order",
    operands="A and B of a GEMM whose tiles come in a bad order",
    take="a swizzle, or a pair along M",
    statement="A pair along M mends a bad tile order, with or without multicast; a swizzle mends it too.",
    scope=f"{CUTLASS}, 8192³, tiles of 128×128: cycles of a 2×1 cluster, with multicast and without, and of swizzle 8 "
    "against no cluster and swizzle 1",
)
def _order(frame: pd.DataFrame) -> tuple[bool, str]:
    rounds = _rounds(frame)

    def over_alone(kernel: str, swizzle: int) -> Ratio:
        return _ratio(rounds, LARGE, (f"bf16_128x128_{kernel}", swizzle), ("bf16_128x128_1x1", 1), "cycles")

    pair, alone, swizzled = over_alone("2x1", 1), over_alone("2x1_independent", 1), over_alone("1x1", 8)
    holds = max(pair.ratio, swizzled.ratio, alone.ratio) < 0.97
    return holds, (
        f"pair {pair.times(3)}, pair without multicast {alone.times(3)}, swizzle of 8 {swizzled.times(3)}"
    )


@RULES.rule(
    "gemm_four",
    operands="A and B of a compute-bound GEMM",
    take="clusters of two at most",
    statement="Clusters of four leave SMs idle, and a compute-bound GEMM pays for them.",
    scope=f"{CUTLASS}, 8192³, tiles of 128×256, swizzle 8: cycles of a 4×1 cluster against no cluster",
)
def _four(frame: pd.DataFrame) -> tuple[bool, str]:
    rounds = _rounds(frame)
    of_four, of_one = rounds.sms(4), rounds.sms(1)
    ratio = _ratio(rounds, LARGE, ("bf16_128x256_4x1", 8), ("bf16_128x256_1x1", 8), "cycles")
    holds = of_four < of_one and ratio.low > 1
    return holds, f"{of_four} of {of_one} SMs; 8192³ takes {ratio.times(3)} the cycles"


@RULES.rule(
    "gemm_padding",
    operands="A and B of a GEMM with few tiles",
    take="a swizzle that does not pad the grid",
    statement="A swizzle that pads the grid costs more than any cluster gains.",
    scope=f"{CUTLASS}, 2048 × 2048 × 8192, tiles of 128×256, a 1×2 cluster: cycles with swizzle 8 against swizzle 1",
)
def _padding(frame: pd.DataFrame) -> tuple[bool, str]:
    kernel = "bf16_128x256_1x2"
    ratio = _ratio(_rounds(frame), (2048, 2048, 8192), (kernel, 8), (kernel, 1), "cycles")
    return ratio.low > 1.05, f"2048 × 2048 × 8192, 1×2: swizzle 8 takes {ratio.times(3)} the cycles of 1"


@RULES.rule(
    "gemm_empty_side",
    operands="A and B of a GEMM, fewer tiles along a side than CTAs",
    take="no cluster along that side",
    statement="Where a side has fewer tiles than the cluster has CTAs, the spare CTAs load only out-of-bounds rows, "
    "and cost time.",
    scope=f"{CUTLASS}, 64 × 28672 × 8192, tiles of 128×256, swizzle 1: time of a 2×1 cluster against no cluster",
)
def _empty_side(frame: pd.DataFrame) -> tuple[bool, str]:
    ratio = _ratio(_rounds(frame), DECODE, ("bf16_128x256_2x1", 1), ("bf16_128x256_1x1", 1), "duration_us")
    return ratio.low > 1.05, f"64 rows, 2×1 takes {ratio.times(3)} the time of no cluster"


@RULES.rule(
    "gemm_decode",
    operands="B of a decode GEMM, fewer rows than the tile",
    take="a cluster along N with multicast",
    statement="In decode, with fewer rows than the tile, a cluster along N pays, and multicast is part of it.",
    scope=f"{CUTLASS}, 64 × 28672 × 8192, tiles of 128×128, swizzle 1: time of a 1×4 cluster against no cluster, "
    "cycles with multicast against without",
)
def _decode(frame: pd.DataFrame) -> tuple[bool, str]:
    rounds = _rounds(frame)
    ratio = _ratio(rounds, DECODE, ("bf16_128x128_1x4", 1), ("bf16_128x128_1x1", 1), "duration_us")
    share = decompose(rounds, DECODE, (128, 128), (1, 4), 1).parts[PARTS.index("multicast")]
    holds = ratio.high < 0.97 and share.high < 1
    return holds, f"64 rows, 1×4: {ratio.times(3)}; multicast alone {share.ratio:.3f}×"


@RULES.rule(
    "gemm_outside",
    operands="a box that reaches outside its tensor",
    take="tiles that fit the rows",
    statement="Rows of a TMA box outside the tensor are not free.",
    scope=f"{CUTLASS}, N = 28672, K = 8192, tiles of 128×128, no cluster, swizzle 1: cycles with 16 rows against 128",
)
def _outside(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(medians(with_kernels(frame)), kernel="bf16_128x128_1x1", swizzle=1, n=28672)
    rows = where(rows, ctas=rows["ctas"].max(), k=8192)
    few, full = (where(rows, m=m)["cycles"].iloc[0] for m in (16, 128))
    return few / full > 1.05, (
        f"no cluster: a product of 16 rows takes {few / full:.2f}× the cycles of one of 128"
    )
