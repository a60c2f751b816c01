"""What the chapter on paged keys says in its text and tables: values by the name under which the text asks for them."""

from typing import Any

import pandas as pd

from labkernels.charts.text import percent, span
from labkernels.operand import KIB
from labkernels.production import fa3
from labkernels.production.attention import AttentionCall
from labkernels.studies.paged import findings as found
from labkernels.studies.paged.charts import shape_name
from labkernels.studies.stats import having, where

_TILE_ROWS, _TILE_BYTES = 128, 32 * KIB


def contiguous_gbps(paged: pd.DataFrame) -> float:
    """GB/s of the contiguous cache in decode's main sweep, the median over rounds."""
    return where(paged, phase="decode", variant="contiguous", **found.PLAIN)["gbps"].median()


def isolated(paged: pd.DataFrame, hbm_gbps: float, l2_gbps: float) -> dict[str, str | float]:
    """What the isolated kernels say.

    Args:
        paged: rows of one run of `paged`.
        hbm_gbps: the fastest read from HBM that was measured on this GPU.
        l2_gbps: the same from L2.
    """
    main = where(paged, phase="decode", **found.PLAIN)
    clock_mhz, sms = paged["sm_clock_mhz_median"].iloc[0], paged["sm_count"].iloc[0]
    bare = where(paged, phase="prefill", variant="no_copy")
    tiles = bare["sequence_rows"].iloc[0] / _TILE_ROWS

    def gbps(variant: str, issuers: int) -> float:
        return where(main, page_rows=16, variant=variant, issuers=issuers)["gbps"].median()

    threads = sms * where(main, page_rows=16, variant="row", issuers=1)["ctas_per_sm"].iloc[0]
    return {
        "contiguous": f"{contiguous_gbps(paged):,.0f} GB/s",
        "of_hbm": percent(contiguous_gbps(paged) / hbm_gbps, 1),
        "best_64": percent(found.paged_best_over_contiguous(paged).ratio, 1),
        "best_1": percent(found.paged_best_over_contiguous(paged, 1).ratio, 1),
        "prefill_128": percent(found.isolated_ratio(paged, "prefill", 128).ratio - 1, 1),
        "tile_cycles": bare["duration_us"].median() * clock_mhz / tiles,
        "l2_cycles": _TILE_BYTES * sms / l2_gbps / 1e3 * clock_mhz,
        "box_cycles": clock_mhz * 128 * threads / (gbps("row", 1) * 1e3),
        "run_cycles": clock_mhz * 256 * threads / (gbps("run", 1) * 1e3),
        "one_issuer": f"{gbps('row', 1):,.0f} GB/s",
        "four_issuers": f"{gbps('row', 4):,.0f} GB/s",
    }


def unhidden(prefill: pd.DataFrame, decode: pd.DataFrame) -> dict[str, str]:
    """What copying costs beside tensor cores.

    Args:
        prefill: of `findings.unhidden`.
        decode: the same of decode.
    """

    def cost(table: pd.DataFrame, variant: str, page_rows: int, issuers: int = 1) -> str:
        rows = where(table, variant=variant, page_rows=page_rows, issuers=issuers)
        return f"{rows['unhidden_us'].iloc[0]:.0f} µs"

    return {
        "prefill_rows_128": cost(prefill, "rows", 128),
        "prefill_box_128": cost(prefill, "box", 128),
        "decode_rows_128": cost(decode, "rows", 128),
        "decode_box_128": cost(decode, "box", 128),
        "prefill_rows_16": cost(prefill, "rows", 16),
        "prefill_box_16": cost(prefill, "box", 16),
        "prefill_box_16_four": cost(prefill, "box", 16, 4),
    }


def real_kernel(cells: pd.DataFrame, regret: found.Regret, run: pd.Series) -> dict[str, str | float]:
    """What FlashAttention-3's own kernels say.

    Args:
        cells: of `findings.predicted_signs`.
        regret: of `findings.fa3_rule_regret`.
        run: the run's row.
    """
    decode, prefill = (where(cells, phase=phase) for phase in ("decode", "prefill"))
    clear = cells["isolated_low"].gt(1) | cells["isolated_high"].lt(1)
    return {
        "cells": len(cells),
        "clear": int(clear.sum()),
        "prefill_ratio": span(prefill["ratio"], 2),
        "decode_ratio": span(decode["ratio"], 3),
        "decode_cells": len(decode),
        "decode_by_tma": int(decode["best"].eq("tma_tile").sum()),
        "decode_ties": int(decode["best"].eq("").sum()),
        "decode_by_gather": int(decode["best"].eq("cp_async").sum()),
        "regret_mean": percent(regret.mean - 1, 1),
        "regret_worst": percent(regret.worst - 1, 1),
        "regret_wrong": regret.wrong,
        "lowest_clock": f"{run['sm_clock_mhz_min']:,.0f} MHz",
        "throttle": run["throttle_reasons"] if pd.notna(run["throttle_reasons"]) else "none",
    }


def model_shapes(cells: pd.DataFrame) -> dict[str, str | float]:
    """What FlashAttention-3 says at one model shape after another.

    Args:
        cells: of `findings.shape_cells`.
    """
    decode, prefill = (where(cells, phase=phase) for phase in ("decode", "prefill"))
    mla = cells["head_dim_v"].eq(512)
    gathered = decode[decode["rule"].eq("cp_async")]
    smaller = gathered[
        gathered["rule_tile"].str.startswith("64 ") & ~gathered["tma_tile"].str.startswith("64 ")
    ]
    by_dim = {dim: smaller.loc[smaller["head_dim"].eq(dim), "chosen"] for dim in (64, 128)}
    same_tile = cells["gather_tile"].eq(cells["tma_tile"])
    few = mla & cells["heads"].lt(128) & cells["phase"].eq("decode")
    return {
        "shape_cells": len(cells),
        "shape_by_tma": int(cells["best"].eq("tma_tile").sum()),
        "shape_ties": int(cells["best"].eq("").sum()),
        "shape_by_gather": int(cells["best"].eq("cp_async").sum()),
        "shape_prefill": span(prefill.loc[~mla & same_tile, "ratio"], 2),
        "shape_prefill_tile": span(prefill.loc[~same_tile, "ratio"], 2),
        "shape_ratios": span(prefill.loc[prefill["head_dim"].eq(128), "ratio"], 3),
        "shape_decode": span(decode.loc[~mla & same_tile, "ratio"], 2),
        "mla_many": span(cells.loc[mla & cells["heads"].eq(128), "ratio"], 3),
        "mla_few": span(cells.loc[few & cells["num_splits"].eq(1), "ratio"], 3),
        "mla_few_split": span(cells.loc[few & cells["num_splits"].gt(1), "ratio"], 3),
        "chosen_mla": span(gathered.loc[gathered["head_dim_v"].eq(512), "chosen"], 2),
        "odd_one": " and ".join(map(shape_name, cells[cells["best"].eq("cp_async")].itertuples())) or "none",
        "chosen_64": span(by_dim[64], 2),
        "chosen_128": span(by_dim[128], 2),
    }


def cost_range(costs: pd.DataFrame, phase: str) -> str:
    """Smallest and largest ratio of a phase, in words.

    Args:
        costs: of `findings.page_table_cost`.
        phase: `decode` or `prefill`.
    """
    ratios = having(costs, phase=phase)["ratio"]
    return f"{ratios.min():.3f} to {ratios.max():.3f}" if len(ratios) else "not measured on this GPU"


def page_table(costs: pd.DataFrame) -> str:
    """What a page table costs where TMA loads either way, in sentences.

    Args:
        costs: of `findings.page_table_cost`.
    """
    if costs.empty:
        return "Not measured on this GPU."
    worst = costs.loc[costs["ratio_low"].idxmax()]
    return (
        f"With pages, decode takes {cost_range(costs, 'decode')} of the contiguous cache's time and prefill "
        f"{cost_range(costs, 'prefill')}. Of {len(costs)} cells {costs['ratio_low'].gt(1).sum()} are slower and "
        f"{costs['ratio_high'].lt(1).sum()} faster than it by more than their interval; the median is "
        f"{costs['ratio'].median():.3f}. Most pay {worst['dtype']} at head dim {worst['head_dim']} in "
        f"{worst['phase']}, and larger pages do not help: it is not the page-table loads; why it is just that "
        "kernel is not established."
    )


def whole_tiles() -> dict[str, str]:
    """Element types and head dims for which pages of a power of two of rows can be whole tiles, and those others."""
    pages = [2**exponent for exponent in range(4, 10)]

    def by_tma(**shape: Any) -> bool:
        call = {"heads": 32, "kv_heads": 8, "seqlen_q": 2048, "causal": True, "varlen": True}
        calls = (AttentionCall(**shape, **call, page_size=page) for page in pages)
        return any(fa3.choose(call).k == "tma_tile" for call in calls)

    shapes = [(dtype, head_dim) for dtype in ("bf16", "fp8") for head_dim in (64, 96, 128, 192, 256)]
    whole = {f"{dtype} {head_dim}": by_tma(dtype=dtype, head_dim=head_dim) for dtype, head_dim in shapes}
    return {
        "fwd_by_tma": ", ".join(name for name, can in whole.items() if can),
        "fwd_by_gather": ", ".join(name for name, can in whole.items() if not can),
    }


def cell_listing(cells: pd.DataFrame) -> pd.DataFrame:
    """FlashAttention-3's cells for a reader.

    Args:
        cells: of `findings.predicted_signs`.
    """
    problems = [f"{c.batch} × {c.seqlen_q} on {c.seqlen_k}" for c in cells.itertuples()]
    return pd.DataFrame(
        {
            "phase": cells["phase"],
            "batch × queries on keys": problems,
            "heads": [f"{c.heads}/{c.kv_heads}" for c in cells.itertuples()],
            "page rows": cells["page_rows"],
            "rule": cells["rule"],
            "faster": cells["best"],
            "cp.async µs": cells["cp_async_us"].round(1),
            "TMA µs": cells["tma_tile_us"].round(1),
            "regret": cells["regret"].map("{:.3f}".format),
            "isolated agrees": cells["agrees"].map({True: "yes", False: "no"}),
        }
    )


def _by_table(first: pd.DataFrame) -> pd.DataFrame:
    whole = first["variant"].isin(["contiguous", "rows", "box"])
    return first[whole & first["page_rows"].isin([0, 16, 128])].pivot_table(
        index=["page_rows", "mechanism", "variant", "issuers"], columns="table_source", values="cycles_median"
    )


def cold_table(first: pd.DataFrame) -> float:
    """Cycles that a page table in HBM adds to the first tile, the median over variants and pages.

    Args:
        first: rows of one run in table `paged_first_tile`.
    """
    paged = _by_table(first).drop(index=0, level="page_rows")
    return float((paged["hbm"] - paged["l2"]).median())


def first_tiles(first: pd.DataFrame) -> pd.DataFrame:
    """Cycles until the first tile is there, for a reader.

    Args:
        first: rows of one run in table `paged_first_tile`.
    """
    wide = _by_table(first)
    return pd.DataFrame(
        {
            "page rows": [key[0] or "contiguous" for key in wide.index],
            "mechanism": [key[1] for key in wide.index],
            "producer warps": [key[3] for key in wide.index],
            "cycles, table in HBM": wide["hbm"].round().astype(int).to_list(),
            "cycles, table in L2": wide["l2"].round().astype(int).to_list(),
        }
    )
