"""Rows of clusters: what tells pipelines and exchanges apart, their rates, ratios paired by round."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from labkernels.operand import KIB
from labkernels.studies.stats import Ratio, paired, spread, where

RATE = "bytes_per_clock_per_sm"
PIPELINE = [
    "gpu", "run_id", "kernel", "mechanism", "share", "source", "fan_out", "cluster", "producers", "consumers",
    "scope", "arrivers", "tile_bytes", "stages", "lag_cycles", "delay_cycles", "hold_cycles", "ctas",
]  # fmt: skip
EXCHANGE = [
    "gpu", "run_id", "kernel", "mechanism", "variant", "pattern", "cluster", "clusters", "command_bytes",
]  # fmt: skip

#: How a chart calls who brings the tile, by mechanism and share.
TRANSPORTS = {
    ("tma_multicast", "slices"): "multicast, sliced",
    ("tma_multicast", "leader"): "multicast by a leader",
    ("tma_tile", "everyone"): "unicast in the cluster",
    ("tma_tile", "alone"): "unicast, neighboring CTAs",
    ("tma_tile", "scattered"): "unicast, scattered CTAs",
    ("dsm_bulk", "slices"): "DSM push, sliced",
    ("dsm_bulk", "leader"): "DSM push by a leader",
    ("dsm_load", "slices"): "DSM pull, sliced",
    ("dsm_load", "leader"): "DSM pull from a leader",
}

IN_STEP = {"lag_cycles": 0, "delay_cycles": 0, "hold_cycles": 0}
PLAIN = {"producers": 1, "consumers": 1, "scope": "default", "arrivers": "lanes", **IN_STEP}
SLICES = {"mechanism": "tma_multicast", "share": "slices"}
LEADER = {"mechanism": "tma_multicast", "share": "leader"}
EVERYONE = {"mechanism": "tma_tile", "share": "everyone"}
ALONE = {"mechanism": "tma_tile", "share": "alone"}
LARGE = {"tile_bytes": 32 * KIB, "stages": 6}


def rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Spread of each pipeline's rate over its rounds (`p05`, `median`, `p95`), its transport, its cycles per tile."""
    table = spread(frame, PIPELINE, RATE)
    return table.assign(transport=transports(table), cycles_per_tile=table["tile_bytes"] / table["median"])


def exchange_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Median, 5th and 95th percentile of bytes per clock that one sender sends, for each exchange."""
    return spread(frame, EXCHANGE, "sent_bytes_per_clock")


def transports(frame: pd.DataFrame) -> list[str]:
    """How a chart calls each row's transport."""
    return [TRANSPORTS[key] for key in zip(frame["mechanism"], frame["share"], strict=True)]


def pipeline(frame: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """Rounds of one pipeline; what `wanted` leaves open is as in `PLAIN`.

    Raises:
        NotMeasured: there are no such rows.
        ValueError: they are of more than one pipeline.
    """
    found = where(frame, **{**PLAIN, **wanted})
    if found.duplicated(["run_id", "round"]).any():
        raise ValueError(f"{wanted} is more than one pipeline: name its tile, stages, source and fan-out too")
    return found


def compare(
    frame: pd.DataFrame, first: dict[str, Any], second: dict[str, Any], *, column: str = RATE, **both: Any
) -> Ratio:
    """Rate of one pipeline over that of another, paired by round; `gbps` is that of the whole GPU."""
    return paired(pipeline(frame, **both, **first), pipeline(frame, **both, **second), column)


def by_fan_out(parts: Iterable[tuple[int, Ratio]]) -> str:
    """Ratios in words, each with its fan-out."""
    return "; ".join(f"fan-out {fan_out}: {ratio.times()}" for fan_out, ratio in parts)
