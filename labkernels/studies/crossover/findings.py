"""What stored rows say: best throughput, latency premium, crossover. Used by chapters, headlines and rules."""

import numpy as np
import pandas as pd

from labkernels.operand import MIB
from labkernels.studies.stats import Crossover, Ratio, bootstrap_ratio, crossover

CONFIGURATION = [
    "gpu",
    "run_id",
    "source",
    "kernel",
    "mechanism",
    "variant",
    "tile_bytes",
    "stages",
    "ctas_per_sm",
    "threads",
    "bytes_in_flight_per_sm",
]
CYCLES_PER_TILE = "cycles_per_tile"


def summarize_rounds(frame: pd.DataFrame, by: list[str] = CONFIGURATION) -> pd.DataFrame:
    """Median, 5th and 95th percentile of `gbps` over the rounds of each configuration."""
    groups = frame.groupby(by, dropna=False, sort=True)["gbps"]
    table = groups.quantile([0.05, 0.5, 0.95]).unstack()
    table.columns = ["gbps_p05", "gbps_median", "gbps_p95"]
    return table.assign(rounds=groups.size()).reset_index()


def by_footprint(frame: pd.DataFrame) -> pd.DataFrame:
    """The same by the memory that is read again and again, in MiB: column `mebibytes`."""
    table = summarize_rounds(frame, [*CONFIGURATION, "footprint_bytes"])
    return table.assign(mebibytes=table["footprint_bytes"] / MIB)


def l2_share(counted: pd.DataFrame) -> pd.DataFrame:
    """Rows of `stream_counters`, with L2's share of the bytes delivered and what each SM got per clock."""
    return counted.assign(
        from_l2=counted["l2_read_bytes"] / counted["bytes_moved"],
        per_clock=counted["bytes_moved"] / counted["cycles"] / counted["sm_count"],
    )


def best_by_bytes_in_flight(frame: pd.DataFrame) -> pd.DataFrame:
    """Each mechanism's best configuration at each number of bytes in flight: one row of `summarize_rounds` each."""
    table = summarize_rounds(frame)
    keys = ["gpu", "source", "mechanism", "bytes_in_flight_per_sm"]
    return table.loc[table.groupby(keys)["gbps_median"].idxmax()].reset_index(drop=True)


def frontier(frame: pd.DataFrame) -> pd.DataFrame:
    """Each mechanism's best configuration with at most so many bytes in flight.

    That is what `best_by_bytes_in_flight` gives, without the points that fewer bytes beat (small tiles in deep rings).
    """
    table = best_by_bytes_in_flight(frame).sort_values("bytes_in_flight_per_sm")
    so_far = table.groupby(["gpu", "source", "mechanism"])["gbps_median"].cummax()
    return table[table["gbps_median"].ge(so_far)].reset_index(drop=True)


def best(frame: pd.DataFrame, source: str, mechanism: str | None = None) -> pd.Series:
    """The fastest configuration of all, or of one mechanism."""
    table = summarize_rounds(frame[frame["source"].eq(source)])
    if mechanism:
        table = table[table["mechanism"].eq(mechanism)]
    return table.loc[table["gbps_median"].idxmax()]


def rounds_of(frame: pd.DataFrame, configuration: pd.Series) -> np.ndarray:
    """`gbps` of a configuration's rounds, in the order of rounds."""
    same = np.logical_and.reduce([frame[key].eq(configuration[key]) for key in CONFIGURATION])
    return frame[same].sort_values("round")["gbps"].to_numpy()


def compare(frame: pd.DataFrame, source: str, mechanism: str, other: str, bytes_in_flight: int) -> Ratio:
    """Throughput of the best of one mechanism over the best of another, at equal bytes in flight."""
    table = best_by_bytes_in_flight(frame[frame["source"].eq(source)])
    table = table[table["bytes_in_flight_per_sm"].eq(bytes_in_flight)]
    rounds = [rounds_of(frame, table[table["mechanism"].eq(name)].iloc[0]) for name in (mechanism, other)]
    return bootstrap_ratio(*rounds)


def overtaking(frame: pd.DataFrame, source: str, ahead_first: str, ahead_later: tuple[str, ...]) -> Crossover:
    """Bytes in flight per SM from which the best of `ahead_later` beats `ahead_first` for good.

    Args:
        frame: rows of one run of `throughput`.
        source: `hbm` or `l2`.
        ahead_first: a mechanism.
        ahead_later: mechanisms that count as one, the best of them at each point.
    """
    rows = frame[frame["source"].eq(source)]
    rows = rows.assign(mechanism=rows["mechanism"].where(~rows["mechanism"].isin(ahead_later), "later"))
    table = best_by_bytes_in_flight(rows)
    table = table[table["mechanism"].isin([ahead_first, "later"])]
    table = table.set_index(["mechanism", "bytes_in_flight_per_sm"]).sort_index()
    axis = sorted(set(table.loc[ahead_first].index) & set(table.loc["later"].index))

    def samples(name: str) -> list[np.ndarray]:
        chosen = table.loc[name].loc[axis].reset_index().assign(mechanism=name)
        return [rounds_of(rows, row) for _, row in chosen.iterrows()]

    return crossover(axis, samples(ahead_first), samples("later"))


def latency(
    frame: pd.DataFrame,
    mechanism: str,
    variant: str,
    source: str,
    transfer_bytes: int = 16,
    protocol: str = "chain",
) -> pd.Series:
    """One row of the latency table.

    Raises:
        KeyError: it was not measured.
    """
    wanted = {
        "mechanism": mechanism,
        "variant": variant,
        "source": source,
        "transfer_bytes": transfer_bytes,
        "protocol": protocol,
    }
    found = frame[np.logical_and.reduce([frame[key].eq(value) for key, value in wanted.items()])]
    if not len(found):
        raise KeyError(f"latency has no row of {wanted}")
    return found.iloc[-1]


def issue_slope_cycles(
    frame: pd.DataFrame,
    mechanism: str,
    transfer_bytes: int,
    longest: int = 8,
    per_copy: str = "copy",
    shortest: int = 1,
) -> float:
    """Cycles per further transfer of a train: the slope between one of `shortest` and one of `longest`.

    `per_copy` is what each comes with: `copy` (nothing), `expect`, `wait` or `lookup`; see ptx/macros/issue.ptx.
    """
    wanted = {"mechanism": mechanism, "transfer_bytes": transfer_bytes, "variant": per_copy}
    rows = frame[np.logical_and.reduce([frame[name].eq(value) for name, value in wanted.items()])]
    trains = rows.set_index("train_length")["cycles_median"]
    return float((trains[longest] - trains[shortest]) / (longest - shortest))


def with_cycles_per_tile(table: pd.DataFrame, sm_count: int, clock_mhz: float) -> pd.DataFrame:
    """Add the SM cycles that one CTA takes for one tile."""
    tiles_per_us = table["gbps_median"] * 1e3 / table["tile_bytes"] / sm_count / table["ctas_per_sm"]
    return table.assign(**{CYCLES_PER_TILE: clock_mhz / tiles_per_us})


def repeated(frame: pd.DataFrame) -> pd.Series:
    """How far the medians of two runs lie apart: absolute ratio - 1 of each configuration.

    Args:
        frame: rows of two runs of the same configurations, with their rounds.
    """
    measured = {"run_id", "round", "duration_us", "gbps", "bytes_moved"}
    same = [name for name in frame.columns if name not in measured]
    medians = frame.groupby([*same, "run_id"], dropna=False)["gbps"].median().unstack("run_id")
    first, second = sorted(medians.columns)
    return (medians[second] / medians[first] - 1).abs()
