"""Rules of thumb on multicast: when it pays, what it reads from L2, how its pipeline hands tiles over."""

import pandas as pd

from labkernels.operand import KIB
from labkernels.studies.cluster_rows import EVERYONE, LARGE, LEADER, RATE, SLICES, by_fan_out, compare, ring
from labkernels.studies.rule import Rules
from labkernels.studies.stats import Ratio, paired, where

RULES = Rules("multicast", "multicast")
LARGE_RINGS = "tiles of 32 KiB, 6 stages, one producer and one consumer warp, as many clusters as fit"


def _over_unicast(frame: pd.DataFrame, source: str, *fan_outs: int) -> list[tuple[int, Ratio]]:
    """The better share of multicast over the unicast of the same clusters."""
    found = []
    for fan_out in fan_outs:
        both = {"source": source, "fan_out": fan_out, **LARGE}
        best = max((SLICES, LEADER), key=lambda share: ring(frame, **both, **share)[RATE].median())
        found.append((fan_out, compare(frame, best, EVERYONE, **both)))
    return found


@RULES.rule(
    "gains_from_l2",
    operands="a tile of 32 KiB in L2 that 4 or 8 CTAs need",
    take="multicast",
    statement="From L2, with tiles of 32 KiB, multicast to 4 or 8 CTAs beats the same cluster's unicast.",
    scope=f"24 MiB in L2, {LARGE_RINGS}; the better of slices and one CTA that multicasts all",
    applies_to="source == 'l2' and fan_out >= 4 and fan_out <= 8",
)
def _gains_from_l2(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = _over_unicast(frame, "l2", 4, 8)
    return min(ratio.low for _, ratio in parts) > 1.05, by_fan_out(parts)


@RULES.rule(
    "nothing_at_two",
    operands="a tile that two CTAs need",
    take="each loads it, or multicast: the same",
    statement="To two CTAs, multicast changes nothing: the coalescer does as much.",
    scope=f"24 MiB in L2 and 1 GiB in HBM, {LARGE_RINGS}",
    applies_to="source != 'computed' and fan_out == 2",
)
def _nothing_at_two(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = [ratio for source in ("l2", "hbm") for _, ratio in _over_unicast(frame, source, 2)]
    text = "; ".join(f"{name}: {ratio.times()}" for name, ratio in zip(("L2", "HBM"), parts, strict=True))
    return max(abs(ratio.ratio - 1) for ratio in parts) < 0.03, text


@RULES.rule(
    "nothing_from_hbm",
    operands="a tile in HBM that 4 CTAs or more need in step",
    take="each loads it, or multicast",
    statement="From HBM, multicast gains nothing over a cluster whose CTAs load in step.",
    scope=f"1 GiB in HBM, {LARGE_RINGS}; fan-out 4, 8 and 16",
    applies_to="source == 'hbm' and fan_out > 2",
)
def _nothing_from_hbm(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = _over_unicast(frame, "hbm", 4, 8, 16)
    return max(ratio.high for _, ratio in parts) < 1.02, by_fan_out(parts)


def _read(frame: pd.DataFrame) -> pd.Series:
    """Bytes that L2 read for each byte delivered."""
    return frame["l2_read_bytes"] / frame["bytes_delivered"]


@RULES.rule(
    "one_over_fan_out",
    operands="a tile that several CTAs need, L2 traffic scarce",
    take="multicast",
    statement="Explicit multicast reads 1/fan-out of what it delivers from L2, whatever the depth, tile or skew.",
    scope="counters of every multicast launch: fan-out 2 to 16, tiles of 8 and 32 KiB, 2 and 6 stages, L2 and HBM",
    experiments=("cluster_counters",),
)
def _one_over_fan_out(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(frame, mechanism="tma_multicast")
    error = (_read(rows) * rows["fan_out"] - 1).abs()
    return error.max() < 0.05, f"largest deviation from 1/fan-out in {len(rows)} launches: {error.max():.1%}"


@RULES.rule(
    "neighbours",
    operands="a tile that neighbouring CTAs need at the same time",
    take="each loads it, side by side",
    statement="The coalescer asks for neighbours on the GPU, not for a cluster.",
    scope="counters; 24 MiB in L2, tiles of 32 KiB, 6 stages, fan-out 4, in step: a cluster, neighbours without one, "
    "scattered CTAs",
    experiments=("cluster_counters",),
)
def _neighbours(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(frame, source="l2", fan_out=4, lag_cycles=0, **LARGE)
    cluster, alone, scattered = (
        _read(where(rows, share=share)).median() for share in ("everyone", "alone", "scattered")
    )
    text = (
        f"bytes read from L2 for each delivered at fan-out 4: {cluster:.2f} in a cluster, "
        f"{alone:.2f} by neighbours without one, {scattered:.2f} by scattered blocks"
    )
    return alone < 1.1 * cluster and scattered > 0.9, text


@RULES.rule(
    "lag",
    operands="a tile that several CTAs need at different times",
    take="multicast, or keep them in step",
    statement="The coalescer asks for step: 1000 cycles of lag from CTA to CTA, and L2 reads every byte again.",
    scope="counters; 24 MiB in L2, tiles of 32 KiB, 6 stages, a cluster of 4 whose CTAs load for themselves",
    experiments=("cluster_counters",),
)
def _lag(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(frame, share="everyone", source="l2", fan_out=4, **LARGE)
    in_step, late = (_read(where(rows, lag_cycles=cycles)).median() for cycles in (0, 1000))
    text = f"bytes read from L2 for each delivered: {in_step:.2f} in step, {late:.2f} with 1000 cycles of lag"
    return in_step < 0.6 and late > 0.9, text


def _handshakes(
    frame: pd.DataFrame, this: dict[str, str], that: dict[str, str], tile_bytes: int, *fan_outs: int
) -> list[tuple[int, Ratio]]:
    both = {"source": "l2", "tile_bytes": tile_bytes, "stages": 4, **SLICES}
    return [(fan_out, compare(frame, this, that, fan_out=fan_out, **both)) for fan_out in fan_outs]


@RULES.rule(
    "scope",
    operands="a multicast ring's slot handshake",
    take="arrive without release.cluster",
    statement="release.cluster on the arrive costs a ring of 32 KiB tiles 40 % of its rate and more.",
    scope="24 MiB in L2, multicast by slices, tiles of 32 KiB, 4 stages, one producer and one consumer warp; "
    "fan-out 2, 4 and 8",
    experiments=("handshake",),
)
def _scope(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = _handshakes(frame, {"scope": "arrive"}, {"scope": "default"}, 32 * KIB, 2, 4, 8)
    return max(ratio.high for _, ratio in parts) < 0.6, by_fan_out(parts)


@RULES.rule(
    "one_arrives",
    operands="a multicast ring's slot handshake",
    take="one lane for each CTA releases a slot",
    statement="One lane for each CTA releases a slot; one thread for all of them is slower.",
    scope="24 MiB in L2, multicast by slices, tiles of 8 KiB, 4 stages, one producer and one consumer warp; "
    "fan-out 2 to 16",
    experiments=("handshake",),
)
def _one_arrives(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = _handshakes(frame, {"arrivers": "thread"}, {"arrivers": "lanes"}, 8 * KIB, 2, 4, 8, 16)
    return max(ratio.high for _, ratio in parts) < 0.9, by_fan_out(parts)


@RULES.rule(
    "two_warps",
    operands="small multicast tiles",
    take="two producer and two consumer warps",
    statement="Small tiles want two producer and two consumer warps: half as much again, at least.",
    scope="24 MiB in L2, multicast by slices, tiles of 8 KiB, 12 stages; fan-out 4 and 16",
)
def _two_warps(frame: pd.DataFrame) -> tuple[bool, str]:
    both = {"source": "l2", "tile_bytes": 8 * KIB, "stages": 12, **SLICES}
    two = {"producers": 2, "consumers": 2}
    parts = [(fan_out, compare(frame, two, {}, fan_out=fan_out, **both)) for fan_out in (4, 16)]
    return min(ratio.low for _, ratio in parts) > 1.5, by_fan_out(parts)


@RULES.rule(
    "short_slices",
    operands="a tile whose slice is under 1 KiB",
    take="one CTA multicasts whole tiles",
    statement="Slices under 1 KiB lose to unicast; one CTA that multicasts whole tiles does not.",
    scope="24 MiB in L2, tiles of 8 KiB, 6 stages, one producer and one consumer warp, fan-out 16: slices of 512 bytes",
    applies_to="fan_out > 1 and slice_bytes < 1024",
)
def _short_slices(frame: pd.DataFrame) -> tuple[bool, str]:
    both = {"source": "l2", "tile_bytes": 8 * KIB, "stages": 6, "fan_out": 16}
    sliced, whole = (compare(frame, share, EVERYONE, **both) for share in (SLICES, LEADER))
    text = f"512 B slices {sliced.times()}, one CTA all {whole.times()} the unicast rate at fan-out 16"
    return sliced.high < 0.8 and whole.low > 0.93, text


@RULES.rule(
    "second_wave",
    operands="a grid of clusters",
    take="as many clusters as are resident",
    statement="One cluster too many takes 1.7 times as long, or longer: size the grid by resident clusters.",
    scope="clusters of 4, 8 and 16 that read 32 MiB from L2 by unicast rings of 8 KiB tiles, the most shared memory, "
    "one CTA per SM; one cluster more than the driver says are resident",
    experiments=("residency",),
    applies_to="fan_out > 2",
)
def _second_wave(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = []
    for cluster in (4, 8, 16):
        rows = where(frame, cluster=cluster, ctas_per_sm=1)
        rows = where(rows, shared_bytes=rows["shared_bytes"].max())
        fits = rows["launched_clusters"].le(rows["resident_clusters"])
        parts.append((cluster, paired(rows[~fits], rows[fits], "duration_us")))
    text = "; ".join(f"cluster {cluster}: {ratio.times()} the time" for cluster, ratio in parts)
    return min(ratio.low for _, ratio in parts) > 1.7, text


@RULES.rule(
    "few_streams",
    operands="a tile in L2 that 8 CTAs or more need, all SMs at work",
    take="clusters of 8",
    statement="With all SMs at work, clusters of 4 fill faster than of 2, and of 8 than of 4: "
    "fewer streams share a GPC.",
    scope="24 MiB in L2, multicast by slices, tiles of 32 KiB, 6 stages, one producer and one consumer warp; "
    "as many CTAs as clusters of 4 have at most",
    experiments=("crowding",),
    applies_to="source == 'l2' and fan_out > 1",
)
def _few_streams(frame: pd.DataFrame) -> tuple[bool, str]:
    frame = where(frame, **SLICES)
    all_at_work = where(frame, ctas=where(frame, fan_out=4)["ctas"].max())
    parts = [
        (fan_out, compare(all_at_work, {"fan_out": fan_out}, {"fan_out": fan_out // 2})) for fan_out in (4, 8)
    ]
    text = "; ".join(
        f"clusters of {fan_out} over {fan_out // 2}: {ratio.times()}" for fan_out, ratio in parts
    )
    return min(ratio.low for _, ratio in parts) > 1.05, f"{all_at_work['ctas'].iloc[0]} CTAs, {text}"
