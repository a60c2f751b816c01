"""What the chapter on kernels says of pairs of GEMM kernels."""

import pandas as pd

from labkernels.charts.text import span
from labkernels.studies.gemm import pair_findings as found
from labkernels.studies.stats import having

LARGE, SMALL_K = 2048, (8192, 8192, 256)


def pairs(loads: pd.DataFrame, stores: pd.DataFrame) -> dict[str, str]:
    """Ratios by schedule at compute-bound shapes, at small M and of stores.

    Args:
        loads: Of `pair_findings.speedups` over loads.
        stores: The same over stores.
    """

    def ratios(table: pd.DataFrame, **equal: object) -> str:
        return span(having(table, **equal)["ratio"], 2)

    by_tma = having(loads, stores="tma")
    large = by_tma[by_tma[found.SHAPE].min(axis=1).ge(LARGE)]
    small = having(loads, dtype="bf16", m=16, stores="tma").set_index("schedule")["ratio"]
    small_k = having(stores, **dict(zip(found.SHAPE, SMALL_K, strict=True)), loads="tma")
    return {
        f"pair_{schedule}_{dtype}": ratios(large, schedule=schedule, dtype=dtype)
        for schedule in (found.PINGPONG, found.COOPERATIVE)
        for dtype in ("bf16", "e4m3")
    } | {
        "pair_plain": ratios(large, schedule="plain"),
        "pair_library": span(having(large, dtype="bf16", schedule=found.PINGPONG)["over_library"], 2),
        "pair_few_pingpong": f"{small[found.PINGPONG]:.2f}",
        "pair_few_plain": f"{small['plain']:.2f}",
        "pair_few_cooperative": f"{small[found.COOPERATIVE]:.2f}",
        "store_small_k": span(small_k["ratio"], 1),
        "store_large": ratios(stores, m=8192, n=8192, k=8192, loads="tma"),
    }
