"""Rules of thumb on the loads of real GEMMs, from pairs of kernels that differ in nothing else."""

import pandas as pd

from labkernels.charts.text import span
from labkernels.errors import NotMeasured
from labkernels.studies.gemm import pair_findings as found
from labkernels.studies.rule import Rules
from labkernels.studies.stats import having, where

RULES = Rules("kernel", "gemm_loads")
SCOPE = (
    "CUTLASS 4.2, warp-specialized, no cluster, TMA's stores; same tile (128×128 ping-pong, 128×256 cooperative), "
    "stages and schedule; M, N and K of at least 2048"
)


def _large(frame: pd.DataFrame, form: str) -> pd.DataFrame:
    """`speedups` of compute-bound shapes over one form of cp.async, of kernels that stay on their SM.

    Raises:
        NotMeasured: There are none.
    """
    table = found.over_forms(frame, form)
    table = table[table[found.SHAPE].min(axis=1).ge(found.COMPUTE_BOUND)]
    table = table[table["schedule"].isin([found.PINGPONG, found.COOPERATIVE])]
    if table.empty:
        raise NotMeasured("no compute-bound pair of GEMMs")
    return table


@RULES.rule(
    "cp_async_past_l1",
    operands="A and B of a product on tensor cores, copied by threads",
    take="cp.async.cg",
    statement="cp.async.cg, which copies past L1, makes a compute-bound GEMM up to two fifths faster than cp.async.ca.",
    scope=f"{SCOPE}; bf16 and e4m3; one word of the instruction changed",
)
def _cp_async_past_l1(frame: pd.DataFrame) -> tuple[bool, str]:
    cell = [*found.SHAPE, "dtype", "schedule"]
    through, past = (_large(frame, form).set_index(cell)["ratio"] for form in ("cp_async", "cp_async_bypass"))
    gain = (through / past).dropna()
    if gain.empty:
        raise NotMeasured("no pair of cp.async's loads through and past L1")
    return bool(
        gain.min() > 1.1
    ), f"Rate with .cg over that with .ca: {span(gain, 2)} in {len(gain)} products."


@RULES.rule(
    "tma_in_large_gemms",
    operands="A and B of a compute-bound GEMM",
    take="TMA; with a tile of 128×256 cp.async.cg comes near",
    statement="In a compute-bound GEMM TMA leads cp.async at its best by a sixth at 128×128 and by a few percent at "
    "128×256.",
    scope=f"{SCOPE}; bf16; cp.async past L1 and without zero fill, which whole tiles do not need",
)
def _tma_in_large_gemms(frame: pd.DataFrame) -> tuple[bool, str]:
    best = where(_large(frame, "cp_async_unpredicated"), dtype="bf16")
    square, wide = (having(best, schedule=name)["ratio"] for name in (found.PINGPONG, found.COOPERATIVE))
    if square.empty or wide.empty:
        raise NotMeasured("no compute-bound pair of GEMMs of both tiles")
    return bool(square.min() > 1.08 and square.max() < 1.25 and wide.between(0.99, 1.06).all()), (
        f"TMA's rate over cp.async's: {span(square, 2)} at 128×128, {span(wide, 2)} at 128×256."
    )


@RULES.rule(
    "half_empty_tiles",
    operands="A of a product with fewer rows than a tile has",
    take="a tile that the rows fill; else cp.async.cg",
    statement="TMA takes longer for tiles that reach past the tensor's end than for full ones. cp.async does not.",
    scope="CUTLASS 4.2 ping-pong and cooperative kernels with tiles of 128 rows, bf16, 64 rows of A against 128, "
    "N 28,672, K 8,192; time against time",
)
def _half_empty_tiles(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(frame, dtype="bf16", stores="tma", n=28672, k=8192)

    def ratio(loads: str, schedule: str) -> float:
        half, full = (where(rows, m=m, loads=loads, schedule=schedule)["duration_us"] for m in (64, 128))
        return half.median() / full.median()

    found_ratios = {
        loads: [ratio(loads, schedule) for schedule in (found.PINGPONG, found.COOPERATIVE)]
        for loads in ("tma", "cp_async_bypass")
    }
    tma, copied = found_ratios.values()
    return bool(min(tma) > 1.03 and max(copied) < 1), (
        f"Time with 64 rows over that with 128: {span(tma, 2)} by TMA, {span(copied, 2)} by cp.async past L1."
    )
