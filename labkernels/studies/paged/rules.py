"""Rules of thumb on paged keys and values: what to gather pages with, by their size."""

from collections.abc import Iterable

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.production.practice import TMA, Practice
from labkernels.studies.paged.findings import PLAIN, isolated_ratio, paged_best_over_contiguous, shape_cells
from labkernels.studies.rule import Rules
from labkernels.studies.stats import Ratio, paired, where

RULES = Rules("paged", "paged")
DECODE = (
    "2 GiB from HBM in rows of 256 bytes, 8 KV heads side by side, pages in random order, tiles of 128 rows"
)
PREFILL = "65,536 keys of 8 heads in rows of 256 bytes that all SMs read, tiles of 128 rows, four stages, up to four "
PREFILL += "producer warps, beside tensor cores at work"
SHAPES = (
    "vLLM 0.33.0's FlashAttention-3, bf16, causal, whole calls; head dims 64 to 256, 1 to 32 query heads per "
)
SHAPES += "KV head, absorbed MLA (64 and 512) with 16 to 128 heads, pages of one and two tiles of keys"
PAGED = "direction == 'load' and operand in ['K (paged)', 'V (paged)']"


def _evidence(effect: str, ratios: Iterable[Ratio], bound: float) -> tuple[bool, str]:
    """Whether the least favourable of some ratios lies above a bound with its whole interval, and its sentence."""
    ratios = list(ratios)
    if not ratios:
        raise NotMeasured("no pages of these sizes")
    least = min(ratios, key=lambda ratio: ratio.low)
    return least.low > bound, f"{effect}: {least.ratio:.3f} ({least.low:.3f} to {least.high:.3f})"


def _sizes(frame: pd.DataFrame, least: int, most: int) -> list[int]:
    """Page sizes of decode's main sweep, in rows."""
    sizes = set(where(frame, phase="decode", **PLAIN)["page_rows"]) - {0}
    return sorted(size for size in sizes if least <= size <= most)


@RULES.rule(
    "paged_decode",
    operands="pages of 16 rows or more in decode",
    take="TMA or cp.async",
    statement="In decode, gather pages of 16 rows or more by TMA or cp.async: nothing is lost to the pages.",
    scope=f"{DECODE}; the fastest gather of pages of 16 to 512 rows against the contiguous cache",
    applies_to="index_rows >= 16",
    practice=Practice(PAGED, f"mechanism == 'cp_async' or {TMA}"),
)
def _paged_decode(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = [paged_best_over_contiguous(frame, size) for size in _sizes(frame, 16, 512)]
    return _evidence("best gather over contiguous cache, throughput", ratios, 0.98)


@RULES.rule(
    "paged_issue",
    operands="rows copied one by one by TMA",
    take="several producer warps",
    statement="Let several warps issue TMA copies of single rows: one thread cannot issue them fast enough.",
    scope=f"{DECODE}; pages of 16 rows, a box for each row, four producer warps against one",
    applies_to="index_rows == 1",
)
def _paged_issue(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(frame, phase="decode", page_rows=16, variant="row", **PLAIN)
    four, one = (where(rows, issuers=issuers) for issuers in (4, 1))
    return _evidence("four producer warps over one, throughput", [paired(four, one, "gbps")], 1.0)


@RULES.rule(
    "paged_prefill",
    operands="pages of 8 rows or more beside busy tensor cores",
    take="tma_tile, a box for each page",
    statement="Beside busy tensor cores take TMA for pages of 8 rows or more, one box per page.",
    scope=f"{PREFILL}; pages of 8 to 512 rows",
    applies_to="index_rows >= 8 and compute_cycles > 0",
    practice=Practice(PAGED, TMA),
)
def _paged_prefill(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = [isolated_ratio(frame, "prefill", size) for size in _sizes(frame, 8, 512)]
    return _evidence("cp.async over TMA, time", ratios, 1.0)


@RULES.rule(
    "paged_short",
    operands="pages of 1 to 4 rows beside busy tensor cores",
    take="cp_async",
    statement="Take cp.async for pages of 1 to 4 rows, where a box is no more than a few rows.",
    scope=f"{PREFILL}; pages of 1, 2 and 4 rows",
    applies_to="index_rows >= 1 and index_rows <= 4",
    practice=Practice(
        "direction == 'load' and index_granularity == 'row' and phase == 'mainloop' and arch == 'sm_90' "
        "and consumer == 'shared' and row_bytes_max <= 2048",
        "mechanism == 'cp_async'",
    ),
)
def _paged_short(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = [isolated_ratio(frame, "prefill", size).inverse for size in _sizes(frame, 1, 4)]
    return _evidence("TMA over cp.async, time beside tensor cores", ratios, 1.0)


@RULES.rule(
    "paged_odd_rows",
    operands="pages that are one run, rows no multiple of 128 bytes",
    take="tma_bulk",
    statement="Copy a page whole, by TMA bulk, where it is one run of rows that are no multiple of 128 bytes "
    "(MLA in fp8) and nothing needs a swizzle.",
    scope="decode: 2 GiB from HBM in rows of 576 bytes, one KV head, pages of 64 rows in random order",
    practice=Practice(
        "direction == 'load' and consumer == 'shared' and operand in ['LSE', 'LSE_log2', 'dPsum', 'dQ_accum (fp32)']",
        "mechanism == 'tma_bulk'",
    ),
)
def _paged_odd_rows(frame: pd.DataFrame) -> tuple[bool, str]:
    rows = where(frame, phase="decode", row_bytes=576, page_rows=64)
    run, box = (where(rows, variant=variant) for variant in ("run", "box"))
    return _evidence(
        "TMA bulk over TMA boxes, throughput, rows of 576 bytes", [paired(run, box, "gbps")], 1.0
    )


def _shapes(frame: pd.DataFrame, column: str, chosen: str) -> list[Ratio]:
    """A ratio of `shape_cells`, with its interval, of the cells that a condition names."""
    cells = shape_cells(frame).query(chosen)
    return [Ratio(*one) for one in cells[[column, f"{column}_low", f"{column}_high"]].itertuples(index=False)]


@RULES.rule(
    "fa3_prefill",
    operands="FlashAttention-3's pages in prefill",
    take="tma_tile",
    statement="In prefill TMA loads FlashAttention-3's pages, whatever the model's shape: gathering takes at least 1% "
    "longer.",
    scope=f"{SHAPES}; 512 and 2,048 queries on 8,192 keys, the same call with and without a left padding of zero rows",
    experiments=("fa3_shapes",),
    practice=Practice(f"{PAGED} and system == 'FlashAttention-3'", TMA),
)
def _fa3_prefill(frame: pd.DataFrame) -> tuple[bool, str]:
    return _evidence("cp.async over TMA, whole calls", _shapes(frame, "ratio", "phase == 'prefill'"), 1.01)


@RULES.rule(
    "fa3_decode",
    operands="FlashAttention-3's pages in decode, few query rows",
    take="cp_async with a tile of fewer query rows",
    statement="In decode FlashAttention-3 may gather its pages: cp.async with 64 query rows to a tile is as fast as "
    "TMA with 128 or 192, or faster.",
    scope=f"{SHAPES}; one query on 8,192 to 131,072 keys, split and not, wherever the library gathers with a smaller "
    "tile than TMA's; equal: within the noise",
    experiments=("fa3_shapes",),
)
def _fa3_decode(frame: pd.DataFrame) -> tuple[bool, str]:
    cells = _shapes(
        frame, "chosen", "phase == 'decode' and rule_tile.str[:3] == '64 ' and tma_tile.str[:3] != '64 '"
    )
    if not cells:
        raise NotMeasured("no decode by cp.async with a smaller tile")
    most = max(cells, key=lambda ratio: ratio.low)
    return (
        most.low <= 1,
        f"cp.async over TMA, whole calls: {most.ratio:.3f} ({most.low:.3f} to {most.high:.3f}) at most",
    )


@RULES.rule(
    "mla_pages",
    operands="pages of absorbed MLA, 128 query heads",
    take="tma_tile, pages of 64 rows too",
    statement="Absorbed MLA with 128 query heads: load pages by TMA, those of 64 rows too; gathering takes at least "
    "1% longer.",
    scope="vLLM 0.33.0's FlashAttention-3, bf16, head dims 64 and 512, one KV head, whole calls; 1, 2 and 512 queries, "
    "1 to 128 sequences, split and not, pages of 64 and 128 rows: the same call with and without a left padding of "
    "zero rows",
    experiments=("fa3_shapes",),
)
def _mla_pages(frame: pd.DataFrame) -> tuple[bool, str]:
    return _evidence(
        "cp.async over TMA, whole calls", _shapes(frame, "ratio", "head_dim_v == 512 and heads == 128"), 1.01
    )
