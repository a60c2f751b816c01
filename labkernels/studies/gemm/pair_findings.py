"""What stored rows say of TMA's loads and stores in a GEMM: pairs of kernels that differ in nothing else."""

from collections.abc import Callable

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.studies.gemm.family import ELEMENT_BYTES, TILE_K_BYTES
from labkernels.studies.gemm.pairs import TILES
from labkernels.studies.stats import Ratio, having, paired, where

SHAPE = ["m", "n", "k"]
BUILT = ["schedule", "tile_m", "tile_n", "loads", "stores"]
CELL = ["gpu", "run_id", *SHAPE, "dtype"]
PINGPONG, COOPERATIVE = "pingpong", "cooperative"
LIBRARY = "library"
COMPUTE_BOUND = 2048  # least extent
FORMS = {
    "cp_async": "as CUTLASS has it: through L1, zero fill",
    "cp_async_bypass": "past L1",
    "cp_async_unpredicated": "past L1, no zero fill",
}
"""Forms of cp.async's loads, in words."""


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


def over_forms(frame: pd.DataFrame, *forms: str) -> pd.DataFrame:
    """`speedups` over forms of cp.async, with TMA's stores; the `form` in words.

    Args:
        frame: Rows of one run of `gemm_loads`.
        forms: Of FORMS; by default all.

    Raises:
        NotMeasured: There is no pair.
    """
    rows = frame[frame["stores"].ne("direct")]
    tables = [
        speedups(rows, "loads", loads).assign(form=FORMS[loads])
        for loads in forms or FORMS
        if len(having(rows, loads=loads))
    ]
    if not tables:
        raise NotMeasured("no GEMM with cp.async's loads")
    return pd.concat(tables, ignore_index=True)


def gemm_tma_over_cp_async(schedule: str, loads: str = "cp_async") -> Callable[[pd.DataFrame], Ratio]:
    """A headline figure: rate of bf16 4096³ with TMA's loads over cp.async's, both with TMA's stores.

    Args:
        schedule: Of both kernels.
        loads: Form of cp.async's, one of FORMS.
    """

    def found(frame: pd.DataFrame) -> Ratio:
        rows = having(frame, m=4096, n=4096, k=4096, dtype="bf16", schedule=schedule, stores="tma")
        return paired(where(rows, loads="tma"), where(rows, loads=loads), "tflops")

    return found


def gemm_tma_store_over_direct_store(frame: pd.DataFrame) -> Ratio:
    """Rate of bf16 8192 × 8192 × 256, loads by TMA: best kernel with TMA's stores over the best with direct ones."""
    rows = where(frame, m=8192, n=8192, k=256, dtype="bf16", loads="tma")

    def best(stores: str) -> pd.DataFrame:
        of = where(rows, stores=stores)
        return where(of, kernel=of.groupby("kernel")["tflops"].median().idxmax())

    return paired(best("tma"), best("direct"), "tflops")


def counted(frame: pd.DataFrame) -> pd.DataFrame:
    """Counters of bf16 4096³ for each step of K 64 of a tile, by kernel.

    Args:
        frame: Rows of one run of `gemm_loads_counters`, with the columns of its run.

    Returns:
        Columns `schedule` and `loads`; of a step `cycles` (of an SM), `issued` and `lsu_wavefronts`; `busy`: share of
        the SMs' cycles in which the LSU's data pipe was; `from_l2`: bytes that L2 reads, of those that arrive in SMs.

    Raises:
        NotMeasured: There are no such rows.
    """
    rows = where(frame, m=4096, n=4096, k=4096)
    rows = rows[rows["schedule"].isin([PINGPONG, COOPERATIVE])]
    areas = rows["schedule"].map({name: m * n for name, (m, n) in TILES.items()})
    steps = rows["m"] * rows["n"] / areas * rows["k"] / (TILE_K_BYTES // ELEMENT_BYTES["bf16"])
    cycles = rows["cycles"] * rows["sm_count"]
    return rows.assign(
        cycles=cycles / steps,
        issued=rows["issued"] / steps,
        lsu_wavefronts=rows["lsu_wavefronts"] / steps,
        busy=rows["lsu_wavefronts"] / cycles,
        from_l2=rows["l2_read_bytes"] / rows["sm_ingest_bytes"],
    )
