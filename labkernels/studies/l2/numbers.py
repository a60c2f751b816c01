"""What the chapter on L2 says in its text."""

import pandas as pd

from labkernels.charts.text import percent, span, tbps
from labkernels.operand import KIB, MIB
from labkernels.studies.l2 import findings as found
from labkernels.studies.stats import having, where


def prefetches(frame: pd.DataFrame, counted: pd.DataFrame) -> dict[str, str]:
    """Gains of prefetches, and what memory delivered.

    Args:
        frame: rows of one run of `l2_prefetch`.
        counted: of one of `l2_prefetch_counters`.
    """
    gains = found.gains(frame)
    best = found.best_gain(gains)
    few, fed = (
        best[best["bytes_in_flight_per_sm"].le(8 * KIB)],
        best[best["bytes_in_flight_per_sm"].ge(48 * KIB)],
    )
    counted = found.read_twice(counted)
    ahead = counted["lead"] * counted["tile_bytes"] * counted["sm_count"]
    without, with_prefetch = frame[frame["lead"].eq(0)], frame[frame["lead"].gt(0)]

    def rate(rows: pd.DataFrame) -> float:
        return rows.groupby("kernel_cell")["gbps"].median().max()

    cell = ["kernel", "tile_bytes", "stages"]
    without, with_prefetch = (
        rows.assign(kernel_cell=rows[cell].astype(str).agg(" ".join, axis=1))
        for rows in (without, with_prefetch)
    )
    return {
        "gain_best": f"{best['ratio'].max():.2f}",
        "gain_few": span(few["ratio"], 2),
        "gain_fed": span(100 * fed["ratio"]) + " %",
        "stream_best": tbps(rate(without), 2),
        "prefetch_best": tbps(rate(with_prefetch), 2),
        "stages_instead": tbps(rate(where(without, bytes_in_flight_per_sm=48 * KIB)), 1),
        "far_rate": percent(gains[gains["ahead_bytes"].between(30 * MIB, 40 * MIB)]["ratio"].median()),
        "near_twice": span(counted[ahead.lt(18 * MIB)]["from_memory"], 2),
        "far_twice": span(counted[ahead.gt(30 * MIB)]["from_memory"], 2),
    }


def policies(frame: pd.DataFrame, counted: pd.DataFrame) -> dict[str, str]:
    """Gains by policies of tensor tiles, and what memory delivered, at the region where both hints gain most.

    Args:
        frame: rows of one run of `hints`.
        counted: of one of `hints_counters`.
    """

    def over(streamed: str, reused: str) -> pd.Series:
        table = found.policy_over_none(frame, "tma_tile", streamed, reused)
        return table.set_index("reused_bytes")["ratio"]

    named, first, last = (
        over(*pair)
        for pair in ((found.FIRST, found.LAST), (found.FIRST, found.NORMAL), (found.NORMAL, found.LAST))
    )
    wrong = over(found.LAST, found.FIRST)
    region = named.idxmax()

    def from_memory(streamed: str, reused: str) -> str:
        row = where(counted, streamed=streamed, reused=reused, reused_bytes=region).iloc[0]
        return percent(row["dram_read_bytes"] / row["bytes_moved"])

    return {
        "region": f"{region / MIB:.0f}",
        "named_best": f"{named[region]:.1f}",
        "first_alone": f"{first[region]:.1f}",
        "last_alone": f"{last[region]:.1f}",
        "memory_none": from_memory(found.NORMAL, found.NORMAL),
        "memory_named": from_memory(found.FIRST, found.LAST),
        "wrong_loss": percent(1 - wrong.min()),
        "wrong_large": f"{wrong.iloc[-1]:.1f} times the rate",
    }


def rates(table: pd.DataFrame, streamed: str, reused: str) -> str:
    """First and last rate of a line of the chart of policies, for those who cannot see it."""
    line = having(table, mechanism="tma_tile", streamed=streamed, reused=reused).sort_values("reused_bytes")[
        "median"
    ]
    return f"{line.iloc[0]:,.0f} to {line.iloc[-1]:,.0f} GB/s"
