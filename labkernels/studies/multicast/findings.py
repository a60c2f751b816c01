"""What stored rows say of clusters: rates of rings and exchanges, ratios paired by round, rules and their verdicts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.operand import KIB
from labkernels.studies.stats import Measured, Ratio, having, measured, paired, spread, where

RATE = "bytes_per_clock_per_sm"
RING = [
    "gpu", "run_id", "kernel", "mechanism", "share", "source", "fan_out", "cluster", "producers", "consumers",
    "scope", "arrivers", "tile_bytes", "stages", "lag_cycles", "delay_cycles", "hold_cycles", "ctas",
]  # fmt: skip
EXCHANGE = [
    "gpu", "run_id", "kernel", "mechanism", "variant", "pattern", "cluster", "clusters", "command_bytes",
]  # fmt: skip

#: How a chart calls who brings the tile, by mechanism and share.
WAYS = {
    ("tma_multicast", "slices"): "multicast, each CTA a slice",
    ("tma_multicast", "leader"): "multicast, one CTA all",
    ("tma_tile", "everyone"): "each for itself, cluster",
    ("tma_tile", "alone"): "each for itself, neighbours",
    ("tma_tile", "scattered"): "each for itself, scattered",
    ("dsm_bulk", "slices"): "DSM push, each CTA a slice",
    ("dsm_bulk", "leader"): "DSM push, one CTA all",
    ("dsm_load", "slices"): "DSM pull, each CTA a slice",
    ("dsm_load", "leader"): "DSM pull, one CTA all",
}

PLAIN = {
    "producers": 1, "consumers": 1, "scope": "default", "arrivers": "lanes", "lag_cycles": 0, "delay_cycles": 0,
    "hold_cycles": 0,
}  # fmt: skip
SLICES = {"mechanism": "tma_multicast", "share": "slices"}
LEADER = {"mechanism": "tma_multicast", "share": "leader"}
EVERYONE = {"mechanism": "tma_tile", "share": "everyone"}


def rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Median, 5th and 95th percentile of each ring's rate over its rounds, its way, and its cycles per tile."""
    table = spread(frame, RING, RATE)
    return table.assign(way=ways(table), cycles_per_tile=table["tile_bytes"] / table["median"])


def exchange_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Median, 5th and 95th percentile of bytes per clock that one sender sends, for each exchange."""
    return spread(frame, EXCHANGE, "sent_bytes_per_clock")


def ways(frame: pd.DataFrame) -> list[str]:
    """How a chart calls each row's way of bringing a tile."""
    return [WAYS[key] for key in zip(frame["mechanism"], frame["share"], strict=True)]


def ring(frame: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """Rounds of one ring; what `wanted` leaves open is as in `PLAIN`.

    Raises:
        NotMeasured: there are no such rows.
        ValueError: they are of more than one ring.
    """
    found = where(frame, **{**PLAIN, **wanted})
    if found.duplicated(["run_id", "round"]).any():
        raise ValueError(f"{wanted} is more than one ring: name its tile, stages, source and fan-out too")
    return found


def compare(frame: pd.DataFrame, first: dict[str, Any], second: dict[str, Any], **both: Any) -> Ratio:
    """Rate of one ring over that of another, paired by round."""
    return paired(ring(frame, **both, **first), ring(frame, **both, **second), RATE)


def span(values: Iterable[float], digits: int = 0) -> str:
    """Smallest and largest of some values, in words: `17 to 20`, or `21` where both read the same."""
    ordered = sorted(values)
    ends = [f"{end:.{digits}f}" for end in (ordered[0], ordered[-1])]
    return " to ".join(dict.fromkeys(ends))


def multicast_fill_bytes_per_clock_per_sm(frame: pd.DataFrame) -> Measured:
    """Best rate of multicast at fan-out 4, 32 KiB tiles, from L2, bytes per clock and SM.

    Args:
        frame: rows of one run of experiment multicast.

    Raises:
        NotMeasured: it has no such rows.
    """
    shape = {"mechanism": "tma_multicast", "fan_out": 4, "source": "l2", "tile_bytes": 32 * KIB}
    table = rates(where(frame, **shape, **PLAIN))
    best = table.loc[table["median"].idxmax()]
    return measured(where(frame, **best[RING])[RATE])


def multicast_l2_read_ratio(counters: pd.DataFrame) -> Measured:
    """Bytes read from L2 over bytes delivered by multicast at fan-out 4, by counters; the interval spans the launches.

    Args:
        counters: rows of one run of experiment cluster_counters.

    Raises:
        NotMeasured: it has no such rows.
    """
    rows = where(counters, mechanism="tma_multicast", fan_out=4, source="l2")
    ratio = rows["l2_read_bytes"] / rows["bytes_delivered"]
    return Measured(float(ratio.median()), float(ratio.min()), float(ratio.max()))


def dsm_bulk_bytes_per_clock_per_sm(dsm: pd.DataFrame) -> Measured:
    """Rate of bulk pushes one way, one pair of CTAs on the GPU, 16 KiB commands, bytes per clock and sender.

    Args:
        dsm: rows of one run of experiment dsm.

    Raises:
        NotMeasured: it has no such rows.
    """
    pair = {"pattern": "pair_one_way", "cluster": 2, "clusters": 1}
    rows = where(dsm, mechanism="dsm_bulk", command_bytes=16 * KIB, **pair)
    return measured(rows["sent_bytes_per_clock"])


def dsm_load_latency_cycles(latency: pd.DataFrame) -> Measured:
    """Cycles of one dependent load in the largest cluster: median over all pairs of CTAs, quickest and slowest pair.

    Args:
        latency: rows of one run of experiment cluster_latency.

    Raises:
        NotMeasured: it has no such rows.
    """
    cycles = where(latency, protocol="load", cluster=latency["cluster"].max())["cycles_median"]
    return Measured(float(cycles.median()), float(cycles.min()), float(cycles.max()))


def loop_cycles(table: pd.DataFrame) -> pd.Series:
    """Cycles from one use of a slot to the next: stages × cycles per tile; latency and handshake bound it below."""
    return table["stages"] * table["cycles_per_tile"]


LARGE = {"tile_bytes": 32 * KIB, "stages": 6}


def read_ratios(counters: pd.DataFrame) -> pd.DataFrame:
    """Counted launches with their way and `read`, the bytes that L2 read for each byte delivered."""
    read = (counters["l2_read_bytes"] / counters["bytes_delivered"]).astype(float)
    return counters.assign(read=read, way=ways(counters))


def traffic(multicast: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """What rings of `LARGE` take from L2 and bring into the SMs: counted ratios × timed rates.

    Args:
        multicast: rows of one run of experiment multicast.
        counters: rows of one run of experiment cluster_counters on the same GPU.

    Returns:
        The rings' rates with `together`, bytes per clock into all SMs, `into_sms` and `from_l2`, bytes per clock
        divided by all SMs of the GPU, and `low` and `high`, the spread of `into_sms`.
    """
    keys = ["mechanism", "share", "source", "fan_out"]
    read = read_ratios(having(counters, lag_cycles=0, **LARGE))[[*keys, "read"]]
    table = rates(having(multicast, **PLAIN, **LARGE)).merge(read, on=keys)
    sms = multicast["sm_count"].max()
    used = table["ctas"] / sms
    return table.assign(
        together=table["median"] * table["ctas"],
        into_sms=table["median"] * used,
        low=table["p05"] * used,
        high=table["p95"] * used,
        from_l2=table["median"] * used * table["read"],
    )


@dataclass(frozen=True)
class Verdict:
    """A rule's judgement.

    Attributes:
        rule: the sentence, with its condition.
        verdict: `holds`, `does not hold` or `not measured`.
        effect: what was measured, in words.
    """

    rule: str
    verdict: str
    effect: str


Frames = dict[str, pd.DataFrame]
Judge = Callable[[Frames], tuple[bool, str]]


def _times(ratio: Ratio) -> str:
    return f"{ratio.ratio:.2f}× ({ratio.low:.2f} to {ratio.high:.2f})"


def _several(parts: Iterable[tuple[int, Ratio]]) -> str:
    return "; ".join(f"fan-out {fan_out}: {_times(ratio)}" for fan_out, ratio in parts)


def _over_unicast(
    frames: Frames, source: str, fan_outs: Iterable[int], **shape: int
) -> list[tuple[int, Ratio]]:
    frame = frames["multicast"]
    found = []
    for fan_out in fan_outs:
        both = {"source": source, "fan_out": fan_out, **shape}
        best = max((SLICES, LEADER), key=lambda way: ring(frame, **both, **way)[RATE].median())
        found.append((fan_out, compare(frame, best, EVERYONE, **both)))
    return found


def _gains_from_l2(frames: Frames) -> tuple[bool, str]:
    parts = _over_unicast(frames, "l2", (4, 8), **LARGE)
    return min(ratio.low for _, ratio in parts) > 1.05, _several(parts)


def _nothing_at_two(frames: Frames) -> tuple[bool, str]:
    parts = [*_over_unicast(frames, "l2", (2,), **LARGE), *_over_unicast(frames, "hbm", (2,), **LARGE)]
    names = ("L2", "HBM")
    text = "; ".join(f"{name}: {_times(ratio)}" for name, (_, ratio) in zip(names, parts, strict=True))
    return max(abs(ratio.ratio - 1) for _, ratio in parts) < 0.03, text


def _nothing_from_hbm(frames: Frames) -> tuple[bool, str]:
    parts = _over_unicast(frames, "hbm", (4, 8, 16), **LARGE)
    return max(ratio.high for _, ratio in parts) < 1.02, _several(parts)


def _one_over_fan_out(frames: Frames) -> tuple[bool, str]:
    rows = where(frames["cluster_counters"], mechanism="tma_multicast")
    error = (rows["l2_read_bytes"] / rows["bytes_delivered"] * rows["fan_out"] - 1).abs()
    return error.max() < 0.05, f"largest deviation from 1/fan-out in {len(rows)} launches: {error.max():.1%}"


def _neighbours(frames: Frames) -> tuple[bool, str]:
    rows = where(frames["cluster_counters"], source="l2", fan_out=4, lag_cycles=0, **LARGE)
    read = (rows["l2_read_bytes"] / rows["bytes_delivered"]).groupby(rows["share"]).median()
    if not {"everyone", "alone", "scattered"} <= set(read.index):
        raise NotMeasured("no blocks outside a cluster")
    text = (
        f"bytes read from L2 for each delivered at fan-out 4: {read['everyone']:.2f} in a cluster, "
        f"{read['alone']:.2f} by neighbours without one, {read['scattered']:.2f} by scattered blocks"
    )
    return read["alone"] < 1.1 * read["everyone"] and read["scattered"] > 0.9, text


def _lag(frames: Frames) -> tuple[bool, str]:
    rows = where(frames["cluster_counters"], share="everyone", source="l2", fan_out=4, **LARGE)
    read = (rows["l2_read_bytes"] / rows["bytes_delivered"]).groupby(rows["lag_cycles"]).median()
    if not {0, 1000} <= set(read.index):
        raise NotMeasured("no lag of 1000 cycles")
    text = f"bytes read from L2 for each delivered: {read[0]:.2f} in step, {read[1000]:.2f} with 1000 cycles of lag"
    return read[0] < 0.6 and read[1000] > 0.9, text


def _scope(frames: Frames) -> tuple[bool, str]:
    both = {"source": "l2", "tile_bytes": 32 * KIB, "stages": 4, **SLICES}
    parts = [
        (
            fan_out,
            compare(frames["handshake"], {"scope": "arrive"}, {"scope": "default"}, fan_out=fan_out, **both),
        )
        for fan_out in (2, 4, 8)
    ]
    return max(ratio.high for _, ratio in parts) < 0.6, _several(parts)


def _one_arrives(frames: Frames) -> tuple[bool, str]:
    both = {"source": "l2", "tile_bytes": 8 * KIB, "stages": 4, **SLICES}
    parts = [
        (
            fan_out,
            compare(
                frames["handshake"], {"arrivers": "thread"}, {"arrivers": "lanes"}, fan_out=fan_out, **both
            ),
        )
        for fan_out in (2, 4, 8, 16)
    ]
    return max(ratio.high for _, ratio in parts) < 0.9, _several(parts)


def _two_warps(frames: Frames) -> tuple[bool, str]:
    both = {"source": "l2", "tile_bytes": 8 * KIB, "stages": 12, **SLICES}
    two = {"producers": 2, "consumers": 2}
    parts = [(fan_out, compare(frames["multicast"], two, {}, fan_out=fan_out, **both)) for fan_out in (4, 16)]
    return min(ratio.low for _, ratio in parts) > 1.5, _several(parts)


def _short_slices(frames: Frames) -> tuple[bool, str]:
    both = {"source": "l2", "tile_bytes": 8 * KIB, "stages": 6, "fan_out": 16}
    sliced = compare(frames["multicast"], SLICES, EVERYONE, **both)
    whole = compare(frames["multicast"], LEADER, EVERYONE, **both)
    text = f"512 B slices {_times(sliced)}, one CTA all {_times(whole)} the unicast rate at fan-out 16"
    return sliced.high < 0.8 and whole.low > 0.93, text


def _second_wave(frames: Frames) -> tuple[bool, str]:
    frame = frames["residency"]
    parts = []
    for cluster in (4, 8, 16):
        rows = where(frame, cluster=cluster, ctas_per_sm=1)
        rows = where(rows, shared_bytes=rows["shared_bytes"].max())
        fits = rows["launched_clusters"].le(rows["resident_clusters"])
        parts.append((cluster, paired(rows[~fits], rows[fits], "duration_us")))
    text = "; ".join(f"cluster {cluster}: {_times(ratio)} the time" for cluster, ratio in parts)
    return min(ratio.low for _, ratio in parts) > 1.7, text


def _few_streams(frames: Frames) -> tuple[bool, str]:
    frame = where(frames["crowding"], **SLICES)
    all_at_work = where(frame, ctas=where(frame, fan_out=4)["ctas"].max())
    parts = [
        (fan_out, compare(all_at_work, {"fan_out": fan_out}, {"fan_out": fan_out // 2})) for fan_out in (4, 8)
    ]
    text = "; ".join(
        f"clusters of {fan_out} over {fan_out // 2}: {_times(ratio)}" for fan_out, ratio in parts
    )
    return min(ratio.low for _, ratio in parts) > 1.05, f"{all_at_work['ctas'].iloc[0]} CTAs, {text}"


MULTICAST_RULES: tuple[tuple[str, Judge], ...] = (
    (
        "From L2, with tiles of 32 KiB, multicast to 4 or 8 CTAs beats the same cluster's unicast.",
        _gains_from_l2,
    ),
    ("To two CTAs, multicast changes nothing: the coalescer does as much.", _nothing_at_two),
    ("From HBM, multicast gains nothing over a cluster whose CTAs load in step.", _nothing_from_hbm),
    (
        "Explicit multicast reads 1/fan-out of what it delivers from L2, whatever the depth, tile or skew.",
        _one_over_fan_out,
    ),
    ("The coalescer asks for neighbours on the GPU, not for a cluster.", _neighbours),
    ("The coalescer asks for step: 1000 cycles of lag from CTA to CTA, and L2 reads every byte again.", _lag),
    ("release.cluster on the arrive costs a ring of 32 KiB tiles 40 % of its rate and more.", _scope),
    ("One lane for each CTA releases a slot; one thread for all of them is slower.", _one_arrives),
    ("Small tiles want two producer and two consumer warps: half as much again, at least.", _two_warps),
    ("Slices under 1 KiB lose to unicast; one CTA that multicasts whole tiles does not.", _short_slices),
    (
        "One cluster too many takes 1.7 times as long, or longer: size the grid by resident clusters.",
        _second_wave,
    ),
    (
        "With all SMs at work, clusters of 4 fill faster than of 2, and of 8 than of 4: fewer streams share a GPC.",
        _few_streams,
    ),
)


def _broadcast(
    frames: Frames,
    first: dict[str, Any],
    second: dict[str, Any],
    source: str,
    fan_outs: Iterable[int],
    tile: int,
) -> list[tuple[int, Ratio]]:
    both = {"source": source, "tile_bytes": tile, "stages": 4}
    return [
        (fan_out, compare(frames["broadcast"], first, second, fan_out=fan_out, **both))
        for fan_out in fan_outs
    ]


PUSH = {"mechanism": "dsm_bulk", "share": "slices"}
PUSH_ALL = {"mechanism": "dsm_bulk", "share": "leader"}
PULL = {"mechanism": "dsm_load", "share": "slices"}


def _multicast_beats_dsm(frames: Frames) -> tuple[bool, str]:
    parts = _broadcast(frames, SLICES, PUSH, "l2", (4, 8, 16), 32 * KIB)
    return min(ratio.low for _, ratio in parts) > 3, _several(parts)


def _slices_beat_one(frames: Frames) -> tuple[bool, str]:
    parts = _broadcast(frames, PUSH, PUSH_ALL, "computed", (4, 8, 16), 32 * KIB)
    return all(ratio.low > 0.7 * fan_out for fan_out, ratio in parts), _several(parts)


def _push_beats_pull(frames: Frames) -> tuple[bool, str]:
    parts = _broadcast(frames, PUSH, PULL, "computed", (2, 4, 8, 16), 32 * KIB)
    return min(ratio.low for _, ratio in parts) > 1, _several(parts)


def _computed_pair(frames: Frames) -> tuple[bool, str]:
    parts = _broadcast(frames, PUSH, SLICES, "computed", (2,), 32 * KIB)
    return parts[0][1].low > 1, _several(parts)


def _round_trip(frames: Frames) -> tuple[bool, str]:
    parts = _broadcast(frames, SLICES, PUSH, "computed", (4, 8, 16), 32 * KIB)
    return min(ratio.low for _, ratio in parts) > 1.5, _several(parts)


def _one_way_cap(frames: Frames) -> tuple[bool, str]:
    rows = where(frames["dsm"], pattern="pair_one_way", cluster=2, clusters=1)
    rows = rows[rows["command_bytes"].isin([16, 16 * KIB])]
    table = exchange_rates(rows)
    text = ", ".join(
        f"{row.mechanism}{' ' + row.variant if row.variant else ''} {row.median:.2f}"
        for row in table.itertuples()
    )
    return table["median"].between(20.9, 21.4).all(), f"B/clk one way: {text}"


def _two_ways(frames: Frames) -> tuple[bool, str]:
    parts = []
    for name in ("dsm_bulk", "dsm_load"):
        alone = {"mechanism": name, "cluster": 2, "clusters": 1}
        alone |= {"command_bytes": 16 * KIB} if name == "dsm_bulk" else {}
        both, one = (
            where(frames["dsm"], pattern=pattern, **alone) for pattern in ("pair_two_way", "pair_one_way")
        )
        parts.append((name, paired(both, one, "sent_bytes_per_clock")))
    (_, push), (_, load) = parts
    text = "; ".join(f"{name}: {_times(ratio)} of its one-way rate each way" for name, ratio in parts)
    return push.low > 0.9 and load.high < 0.9, text


def _command_size(frames: Frames) -> tuple[bool, str]:
    rows = where(frames["dsm"], mechanism="dsm_bulk", pattern="pair_one_way", cluster=2, clusters=1)
    rate = rows.groupby("command_bytes")["sent_bytes_per_clock"].median()
    if not {KIB, 2 * KIB, 16 * KIB} <= set(rate.index):
        raise NotMeasured("no commands of 1, 2 and 16 KiB")
    text = f"1 KiB {rate[KIB]:.1f}, 2 KiB {rate[2 * KIB]:.1f}, 16 KiB {rate[16 * KIB]:.1f} B/clk"
    return rate[2 * KIB] > 0.98 * rate[16 * KIB] and rate[KIB] < 0.9 * rate[16 * KIB], text


def _reuse(frames: Frames) -> tuple[bool, str]:
    frame = where(frames["broadcast"], source="l2", fan_out=4, tile_bytes=32 * KIB, share="slices")
    hold = {"hold_cycles": 4096}
    found = compare(frame, {**SLICES, **hold}, {**PUSH, **hold}, source="l2", fan_out=4, tile_bytes=32 * KIB)
    return abs(found.ratio - 1) < 0.03, f"multicast {_times(found)} the rate of DSM pushes"


BROADCAST_RULES: tuple[tuple[str, Judge], ...] = (
    (
        "A tile in global memory, 4 CTAs or more: multicast delivers over 3 times what DSM can pass on.",
        _multicast_beats_dsm,
    ),
    (
        "Passing on through DSM, every CTA pushes its slice: one that pushes all divides its one port.",
        _slices_beat_one,
    ),
    ("Push rather than pull.", _push_beats_pull),
    ("A tile computed in shared memory, for two CTAs: push it.", _computed_pair),
    (
        "A computed tile of 32 KiB for 4 CTAs or more: through L2 and back by multicast beats DSM.",
        _round_trip,
    ),
    ("One way, every DSM mechanism reaches 21 bytes per clock.", _one_way_cap),
    ("Both ways at once, pushes keep over 90 % each way and loads do not.", _two_ways),
    ("Bulk pushes want 2 KiB or more in a command.", _command_size),
    (
        "When a tile is kept for 4096 cycles (16 passes of 32 KiB over shared memory), the way no longer matters.",
        _reuse,
    ),
)


def verdicts(rules: Iterable[tuple[str, Judge]], frames: Frames) -> pd.DataFrame:
    """Rules judged on stored rows.

    Args:
        rules: `MULTICAST_RULES` or `BROADCAST_RULES`.
        frames: rows of one run by experiment name; a rule whose experiment is missing is not measured.

    Returns:
        Columns rule, verdict, effect.
    """
    found = []
    for rule, judge in rules:
        try:
            holds, effect = judge(frames)
        except (NotMeasured, KeyError) as missing:
            found.append(Verdict(rule, "not measured", f"no rows: {missing}"))
        else:
            found.append(Verdict(rule, "holds" if holds else "does not hold", effect))
    return pd.DataFrame(found)


def by_clusters(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of `crowding`: bytes per clock and SM by clusters at once, `median`, `p05` and `p95` over rounds."""
    table = spread(frame, ["gpu", "run_id", "share", "mechanism", "fan_out", "ctas"], RATE)
    return table.assign(clusters=table["ctas"] // table["fan_out"])
