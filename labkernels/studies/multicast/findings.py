"""What stored rows say of multicast: the best fill, what L2 reads for it, what clusters at once get."""

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.mechanisms import MECHANISMS
from labkernels.operand import KIB
from labkernels.studies.cluster_rows import IN_STEP, LARGE, PIPELINE, PLAIN, RATE, rates, transports
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
    return measured(where(frame, **best[PIPELINE])[RATE])


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


def stage_loops(table: pd.DataFrame) -> pd.DataFrame:
    """Rates of pipelines with `loop`, cycles from one use of a stage to the next, `loop_low` and `loop_high`.

    That is stages × cycles per tile; latency and handshake bound it below.
    """
    rows = table[table["share"].isin(["slices", "leader", "everyone"])]
    return rows.assign(
        loop=rows["stages"] * rows["cycles_per_tile"],
        loop_low=rows["stages"] * rows["tile_bytes"] / rows["p95"],
        loop_high=rows["stages"] * rows["tile_bytes"] / rows["p05"],
    )


def _per_tile(table: pd.DataFrame) -> pd.DataFrame:
    """Rates with the spread of `cycles_per_tile`: `low` and `high`."""
    return table.assign(low=table["tile_bytes"] / table["p95"], high=table["tile_bytes"] / table["p05"])


def turns(multicast: pd.DataFrame) -> pd.DataFrame:
    """Cycles per tile from L2 at fan-out 4 by `warps` (`1 + 2`: producer, consumers), in deep enough pipelines."""
    rows = having(multicast, source="l2", fan_out=4, lag_cycles=0, delay_cycles=0)
    table = rates(rows[rows["share"].isin(["slices", "leader", "everyone"])])
    small = table["tile_bytes"].lt(32 * KIB)
    table = table[table["stages"].eq(table.groupby("tile_bytes")["stages"].transform("max").where(small, 4))]
    warps = table["producers"].astype(str) + " + " + table["consumers"].astype(str)
    return _per_tile(table).assign(warps=warps)


#: How a stage is released, by who arrives and in which scope.
RELEASES = {
    ("lanes", "default"): "lane k arrives at CTA k, default scope",
    ("lanes", "relaxed"): "the same, relaxed.cluster",
    ("lanes", "wait"): "the same, acquire.cluster wait",
    ("lanes", "arrive"): "the same, release.cluster arrive",
    ("lanes", "cluster"): "the same, both",
    ("thread", "default"): "one thread arrives at all, default scope",
    ("thread", "cluster"): "one thread arrives at all, both",
    ("all", "default"): "32 lanes arrive at all, default scope",
    ("all", "cluster"): "32 lanes arrive at all, both",
    ("barrier", "relaxed"): "barrier.cluster each tile, relaxed",
    ("barrier", "cluster"): "barrier.cluster each tile, release",
}
#: What a release of cluster scope puts into the loop.
FENCES = {False: "no fence", True: "MEMBAR.ALL.GPU in the loop"}


def releases(handshake: pd.DataFrame) -> pd.DataFrame:
    """Cycles per tile of 8 KiB by how a stage is released: `said`, and `fence`, whether a fence is in the loop."""
    table = rates(having(handshake, tile_bytes=8 * KIB))
    return _per_tile(table).assign(
        said=[RELEASES[key] for key in zip(table["arrivers"], table["scope"], strict=True)],
        fence=table["scope"].isin(["arrive", "cluster"]).map(FENCES),
    )


def grid_times(residency: pd.DataFrame) -> pd.DataFrame:
    """Grids of as many clusters as fit, and of one more: `fits_us`, `more_us` and `wave`, their ratio."""
    fits = residency["launched_clusters"].le(residency["resident_clusters"])
    keys = ["cluster", "shared_bytes", "ctas_per_sm", "resident_clusters", "idle_sms", "gpu"]
    grids = residency.assign(grid=fits.map({True: "fits_us", False: "more_us"})).groupby([*keys, "grid"])
    table = grids["duration_us"].median().unstack("grid").reset_index()
    return table.assign(wave=table["more_us"] / table["fits_us"])


def read_ratios(counters: pd.DataFrame) -> pd.DataFrame:
    """Counted launches with their transport and `read`, the bytes that L2 read for each byte delivered."""
    read = (counters["l2_read_bytes"] / counters["bytes_delivered"]).astype(float)
    return counters.assign(read=read, transport=transports(counters))


def traffic(multicast: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """What pipelines of `LARGE` take from L2 and bring into the SMs: counted ratios × timed rates.

    Args:
        multicast: rows of one run of experiment multicast.
        counters: rows of one run of experiment cluster_counters on the same GPU.

    Returns:
        The pipelines' rates with `together`, bytes per clock into all SMs, `into_sms` and `from_l2`, bytes per clock
        divided by all SMs of the GPU, and `low` and `high`, the spread of `into_sms`.
    """
    keys = ["mechanism", "share", "source", "fan_out"]
    read = read_ratios(having(counters, **IN_STEP, **LARGE))[[*keys, "read"]]
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


#: What is watched until it is visible, by mechanism, whether every CTA of the cluster receives, and quantity.
WATCHED = {
    ("tma_tile", False, "arrival"): "one CTA alone",
    ("tma_tile", True, "last"): "unicast, in step: the last CTA",
    ("tma_multicast", True, "first"): "multicast: the first CTA",
    ("tma_multicast", True, "last"): "multicast: the last CTA",
}


def arrivals(visibility: pd.DataFrame) -> pd.DataFrame:
    """Cycles until a tile from L2 is visible: `median`, `p05`, `p95` over rounds, by `watched`, cluster and bytes."""
    everyone = visibility["destinations"].eq(visibility["cluster"])
    keys = zip(visibility["mechanism"], everyone, visibility["quantity"], strict=True)
    rows = visibility.assign(watched=[WATCHED.get(key, "") for key in keys])
    keys = ["gpu", "run_id", "watched", "cluster", "transfer_bytes"]
    return spread(rows[rows["watched"].ne("")], keys, "cycles_median")


def later(visibility: pd.DataFrame, cluster: int, transfer_bytes: int) -> Measured:
    """Cycles by which a multicast is visible in the last CTA of a cluster later than a copy to one CTA is there.

    Args:
        visibility: rows of one run of experiment visibility.
        cluster: CTAs that receive.
        transfer_bytes: of the copy.

    Raises:
        NotMeasured: it has no such rows.
    """
    both = where(visibility, cluster=cluster, transfer_bytes=transfer_bytes)
    last = where(both, mechanism="tma_multicast", destinations=cluster, quantity="last")
    alone = where(both, mechanism="tma_tile", destinations=1, quantity="arrival")
    rounds = [rows.set_index(["run_id", "round"])["cycles_median"] for rows in (last, alone)]
    both = pd.concat(rounds, axis=1, join="inner", keys=("last", "alone"))
    if both.empty:
        raise NotMeasured("no round that both were measured in")
    return measured(both["last"] - both["alone"])


def from_memory(visibility: pd.DataFrame) -> pd.Series:
    """Which rows are of copies from global memory; the others are of what one CTA writes to another."""
    return visibility["mechanism"].map(lambda name: MECHANISMS[name].touches_global)


def stores(visibility: pd.DataFrame) -> pd.DataFrame:
    """Cycles until what one CTA writes is visible in another: `median`, `p05`, `p95` over rounds and receivers."""
    rows = visibility[~from_memory(visibility)]
    return spread(
        rows, ["gpu", "run_id", "mechanism", "completion", "cluster", "transfer_bytes"], "cycles_median"
    )


#: How many clusters of one width stream at once.
AT_ONCE = ("one cluster alone", "two", "as many as fit")


def widths(wide: pd.DataFrame) -> pd.DataFrame:
    """Rows of `wide_clusters`: bytes per clock and SM by fan-out, cluster and how many clusters stream, over rounds."""
    table = spread(wide, ["gpu", "run_id", "share", "mechanism", "fan_out", "cluster", "ctas"], RATE)
    clusters = table["ctas"] // table["cluster"]
    return table.assign(
        clusters=clusters, at_once=clusters.map({1: AT_ONCE[0], 2: AT_ONCE[1]}).fillna(AT_ONCE[2])
    )
