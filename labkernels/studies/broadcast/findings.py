"""What stored rows say of exchanges through DSM: bandwidth of pushes, latency of loads."""

import pandas as pd

from labkernels.operand import KIB
from labkernels.studies.stats import Measured, having, measured, where

PUSH = {"mechanism": "dsm_bulk", "share": "slices"}
PUSH_ALL = {"mechanism": "dsm_bulk", "share": "leader"}
PULL = {"mechanism": "dsm_load", "share": "slices"}


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


#: Who sends to whom in an exchange.
PATTERNS = {
    "pair_one_way": "pairs, one way",
    "pair_two_way": "pairs, both ways",
    "ring": "ring",
    "one_to_all": "one to all",
    "all_to_all": "all to all",
}
PORT_BOUND = 64 / 3  # bytes per clock: what others infer for the port from their measurements


def patterns(exchanges: pd.DataFrame) -> pd.DataFrame:
    """Exchanges in commands of 16 bytes (stores, loads) or 4 KiB and more: `who` sends, and the `load` on the GPU.

    Args:
        exchanges: of `cluster_rows.exchange_rates`.
    """
    whole = exchanges["command_bytes"].eq(16) | exchanges["command_bytes"].ge(4 * KIB)
    rows = exchanges[whole & exchanges["variant"].ne("plain")]
    load = rows["clusters"].eq(1).map({True: "one cluster", False: "GPU full"})
    return rows.assign(who=rows["pattern"].map(PATTERNS), load=load)


def singles(latency: pd.DataFrame) -> pd.DataFrame:
    """One transfer alone, in cycles: pushes in a pair, and multicasts until the last of 8 CTAs has the bytes.

    Args:
        latency: rows of one run of `cluster_latency`.

    Returns:
        Their rows with `p05`, `median` and `p95`.
    """
    pushes = having(latency, protocol="push", cluster=2)
    arrivals = having(latency, protocol="arrival", mechanism="tma_multicast", cluster=8, destinations=8)
    cycles = ["cycles_p05", "cycles_median", "cycles_p95"]
    last = arrivals.groupby(["mechanism", "transfer_bytes", "gpu", "run_id"])[cycles].max().reset_index()
    named = {name: name.removeprefix("cycles_") for name in cycles}
    return pd.concat([pushes, last]).rename(columns=named)


def kept(table: pd.DataFrame) -> pd.DataFrame:
    """Pipelines of 32 KiB tiles from L2 at fan-out 4 that read a tile more than once: `passes` at 128 bytes per clock.

    Args:
        table: of `cluster_rows.rates`.
    """
    rows = having(table, source="l2", fan_out=4, tile_bytes=32 * KIB)
    rows = rows.assign(passes=rows["hold_cycles"] * 128 / rows["tile_bytes"])
    return rows[rows["passes"].gt(0)]
