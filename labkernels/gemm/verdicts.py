"""The GEMM chapter's rules of thumb, each judged on the rows of one run."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from labkernels.gemm.study import SHAPE, Mnk, NotMeasured, decompose, medians, resident
from labkernels.stats import Ratio, bootstrap_ratio

PAIRS = ((2, 1), (1, 2))
LARGE = ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096), (2048, 28672, 8192), (8192, 6144, 4096))
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


def _ratio(
    frame: pd.DataFrame, mnk: Mnk, first: tuple[str, int], second: tuple[str, int], column: str
) -> Ratio:
    """Column of one kernel and swizzle over that of another, on all SMs, paired by round."""
    rows = frame[frame[SHAPE].eq(mnk).all(axis=1)]
    samples = []
    for name, swizzle in (first, second):
        found = rows[rows["kernel"].eq(name) & rows["swizzle"].eq(swizzle)]
        found = found[found["ctas"].eq(found["ctas"].max())]
        if found.empty:
            raise NotMeasured(f"no rows of {name} at {mnk}")
        samples.append(found.sort_values("round")[column].to_numpy())
    return bootstrap_ratio(*samples)


def _times(ratio: Ratio) -> str:
    return f"{ratio.ratio:.3f}× ({ratio.low:.3f} to {ratio.high:.3f})"


def _no_gain(frame: pd.DataFrame) -> tuple[bool, str]:
    found = [
        decompose(frame, mnk, tile, cluster, 1).parts[4]
        for mnk in LARGE
        for tile in ((128, 128), (128, 256))
        for cluster in PAIRS
    ]
    largest = max(found, key=lambda part: abs(part.ratio - 1))
    return (
        max(abs(part.ratio - 1) for part in found) <= 0.01,
        f"largest change of {len(found)}: {largest.ratio:.3f}× ({largest.low:.3f} to {largest.high:.3f})",
    )


def _order(frame: pd.DataFrame) -> tuple[bool, str]:
    base = "bf16_128x128"
    pair = _ratio(frame, (8192, 8192, 8192), (f"{base}_2x1", 1), (f"{base}_1x1", 1), "cycles")
    order = _ratio(frame, (8192, 8192, 8192), (f"{base}_1x1", 8), (f"{base}_1x1", 1), "cycles")
    alone = _ratio(frame, (8192, 8192, 8192), (f"{base}_2x1_independent", 1), (f"{base}_1x1", 1), "cycles")
    holds = max(pair.ratio, order.ratio, alone.ratio) < 0.97
    return holds, f"pair {_times(pair)}, pair without multicast {_times(alone)}, swizzle of 8 {_times(order)}"


def _four(frame: pd.DataFrame) -> tuple[bool, str]:
    sms = resident(frame)
    ratio = _ratio(frame, (8192, 8192, 8192), ("bf16_128x256_4x1", 8), ("bf16_128x256_1x1", 8), "cycles")
    return sms[4] < sms[
        1
    ] and ratio.low > 1, f"{sms[4]} of {sms[1]} SMs; 8192³ takes {_times(ratio)} the cycles"


def _padding(frame: pd.DataFrame) -> tuple[bool, str]:
    ratio = _ratio(frame, (2048, 2048, 8192), ("bf16_128x256_1x2", 8), ("bf16_128x256_1x2", 1), "cycles")
    return ratio.low > 1.05, f"2048 × 2048 × 8192, 1×2: swizzle 8 takes {_times(ratio)} the cycles of 1"


def _empty_side(frame: pd.DataFrame) -> tuple[bool, str]:
    ratio = _ratio(frame, DECODE, ("bf16_128x256_2x1", 1), ("bf16_128x256_1x1", 1), "duration_us")
    return ratio.low > 1.05, f"64 rows, 2×1 takes {_times(ratio)} the time of no cluster"


def _decode(frame: pd.DataFrame) -> tuple[bool, str]:
    ratio = _ratio(frame, DECODE, ("bf16_128x128_1x4", 1), ("bf16_128x128_1x1", 1), "duration_us")
    share = decompose(frame, DECODE, (128, 128), (1, 4), 1).parts[4]
    return (
        ratio.high < 0.97 and share.high < 1,
        f"64 rows, 1×4: {_times(ratio)}; multicast alone {share.ratio:.3f}×",
    )


def _outside(frame: pd.DataFrame) -> tuple[bool, str]:
    table = medians(frame)
    rows = table[table["kernel"].eq("bf16_128x128_1x1") & table["swizzle"].eq(1) & table["n"].eq(28672)]
    rows = rows[rows["ctas"].eq(rows["ctas"].max()) & rows["k"].eq(8192)].set_index("m")["cycles"]
    if not {16, 128} <= set(rows.index):
        raise NotMeasured("no decode product of 16 and 128 rows")
    ratio = rows[16] / rows[128]
    return ratio > 1.05, f"no cluster: a product of 16 rows takes {ratio:.2f}× the cycles of one of 128"


RULES: tuple[tuple[str, Callable[[pd.DataFrame], tuple[bool, str]]], ...] = (
    ("In a compute-bound GEMM, multicast itself changes nothing: less than 1 %.", _no_gain),
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


def verdicts(frame: pd.DataFrame) -> list[Verdict]:
    """Every rule judged on one run.

    Args:
        frame: From `study.with_kernels`.
    """
    found = []
    for rule, judge in RULES:
        try:
            holds, effect = judge(frame)
        except (NotMeasured, KeyError) as missing:
            found.append(Verdict(rule, "not measured", str(missing)))
        else:
            found.append(Verdict(rule, "holds" if holds else "does not hold", effect))
    return found
