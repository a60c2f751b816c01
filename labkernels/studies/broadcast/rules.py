"""Rules of thumb on tiles that reach every CTA of a cluster: multicast or DSM, push or pull, whole or sliced."""

from typing import Any

import pandas as pd

from labkernels.operand import KIB
from labkernels.production.practice import Practice
from labkernels.studies.broadcast.findings import PULL, PUSH, PUSH_ALL
from labkernels.studies.cluster_rows import EVERYONE, SLICES, by_fan_out, compare, exchange_rates
from labkernels.studies.rule import Rules
from labkernels.studies.stats import Ratio, paired, where

RULES = Rules("broadcast", "broadcast")
LARGE_PIPELINES = "tiles of 32 KiB, 4 stages, one producer and one consumer warp, as many clusters as fit"
ONE_PAIR = "one cluster of two CTAs alone on the GPU, 16 KiB from one CTA to the other per lap"
PAIR = {"cluster": 2, "clusters": 1}


def _over(
    frame: pd.DataFrame, first: dict[str, Any], second: dict[str, Any], source: str, *fan_outs: int
) -> list[tuple[int, Ratio]]:
    both = {"source": source, "tile_bytes": 32 * KIB, "stages": 4}
    return [(fan_out, compare(frame, first, second, fan_out=fan_out, **both)) for fan_out in fan_outs]


@RULES.rule(
    "multicast_beats_dsm",
    operands="a tile of 8 KiB or more in global memory that 4 CTAs or more need",
    take="each loads it, or multicast; not DSM",
    statement="A tile of 8 or 32 KiB in L2 or HBM that 4 CTAs or more need: load it in each, or multicast it; DSM "
    "forwards 0.7 of that at most, and 0.3 at 32 KiB from L2.",
    scope=f"24 MiB in L2, 1 GiB in HBM, tiles of 8 and 32 KiB, {LARGE_PIPELINES.partition(', ')[2]}; multicast and DSM "
    "by slices, fan-out 4 and 8",
    applies_to="source != 'computed' and fan_out >= 4 and tile_bytes >= 8192",
)
def _multicast_beats_dsm(frame: pd.DataFrame) -> tuple[bool, str]:
    found = {
        (source, kib, n, way["mechanism"]): compare(
            frame, way, PUSH, source=source, tile_bytes=kib * KIB, stages=4, fan_out=n
        )
        for source in ("l2", "hbm")
        for kib in (8, 32)
        for n in (4, 8)
        for way in (SLICES, EVERYONE)
    }
    large = [ratio for (source, kib, *_), ratio in found.items() if (source, kib) == ("l2", 32)]
    least, most = (pick(found.values(), key=lambda ratio: ratio.ratio) for pick in (min, max))
    text = f"over DSM: {least.times()} to {most.times()} in {len(found)} pairs; at 32 KiB from L2 "
    text += f"{min(ratio.ratio for ratio in large):.2f}× at least"
    return least.low > 1.43 and min(ratio.low for ratio in large) > 3, text


@RULES.rule(
    "slices_beat_one",
    operands="a tile forwarded through DSM",
    take="every CTA pushes its slice",
    statement="Forwarding through DSM, let every CTA push its slice: a leader that pushes all divides its one port.",
    scope=f"computed tiles, pushed, {LARGE_PIPELINES}; fan-out 4, 8 and 16",
    applies_to="fan_out >= 4",
)
def _slices_beat_one(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = _over(frame, PUSH, PUSH_ALL, "computed", 4, 8, 16)
    return all(ratio.low > 0.7 * fan_out for fan_out, ratio in parts), by_fan_out(parts)


@RULES.rule(
    "push_beats_pull",
    operands="a tile forwarded through DSM",
    take="push",
    statement="Push rather than pull.",
    scope=f"computed tiles, by slices, {LARGE_PIPELINES}; fan-out 2 to 16",
    practice=Practice("mechanism.str.startswith('dsm', na=False)", "mechanism != 'dsm_load'"),
)
def _push_beats_pull(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = _over(frame, PUSH, PULL, "computed", 2, 4, 8, 16)
    return min(ratio.low for _, ratio in parts) > 1, by_fan_out(parts)


@RULES.rule(
    "computed_pair",
    operands="a tile computed in shared memory, needed by two CTAs",
    take="dsm_bulk",
    statement="A tile computed in shared memory, for two CTAs: push it.",
    scope=f"computed tiles, {LARGE_PIPELINES}; pushed by slices against stored to L2 and multicast by slices",
    applies_to="source == 'computed' and fan_out == 2",
)
def _computed_pair(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = _over(frame, PUSH, SLICES, "computed", 2)
    return parts[0][1].low > 1, by_fan_out(parts)


@RULES.rule(
    "round_trip",
    operands="a computed tile of 32 KiB that 4 CTAs or more need",
    take="store it, then multicast",
    statement="A computed tile of 32 KiB for 4 CTAs or more: through L2 and back by multicast beats DSM.",
    scope=f"computed tiles, {LARGE_PIPELINES}; stored to L2 and multicast by slices against pushed by slices, "
    "fan-out 4, 8 and 16",
    applies_to="source == 'computed' and fan_out >= 4 and tile_bytes >= 32768",
)
def _round_trip(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = _over(frame, SLICES, PUSH, "computed", 4, 8, 16)
    return min(ratio.low for _, ratio in parts) > 1.5, by_fan_out(parts)


@RULES.rule(
    "one_way_cap",
    operands="bytes from one CTA to another, one way",
    take="any DSM mechanism",
    statement="One way, every DSM mechanism reaches 21 bytes per clock.",
    scope=f"{ONE_PAIR}; bulk pushes of 16 KiB, stores and loads of 16 bytes a thread",
    experiments=("dsm",),
)
def _one_way_cap(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(frame, pattern="pair_one_way", **PAIR)
    table = exchange_rates(rows[rows["command_bytes"].isin([16, 16 * KIB])])
    text = ", ".join(
        f"{row.mechanism}{' ' + row.variant if row.variant else ''} {row.median:.2f}"
        for row in table.itertuples()
    )
    return table["median"].between(20.9, 21.4).all(), f"B/clk one way: {text}"


@RULES.rule(
    "two_ways",
    operands="bytes between two CTAs, both ways at once",
    take="pushes",
    statement="Both ways at once, pushes keep over 90% each way and loads do not.",
    scope=f"{ONE_PAIR} and back; bulk pushes of 16 KiB against loads",
    experiments=("dsm",),
)
def _two_ways(frame: pd.DataFrame) -> tuple[bool, str]:
    def each_way(**exchange: Any) -> Ratio:
        both, one = (
            where(frame, pattern=pattern, **PAIR, **exchange) for pattern in ("pair_two_way", "pair_one_way")
        )
        return paired(both, one, "sent_bytes_per_clock")

    push = each_way(mechanism="dsm_bulk", command_bytes=16 * KIB)
    load = each_way(mechanism="dsm_load")
    text = "; ".join(
        f"{name}: {ratio.times()} of its one-way rate each way"
        for name, ratio in (("dsm_bulk", push), ("dsm_load", load))
    )
    return push.low > 0.9 and load.high < 0.9, text


@RULES.rule(
    "command_size",
    operands="bulk pushes",
    take="2 KiB or more in a copy",
    statement="Bulk pushes need 2 KiB or more in a copy.",
    scope=f"{ONE_PAIR}; bulk pushes of 1, 2 and 16 KiB",
    experiments=("dsm",),
)
def _command_size(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(frame, mechanism="dsm_bulk", pattern="pair_one_way", **PAIR)
    one, two, sixteen = (
        where(rows, command_bytes=size * KIB)["sent_bytes_per_clock"].median() for size in (1, 2, 16)
    )
    text = f"1 KiB {one:.1f}, 2 KiB {two:.1f}, 16 KiB {sixteen:.1f} B/clk"
    return two > 0.98 * sixteen and one < 0.9 * sixteen, text


@RULES.rule(
    "reuse",
    operands="a tile that is kept for 4096 cycles or more",
    take="any",
    statement="When a tile is kept for 4096 cycles (16 passes of 32 KiB over shared memory), "
    "the transport no longer matters.",
    scope=f"24 MiB in L2, {LARGE_PIPELINES}; multicast and pushes by slices, fan-out 4, each tile held for 4096 cycles",
)
def _reuse(frame: pd.DataFrame) -> tuple[bool, str]:
    held = {"source": "l2", "fan_out": 4, "tile_bytes": 32 * KIB, "hold_cycles": 4096}
    found = compare(frame, SLICES, PUSH, **held)
    return abs(found.ratio - 1) < 0.03, f"multicast {found.times()} the rate of DSM pushes"


@RULES.rule(
    "async_store",
    operands="a few bytes for another CTA that waits for them",
    take="st.async, which counts them on the receiver's barrier",
    statement="16 bytes for another CTA: st.async makes them visible in 170 cycles, a store and an arrival that "
    "releases at cluster scope in 500.",
    scope="clusters of 2 to 16 CTAs, one store at a time, one cluster alone; 8 warps poll, resolution below 20 cycles",
    experiments=("visibility",),
    practice=Practice("mechanism == 'dsm_store'", "variant.str.contains('st.async')"),
)
def _async_store(frame: pd.DataFrame) -> tuple[bool, str]:
    by_completion = {
        name: where(frame, mechanism="dsm_store", completion=name)["cycles_median"]
        for name in ("async", "release")
    }
    quick, slow = by_completion.values()
    text = f"st.async {quick.min():.0f} to {quick.max():.0f} cycles, "
    text += f"store and release {slow.min():.0f} to {slow.max():.0f}"
    return quick.max() < 200 and slow.min() > 450, text
