"""What stored rows say of tensor descriptors in Triton kernels."""

import numpy as np
import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.studies.stats import Measured, having, paired

CELL = ["gpu", "run_id", "kernel", "m", "n", "k", "tile_m", "tile_n", "tile_k", "warps", "stages"]
COMPUTE_BOUND = 1024  # least extent


def speedups(frame: pd.DataFrame) -> pd.DataFrame:
    """Time with pointers over that with descriptors, of every pair.

    Args:
        frame: Rows of one run of `triton_loads`.

    Returns:
        Columns of the cell, `least` of its extents, `registers` and `pointer_registers`, `ratio`, `low`, `high`.

    Raises:
        NotMeasured: There is no pair.
    """
    found = []
    for cell, rows in frame.groupby(CELL, dropna=False):
        ours, other = having(rows, loads="descriptors"), having(rows, loads="pointers")
        if len(ours) and len(other):
            columns = dict(zip(CELL, cell, strict=True))
            registers = {
                "registers": ours["registers"].iloc[0],
                "pointer_registers": other["registers"].iloc[0],
            }
            found.append(columns | registers | paired(other, ours, "duration_us")._asdict())
    if not found:
        raise NotMeasured("no pair of Triton kernels")
    table = pd.DataFrame(found)
    return table.assign(least=table[["m", "n", "k"]].min(axis=1))


def triton_gemm_tma_over_pointers(frame: pd.DataFrame) -> Measured:
    """Median over compute-bound products, each with its tiles; the interval is the smallest and largest of them."""
    table = speedups(frame)
    ratios = table.loc[table["kernel"].eq("gemm") & table["least"].ge(COMPUTE_BOUND), "ratio"]
    if ratios.empty:
        raise NotMeasured("no compute-bound product of Triton kernels")
    return Measured(float(np.median(ratios)), float(ratios.min()), float(ratios.max()))
