"""What stored rows say of throughput: best configurations, ratios at equal bytes in flight, the crossover."""

from collections.abc import Sequence

import pandas as pd

from labkernels.charts.text import kib
from labkernels.operand import MIB
from labkernels.studies.stats import measured, spread, where

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


def rates(frame: pd.DataFrame, by: Sequence[str] = CONFIGURATION) -> pd.DataFrame:
    """Median, 5th and 95th percentile of `gbps` over the rounds of each configuration; see `stats.spread`."""
    return spread(frame, by, "gbps")


def by_footprint(frame: pd.DataFrame) -> pd.DataFrame:
    """The same by the memory that is read again and again, in MiB: column `mebibytes`."""
    table = rates(frame, [*CONFIGURATION, "footprint_bytes"])
    return table.assign(mebibytes=table["footprint_bytes"] / MIB)


def by_row_shape(frame: pd.DataFrame) -> pd.DataFrame:
    """The same for rows of `row_shape`: with `tensor` (`dense` or `rows apart`) and `place`, source and tensor."""
    shape = ["source", "mechanism", "inner_bytes", "pitch_bytes", "swizzle", "l2_promotion_bytes"]
    table = rates(frame, ["gpu", "run_id", *shape])
    dense = table["pitch_bytes"].eq(table["inner_bytes"])
    tensor = dense.map({True: "dense", False: "rows apart"})
    return table.assign(tensor=tensor, place=table["source"].str.upper() + ", " + tensor)


def l2_share(counted: pd.DataFrame) -> pd.DataFrame:
    """Rows of `stream_counters`, with L2's share of the bytes delivered and what each SM got per clock."""
    return counted.assign(
        from_l2=counted["l2_read_bytes"] / counted["bytes_moved"],
        per_clock=counted["bytes_moved"] / counted["cycles"] / counted["sm_count"],
    )


def best_by_bytes_in_flight(frame: pd.DataFrame) -> pd.DataFrame:
    """Each mechanism's best configuration at each number of bytes in flight: one row of `rates` each."""
    table = rates(frame)
    keys = ["gpu", "source", "mechanism", "bytes_in_flight_per_sm"]
    return table.loc[table.groupby(keys)["median"].idxmax()].reset_index(drop=True)


def frontier(frame: pd.DataFrame) -> pd.DataFrame:
    """Each mechanism's best configuration with at most so many bytes in flight.

    That is what `best_by_bytes_in_flight` gives, without points that fewer bytes beat (small tiles in deep pipelines).
    """
    table = best_by_bytes_in_flight(frame).sort_values("bytes_in_flight_per_sm")
    so_far = table.groupby(["gpu", "source", "mechanism"])["median"].cummax()
    return table[table["median"].ge(so_far)].reset_index(drop=True)


def best(frame: pd.DataFrame, source: str, mechanism: str | None = None) -> pd.Series:
    """The fastest configuration of all, or of one mechanism: a row of `rates`.

    Raises:
        NotMeasured: There is none.
    """
    table = rates(where(frame, source=source, **({"mechanism": mechanism} if mechanism else {})))
    return table.loc[table["median"].idxmax()]


def rounds_of(frame: pd.DataFrame, configuration: pd.Series) -> pd.DataFrame:
    """Rows of a configuration, in the order of rounds."""
    return where(frame, **configuration[CONFIGURATION]).sort_values("round")


def with_cycles_per_tile(table: pd.DataFrame, sm_count: int, clock_mhz: float) -> pd.DataFrame:
    """Add the SM cycles that one CTA takes for one tile."""
    tiles_per_us = table["median"] * 1e3 / table["tile_bytes"] / sm_count / table["ctas_per_sm"]
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


def launch_to_first_byte_us(frame: pd.DataFrame) -> tuple[float, float, float, str]:
    """Time of a launch that reads one tile of 4 KiB from memory by TMA, its code and tensor map too out of L2.

    Args:
        frame: rows of one run of `short_kernels`.

    Returns:
        Median with its interval, in microseconds, and a note: what plain loads take.
    """
    least = where(frame, source="hbm", footprint_bytes=frame["footprint_bytes"].min())
    times = {name: where(least, mechanism=name)["duration_us"] for name in ("tma_tile", "ldg")}
    return *measured(
        times["tma_tile"]
    ), f"{kib(least['footprint_bytes'].iloc[0])}; plain loads {times['ldg'].median():.2f}"
