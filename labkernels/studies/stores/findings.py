"""What stored rows say of stores: the fastest cell of each form, and forms against each other."""

from typing import Any

import numpy as np
import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.studies.stats import Ratio, bootstrap_ratio, having, spread, where

CELL = [
    "gpu", "run_id", "destination", "mechanism", "origin", "layout", "run", "row_bytes", "tile_bytes", "stages",
    "ctas_per_sm", "threads", "shared_bytes_per_sm",
]  # fmt: skip

#: What a form of a store is called, and the rows that have it.
FORMS: dict[str, dict[str, Any]] = {
    "st.global": {"mechanism": "stg", "origin": "registers", "layout": "rows"},
    "shared memory, st.global": {"mechanism": "stg", "origin": "shared", "layout": "rows"},
    "st.global of fragments": {"mechanism": "stg", "origin": "registers", "layout": "fragments"},
    "fragments, shared memory, st.global": {"mechanism": "stg", "origin": "shared", "layout": "fragments"},
    "fragments, shared memory, TMA store": {"mechanism": "tma_store", "layout": "fragments"},
    "shared memory, TMA store": {"mechanism": "tma_store", "layout": "rows"},
    "shared memory, bulk store of a tile": {"mechanism": "bulk_store", "run": "tile"},
    "shared memory, bulk store of each row": {"mechanism": "bulk_store", "run": "row"},
}
DIRECT, _, FRAGMENTS, CARRIED, FRAGMENTS_BY_TMA, TMA, BULK_TILE, BULK_ROWS = FORMS


def rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Median and spread of `gbps` of each cell, its rounds in `samples`, the name of its form in `form`.

    Args:
        frame: rows of one run of `stores`.
    """
    ours = frame[frame["mechanism"].ne("library")]
    samples = ours.sort_values("round").groupby(CELL, dropna=False)["gbps"].apply(np.array).rename("samples")
    table = spread(ours, CELL, "gbps").merge(samples.reset_index(), on=CELL).assign(form="")
    for name, equal in FORMS.items():
        table.loc[having(table, **equal).index, "form"] = name
    return table


def is_one_run(table: pd.DataFrame) -> pd.Series:
    """Whether a cell's tile is one run of memory; if not it is a box of a wider matrix."""
    return table["row_bytes"].eq(table["tile_bytes"])


def fastest(table: pd.DataFrame, **equal: Any) -> pd.Series:
    """The fastest of some cells: a row of `rates`.

    Raises:
        NotMeasured: there is none.
    """
    among = where(table, **equal)
    return among.loc[among["median"].idxmax()]


def over(table: pd.DataFrame, first: str, second: str, **equal: Any) -> Ratio:
    """Rate of a form's fastest cell over that of another's, of some cells of one run, the rounds paired."""
    return bootstrap_ratio(*(fastest(table, form=form, **equal)["samples"] for form in (first, second)))


def boxes(table: pd.DataFrame) -> pd.DataFrame:
    """The fastest cell of each form for each length of a box's rows."""
    found = table[~is_one_run(table)]
    return found.loc[found.groupby(["destination", "form", "row_bytes"])["median"].idxmax()]


def library_gbps(frame: pd.DataFrame, function: str, destination: str) -> pd.Series:
    """Rates of the driver's own fill or copy, in the order of the rounds."""
    rows = where(frame, kernel=function, destination=destination)
    return rows.sort_values("round")["gbps"]


def smallest_cell(table: pd.DataFrame, share: float, **equal: Any) -> pd.Series:
    """The cell with fewest threads, then least shared memory on an SM that reaches a share of the fastest's rate."""
    among = where(table, **equal)
    among = among.assign(threads_per_sm=among["threads"] * among["ctas_per_sm"])
    enough = among[among["median"].ge(share * among["median"].max())]
    if enough.empty:
        raise NotMeasured(f"no cell reaches {share} of the fastest")
    return enough.sort_values(["threads_per_sm", "shared_bytes_per_sm"]).iloc[0]


def tma_store_over_st_global_hbm(frame: pd.DataFrame) -> Ratio:
    """Fastest TMA store over fastest st.global, tiles of one run, to HBM."""
    table = rates(frame)
    return over(table[is_one_run(table)], TMA, DIRECT, destination="hbm")
