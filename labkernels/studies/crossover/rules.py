"""Rules of thumb on streams: how much to keep in flight, and by which mechanism."""

import pandas as pd

from labkernels.operand import KIB
from labkernels.production.practice import Practice
from labkernels.studies.crossover import findings
from labkernels.studies.rule import Rules
from labkernels.studies.stats import where

RULES = Rules("crossover", "throughput")
ONE_GIB = "1 GiB read in turn from HBM, dense tiles of 1 to 32 KiB"


@RULES.rule(
    "enough_in_flight",
    operands="any tile from HBM",
    take="an asynchronous copy, 64 KiB in flight per SM",
    statement="Keep 64 KiB in flight per SM; more brings nothing.",
    scope=f"{ONE_GIB}; the fastest ring of any mechanism with 16, 64 and up to 192 KiB in flight per SM",
    applies_to="source == 'hbm' and consumer == 'shared'",
)
def _enough_in_flight(frame: pd.DataFrame) -> tuple[bool, str]:
    best = findings.best_by_bytes_in_flight(where(frame, source="hbm"))
    most = best["median"].max()
    share, half = (
        where(best, bytes_in_flight_per_sm=size)["median"].max() / most for size in (64 * KIB, 16 * KIB)
    )
    return share >= 0.98, f"64 KiB reach {100 * share:.0f} % of the best HBM read, 16 KiB {100 * half:.0f} %."


@RULES.rule(
    "cp_async_with_little_in_flight",
    operands="16 KiB or less in flight per SM",
    take="cp.async",
    statement="With little in flight, cp.async beats a TMA ring: its turn is shorter.",
    scope=f"{ONE_GIB}; the fastest rings of TMA tiles and of cp.async with 4, 8 and 16 KiB in flight per SM",
    applies_to="source == 'hbm' and bytes_in_flight_per_sm <= 16384 and consumer == 'shared'",
)
def _cp_async_with_little_in_flight(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = [findings.compare(frame, "hbm", "tma_tile", "cp_async", n * KIB) for n in (4, 8, 16)]
    gains = ", ".join(f"{100 * (1 / r.ratio - 1):.0f} %" for r in ratios)
    return all(r.high < 1 for r in ratios), f"cp.async is ahead by {gains} at 4, 8 and 16 KiB."


@RULES.rule(
    "no_difference_beyond_64_kib",
    operands="64 KiB or more in flight per SM",
    take="TMA: the same speed from one thread",
    statement="From 64 KiB in flight on, the mechanism does not matter for bandwidth.",
    scope=f"{ONE_GIB}; the fastest rings of TMA tiles and of cp.async with 64 and 128 KiB in flight per SM",
    applies_to="source == 'hbm' and bytes_in_flight_per_sm >= 65536 and consumer == 'shared'",
)
def _no_difference_beyond_64_kib(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = [findings.compare(frame, "hbm", "tma_tile", "cp_async", n * KIB) for n in (64, 128)]
    shown = " and ".join(f"{r.ratio:.3f} [{r.low:.3f}, {r.high:.3f}]" for r in ratios)
    return not any(r.differs for r in ratios), f"TMA over cp.async from HBM at 64 and 128 KiB: {shown}."


@RULES.rule(
    "registers_stay_behind",
    operands="data that shared memory needs",
    take="never through registers",
    statement="Do not load through registers what shared memory needs.",
    scope="1 GiB from HBM and 16 MiB from L2, dense tiles; the fastest rings of cp.async and of plain loads with 4 to "
    "128 KiB in flight per SM",
    applies_to="source != 'computed' and consumer == 'shared'",
    practice=Practice("direction == 'load' and consumer == 'shared'", "mechanism != 'ldg'"),
)
def _registers_stay_behind(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = [
        findings.compare(frame, source, "cp_async", "ldg", n * KIB)
        for source in ("hbm", "l2")
        for n in (4, 8, 16, 32, 64, 128)
    ]
    low, high = min(r.ratio for r in ratios), max(r.ratio for r in ratios)
    sentence = (
        f"cp.async is ahead by {100 * (low - 1):.0f} to {100 * (high - 1):.0f} % from 4 to 128 KiB in flight."
    )
    return all(r.low > 1 for r in ratios), sentence


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
        f"128 B promotion makes rows of 64 bytes {100 * (short - 1):.0f} % faster from HBM; "
        f"256 B makes rows of 128 bytes {100 * (1 - long):.0f} % slower."
    )
