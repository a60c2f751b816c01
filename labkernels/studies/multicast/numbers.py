"""What the chapter on multicast says in its text: values by the name under which the text asks for them."""

from typing import Any

import pandas as pd

from labkernels.charts.text import kib, percent, span
from labkernels.operand import KIB
from labkernels.studies.cluster_rows import EVERYONE, LARGE, LEADER, SLICES, compare
from labkernels.studies.multicast.findings import multicast_fill_bytes_per_clock_per_sm
from labkernels.studies.stats import having, where

_FOUR = {"source": "l2", "tile_bytes": 32 * KIB, "stages": 4}
_TWO_WARPS = {"producers": 2, "consumers": 2}


def _one(table: pd.DataFrame, column: str, **wanted: Any) -> float:
    return where(table, **wanted)[column].iloc[0]


def fan_out(table: pd.DataFrame, multicast: pd.DataFrame, handshake: pd.DataFrame) -> dict[str, str | float]:
    """Delivered bytes per clock and SM over fan-out.

    Args:
        table: of `cluster_rows.rates`, one plain ring for each way, tile, depth and source.
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
        return _one(counted, "read", **{"source": "l2", "lag_cycles": 0, "share": share, **LARGE, **wanted})

    engine = where(counted, mechanism="tma_multicast")
    hbm = where(counted, source="hbm", fan_out=8)
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


def lag(table: pd.DataFrame) -> dict[str, float]:
    """Unicast out of step, at fan-out 4.

    Args:
        table: of `findings.lags`.
    """
    by_lag = where(table, fan_out=4, share="everyone").set_index("lag_cycles")["median"]
    return {f"lag_{cycles}": by_lag[cycles] for cycles in (0, 200, 1000)}


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
    behind = where(counted, source="l2", fan_out=4, share="leader", lag_cycles=0, **LARGE).iloc[0]
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
        "alone_16": at(1, 16),
    }


def turn(table: pd.DataFrame, multicast: pd.DataFrame) -> dict[str, str | float]:
    """Cycles in which a ring turns over a tile.

    Args:
        table: of `findings.turns`.
        multicast: rows of one run of `multicast`.
    """

    def cycles(warps: str, way: dict[str, str] = SLICES, tile_bytes: int = 8 * KIB) -> float:
        return _one(table, "cycles_per_tile", warps=warps, tile_bytes=tile_bytes, **way)

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
    """What it costs to release a slot.

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


def slots(loops: pd.DataFrame, multicast: pd.DataFrame) -> dict[str, str | float]:
    """Why multicast loses from HBM: how much later a slot is free.

    Args:
        loops: of `findings.slot_loops`.
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


def latency(frame: pd.DataFrame) -> dict[str, str | float]:
    """One copy alone: to one CTA, to several, and from the first to the last of them.

    Args:
        frame: rows of one run of `cluster_latency`.
    """
    two_kib = where(frame, transfer_bytes=2 * KIB)
    arrivals = where(two_kib, protocol="arrival", cluster=8)
    several = where(arrivals, mechanism="tma_multicast", destinations=8)["cycles_median"]
    return {
        "remote_arrive": where(frame, protocol="remote_arrive")["cycles_median"].median(),
        "single": _one(arrivals, "cycles_median", mechanism="tma_tile"),
        "several": f"{several.min():.0f} to {several.max():.0f}",
        "spread": where(two_kib, protocol="spread")["cycles_median"].max(),
    }


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
    """How much later multicast's slots are free than unicast's while latency binds, in cycles, in words.

    Args:
        loops: of `findings.slot_loops`.
        tile_bytes: of the rings.
        fan_out: of the rings.
    """
    rows = where(loops, source="hbm", tile_bytes=tile_bytes, fan_out=fan_out)
    by_way = rows[rows["stages"].lt(12)].pivot_table(index="stages", columns="share", values="loop")
    return span(by_way[["slices", "leader"]].sub(by_way["everyone"], axis=0).stack())


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
