"""Rules of thumb on single transfers: latency, instruction issue, descriptors."""

import pandas as pd

from labkernels.operand import KIB
from labkernels.production.practice import TMA, Practice
from labkernels.studies.latency.findings import burst_cycles, latency
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
    statement="From 2 KiB a copy in a burst, from 4 KiB alone, TMA takes fewer issue cycles than cp.async.",
    scope="cycles of one warp until the last copy is issued, copies written out as unrolled code has them, data in L2: "
    "tensor tiles of 2 KiB, alone and 16 back to back; 4, 8 and 64 times 512 bytes of cp.async",
    experiments=("issue_inline",),
    applies_to="source != 'computed' and tile_bytes >= 2048 and consumer == 'shared'",
    practice=Practice(
        "direction == 'load' and consumer == 'shared' and phase == 'mainloop' and access == 'regular' "
        "and alignment_bytes >= 16",
        TMA,
    ),
)
def _issue_pays_from_2_kib(frame: pd.DataFrame) -> tuple[bool, str]:
    alone, many = (burst_cycles(frame, "tma_tile", train, 2 * KIB) for train in (1, 16))
    two_kib, four_kib, threads = (burst_cycles(frame, "cp_async", train) for train in (4, 8, 64))
    even = 512 * (many / 16) / (threads / 64)
    return even <= 2 * KIB and two_kib < alone < four_kib, (
        f"In a burst a TMA copy takes {many / 16:.0f} cycles of a warp, 512 bytes of cp.async {threads / 64:.1f}: even "
        f"at {even:,.0f} bytes. Alone, one takes {alone:.0f}; 2 KiB of cp.async {two_kib:.0f}, 4 KiB {four_kib:.0f}."
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
