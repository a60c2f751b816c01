"""Rules of thumb on single transfers: latency, instruction issue, descriptors."""

import pandas as pd

from labkernels.operand import KIB
from labkernels.production.practice import TMA, Practice
from labkernels.studies.latency.findings import burst_cycles, latency, map_cycles, most_maps
from labkernels.studies.rule import Rules
from labkernels.studies.stats import where

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
    statement="The first copy of a launch waits for its tensor map.",
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


ROW = "one row of 128 bytes in L2, one block alone; resolution 43 cycles"


@RULES.rule(
    "prefetch_the_map",
    operands="a tensor whose map is not in use yet",
    take="prefetch.tensormap as the first instruction, 200 cycles before the copy; 800 if the map lies in HBM",
    statement="A tensor map prefetched in time costs its copy nothing.",
    scope=f"{ROW}; 4,096 maps in turns, in L2 and in HBM; prefetched 0 to 1,200 cycles before the copy",
    experiments=("descriptors",),
)
def _prefetch_the_map(frame: pd.DataFrame) -> tuple[bool, str]:
    many = most_maps(frame)
    at_hand = map_cycles(frame, "plain", maps=1)
    cold = [map_cycles(frame, "plain", source, maps=many) - at_hand for source in ("l2", "hbm")]
    left = [
        map_cycles(frame, "prefetch", source, ahead_cycles=ahead) - at_hand
        for source, ahead in (("l2", 200), ("hbm", 800))
    ]
    return min(cold) > 100 and max(left) <= 0, (
        f"A map from L2 costs {cold[0]:.0f} cycles, from HBM {cold[1]:.0f}; prefetched 200 and 800 cycles before, "
        f"{max(left[0], 0):.0f} and {max(left[1], 0):.0f}."
    )


@RULES.rule(
    "a_thousand_maps",
    operands="many tensors: grouped GEMM, sequences of different length",
    take="a map for each, up to a thousand for an SM",
    statement="An SM keeps a thousand tensor maps at hand; of four thousand each comes from L2 again.",
    scope=f"{ROW}; 1 to 4,096 maps of 128 bytes in turns",
    experiments=("descriptors",),
)
def _a_thousand_maps(frame: pd.DataFrame) -> tuple[bool, str]:
    one, thousand, more = (map_cycles(frame, "plain", maps=maps) for maps in (1, 1024, 4096))
    return thousand - one <= 43 and more - one > 100, (
        f"A copy takes {one:.0f} cycles with one map, {thousand:.0f} with 1,024 in turns, {more:.0f} with 4,096."
    )


@RULES.rule(
    "rewrite_a_map_early",
    operands="a tensor map that the kernel rewrites",
    take="rewrite it a tile ahead, or have a map for each tensor",
    statement="A map rewritten in the kernel costs its next copy a thousand cycles.",
    scope=f"{ROW}; tensormap.replace of the address in shared memory, tensormap.cp_fenceproxy to global memory, "
    "fence.proxy.tensormap, then the copy; one block, and one on every SM",
    experiments=("descriptors",),
)
def _rewrite_a_map_early(frame: pd.DataFrame) -> tuple[bool, str]:
    at_hand = map_cycles(frame, "plain", maps=1)
    everywhere = int(where(frame, use="replace")["blocks"].max())
    alone, together = (map_cycles(frame, "replace", blocks=blocks) - at_hand for blocks in (1, everywhere))
    replaced, published = (
        map_cycles(frame, "replace", column=column) for column in ("replaced_cycles", "published_cycles")
    )
    return min(alone, together) > 500, (
        f"{alone:.0f} cycles more in one block, {together:.0f} when every SM does it: {replaced:.0f} until the map is "
        f"rewritten, {published - replaced:.0f} until it is published, and the copy then fetches it from L2."
    )
