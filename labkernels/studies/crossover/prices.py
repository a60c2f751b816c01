"""What stored rows say at a stated price: the same pipeline, equal bytes in flight, equal shared memory.

Rows are those of `pipelines` and `plain_loads`. Bytes in flight explain a rate; shared memory is what an author pays.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.operand import KIB, MIB
from labkernels.studies.stats import (
    Crossover,
    Measured,
    Ratio,
    bootstrap_ratio,
    crossover,
    measured,
    spread,
    where,
)

CELL = [
    "gpu", "run_id", "source", "order", "kernel", "mechanism", "pipeline", "share", "producer_warps",
    "consumer_warps", "destination", "footprint_bytes", "tile_bytes", "stages", "ctas_per_sm", "threads",
    "bytes_in_flight_per_sm", "shared_bytes_per_sm",
]  # fmt: skip
IN_FLIGHT, SHARED = "bytes_in_flight_per_sm", "shared_bytes_per_sm"
ENGINE, THREADS = ("tma_bulk", "tma_tile"), ("cp_async",)
EQUAL = 0.01  # how far from 1 an interval may reach where two are called equal
SIZES = tuple(n * KIB for n in (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192))


def rates(frame: pd.DataFrame) -> pd.DataFrame:
    """As `stats.spread` of `gbps` over the rounds of each cell, with all of them, in order, in `samples`."""
    samples = frame.sort_values("round").groupby(CELL, dropna=False)["gbps"].apply(np.array).rename("samples")
    return spread(frame, CELL, "gbps").merge(samples.reset_index(), on=CELL)


def fastest(table: pd.DataFrame, mechanisms: Sequence[str]) -> pd.Series:
    """The fastest cell of some mechanisms: a row of `rates`.

    Raises:
        NotMeasured: there is none.
    """
    among = where(table.assign(among=table["mechanism"].isin(mechanisms)), among=True)
    return among.loc[among["median"].idxmax()]


def frontier(frame: pd.DataFrame, price: str) -> pd.DataFrame:
    """Each mechanism's fastest cell for at most so much of a price: of each source, what no cheaper cell reaches."""
    table = rates(frame)
    best = table.loc[table.groupby(["source", "mechanism", price])["median"].idxmax()].sort_values(price)
    so_far = best.groupby(["source", "mechanism"])["median"].cummax()
    return best[best["median"].ge(so_far)].reset_index(drop=True)


def compared(table: pd.DataFrame, first: Sequence[str], second: Sequence[str]) -> Ratio:
    """Rate of the fastest cell of some mechanisms over that of others, the rounds paired.

    Args:
        table: `rates` of those cells of one run that may be chosen.
        first: mechanisms.
        second: mechanisms.

    Raises:
        NotMeasured: one of them has no cell.
    """
    return bootstrap_ratio(*(fastest(table, names)["samples"] for names in (first, second)))


def same_pipeline(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """TMA over cp.async in the same pipeline: equal tile, stages, producer and consumer warps, CTAs.

    Each is there in its faster form: bulk copies or tensor tiles; warps in turns or all of them at each tile.

    Returns:
        A row for each pipeline: `tile_bytes`, `stages`, `ctas_per_sm`, `warps` (producers, as many as consumers), both
        prices, `ratio`, `low`, `high`, `equal`, `gpu`, `run_id`.

    Raises:
        NotMeasured: no pipeline has both.
    """
    table = rates(where(frame, source=source, pipeline="pipeline"))
    table = table[table["producer_warps"].eq(table["consumer_warps"])].rename(
        columns={"producer_warps": "warps"}
    )
    shape = ["tile_bytes", "stages", "ctas_per_sm", "warps", IN_FLIGHT, SHARED, "source", "gpu", "run_id"]
    found = []
    for values, cells in table.groupby(shape):
        if {*THREADS, *ENGINE} <= {*cells["mechanism"]}:
            ratio = compared(cells, ENGINE, THREADS)
            found.append(
                dict(zip(shape, values, strict=True)) | ratio._asdict() | {"equal": ratio.within(EQUAL)}
            )
    if not found:
        raise NotMeasured(f"no pipeline from {source} that TMA and cp.async both have")
    return pd.DataFrame(found)


def at_equal(frame: pd.DataFrame, source: str, price: str, sizes: Sequence[int] = SIZES) -> pd.DataFrame:
    """The fastest TMA of all pipelines over the fastest cp.async of all, at equal price.

    Args:
        frame: rows of one run of `pipelines`.
        source: `hbm` or `l2`.
        price: `IN_FLIGHT`, at exactly so many bytes, or `SHARED`, with at most so many.
        sizes: of the price.

    Returns:
        `source`, the price, `ratio`, `low`, `high`, `equal`, the kernels `first` and `second`, `gpu`, `run_id`.

    Raises:
        NotMeasured: at one of the sizes one of them has no cell.
    """
    table = rates(where(frame, source=source))
    found = []
    for size in sizes:
        allowed = table[table[price].eq(size) if price == IN_FLIGHT else table[price].le(size)]
        ratio = compared(allowed, ENGINE, THREADS)
        kernels = {"first": fastest(allowed, ENGINE)["kernel"], "second": fastest(allowed, THREADS)["kernel"]}
        found.append(
            {"source": source, price: size, "equal": ratio.within(EQUAL), "gpu": table["gpu"].iloc[0]}
            | ratio._asdict()
            | kernels
            | {"run_id": table["run_id"].iloc[0]}
        )
    return pd.DataFrame(found)


def panels(frame: pd.DataFrame) -> pd.DataFrame:
    """`at_equal` from HBM and L2 at either price: `panel` in words, the price in `bytes`, as charts draw it."""
    words = {"hbm": "HBM", "l2": "L2", IN_FLIGHT: "bytes in flight", SHARED: "shared memory"}
    parts = [
        at_equal(frame, source, price)
        .rename(columns={price: "bytes"})
        .assign(price=price, panel=f"{words[source]}, equal {words[price]}", mechanism="tma_tile")
        for source, price in product(("hbm", "l2"), (IN_FLIGHT, SHARED))
    ]
    return pd.concat(parts, ignore_index=True)


def overtaking(frame: pd.DataFrame, source: str, margin: float = EQUAL) -> Crossover:
    """Bytes in flight per SM from which the fastest TMA leads the fastest cp.async by more than a margin, for good.

    Raises:
        NotMeasured: at one of `SIZES` one of them has no cell.
    """
    table = rates(where(frame, source=source))
    sides = [
        [fastest(where(table, **{IN_FLIGHT: size}), names)["samples"] for size in SIZES]
        for names in (THREADS, ENGINE)
    ]
    return crossover(SIZES, sides[0], [samples / (1 + margin) for samples in sides[1]])


def over_cells(ratios: pd.DataFrame) -> Measured:
    """The median ratio, and the 5th and 95th percentile over the cells that were compared."""
    low, median, high = np.quantile(ratios["ratio"], [0.05, 0.5, 0.95])
    return Measured(float(median), float(low), float(high))


def plain_loads(frame: pd.DataFrame, source: str, bytes_in_flight: int = 32 * KIB) -> Measured:
    """GB/s of the fastest plain loads with so many bytes in flight per SM, to registers or to shared memory.

    Args:
        frame: rows of one run of `plain_loads`.
        source: `hbm` or `l2`.
        bytes_in_flight: of an SM.

    Raises:
        NotMeasured: there are none.
    """
    rows = where(frame, source=source, bytes_in_flight_per_sm=bytes_in_flight)
    return measured(fastest(rates(rows), ("ldg",))["samples"])


def from_l2_itself(counted: pd.DataFrame, **equal: object) -> float:
    """The part that L2 read of what the fastest counted stream over 16 MiB delivered; its coalescer merged the rest.

    Args:
        counted: rows of one run of `stream_counters` or `pipeline_counters`.
        equal: values of further columns.

    Raises:
        NotMeasured: nothing was counted there.
    """
    rows = where(counted, source="l2", footprint_bytes=16 * MIB, **equal)
    best = rows.loc[(rows["bytes_moved"] / rows["cycles"]).idxmax()]
    return float(best["l2_read_bytes"] / best["bytes_moved"])
