"""Rules of thumb on multicast: when it pays, what it reads from L2, how its stages are released."""

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.operand import KIB
from labkernels.studies.cluster_rows import (
    ALONE,
    IN_STEP,
    LARGE,
    LEADER,
    SLICES,
    by_fan_out,
    compare,
)
from labkernels.studies.multicast.findings import later
from labkernels.studies.multicast.whole_gpu import GBPS, gain, gains
from labkernels.studies.rule import Rules
from labkernels.studies.stats import Ratio, having, paired, where

RULES = Rules("multicast", "multicast_fair")
LARGE_PIPELINES = "tiles of 32 KiB, 6 stages, one producer and one consumer warp, as many clusters as fit"
RIVALS = (
    "time of the whole GPU between events, idle SMs counted; of multicast and of neighboring CTAs without a cluster "
    "the best pipeline: tiles of 2 to 32 KiB, 2 to 12 stages, 1, 2 or 4 warps that copy and as many that read"
)


def _gains(
    frame: pd.DataFrame, fan_outs: tuple[int, ...], *pipelines_kib: int
) -> list[tuple[int, int, Ratio]]:
    return [
        (fan_out, kib, gain(where(frame, **IN_STEP), "l2", fan_out, kib))
        for fan_out in fan_outs
        for kib in pipelines_kib
    ]


def _by_pipeline(parts: list[tuple[int, int, Ratio]]) -> str:
    return "; ".join(f"fan-out {fan_out}, {kib} KiB: {ratio.times()}" for fan_out, kib, ratio in parts)


@RULES.rule(
    "gains_from_l2",
    operands="a tile in L2 that 4 or 8 CTAs need, 48 KiB or more for its pipeline",
    take="multicast, in a cluster",
    statement="From L2, to 4 or 8 CTAs and with 48 KiB or more for the pipeline, multicast delivers a quarter more to "
    "the whole GPU than neighboring CTAs without a cluster do in step.",
    scope=f"24 MiB in L2, in step; {RIVALS}; pipelines of 48, 128 and 192 KiB",
    applies_to="source == 'l2' and fan_out >= 4 and fan_out <= 8 and bytes_in_flight_per_sm >= 49152",
)
def _gains_from_l2(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = _gains(frame, (4, 8), 48, 128, 192)
    return min(ratio.ratio for *_, ratio in parts) > 1.25 and min(
        ratio.low for *_, ratio in parts
    ) > 1.1, _by_pipeline(parts)


@RULES.rule(
    "nothing_at_two",
    operands="a tile in L2 that two CTAs need",
    take="multicast while the pipeline is short, else each loads it",
    statement="To two CTAs from L2, multicast gains 1.4 times with a pipeline of 48 KiB and nothing from 128 KiB on.",
    scope=f"24 MiB in L2, in step; {RIVALS}",
    applies_to="source == 'l2' and fan_out == 2",
)
def _nothing_at_two(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = _gains(frame, (2,), 48, 128, 192)
    short, *long = (ratio for *_, ratio in parts)
    return short.low > 1.35 and max(abs(ratio.ratio - 1) for ratio in long) < 0.03, _by_pipeline(parts)


@RULES.rule(
    "small_rings",
    operands="a tile in L2 that several CTAs need, 16 KiB or less for its pipeline",
    take="no cluster: each loads it",
    statement="With 16 KiB or less for the pipeline, neighboring CTAs without a cluster deliver more than multicast "
    "from L2.",
    scope=f"24 MiB in L2, in step; {RIVALS}; fan-out 2 to 16",
    applies_to="source == 'l2' and fan_out > 1 and bytes_in_flight_per_sm <= 16384",
)
def _small_rings(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = _gains(frame, (2, 4, 8, 16), 16)
    return max(ratio.high for *_, ratio in parts) < 1, _by_pipeline(parts)


@RULES.rule(
    "nothing_from_hbm",
    operands="a tile in HBM that several CTAs need in step",
    take="no cluster: each loads it",
    statement="From HBM, multicast gains nothing over neighboring CTAs without a cluster that load in step.",
    scope=f"1 GiB in HBM, in step; {RIVALS}; every pipeline that was measured, fan-out 2 to 16",
    applies_to="source == 'hbm' and fan_out > 1",
)
def _nothing_from_hbm(frame: pd.DataFrame) -> tuple[bool, str]:
    table = gains(where(frame, source="hbm"))
    if table.empty:
        raise NotMeasured("no pipeline of both from HBM")
    most, least = table.loc[table["ratio"].idxmax()], table.loc[table["ratio"].idxmin()]
    text = " to ".join(
        f"{row['ratio']:.2f}× (fan-out {row['fan_out']}, {row['pipeline_kib']} KiB)" for row in (least, most)
    )
    return table["high"].max() < 1.02, f"{text} in {len(table)} pairs of best pipelines"


@RULES.rule(
    "out_of_step",
    operands="a tile that CTAs need at different times",
    take="multicast, which keeps them in step",
    statement="Where CTAs start 1000 cycles apart, multicast delivers 1.8 times what neighboring CTAs without a "
    "cluster do from L2, and 1.2 times from HBM to 4 CTAs or more.",
    scope=f"24 MiB in L2, 1 GiB in HBM, {LARGE_PIPELINES}; whole GPU; each CTA of a group starts 1000 cycles after the "
    "one before; fan-out 2, 4 and 8",
    applies_to="source != 'computed' and fan_out > 1",
)
def _out_of_step(frame: pd.DataFrame) -> tuple[bool, str]:
    def over(source: str, *fan_outs: int) -> list[tuple[int, Ratio]]:
        both = {"source": source, "lag_cycles": 1000, **LARGE}
        return [(n, compare(frame, LEADER, ALONE, column=GBPS, fan_out=n, **both)) for n in fan_outs]

    l2, hbm = over("l2", 2, 4, 8), over("hbm", 4, 8)
    holds = min(ratio.low for _, ratio in l2) > 1.75 and min(ratio.low for _, ratio in hbm) > 1.15
    return holds, f"L2: {by_fan_out(l2)}; HBM: {by_fan_out(hbm)}"


def _read(frame: pd.DataFrame) -> pd.Series:
    """Bytes that L2 read for each byte delivered."""
    return frame["l2_read_bytes"] / frame["bytes_delivered"]


@RULES.rule(
    "one_over_fan_out",
    operands="a tile that several CTAs need, L2 traffic scarce",
    take="multicast",
    statement="Explicit multicast reads 1/fan-out of what it delivers from L2, whatever the depth, tile or skew.",
    scope="counters of every multicast launch: fan-out 2 to 16, tiles of 8 and 32 KiB, 2 and 6 stages, L2 and HBM; in "
    "step, with lags of 100 to 5000 cycles, with a CTA that is late before each copy, with tiles held for 500 cycles",
    experiments=("cluster_counters",),
)
def _one_over_fan_out(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(frame, mechanism="tma_multicast")
    skewed = len(rows) - len(having(rows, **IN_STEP))
    error = (_read(rows) * rows["fan_out"] - 1).abs()
    told = f"largest deviation from 1/fan-out in {len(rows)} launches, {skewed} of them out of step: {error.max():.1%}"
    return skewed > 0 and error.max() < 0.05, told


@RULES.rule(
    "neighbours",
    operands="a tile that neighboring CTAs need at the same time",
    take="each loads it, side by side",
    statement="The coalescer needs CTAs that are close together on the GPU, not a cluster.",
    scope="counters; 24 MiB in L2, tiles of 32 KiB, 6 stages, fan-out 4, in step: a cluster, neighbors without one, "
    "scattered CTAs",
    experiments=("cluster_counters",),
)
def _neighbours(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(frame, source="l2", fan_out=4, **IN_STEP, **LARGE)
    cluster, alone, scattered = (
        _read(where(rows, share=share)).median() for share in ("everyone", "alone", "scattered")
    )
    text = (
        f"bytes read from L2 for each delivered at fan-out 4: {cluster:.2f} in a cluster, "
        f"{alone:.2f} by neighbors without one, {scattered:.2f} by scattered blocks"
    )
    return alone < 1.1 * cluster and scattered > 0.9, text


@RULES.rule(
    "lag",
    operands="a tile that several CTAs need at different times",
    take="multicast, or keep them in step",
    statement="The coalescer needs CTAs in step: 1000 cycles of lag from CTA to CTA, and L2 reads 85% of the bytes "
    "again.",
    scope="counters; 24 MiB in L2, tiles of 32 KiB, 6 stages, unicast, in a cluster and by neighboring "
    "CTAs; every fan-out counted",
    experiments=("cluster_counters",),
)
def _lag(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(frame, mechanism="tma_tile", source="l2", delay_cycles=0, hold_cycles=0, **LARGE)
    rows = rows[rows["share"].ne("scattered") & rows["fan_out"].gt(1)]
    late = where(rows, lag_cycles=1000)
    in_step = where(rows, lag_cycles=0)
    in_step = in_step[in_step["fan_out"].isin(late["fan_out"])]
    text = (
        f"bytes read from L2 for each delivered: at most {_read(in_step).max():.2f} in step, at least "
        f"{_read(late).min():.2f} with 1000 cycles of lag"
    )
    return _read(in_step).max() < 0.6 and _read(late).min() > 0.85, text


def _handshakes(
    frame: pd.DataFrame, this: dict[str, str], that: dict[str, str], tile_bytes: int, *fan_outs: int
) -> list[tuple[int, Ratio]]:
    both = {"source": "l2", "tile_bytes": tile_bytes, "stages": 4, **SLICES}
    return [(fan_out, compare(frame, this, that, fan_out=fan_out, **both)) for fan_out in fan_outs]


@RULES.rule(
    "scope",
    operands="the stages of a multicast pipeline",
    take="arrive without release.cluster",
    statement="release.cluster on the arrive costs a pipeline of 32 KiB tiles 40% of its rate and more.",
    scope="24 MiB in L2, multicast by slices, tiles of 32 KiB, 4 stages, one producer and one consumer warp; "
    "fan-out 2, 4 and 8",
    experiments=("handshake",),
)
def _scope(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = _handshakes(frame, {"scope": "arrive"}, {"scope": "default"}, 32 * KIB, 2, 4, 8)
    return max(ratio.high for _, ratio in parts) < 0.6, by_fan_out(parts)


@RULES.rule(
    "one_arrives",
    operands="the stages of a multicast pipeline",
    take="one lane for each CTA releases a stage",
    statement="One lane for each CTA releases a stage; one thread for all of them is slower.",
    scope="24 MiB in L2, multicast by slices, tiles of 8 KiB, 4 stages, one producer and one consumer warp; "
    "fan-out 2 to 16",
    experiments=("handshake",),
)
def _one_arrives(frame: pd.DataFrame) -> tuple[bool, str]:
    parts = _handshakes(frame, {"arrivers": "thread"}, {"arrivers": "lanes"}, 8 * KIB, 2, 4, 8, 16)
    return max(ratio.high for _, ratio in parts) < 0.9, by_fan_out(parts)


@RULES.rule(
    "two_warps",
    operands="multicast tiles of 8 KiB or less, 6 stages or more",
    take="two producer and two consumer warps",
    statement="Tiles of 8 KiB or less in pipelines of 6 stages or more: two producer and two consumer warps multicast "
    "1.6 times what one of each does.",
    scope="24 MiB in L2, tiles of 2 to 8 KiB, 6 to 12 stages, by slices and by one CTA, fan-out 2 to 16; with 4 stages "
    "it is 1.2 to 1.5 times, and unicast gains as much while its tiles have 4 KiB or less",
)
def _two_warps(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(frame, mechanism="tma_multicast", source="l2", **IN_STEP)
    rows = rows[rows["tile_bytes"].le(8 * KIB) & rows["stages"].ge(6)]
    parts = [
        paired(where(pipeline, producers=2), where(pipeline, producers=1), "bytes_per_clock_per_sm")
        for _, pipeline in rows.groupby(["share", "fan_out", "tile_bytes", "stages"])
        if {1, 2} <= set(pipeline["producers"])
    ]
    if not parts:
        raise NotMeasured("no pipeline of 6 stages with one and with two producers")
    least, most = (pick(parts, key=lambda ratio: ratio.ratio) for pick in (min, max))
    return least.low > 1.5, f"{least.times()} to {most.times()} in {len(parts)} pipelines"


@RULES.rule(
    "short_slices",
    operands="a tile of 16 KiB or less that 16 CTAs need",
    take="one CTA multicasts whole tiles",
    statement="To 16 CTAs, tiles of 16 KiB or less go out whole from one CTA: sixteen slices bring 0.7 of that.",
    scope="24 MiB in L2, tiles of 4, 8 and 16 KiB, 6 stages, one producer and one consumer warp; to 8 CTAs slices "
    "bring 0.9 of it, to 2 and 4 as much",
    applies_to="fan_out == 16 and tile_bytes <= 16384",
)
def _short_slices(frame: pd.DataFrame) -> tuple[bool, str]:
    both = {"source": "l2", "fan_out": 16, "stages": 6}
    parts = [(kib, compare(frame, SLICES, LEADER, tile_bytes=kib * KIB, **both)) for kib in (4, 8, 16)]
    text = "; ".join(f"{kib} KiB: {ratio.times()}" for kib, ratio in parts)
    return max(ratio.high for _, ratio in parts) < 0.8, text


@RULES.rule(
    "second_wave",
    operands="a grid of clusters",
    take="as many clusters as are resident",
    statement="One cluster too many takes 1.7 times as long, or longer: size the grid by resident clusters.",
    scope="clusters of 4, 8 and 16 that read 32 MiB from L2 by unicast pipelines of 8 KiB tiles, most shared memory, "
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


@RULES.rule(
    "up_to_twelve",
    operands="a tile in L2 that more than 12 CTAs need",
    take="multicast to 8 or 12, twice",
    statement="A multicast to 16 CTAs brings each at least a tenth less than one to 8 or 12, even alone on the GPU.",
    scope=f"24 MiB in L2, one cluster alone, one CTA that multicasts all; {LARGE_PIPELINES.rpartition(', ')[0]}",
    experiments=("wide_clusters",),
    applies_to="source == 'l2' and fan_out > 8",
)
def _up_to_twelve(frame: pd.DataFrame) -> tuple[bool, str]:
    alone = where(frame, **LEADER)
    alone = alone[alone["ctas"].eq(alone["cluster"]) & alone["cluster"].eq(alone["fan_out"])]
    parts = [(n, compare(alone, {"fan_out": n}, {"fan_out": 8})) for n in (12, 16)]
    (_, twelve), (_, sixteen) = parts
    return twelve.low > 0.97 and sixteen.high < 0.93, f"over clusters of 8: {by_fan_out(parts)}"


@RULES.rule(
    "multicast_latency",
    operands="a tile in L2 whose latency counts",
    take="multicast, if the CTAs share it",
    statement="A multicast of up to 16 KiB from L2 is visible in the last of 8 CTAs 50 cycles later than a copy is in "
    "one CTA alone, at most; in the last of 16, 90.",
    scope="one cluster alone, one copy at a time, 128 bytes, 2 and 16 KiB; 8 warps poll, resolution below 20 cycles",
    experiments=("visibility",),
)
def _multicast_latency(frame: pd.DataFrame) -> tuple[bool, str]:
    found = {
        (cluster, nbytes): later(frame, cluster, nbytes)
        for cluster in (8, 16)
        for nbytes in (128, 2 * KIB, 16 * KIB)
    }
    text = "; ".join(
        f"{cluster} CTAs, {nbytes} B: {one.value:.0f} cycles ({one.low:.0f} to {one.high:.0f})"
        for (cluster, nbytes), one in found.items()
    )
    return all(one.high < {8: 50, 16: 90}[cluster] for (cluster, _), one in found.items()), text
