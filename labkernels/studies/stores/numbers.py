"""What the chapter on stores says in its text."""

import pandas as pd

from labkernels.charts.text import tbps
from labkernels.studies.stores import findings as found
from labkernels.studies.stores.stores import LIBRARY


def lead(frame: pd.DataFrame) -> dict[str, str | float]:
    """Rates and ratios.

    Args:
        frame: rows of one run of `stores`.
    """
    table = found.rates(frame)
    runs = table[found.is_one_run(table)]
    fill = found.library_gbps(frame, LIBRARY[0], "hbm").median()
    hbm, l2 = (table[table["destination"].eq(place)]["median"].max() for place in ("hbm", "l2"))
    smallest = {
        form: found.smallest_cell(runs, 0.97, destination="hbm", form=form)
        for form in (found.DIRECT, found.TMA)
    }

    def box(form: str, row: int) -> float:
        return found.fastest(table, form=form, destination="hbm", row_bytes=row)["median"]

    by_tma = found.over(table, found.FRAGMENTS_BY_TMA, found.FRAGMENTS, destination="hbm")
    return {
        "best_hbm": tbps(hbm, 2),
        "best_l2": tbps(l2, 2),
        "fill": tbps(fill, 2),
        "over_fill": f"{hbm / fill:.2f}",
        "tma_over_direct": found.over(runs, found.TMA, found.DIRECT, destination="hbm").times(3),
        "fragments": tbps(found.fastest(table, form=found.FRAGMENTS, destination="hbm")["median"], 2),
        "fragments_l2": tbps(found.fastest(table, form=found.FRAGMENTS, destination="l2")["median"], 2),
        "by_tma": f"{by_tma.ratio:.1f}",
        "through_shared": tbps(
            found.fastest(table, form=found.FRAGMENTS_BY_TMA, destination="hbm")["median"], 2
        ),
        "row_32": tbps(box(found.TMA, 32), 1),
        "row_64": tbps(box(found.TMA, 64), 1),
        "bulk_64": tbps(box(found.BULK_ROWS, 64), 1),
        "bulk_256": tbps(box(found.BULK_ROWS, 256), 1),
        "cycles_per_row": _cycles_per_row(frame, table),
        "threads_direct": smallest[found.DIRECT]["threads_per_sm"],
        "shared_tma": smallest[found.TMA]["shared_bytes_per_sm"] / 1024,
    }


def _cycles_per_row(frame: pd.DataFrame, table: pd.DataFrame) -> float:
    """SM cycles from one bulk store of a row of 32 bytes to the next, at the best rate of an SM."""
    one = found.fastest(table, form=found.BULK_ROWS, destination="hbm", row_bytes=32)
    described = frame.iloc[0]
    rows_per_us = one["median"] * 1e3 / one["row_bytes"] / described["sm_count"]
    return described["sm_clock_mhz_median"] / rows_per_us
