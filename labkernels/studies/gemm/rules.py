"""The GEMM chapter's rules of thumb, each judged on the rows of one run."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkernels.errors import NotMeasured
from labkernels.studies.gemm.findings import Mnk, Rounds, decompose, medians, multicast_shares
from labkernels.studies.stats import Ratio, bootstrap_ratio

COMPUTE_BOUND = 2048  # least extent
DECODE = (64, 28672, 8192)


@dataclass(frozen=True)
class Verdict:
    """A rule's judgement.

    Attributes:
        rule: The sentence.
        verdict: `holds`, `does not hold` or `not measured`.
        effect: What was measured, in words.
    """

    rule: str
    verdict: str
    effect: str


def _ratio(rounds: Rounds, mnk: Mnk, first: tuple[str, int], second: tuple[str, int], column: str) -> Ratio:
    """Column of one kernel and swizzle over that of another, on all SMs, paired by round."""

    def of(kernel: str, swizzle: int) -> np.ndarray:
        rows, columns = kernel.split("_")[2].split("x")
        return rounds.of(mnk, kernel, column, swizzle, rounds.sms(int(rows) * int(columns)))

    return bootstrap_ratio(of(*first), of(*second))


def _times(ratio: Ratio) -> str:
    return f"{ratio.ratio:.3f}× ({ratio.low:.3f} to {ratio.high:.3f})"


def _no_gain(rounds: Rounds) -> tuple[bool, str]:
    shares = multicast_shares(rounds)
    shares = shares[shares["least"].ge(COMPUTE_BOUND)]
    if shares.empty:
        raise NotMeasured("multicast was not switched off at any large shape")
    small = (shares["ratio"] - 1).abs().le(0.01)
    low, middle, high = shares["ratio"].quantile([0.05, 0.5, 0.95])
    effect = (
        f"{small.sum()} of {len(shares)} cases; median {middle:.4f}×, 5 % to 95 % {low:.4f} to {high:.4f}"
    )
    return small.mean() >= 0.95, effect


def _order(rounds: Rounds) -> tuple[bool, str]:
    base = "bf16_128x128"
    pair = _ratio(rounds, (8192, 8192, 8192), (f"{base}_2x1", 1), (f"{base}_1x1", 1), "cycles")
    order = _ratio(rounds, (8192, 8192, 8192), (f"{base}_1x1", 8), (f"{base}_1x1", 1), "cycles")
    alone = _ratio(rounds, (8192, 8192, 8192), (f"{base}_2x1_independent", 1), (f"{base}_1x1", 1), "cycles")
    holds = max(pair.ratio, order.ratio, alone.ratio) < 0.97
    return holds, f"pair {_times(pair)}, pair without multicast {_times(alone)}, swizzle of 8 {_times(order)}"


def _four(rounds: Rounds) -> tuple[bool, str]:
    four, one = rounds.sms(4), rounds.sms(1)
    ratio = _ratio(rounds, (8192, 8192, 8192), ("bf16_128x256_4x1", 8), ("bf16_128x256_1x1", 8), "cycles")
    return four < one and ratio.low > 1, f"{four} of {one} SMs; 8192³ takes {_times(ratio)} the cycles"


def _padding(rounds: Rounds) -> tuple[bool, str]:
    ratio = _ratio(rounds, (2048, 2048, 8192), ("bf16_128x256_1x2", 8), ("bf16_128x256_1x2", 1), "cycles")
    return ratio.low > 1.05, f"2048 × 2048 × 8192, 1×2: swizzle 8 takes {_times(ratio)} the cycles of 1"


def _empty_side(rounds: Rounds) -> tuple[bool, str]:
    ratio = _ratio(rounds, DECODE, ("bf16_128x256_2x1", 1), ("bf16_128x256_1x1", 1), "duration_us")
    return ratio.low > 1.05, f"64 rows, 2×1 takes {_times(ratio)} the time of no cluster"


def _decode(rounds: Rounds) -> tuple[bool, str]:
    ratio = _ratio(rounds, DECODE, ("bf16_128x128_1x4", 1), ("bf16_128x128_1x1", 1), "duration_us")
    share = decompose(rounds, DECODE, (128, 128), (1, 4), 1).parts[4]
    return (
        ratio.high < 0.97 and share.high < 1,
        f"64 rows, 1×4: {_times(ratio)}; multicast alone {share.ratio:.3f}×",
    )


def _outside(rounds: Rounds) -> tuple[bool, str]:
    table = medians(rounds.frame)
    rows = table[table["kernel"].eq("bf16_128x128_1x1") & table["swizzle"].eq(1) & table["n"].eq(28672)]
    rows = rows[rows["ctas"].eq(rows["ctas"].max()) & rows["k"].eq(8192)].set_index("m")["cycles"]
    if not {16, 128} <= set(rows.index):
        raise NotMeasured("no decode product of 16 and 128 rows")
    ratio = rows[16] / rows[128]
    return ratio > 1.05, f"no cluster: a product of 16 rows takes {ratio:.2f}× the cycles of one of 128"


RULES: tuple[tuple[str, Callable[[Rounds], tuple[bool, str]]], ...] = (
    ("In a compute-bound GEMM, multicast itself changes less than 1 % (19 of 20 cases).", _no_gain),
    ("A pair along M mends a bad tile order, with or without multicast; a swizzle mends it too.", _order),
    ("Clusters of four leave SMs idle, and a compute-bound GEMM pays for them.", _four),
    ("A swizzle that pads the grid costs more than any cluster gains.", _padding),
    ("A cluster along a side with fewer tiles than CTAs loads emptiness, and pays for it.", _empty_side),
    (
        "In decode, with fewer rows than the tile, a cluster along N pays, and multicast is part of it.",
        _decode,
    ),
    ("Rows of a TMA box outside the tensor are not free.", _outside),
)


def verdicts(rounds: Rounds) -> list[Verdict]:
    """Every rule judged on one run."""
    found = []
    for rule, judge in RULES:
        try:
            holds, effect = judge(rounds)
        except NotMeasured as missing:
            found.append(Verdict(rule, "not measured", str(missing)))
        else:
            found.append(Verdict(rule, "holds" if holds else "does not hold", effect))
    return found
