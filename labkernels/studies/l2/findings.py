"""What stored rows say of L2: what a prefetch gains, and what a policy of its lines does."""

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.studies.stats import Ratio, paired, spread, where

PIPELINE = ["gpu", "run_id", "mechanism", "tile_bytes", "stages", "bytes_in_flight_per_sm"]
NORMAL, FIRST, LAST = "evict_normal", "evict_first", "evict_last"
POLICIES = ["streamed", "reused"]


def gains(frame: pd.DataFrame) -> pd.DataFrame:
    """Rate with a prefetch over that of the same pipeline without, of every lead.

    Args:
        frame: rows of one run of `l2_prefetch`.

    Returns:
        Columns of `PIPELINE`, `lead`, `ahead_bytes` (tiles of all SMs that L2 holds for later), `ratio`, `low`, `high`.
    """
    found = []
    for cell, rows in frame.groupby(PIPELINE):
        without = where(rows, lead=0)
        for lead, ahead in rows[rows["lead"].gt(0)].groupby("lead"):
            one = ahead.iloc[0]
            held = lead * one["tile_bytes"] * one["sm_count"] * one["ctas_per_sm"]
            columns = dict(zip(PIPELINE, cell, strict=True)) | {"lead": lead, "ahead_bytes": held}
            found.append(columns | paired(ahead, without, "gbps")._asdict())
    if not found:
        raise NotMeasured("no pipeline with a prefetch")
    return pd.DataFrame(found)


def best_gain(table: pd.DataFrame) -> pd.DataFrame:
    """The lead that gains most in each pipeline: rows of `gains`."""
    return table.loc[table.groupby(PIPELINE)["ratio"].idxmax()]


def l2_prefetch_gain_best(frame: pd.DataFrame) -> Ratio:
    """The largest gain of a prefetch in any pipeline."""
    best = gains(frame).sort_values("ratio").iloc[-1]
    return Ratio(best["ratio"], best["low"], best["high"])


def read_twice(counted: pd.DataFrame) -> pd.DataFrame:
    """Bytes that memory delivered over bytes that arrived, by lead: rows of `l2_prefetch_counters`."""
    lead = counted["kernel"].str.extract(r"lead=(\d+)")[0].fillna("0").astype(int)
    return counted.assign(lead=lead, from_memory=counted["dram_read_bytes"] / counted["bytes_moved"])


def policies(frame: pd.DataFrame) -> pd.DataFrame:
    """Rates by region and policies: median and spread over the rounds, `mebibytes` of the region.

    Args:
        frame: rows of one run of `hints`.
    """
    table = spread(frame, ["gpu", "run_id", "mechanism", "reused_bytes", *POLICIES], "gbps")
    return table.assign(mebibytes=table["reused_bytes"] / 2**20)


def policy_over_none(frame: pd.DataFrame, mechanism: str, streamed: str, reused: str) -> pd.DataFrame:
    """Rate under two policies over the rate under none, for each region: `reused_bytes`, `ratio`, `low`, `high`."""
    rows = where(frame, mechanism=mechanism)
    found = []
    for region, each in rows.groupby("reused_bytes"):
        with_policies = where(each, streamed=streamed, reused=reused)
        ratio = paired(with_policies, where(each, streamed=NORMAL, reused=NORMAL), "gbps")
        found.append({"reused_bytes": region} | ratio._asdict())
    return pd.DataFrame(found)
