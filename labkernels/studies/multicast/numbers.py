"""What the chapter on multicast says in its text: values by the name under which the text asks for them."""

from typing import Any

import pandas as pd

from labkernels.charts.text import kib, percent, span, tbps
from labkernels.operand import KIB
from labkernels.studies.cluster_rows import EVERYONE, IN_STEP, LARGE, LEADER, SLICES, compare
from labkernels.studies.multicast.findings import (
    WATCHED,
    arrivals,
    from_memory,
    later,
    multicast_fill_bytes_per_clock_per_sm,
    stores,
)
from labkernels.studies.stats import having, where

_FOUR = {"source": "l2", "tile_bytes": 32 * KIB, "stages": 4}
_TWO_WARPS = {"producers": 2, "consumers": 2}


def _one(table: pd.DataFrame, column: str, **wanted: Any) -> float:
    return where(table, **wanted)[column].iloc[0]


def fan_out(table: pd.DataFrame, multicast: pd.DataFrame, handshake: pd.DataFrame) -> dict[str, str | float]:
    """Delivered bytes per clock and SM over fan-out.

    Args:
        table: of `cluster_rows.rates`, one plain pipeline for each way, tile, depth and source.
        multicast: rows of one run of `multicast`.
        handshake: rows of one run of `handshake`.
    """

    def rate(fan_out: int, share: str) -> float:
        return _one(table, "median", source="l2", fan_out=fan_out, share=share, **LARGE)

    alone, cluster = (
        where(table, source="l2", fan_out=4, share=share, **LARGE).iloc[0] for share in ("alone", "everyone")
    )
    from_l2 = {"source": "l2", "fan_out": 4}
    gain = compare(multicast, LEADER, EVERYONE, **from_l2, **LARGE)
    short = compare(multicast, SLICES, EVERYONE, source="l2", fan_out=16, tile_bytes=8 * KIB, stages=6)
    scope = compare(handshake, {"scope": "arrive"}, {"scope": "default"}, fan_out=4, **_FOUR, **SLICES)
    found = {
        "fill": f"{multicast_fill_bytes_per_clock_per_sm(multicast).value:.1f}",
        "fill_gain": f"{gain.ratio:.2f} times",
        "scope_keeps": percent(scope.ratio),
        "short_keeps": percent(short.ratio),
        "one_alone": f"{rate(1, 'alone'):.1f}",
        "two_l2": rate(2, "slices"),
        "two_bound": 2 * rate(1, "alone"),
        "two_unicast": rate(2, "everyone"),
        "eight_l2": rate(8, "leader"),
        "eight_unicast": rate(8, "everyone"),
        "cluster_four": rate(4, "everyone"),
        "scattered_four": rate(4, "scattered"),
        "alone_four": rate(4, "alone"),
        "alone_ctas": alone["ctas"],
        "cluster_ctas": cluster["ctas"],
        "totals": f"{alone['median'] * alone['ctas'] / (cluster['median'] * cluster['ctas']):.2f}",
    }
    for fan_out in (4, 8, 16):
        ratio = compare(multicast, LEADER, EVERYONE, source="hbm", fan_out=fan_out, **LARGE).ratio
        found[f"hbm_{fan_out}"] = percent(ratio)
    return found


def coalescer(counted: pd.DataFrame) -> dict[str, str]:
    """How much L2 reads for what is delivered.

    Args:
        counted: of `findings.read_ratios`.
    """

    def read(share: str = "everyone", **wanted: Any) -> float:
        return _one(counted, "read", **{"source": "l2", **IN_STEP, "share": share, **LARGE, **wanted})

    engine = where(counted, mechanism="tma_multicast")
    hbm = where(counted, source="hbm", fan_out=8, **IN_STEP)
    ingest = counted["sm_ingest_bytes"] / counted["bytes_delivered"]
    return {
        "multicast_error": percent((engine["read"] * engine["fan_out"] - 1).abs().max(), 2),
        "read_2": f"{read(fan_out=2):.2f}",
        "small_2": f"{read(fan_out=2, tile_bytes=8 * KIB):.2f}",
        "read_4": f"{read(fan_out=4):.2f}",
        "read_8": f"{read(fan_out=8):.2f}",
        "merged": f"{1 / read(fan_out=16):.1f}",
        "read_shallow": f"{read(fan_out=4, stages=2):.2f}",
        "read_scattered": f"{read('scattered', fan_out=4):.2f}",
        "hbm_read": f"{_one(hbm, 'read', share='everyone'):.2f}",
        "hbm_dram": f"{(hbm['dram_read_bytes'] / hbm['bytes_delivered']).max():.3f}",
        "ingest": percent((ingest - 1).abs().max(), 2),
        "lag_read": f"{read(fan_out=4, lag_cycles=1000):.2f}",
    }


def whole_gpu(gains: pd.DataFrame) -> dict[str, str]:
    """Multicast against neighbors without a cluster, the whole GPU counted.

    Args:
        gains: of `whole_gpu.gains`.
    """
    l2, hbm = where(gains, source="l2"), where(gains, source="hbm")
    four = where(l2, fan_out=4, pipeline_kib=192).iloc[0]
    small = where(l2, pipeline_kib=16)["ratio"]

    def ratio(fan_out: int, pipeline_kib: int) -> str:
        return f"{_one(l2, 'ratio', fan_out=fan_out, pipeline_kib=pipeline_kib):.2f}"

    return {
        "whole_4": f"{four['ratio']:.2f}",
        "whole_4_low": f"{four['low']:.2f}",
        "whole_4_high": f"{four['high']:.2f}",
        "whole_4_multicast": tbps(four["multicast_gbps"]),
        "whole_4_neighbours": tbps(four["neighbours_gbps"]),
        "whole_4_most": f"{where(l2, fan_out=4)['ratio'].max():.2f}",
        "whole_8": ratio(8, 192),
        "whole_2_short": ratio(2, 48),
        "whole_2_long": ratio(2, 192),
        "whole_16": ratio(16, 192),
        "whole_small": span(small, 2),
        "whole_hbm": span(hbm["ratio"], 2),
    }


def apart(l2: pd.DataFrame, hbm: pd.DataFrame) -> dict[str, str]:
    """CTAs out of step, the whole GPU counted.

    Args:
        l2: of `whole_gpu.out_of_step`.
        hbm: the same from HBM.
    """

    def rates(table: pd.DataFrame, lag: int) -> pd.DataFrame:
        return where(table, lag_cycles=lag).pivot_table(index="fan_out", columns="share", values="median")

    step, near, late = (rates(l2, lag) for lag in (0, 200, 1000))
    over = late["leader"] / late["alone"]
    from_hbm = rates(hbm, 5000)
    return {
        "lag_0": tbps(step.loc[4, "alone"]),
        "lag_200": tbps(near.loc[4, "alone"]),
        "lag_1000": tbps(late.loc[4, "alone"]),
        "apart_4": f"{over[4]:.2f}",
        "apart_over": span(over, 2),
        "apart_keeps": percent((late["leader"] / step["leader"]).min()),
        "apart_hbm": span((from_hbm["leader"] / from_hbm["alone"]).drop(2), 2),
        "apart_hbm_2": f"{from_hbm['leader'][2] / from_hbm['alone'][2]:.2f}",
    }


def widths(table: pd.DataFrame, requests: pd.DataFrame) -> dict[str, str | float]:
    """How many CTAs one multicast may serve.

    Args:
        table: of `findings.widths`.
        requests: rows of one run of `multicast_requests`.
    """
    alone = where(table, clusters=1)

    def at(fan_out: int, cluster: int, share: str = "leader") -> float:
        return _one(alone, "median", fan_out=fan_out, cluster=cluster, share=share)

    out = requests["coalescer_out_bytes"] * requests["fan_out"] / requests["bytes_delivered"]
    asked = requests["bytes_delivered"] / requests["fan_out"] / requests["requests"]
    return {
        "wide_few": span([at(n, n) for n in (2, 4, 6, 8, 9, 10, 12)]),
        "wide_14": at(14, 14),
        "wide_16": at(16, 16),
        "wide_16_slices": at(16, 16, "slices"),
        "grouped_8": at(8, 16),
        "grouped_4": at(4, 16),
        "wide_request": span(asked),
        "wide_out": span(out, 2),
        "wide_replayed": percent((requests["requests_replayed"] / requests["requests"]).max()),
    }


def walls(
    traffic: pd.DataFrame, counted: pd.DataFrame, table: pd.DataFrame, multicast: pd.DataFrame
) -> dict[str, str | float]:
    """What binds at the top.

    Args:
        traffic: of `findings.traffic`.
        counted: of `findings.read_ratios`.
        table: of `cluster_rows.rates`.
        multicast: rows of one run of `multicast`.
    """
    four, eight = (where(traffic, source="l2", fan_out=fan_out, **LEADER).iloc[0] for fan_out in (4, 8))
    most_l2, most_in = traffic["from_l2"].max(), traffic["into_sms"].max()
    leader = having(table, source="l2", fan_out=4, share="leader", tile_bytes=32 * KIB)
    by_depth = leader.set_index("stages")["median"]
    warps = compare(multicast, _TWO_WARPS, {}, source="l2", fan_out=4, **LARGE, **LEADER)
    behind = where(counted, source="l2", fan_out=4, share="leader", **IN_STEP, **LARGE).iloc[0]
    return {
        "l2_4": f"{four['from_l2']:.1f}",
        "l2_8": f"{eight['from_l2']:.1f}",
        "most_l2": f"{most_l2:.1f}",
        "l2_share_4": percent(four["from_l2"] / most_l2),
        "in_share_4": percent(four["into_sms"] / most_in),
        "together_4": f"{four['together'] / 1000:.1f}",
        "together_8": f"{eight['together'] / 1000:.1f}",
        "sms_8": eight["ctas"],
        "deeper_4": percent(by_depth[6] / by_depth[4] - 1),
        "warps_4": percent(warps.ratio - 1),
    } | {
        name: f"{behind[name + '_bytes'] / behind['bytes_delivered']:.2f}"
        for name in ("l2_to_coalescer", "coalescer_to_sm")
    }


def crowd(table: pd.DataFrame) -> dict[str, float]:
    """What an SM gets by how many clusters stream.

    Args:
        table: of `findings.by_clusters`.
    """

    def at(clusters: int, fan_out: int, share: str = "slices") -> float:
        return _one(table, "median", clusters=clusters, fan_out=fan_out, share=share)

    few = where(table, share="slices")
    few = few[few["fan_out"].le(8) & few["clusters"].le(8)]["median"]
    return {
        "few_low": few.min(),
        "few_high": few.max(),
        "sixteen_2": at(16, 2),
        "sixteen_4": at(16, 4),
        "thirty_2": at(32, 2),
        "thirty_4": at(30, 4),
        "fifteen_8": at(15, 8),
        "sixty_2": at(60, 2),
        "few_unicast": at(8, 4, "everyone"),
    }


def turn(table: pd.DataFrame, multicast: pd.DataFrame) -> dict[str, str | float]:
    """Cycles in which a pipeline turns over a tile.

    Args:
        table: of `findings.turns`.
        multicast: rows of one run of `multicast`.
    """

    def cycles(warps: str, transport: dict[str, str] = SLICES, tile_bytes: int = 8 * KIB) -> float:
        return _one(table, "cycles_per_tile", warps=warps, tile_bytes=tile_bytes, **transport)

    gain = compare(multicast, _TWO_WARPS, {}, source="l2", fan_out=4, tile_bytes=8 * KIB, stages=12, **SLICES)
    return {
        "turn_11": cycles("1 + 1"),
        "turn_unicast": cycles("1 + 1", EVERYONE),
        "turn_12": cycles("1 + 2"),
        "turn_22": cycles("2 + 2"),
        "turn_gain": f"{gain.ratio:.2f}",
        "big_11": cycles("1 + 1", tile_bytes=32 * KIB),
        "big_22": cycles("2 + 2", tile_bytes=32 * KIB),
    }


def handshake(table: pd.DataFrame, frame: pd.DataFrame) -> dict[str, str | float]:
    """What it costs to release a stage.

    Args:
        table: of `findings.releases`.
        frame: rows of one run of `handshake`.
    """
    at_four = where(table, fan_out=4).set_index(["arrivers", "scope"])["cycles_per_tile"]
    said = [
        ("lanes", "default"), ("lanes", "wait"), ("lanes", "arrive"), ("thread", "default"), ("all", "default"),
        ("barrier", "relaxed"), ("barrier", "cluster"),
    ]  # fmt: skip
    keeps = {
        name: compare(frame, {"scope": scope}, {"scope": "default"}, fan_out=4, **_FOUR, **SLICES).ratio
        for name, scope in (("scoped_32", "arrive"), ("waits_32", "wait"))
    }
    return (
        {f"said_{arrivers}_{scope}": at_four[arrivers, scope] for arrivers, scope in said}
        | {name: percent(ratio) for name, ratio in keeps.items()}
        | {
            "said_thread_cluster": _one(
                table, "cycles_per_tile", arrivers="thread", scope="cluster", fan_out=16
            )
        }
    )


def stages(loops: pd.DataFrame, multicast: pd.DataFrame) -> dict[str, str | float]:
    """Why multicast loses from HBM: how much later a stage is free.

    Args:
        loops: of `findings.stage_loops`.
        multicast: rows of one run of `multicast`.
    """

    def extra(fan_out: int, tile_bytes: int) -> float:
        rows = where(loops, source="hbm", tile_bytes=tile_bytes, stages=4, fan_out=fan_out)
        by_share = rows.set_index("share")["loop"]
        return by_share["slices"] - by_share["everyone"]

    late = {"source": "hbm", "fan_out": 16, "tile_bytes": 32 * KIB, "stages": 4, "delay_cycles": 1000}
    deep = compare(multicast, SLICES, EVERYONE, source="hbm", fan_out=4, tile_bytes=8 * KIB, stages=12)
    return {
        "extra_4": extra(4, 8 * KIB),
        "extra_8": extra(8, 32 * KIB),
        "extra_16": extra(16, 32 * KIB),
        "deep": percent(deep.ratio, 1),
        "delayed": percent(compare(multicast, LEADER, EVERYONE, **late).ratio),
    }


def latency(visibility: pd.DataFrame) -> dict[str, str | float]:
    """One transfer alone: when it is visible in one CTA, in several, and what is between the first and the last.

    Args:
        visibility: rows of one run of `visibility`.
    """
    table, told = arrivals(visibility), stores(visibility)

    def cycles(watched: str, cluster: int, nbytes: int = 2 * KIB) -> float:
        return _one(table, "median", watched=watched, cluster=cluster, transfer_bytes=nbytes)

    alone, in_step, _, last = WATCHED.values()
    skew = where(visibility, quantity="skew", mechanism="tma_multicast")
    by_size = skew.groupby(["cluster", "transfer_bytes"])["cycles_median"].median()
    over_step = [
        cycles(last, n, size) - cycles(in_step, n, size) for n in (8, 16) for size in (128, 2 * KIB, 32 * KIB)
    ]
    sixteen = where(told, cluster=16)
    copies = visibility[from_memory(visibility)]
    found = {
        "single": cycles(alone, 8),
        "last_8": cycles(last, 8),
        "last_16": cycles(last, 16),
        "later_8_large": later(visibility, 8, 32 * KIB).value,
        "later_16_large": later(visibility, 16, 32 * KIB).value,
        "over_step": span(over_step),
        "skew_8": by_size[8, 2 * KIB],
        "skew_16": by_size[16, 2 * KIB],
        "skew_16_large": by_size[16, 32 * KIB],
        "grain": copies["grain_cycles"].max(),
        "clock_error": visibility["clock_error_cycles"].max(),
    }
    for name, completion in (
        ("remote_arrive", "arrival"),
        ("store_async", "async"),
        ("store_release", "release"),
    ):
        found[name] = _one(sixteen, "median", mechanism="dsm_store", completion=completion)
    return found


def residency(times: pd.DataFrame) -> dict[str, str | float]:
    """SMs that clusters leave idle, and what one cluster too many costs.

    Args:
        times: of `findings.grid_times`.
    """
    one_each = where(times, ctas_per_sm=1)
    idle = one_each.groupby("cluster")["idle_sms"].max()
    wave = one_each.loc[one_each["cluster"].ge(4), "wave"]
    return {f"idle_{cluster}": idle[cluster] for cluster in (4, 8, 16)} | {
        "wave": f"{wave.min():.2f} to {wave.max():.2f}"
    }


def seen(table: pd.DataFrame, column: str, digits: int = 0, **wanted: list[Any]) -> str:
    """Smallest and largest of a column over rows whose columns are among the given values, in words."""
    for name, values in wanted.items():
        table = table[table[name].isin(values)]
    return span(table[column], digits)


def lateness(loops: pd.DataFrame, tile_bytes: int, fan_out: int) -> str:
    """How much later multicast's stages are free than unicast's while latency binds, in cycles, in words.

    Args:
        loops: of `findings.stage_loops`.
        tile_bytes: of the pipelines.
        fan_out: of the pipelines.
    """
    rows = where(loops, source="hbm", tile_bytes=tile_bytes, fan_out=fan_out)
    by_transport = rows[rows["stages"].lt(12)].pivot_table(index="stages", columns="share", values="loop")
    return span(by_transport[["slices", "leader"]].sub(by_transport["everyone"], axis=0).stack())


def listing(times: pd.DataFrame) -> pd.DataFrame:
    """Grids for a reader.

    Args:
        times: of `findings.grid_times`.
    """
    return pd.DataFrame(
        {
            "cluster": times["cluster"],
            "shared memory of a CTA": times["shared_bytes"].map(kib),
            "CTAs per SM": times["ctas_per_sm"],
            "resident clusters": times["resident_clusters"],
            "idle SMs": times["idle_sms"].map("{:.0f}".format),
            "one cluster more takes": times["wave"].map("{:.2f} times as long".format),
        }
    )
