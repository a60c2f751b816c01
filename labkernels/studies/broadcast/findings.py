"""What stored rows say of exchanges through DSM: bandwidth of pushes, latency of loads."""

import pandas as pd

from labkernels.operand import KIB
from labkernels.studies.stats import Measured, measured, where

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
