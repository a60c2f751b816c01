"""What stored rows say of multicast: the best fill, what L2 reads for it, what clusters at once get."""

import pandas as pd

from labkernels.operand import KIB
from labkernels.studies.cluster_rows import LARGE, PLAIN, RATE, RING, rates, ways
from labkernels.studies.stats import Measured, having, measured, spread, where


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


def loop_cycles(table: pd.DataFrame) -> pd.Series:
    """Cycles from one use of a slot to the next: stages × cycles per tile; latency and handshake bound it below."""
    return table["stages"] * table["cycles_per_tile"]


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


def by_clusters(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of `crowding`: bytes per clock and SM by clusters at once, `median`, `p05` and `p95` over rounds."""
    table = spread(frame, ["gpu", "run_id", "share", "mechanism", "fan_out", "ctas"], RATE)
    return table.assign(clusters=table["ctas"] // table["fan_out"])
