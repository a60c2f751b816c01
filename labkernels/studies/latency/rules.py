"""Rules of thumb on single transfers: latency, instruction issue, descriptors."""

import pandas as pd

from labkernels.operand import KIB
from labkernels.production.practice import TMA, Practice
from labkernels.studies.latency.findings import issue_slope_cycles, latency
from labkernels.studies.rule import Rules

RULES = Rules("latency", "latency")


@RULES.rule(
    "no_premium_into_shared_memory",
    operands="one transfer that somebody waits for",
    take="any; TMA costs no latency into shared memory",
    statement="TMA adds no latency to data that has to be in shared memory.",
    scope="16 bytes, one transfer after the other, from L2 and HBM: cp.async.bulk and its barrier against a load and "
    "a store to shared memory",
)
def _no_premium_into_shared_memory(frame: pd.DataFrame) -> tuple[bool, str]:
    apart = [
        latency(frame, "tma_bulk", "try_wait", place)["cycles_median"]
        - latency(frame, "ldg", "shared nc", place)["cycles_median"]
        for place in ("l2_near", "hbm")
    ]
    shown = ", ".join(f"{gap:+.0f}" for gap in apart)
    return max(apart) <= 10, f"16 bytes, TMA minus load and store: {shown} cycles from L2 and HBM."


@RULES.rule(
    "issue_pays_from_2_kib",
    operands="tiles of 2 KiB and more, issue slots scarce",
    take="TMA",
    statement="From 2 KiB a copy, TMA takes fewer issue cycles than cp.async.",
    scope="one to eight copies back to back, data in L2: TMA boxes of 1 KiB by one thread, 512 bytes of cp.async by "
    "one warp",
    experiments=("issue",),
    applies_to="source != 'computed' and tile_bytes >= 2048 and consumer == 'shared'",
    practice=Practice(
        "direction == 'load' and consumer == 'shared' and phase == 'mainloop' and access == 'regular' "
        "and alignment_bytes >= 16",
        TMA,
    ),
)
def _issue_pays_from_2_kib(frame: pd.DataFrame) -> tuple[bool, str]:
    copy = issue_slope_cycles(frame, "tma_tile", 1024)
    warp = issue_slope_cycles(frame, "cp_async", 512)
    equal = 512 * copy / warp
    return equal <= 2 * KIB, (
        f"A TMA copy of any size takes {copy:.0f} cycles of one thread, 512 bytes of cp.async {warp:.0f} of a warp: "
        f"even at {equal:,.0f} bytes."
    )


@RULES.rule(
    "descriptor_is_fetched_first",
    operands="a tensor copied once in a launch",
    take="TMA with the descriptor prefetched, or cp.async.bulk",
    statement="Prefetch the tensor map: the first copy waits for it.",
    scope="one box of 16 bytes: the first of a launch against one in a chain, data and descriptor in L2 and HBM",
)
def _descriptor_is_fetched_first(frame: pd.DataFrame) -> tuple[bool, str]:
    l2, hbm = (
        latency(frame, "tma_tile", "2d", place, protocol="first")["cycles_median"]
        - latency(frame, "tma_tile", "2d", place)["cycles_median"]
        for place in ("l2_near", "hbm")
    )
    return l2 > 100, (
        f"The first tensor copy of a launch takes {l2:.0f} cycles longer with its descriptor in L2, "
        f"{hbm:.0f} with it in HBM."
    )
