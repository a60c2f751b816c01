"""Rules of thumb on streams: how much to keep in flight, and by which mechanism."""

import pandas as pd

from labkernels.operand import KIB
from labkernels.production.practice import Practice
from labkernels.studies.crossover import findings, prices
from labkernels.studies.rule import Rules
from labkernels.studies.stats import paired, where

RULES = Rules("crossover", "pipelines")
ONE_GIB = "1 GiB read in turn from HBM, dense tiles of 1 to 32 KiB"


@RULES.rule(
    "enough_in_flight",
    operands="any tile from HBM",
    take="an asynchronous copy, 64 KiB in flight per SM",
    statement="Keep 64 KiB in flight per SM; more brings nothing.",
    scope=f"{ONE_GIB}; the fastest pipeline of any mechanism with 16, 64 and up to 192 KiB in flight per SM",
    experiments=("throughput",),
    applies_to="source == 'hbm' and consumer == 'shared'",
)
def _enough_in_flight(frame: pd.DataFrame) -> tuple[bool, str]:
    best = findings.best_by_bytes_in_flight(where(frame, source="hbm"))
    most = best["median"].max()
    share, half = (
        where(best, bytes_in_flight_per_sm=size)["median"].max() / most for size in (64 * KIB, 16 * KIB)
    )
    return share >= 0.98, f"64 KiB reach {100 * share:.0f}% of the best HBM read, 16 KiB {100 * half:.0f}%."


@RULES.rule(
    "cp_async_with_little_in_flight",
    operands="16 KiB or less in flight per SM",
    take="copies by the threads that use them: cp.async, multistage",
    statement="With little in flight, threads that wait for their own copies lead: no warp hands a tile to another.",
    scope=f"{ONE_GIB}; equal bytes in flight, not equal shared memory: a multistage pipeline holds one tile more",
    applies_to="source == 'hbm' and bytes_in_flight_per_sm <= 16384 and consumer == 'shared'",
)
def _cp_async_with_little_in_flight(frame: pd.DataFrame) -> tuple[bool, str]:
    leads = prices.at_equal(frame, "hbm", prices.IN_FLIGHT, [n * KIB for n in (4, 8, 16)])
    same = prices.over_cells(prices.same_pipeline(frame, "hbm"))
    gains = ", ".join(f"{100 * (1 / ratio - 1):.0f}%" for ratio in leads["ratio"])
    return bool(leads["high"].lt(1).all()) and same.value >= 1, (
        f"cp.async leads by {gains} with 4, 8 and 16 KiB in flight. That is the pipeline's doing: in the same one TMA "
        f"over cp.async is {same.value:.3f} (median; 5 to 95%: {same.low:.3f} to {same.high:.3f})."
    )


@RULES.rule(
    "equal_shared_memory",
    operands="contiguous tiles from HBM, shared memory scarce",
    take="TMA: the same speed from one thread",
    statement="For the same shared memory the rate is the same, whoever copies, if each has its best pipeline.",
    scope=f"{ONE_GIB}; 4 to 192 KiB of shared memory per SM; pipelines of 1 to 4 producer and consumer warps and of "
    "one group of threads, every depth up to 12",
    applies_to="source == 'hbm' and consumer == 'shared'",
)
def _equal_shared_memory(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = prices.at_equal(frame, "hbm", prices.SHARED)
    low, high = ratios["low"].min(), ratios["high"].max()
    return low >= 0.97 and high <= 1.03, (
        f"TMA over cp.async, each in its fastest pipeline: {ratios['ratio'].min():.3f} to {ratios['ratio'].max():.3f} "
        f"for 4 to 192 KiB; all intervals lie within {low:.3f} to {high:.3f}."
    )


@RULES.rule(
    "no_difference_beyond_64_kib",
    operands="64 KiB or more in flight per SM",
    take="TMA: the same speed from one thread",
    statement="From 64 KiB in flight on, the mechanism does not matter for bandwidth.",
    scope=f"{ONE_GIB}; the fastest pipeline of each with 64, 96, 128 and 192 KiB in flight per SM; equal: within 1%",
    applies_to="source == 'hbm' and bytes_in_flight_per_sm >= 65536 and consumer == 'shared'",
)
def _no_difference_beyond_64_kib(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = prices.at_equal(frame, "hbm", prices.IN_FLIGHT, [n * KIB for n in (64, 96, 128, 192)])
    shown = ", ".join(f"{r.ratio:.3f} [{r.low:.3f}, {r.high:.3f}]" for r in ratios.itertuples())
    return bool(ratios["equal"].all()), f"TMA over cp.async from HBM at 64, 96, 128 and 192 KiB: {shown}."


@RULES.rule(
    "plain_loads_keep_up",
    operands="data that shared memory needs, copied by all threads of an SM",
    take="TMA or cp.async for the threads and registers that they leave free, not for their speed",
    statement="Plain loads are as fast into shared memory, if 1,024 to 2,048 threads have a vector or two under way.",
    scope=f"{ONE_GIB}; one set of registers, loaded again as soon as it is stored; 16, 32 and 64 KiB in flight per SM",
    applies_to="source == 'hbm' and consumer == 'shared'",
    practice=Practice("direction == 'load' and consumer == 'shared'", "mechanism != 'ldg'"),
)
def _plain_loads_keep_up(frame: pd.DataFrame) -> tuple[bool, str]:
    table = prices.rates(where(frame, source="hbm"))
    ratios = [
        prices.compared(
            where(table, bytes_in_flight_per_sm=n * KIB), ("ldg",), (*prices.ENGINE, *prices.THREADS)
        )
        for n in (16, 32, 64)
    ]
    shown = ", ".join(f"{r.ratio:.3f} [{r.low:.3f}, {r.high:.3f}]" for r in ratios)
    return all(r.low >= 0.99 for r in ratios), (
        f"Plain loads over the fastest copy from HBM, with 16, 32 and 64 KiB in flight: {shown}."
    )


@RULES.rule(
    "warps_for_small_tiles",
    operands="tiles of 2 KiB through producer and consumer warps",
    take="four warps of each kind, or larger tiles",
    statement="Small tiles want several warps of each kind: one producer and one consumer take 200 cycles a tile.",
    scope="1 GiB from HBM and 16 MiB from L2, TMA tiles of 2 KiB, 12 stages, one CTA per SM",
)
def _warps_for_small_tiles(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(frame, mechanism="tma_tile", tile_bytes=2 * KIB, stages=12, ctas_per_sm=1)
    gains = [
        paired(*(where(rows, source=source, producer_warps=warps) for warps in (4, 1)), "gbps")
        for source in ("hbm", "l2")
    ]
    return gains[0].low > 1.3 and gains[1].low > 2, (
        f"Four warps of each kind over one: {gains[0].times()} from HBM, {gains[1].times()} from L2."
    )


@RULES.rule(
    "promote_short_rows",
    operands="TMA tiles with rows under 128 bytes, from HBM",
    take="a tensor map with L2 promotion 128 B",
    statement="Promote short rows to 128 bytes, and no further.",
    scope="tiles of 16 KiB from HBM, dense rows of 64 and 128 bytes, no swizzle, 8 stages, one CTA per SM",
    experiments=("row_shape",),
    applies_to="source == 'hbm' and row_bytes < 128",
)
def _promote_short_rows(frame: pd.DataFrame) -> tuple[bool, str]:
    dense = where(frame, source="hbm", mechanism="tma_tile", swizzle="none")

    def gain(row_bytes: int, promotion_bytes: int) -> float:
        rows = where(dense, inner_bytes=row_bytes, pitch_bytes=row_bytes)
        promoted, plain = (
            where(rows, l2_promotion_bytes=size)["gbps"].median() for size in (promotion_bytes, 0)
        )
        return promoted / plain

    short, long = gain(64, 128), gain(128, 256)
    return short > 1.1 and long < 1, (
        f"128 B promotion makes rows of 64 bytes {100 * (short - 1):.0f}% faster from HBM; "
        f"256 B makes rows of 128 bytes {100 * (1 - long):.0f}% slower."
    )
