"""What the chapter on passing tiles on says in its text: values by the name under which the text asks for them."""

from typing import Any

import pandas as pd

from labkernels.charts.text import span
from labkernels.operand import KIB
from labkernels.studies.broadcast import findings as found
from labkernels.studies.cluster_rows import LEADER, SLICES, TRANSPORTS, compare
from labkernels.studies.stats import having, where

PUSHES = ["dsm_bulk", "dsm_store"]


def lead(broadcast: pd.DataFrame, dsm: pd.DataFrame, latency: pd.DataFrame) -> dict[str, str | float]:
    """The port's rate, and what multicast and DSM gain over each other.

    Args:
        broadcast: rows of one run of `broadcast`.
        dsm: the same of `dsm`.
        latency: the same of `cluster_latency`.
    """

    def ratio(first: dict[str, str], second: dict[str, str], **both: Any) -> float:
        return compare(broadcast, first, second, stages=4, tile_bytes=32 * KIB, **both).ratio

    over = [ratio(SLICES, found.PUSH, source="l2", fan_out=fan_out) for fan_out in (4, 8, 16)]
    loads = found.dsm_load_latency_cycles(latency)
    return {
        "port": f"{found.dsm_bulk_bytes_per_clock_per_sm(dsm).value:.1f}",
        "over_push": f"{min(over):.1f} to {max(over):.1f}",
        "pair_gain": f"{ratio(found.PUSH, SLICES, source='computed', fan_out=2):.2f}",
        "load_latency": loads.value,
        "load_low": loads.low,
        "load_high": loads.high,
        "load_pair": where(latency, protocol="load", cluster=2)["cycles_median"].median(),
    }


def sent(table: pd.DataFrame, *mechanisms: str, **wanted: Any) -> str:
    """Smallest and largest rate of some mechanisms, in words.

    Args:
        table: of `findings.patterns`.
        mechanisms: whose.
        wanted: values of columns.
    """
    rows = where(table, **wanted)
    return span(rows.loc[rows["mechanism"].isin(mechanisms), "median"])


def port(table: pd.DataFrame, exchanges: pd.DataFrame, published: pd.DataFrame) -> dict[str, str | float]:
    """What the port moves, by instruction and pattern.

    Args:
        table: of `findings.patterns`.
        exchanges: of `cluster_rows.exchange_rates`.
        published: bandwidths of table `published`.
    """

    def sends(mechanism: str, pattern: str, cluster: int = 2, load: str = "one cluster") -> float:
        rows = where(table, mechanism=mechanism, pattern=pattern, cluster=cluster, load=load)
        return rows["median"].iloc[0]

    pair = {"pattern": "pair_one_way", "cluster": 2, "clusters": 1}
    commands = where(exchanges, mechanism="dsm_bulk", **pair).set_index("command_bytes")["median"]
    values = {
        "load_all_16": sends("dsm_load", "all_to_all", 16),
        "all_full": sent(table, *PUSHES, pattern="all_to_all", load="GPU full"),
        "one_to_all_16": f"{sends('dsm_bulk', 'one_to_all', 16) / 15:.1f}",
        "bound": f"{found.PORT_BOUND:.2f}",
        "command_256": f"{commands[256]:.1f}",
        "command_1k": f"{commands[KIB]:.1f}",
        "command_2k": f"{commands[2 * KIB]:.1f}" if 2 * KIB in commands else "not measured",
        "command_cycles": 256 / commands[256],
        "dsm_store_one": f"{sends('dsm_store', 'pair_one_way'):.1f}",
    }
    for name in ("dsm_load", "dsm_bulk"):
        values |= {
            f"{name}_one": f"{sends(name, 'pair_one_way'):.1f}",
            f"{name}_two": f"{sends(name, 'pair_two_way'):.1f}",
            f"{name}_full": f"{sends(name, 'pair_two_way', load='GPU full'):.1f}",
        }
    theirs = published.drop_duplicates("mechanism").set_index("mechanism")["value"]
    return values | {f"{name}_published": f"{theirs[name]:.1f}" for name in (*PUSHES, "dsm_load")}


def alone(table: pd.DataFrame) -> dict[str, float]:
    """One transfer alone: pushes and multicasts, and the grain of the wait.

    Args:
        table: of `findings.singles`.
    """
    pushes, arrived = where(table, protocol="push"), where(table, mechanism="tma_multicast")

    def push(size: int, mechanism: str = "dsm_bulk") -> pd.Series:
        return where(pushes, transfer_bytes=size, mechanism=mechanism).iloc[0]

    by_size = arrived.set_index("transfer_bytes")["median"]
    return {
        "store_16": push(16, "dsm_store")["median"],
        "push_16": push(16)["median"],
        "push_16k": push(16 * KIB)["median"],
        "multicast_small": by_size.get(128, by_size.iloc[0]),
        "multicast_16k": by_size[16 * KIB],
        "step": push(16)["p95"] - push(16)["p05"],
    }


def rate(table: pd.DataFrame, transport: dict[str, str], **wanted: Any) -> float:
    """Bytes per clock and SM of one way: 32 KiB tiles that are not kept, unless asked for otherwise.

    Args:
        table: of `cluster_rows.rates`.
        transport: mechanism and share.
        wanted: source, fan-out and what else tells the pipeline apart.
    """
    return where(table, **{"hold_cycles": 0, "tile_bytes": 32 * KIB, **transport, **wanted})["median"].iloc[0]


def broadcast(table: pd.DataFrame, exchanged: pd.DataFrame, port: float) -> dict[str, str | float]:
    """Every transport that fills the stages of a cluster.

    Args:
        table: of `cluster_rows.rates`.
        exchanged: of `findings.patterns`.
        port: bytes per clock that one CTA sends at most.
    """
    l2, made = {"source": "l2", "fan_out": 4}, {"source": "computed", "fan_out": 4}
    pair, small = {"source": "computed", "fan_out": 2}, {**made, "tile_bytes": 8 * KIB}
    pushed = where(table, tile_bytes=32 * KIB, hold_cycles=0, **found.PUSH)
    pushed = pushed[pushed["source"].isin(["l2", "computed"])]
    sends = pushed["median"] * (1 - 1 / pushed["fan_out"])
    all_to_all = where(exchanged, mechanism="dsm_bulk", pattern="all_to_all", load="GPU full")
    return {
        "l2_multicast": rate(table, LEADER, **l2),
        "l2_push": rate(table, found.PUSH, **l2),
        "l2_pull": rate(table, found.PULL, **l2),
        "l2_push_all": f"{rate(table, found.PUSH_ALL, **l2):.1f}",
        "l2_push_all_16": f"{rate(table, found.PUSH_ALL, source='l2', fan_out=16):.1f}",
        "of_port": f"{span(100 * sends / port)}%",
        "slices_send": span(sends[pushed["fan_out"].ge(4)]),
        "exchange_sends": span(all_to_all.loc[all_to_all["cluster"].ge(4), "median"]),
        "made_pair_push": rate(table, found.PUSH, **pair),
        "made_pair_trip": rate(table, SLICES, **pair),
        "made_four_push": rate(table, found.PUSH, **made),
        "made_four_trip": rate(table, SLICES, **made),
        "made_small_push": f"{rate(table, found.PUSH, **small):.1f}",
        "made_small_trip": f"{rate(table, SLICES, **small):.1f}",
        "made_leader_trip": rate(table, LEADER, **made),
    }


def through_dsm(table: pd.DataFrame, *sources: str) -> str:
    """The most that any transport through DSM delivers at fan-out 4, in words.

    Args:
        table: of `cluster_rows.rates`.
        sources: of the tiles.
    """
    rows = having(table, fan_out=4, hold_cycles=0)
    rows = rows[rows["source"].isin(sources) & rows["mechanism"].isin(["dsm_bulk", "dsm_load"])]
    return f"{rows['median'].max():.0f}"


def reuse(kept: pd.DataFrame) -> dict[str, str]:
    """From how many passes on other ways come near the best.

    Args:
        kept: of `findings.kept`.
    """
    by_transport = kept.pivot_table(index="passes", columns="transport", values="median")
    best = by_transport.max(axis=1)

    def level(mechanism: str, share: str) -> str:
        near = by_transport.index[by_transport[TRANSPORTS[mechanism, share]] > 0.97 * best]
        if near.empty:
            return f"not even at {by_transport.index.max():.0f} passes"
        return "at one pass" if near.min() == 1 else f"at {near.min():.0f} passes"

    return {
        "level_unicast": level("tma_tile", "everyone"),
        "level_push": level("dsm_bulk", "slices"),
        "level_pull": level("dsm_load", "slices"),
        "level_push_all": level("dsm_bulk", "leader"),
    }
