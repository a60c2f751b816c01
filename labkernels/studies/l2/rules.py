"""Rules of thumb on L2: when to fetch lines ahead, and which lines to name for eviction."""

import pandas as pd

from labkernels.operand import KIB, MIB
from labkernels.studies.l2 import findings as found
from labkernels.studies.rule import Rules
from labkernels.studies.stats import where

RULES = Rules("l2", "l2_prefetch")
STREAM = (
    "1 GiB read in turn from HBM by one producer and one consumer warp, tiles of 2 to 32 KiB, one CTA per SM"
)
BESIDE = "16 KiB tiles in 8 stages, one of 1 GiB that streams by, one of a region, in turns; bulk and tensor copies"


@RULES.rule(
    "prefetch_with_little_in_flight",
    operands="a stream from HBM, less than 24 KiB in flight per SM",
    take="cp.async.bulk.prefetch, two to eight tiles ahead of the copy; better still, more stages",
    statement="A prefetch into L2 stands in for bytes in flight that shared memory has no room for.",
    scope=f"{STREAM}; up to 8 KiB in flight, the best lead of 1 to 32 tiles",
    applies_to="source == 'hbm' and bytes_in_flight_per_sm <= 8192",
)
def _prefetch_with_little_in_flight(frame: pd.DataFrame) -> tuple[bool, str]:
    best = found.best_gain(found.gains(frame))
    few = best[best["bytes_in_flight_per_sm"].le(8 * KIB)]
    return few["low"].min() > 1.2, (
        f"With 2 to 8 KiB in flight a prefetch gains {100 * (few['ratio'].min() - 1):.0f} to "
        f"{100 * (few['ratio'].max() - 1):.0f}%."
    )


@RULES.rule(
    "no_prefetch_when_fed",
    operands="a stream from HBM, 48 KiB and more in flight per SM",
    take="no prefetch",
    statement="A stream with enough in flight loses by a prefetch: each line is asked for twice.",
    scope=f"{STREAM}; 48 to 192 KiB in flight, every lead of 1 to 32 tiles",
    applies_to="source == 'hbm' and bytes_in_flight_per_sm >= 49152",
)
def _no_prefetch_when_fed(frame: pd.DataFrame) -> tuple[bool, str]:
    best = found.best_gain(found.gains(frame))
    fed = best[best["bytes_in_flight_per_sm"].ge(48 * KIB)]
    return fed["high"].max() < 0.95, (
        f"From 48 KiB in flight on the best lead leaves {100 * fed['ratio'].min():.0f} to "
        f"{100 * fed['ratio'].max():.0f}% of the rate without."
    )


@RULES.rule(
    "not_too_far_ahead",
    operands="tiles prefetched into L2",
    take="a lead that keeps the tiles of all SMs below 16 MiB",
    statement="Prefetch no more than a third of L2: beyond it lines leave before their copy, and come twice.",
    scope=f"{STREAM}; lead × tile × SMs of 0.3 to 17 MiB against 33 to 132 MiB, L2 of 60 MiB; memory counted",
    experiments=("l2_prefetch", "l2_prefetch_counters"),
)
def _not_too_far_ahead(frame: pd.DataFrame, counted: pd.DataFrame) -> tuple[bool, str]:
    table = found.gains(frame)
    far, near = (
        table[mask] for mask in (table["ahead_bytes"].gt(30 * MIB), table["ahead_bytes"].lt(18 * MIB))
    )
    counted = found.read_twice(counted)
    ahead = counted["lead"] * counted["tile_bytes"] * counted["sm_count"]
    twice, once = counted[ahead.gt(30 * MIB)]["from_memory"], counted[ahead.lt(18 * MIB)]["from_memory"]
    return far["ratio"].median() < 0.7 < near["low"].min() and twice.min() > 1.5 and once.max() < 1.1, (
        f"With more than 30 MiB ahead memory delivers {twice.min():.2f} to {twice.max():.2f} times the bytes, and the "
        f"rate falls to {100 * far['ratio'].median():.0f}% (median); with less than 18 MiB {once.max():.2f} at most."
    )


@RULES.rule(
    "say_what_streams_by",
    operands="an operand that streams by beside one of a third to two thirds of L2 that is used again",
    take="evict_first for what streams by, evict_last for what is used again",
    statement="Name both: evict_first for what streams by, evict_last for what is used again.",
    scope=f"{BESIDE}, of 23 to 39 MiB; L2 of 60 MiB",
    experiments=("hints",),
)
def _say_what_streams_by(frame: pd.DataFrame) -> tuple[bool, str]:
    def over(streamed: str, reused: str) -> pd.DataFrame:
        each = [found.policy_over_none(frame, name, streamed, reused) for name in ("tma_bulk", "tma_tile")]
        both = pd.concat(each)
        return both[both["reused_bytes"].between(22 * MIB, 40 * MIB)]

    named, first, last = (
        over(*pair)
        for pair in ((found.FIRST, found.LAST), (found.FIRST, found.NORMAL), (found.NORMAL, found.LAST))
    )
    shown = (f"{part['ratio'].min():.2f} to {part['ratio'].max():.2f}" for part in (named, first, last))
    both, only_first, only_last = shown
    return named["low"].min() > 1.3, (
        f"Both policies together bring {both} times the rate; evict_first alone {only_first}, evict_last alone "
        f"{only_last}."
    )


@RULES.rule(
    "hints_do_nothing_for_small_regions",
    operands="an operand that streams by beside one of less than a quarter of L2",
    take="no hint, or the right ones: they gain little and cost nothing",
    statement="Beside a region that fits L2 easily, policies gain a tenth at most; the wrong ones cost a third.",
    scope=f"{BESIDE}, of 6 to 14 MiB; L2 of 60 MiB",
    experiments=("hints",),
)
def _hints_do_nothing_for_small_regions(frame: pd.DataFrame) -> tuple[bool, str]:
    small = where(frame.assign(small=frame["reused_bytes"].between(6 * MIB, 15 * MIB)), small=True)
    right = found.policy_over_none(small, "tma_tile", found.FIRST, found.LAST)
    wrong = found.policy_over_none(small, "tma_tile", found.LAST, found.FIRST)
    return right["high"].max() < 1.2 and wrong["high"].max() < 0.75, (
        f"Regions of 6 to 14 MiB: the right policies bring {right['ratio'].min():.2f} to {right['ratio'].max():.2f} "
        f"times the rate, the wrong ones {wrong['ratio'].min():.2f} to {wrong['ratio'].max():.2f}."
    )
