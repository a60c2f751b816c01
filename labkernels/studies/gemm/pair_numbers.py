"""What the chapter on kernels says of pairs of GEMM kernels."""

import pandas as pd

from labkernels.charts.text import percent, span
from labkernels.studies.gemm import pair_findings as found
from labkernels.studies.stats import having, where

SMALL_K = (8192, 8192, 256)
FEW, WHOLE = (64, 28672, 8192), (128, 28672, 8192)
"""Products whose tiles of 128 rows are half empty, and full."""
BYPASS = "cp_async_bypass"
WORDS = {
    "tma": "TMA",
    "cp_async": "cp.async.ca, zero fill",
    BYPASS: "cp.async.cg, zero fill",
    "cp_async_unpredicated": "cp.async.cg",
}


def loads(table: pd.DataFrame) -> dict[str, str]:
    """TMA's rate over cp.async's at compute-bound shapes, by schedule and form.

    Args:
        table: Of `pair_findings.over_forms`.
    """
    large = table[table[found.SHAPE].min(axis=1).ge(found.COMPUTE_BOUND)]
    suffixes = {"cp_async": "", BYPASS: "_bypass", "cp_async_unpredicated": "_unpredicated"}

    def ratios(schedule: str, loads: str, dtype: str = "bf16") -> str:
        return span(having(large, schedule=schedule, form=found.FORMS[loads], dtype=dtype)["ratio"], 2)

    library = having(large, schedule=found.PINGPONG, form=found.FORMS["cp_async"], dtype="bf16")
    return {
        f"pair_{schedule}{suffix}": ratios(schedule, loads)
        for schedule in (found.PINGPONG, found.COOPERATIVE)
        for loads, suffix in suffixes.items()
    } | {
        "pair_pingpong_e4m3": ratios(found.PINGPONG, BYPASS, "e4m3"),
        "pair_cooperative_e4m3": ratios(found.COOPERATIVE, BYPASS, "e4m3"),
        "pair_library": span(library["over_library"], 2),
    }


def few(frame: pd.DataFrame) -> dict[str, str]:
    """What tiles that are half empty change: the same product with 64 rows of A and with 128.

    Args:
        frame: Rows of one run of `gemm_loads`.
    """

    def us(shape: tuple[int, int, int], schedule: str, loads: str) -> float:
        rows = where(frame, dtype="bf16", schedule=schedule, loads=loads, stores="tma")
        return where(rows, **dict(zip(found.SHAPE, shape, strict=True)))["duration_us"].median()

    def rate(shape: tuple[int, int, int], schedule: str) -> str:
        return percent(us(shape, schedule, BYPASS) / us(shape, schedule, "tma"))

    def grows(loads: str) -> str:
        return f"{us(FEW, found.PINGPONG, loads) / us(WHOLE, found.PINGPONG, loads):.2f}"

    return {
        "few_pingpong": rate(FEW, found.PINGPONG),
        "few_cooperative": rate(FEW, found.COOPERATIVE),
        "whole_pingpong": rate(WHOLE, found.PINGPONG),
        "few_over_whole_tma": grows("tma"),
        "few_over_whole_cp": grows(BYPASS),
    }


def stores(table: pd.DataFrame) -> dict[str, str]:
    """TMA's stores over direct ones, where K is small and where it is large.

    Args:
        table: Of `pair_findings.speedups` over stores.
    """
    small_k = having(table, **dict(zip(found.SHAPE, SMALL_K, strict=True)), loads="tma")
    return {
        "store_small_k": span(small_k["ratio"], 1),
        "store_large": span(having(table, m=8192, n=8192, k=8192, loads="tma")["ratio"], 2),
    }


def counts(table: pd.DataFrame) -> dict[str, str]:
    """Wavefronts, and how busy the data pipe is, that the text names, of the ping-pong kernels.

    Args:
        table: Of `pair_findings.counted`.
    """
    rows = where(table, schedule=found.PINGPONG).set_index("loads")
    names = {"tma": "tma", "ca": "cp_async", "cg": BYPASS}
    return {
        f"pair_wavefronts_{short}": f"{rows.at[name, 'lsu_wavefronts']:.0f}" for short, name in names.items()
    } | {"pair_busy_ca": percent(rows.at["cp_async", "busy"])}


def counts_table(table: pd.DataFrame) -> pd.DataFrame:
    """`pair_findings.counted` as the chapter prints it."""
    shown = table.assign(order=table["loads"].map(list(WORDS).index)).sort_values(["schedule", "order"])
    return pd.DataFrame(
        {
            "Schedule": shown["schedule"],
            "Loads": shown["loads"].map(WORDS),
            "Cycles": shown["cycles"].map("{:,.0f}".format),
            "Instructions issued": shown["issued"].map("{:,.0f}".format),
            "Wavefronts of the LSU": shown["lsu_wavefronts"].map("{:,.0f}".format),
            "Data pipe busy": shown["busy"].map(percent),
            "Read from L2, of what arrives": shown["from_l2"].map(percent),
        }
    )
