"""What stored rows say of TMA's loads and stores in a GEMM: pairs of kernels that differ in nothing else."""

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.studies.stats import Ratio, having, paired, where

SHAPE = ["m", "n", "k"]
BUILT = ["schedule", "tile_m", "tile_n", "loads", "stores"]
CELL = ["gpu", "run_id", *SHAPE, "dtype"]
PINGPONG, COOPERATIVE = "pingpong", "cooperative"
LIBRARY = "library"


def speedups(frame: pd.DataFrame, axis: str, baseline: str) -> pd.DataFrame:
    """Rate with TMA over that of the kernel which differs in one axis only, by shape and kernel.

    Args:
        frame: Rows of one run of `gemm_loads`.
        axis: `loads` or `stores`.
        baseline: What TMA is compared with: `cp_async` or `direct`.

    Returns:
        Columns of the cell and of what both kernels share, `stages` of TMA's and `other_stages`, `ratio`, `low`,
        `high`, and `over_library`: TMA's rate over the library's.

    Raises:
        NotMeasured: There is no such pair.
    """
    shared = [*CELL, *(column for column in BUILT if column != axis)]
    found = []
    for cell, rows in frame[frame["schedule"].notna()].groupby(shared):
        tma, other = having(rows, **{axis: "tma"}), having(rows, **{axis: baseline})
        if tma.empty or other.empty:
            continue
        columns = dict(zip(shared, cell, strict=True))
        library = having(frame, kernel=LIBRARY, **{name: columns[name] for name in CELL})
        columns |= {"stages": tma["stages"].iloc[0], "other_stages": other["stages"].iloc[0]}
        found.append(
            columns
            | paired(tma, other, "tflops")._asdict()
            | {"over_library": paired(tma, library, "tflops").ratio}
        )
    if not found:
        raise NotMeasured(f"no pair of GEMMs that differ in their {axis}")
    return pd.DataFrame(found)


def _at(frame: pd.DataFrame, axis: str, baseline: str, mnk: tuple[int, int, int], **built: str) -> Ratio:
    rows = having(frame, **dict(zip(SHAPE, mnk, strict=True)), dtype="bf16", **built)
    return paired(where(rows, **{axis: "tma"}), where(rows, **{axis: baseline}), "tflops")


def gemm_tma_over_cp_async(frame: pd.DataFrame, schedule: str) -> Ratio:
    """Rate of bf16 4096³ with TMA's loads over cp.async's, both with TMA's stores."""
    return _at(frame, "loads", "cp_async", (4096, 4096, 4096), schedule=schedule, stores="tma")


def gemm_tma_store_over_direct_store(frame: pd.DataFrame) -> Ratio:
    """Rate of bf16 8192 × 8192 × 256, loads by TMA: best kernel with TMA's stores over the best with direct ones."""
    rows = where(frame, m=8192, n=8192, k=256, dtype="bf16", loads="tma")

    def best(stores: str) -> pd.DataFrame:
        of = where(rows, stores=stores)
        return where(of, kernel=of.groupby("kernel")["tflops"].median().idxmax())

    return paired(best("tma"), best("direct"), "tflops")
