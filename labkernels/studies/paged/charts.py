"""Charts of paged keys: gathering from HBM, beside tensor cores, and FlashAttention-3's own kernels."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from labkernels.charts.grammar import band_and_line, ceiling, mechanism_color, own_points
from labkernels.studies.paged.findings import SHAPE, most_issuers
from labkernels.studies.stats import having, where

_HBM_SCALE = alt.Scale(domain=[0, 5000])
_BOTH = ["cp_async", "tma_tile"]


def _rows_axis() -> alt.X:
    ticks = alt.Axis(values=[2**e for e in range(10)], labelFlush=False, labelOverlap=False)
    return alt.X(
        "page_rows:Q", title="Rows of a page", scale=alt.Scale(type="log", base=2, nice=False), axis=ticks
    )


def _bound(value: float, label: str) -> alt.LayerChart:
    """A ceiling with its label on the left, below the rule."""
    above = ceiling(value, label)
    rule, text = above.layer
    left = text.mark_text(align="left", baseline="top", dx=4, dy=4).encode(x=alt.value(0))
    return alt.layer(rule, left, data=above.data)


def decode(table: pd.DataFrame, contiguous: float, own: pd.DataFrame, title: str) -> alt.LayerChart:
    """Throughput over rows of a page, under the contiguous cache's.

    Args:
        table: of `findings.gathers`.
        contiguous: GB/s of the contiguous cache.
        own: the same of the reader's own run; may have no rows.
        title: which rows these are.
    """
    axis = _rows_axis()
    also = ["variant", "piece_rows", "issuers"]
    chart = band_and_line(table, axis, y_title="GB/s", y_scale=_HBM_SCALE, also=also)
    chart += ceiling(contiguous, f"contiguous {contiguous:,.0f} GB/s")
    if len(own):
        chart += own_points(own.rename(columns={"median": "GB/s"}), axis, "GB/s")
    return chart.properties(width=270, height=260, title=title)


def row_lengths(best: pd.DataFrame) -> alt.LayerChart:
    """Throughput by length of a row, a mark for each variant and the contiguous cache.

    Args:
        best: of `findings.by_row_length`.
    """
    table = best.assign(way=best["variant"].replace({"rows": "paged", "box": "paged", "run": "paged"}))
    color = mechanism_color(table["mechanism"].unique())
    base = alt.Chart(table).encode(
        x=alt.X("row_bytes:O", title="Bytes of a row", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("variant:N", sort=["contiguous", "rows", "box", "run"]),
        color=color,
    )
    shape = alt.Shape(
        "way:N",
        title="Cache",
        scale=alt.Scale(domain=["paged", "contiguous"], range=["circle", "diamond"]),
        legend=alt.Legend(symbolType="circle", symbolSize=90),
    )
    points = base.mark_point(filled=True, size=110).encode(
        y=alt.Y("median:Q", title="GB/s", scale=_HBM_SCALE),
        shape=shape,
        tooltip=["mechanism", "variant", "row_bytes", "issuers", "p05", "median", "p95", "gpu", "run_id"],
    )
    bars = base.mark_rule().encode(y="p05:Q", y2="p95:Q")
    return (bars + points).properties(width=600, height=260)


def hidden(table: pd.DataFrame, title: str) -> alt.LayerChart:
    """Time over that without copies, by rows of a page.

    Args:
        table: of `findings.unhidden`.
        title: which phase it is.
    """
    rows = most_issuers(table[table["variant"].isin(["rows", "box"])])
    chart = band_and_line(
        rows,
        _rows_axis(),
        y_title="Time / time without copies",
        y_scale=alt.Scale(type="log", base=2, domain=[0.9, 4], nice=False),
        y_ticks=[1, 1.2, 1.5, 2, 3, 4],
        also=["variant", "issuers", "unhidden_us"],
    )
    return (chart + _bound(1, "no copies")).properties(width=270, height=260, title=title)


def real_kernel(cells: pd.DataFrame) -> alt.LayerChart:
    """FlashAttention-3's time by cp.async over that by TMA, problem by problem, with what isolated kernels say.

    Args:
        cells: of `findings.predicted_signs`.
    """
    table = cells.assign(
        problem=[
            f"{c.phase}: {c.batch} × {c.seqlen_q} on {c.seqlen_k}, {c.heads}/{c.kv_heads} heads"
            for c in cells.itertuples()
        ],
        mechanism=cells["rule"],
        page=cells["page_rows"].astype(str) + " rows",
    )
    order = table.sort_values(["phase", "seqlen_q", "batch", "seqlen_k", "heads"])["problem"]
    problems = list(dict.fromkeys(order))
    base = alt.Chart(table).encode(
        y=alt.Y("problem:N", title=None, sort=problems, axis=alt.Axis(labelLimit=260)),
        yOffset=alt.YOffset("page:N", sort=["128 rows", "256 rows", "512 rows"]),
    )
    title, scale = "Time with cp.async / time with TMA", alt.Scale(domain=[0.98, 1.12], zero=False)
    intervals = base.mark_rule().encode(
        x=alt.X("ratio_low:Q", title=title, scale=scale), x2="ratio_high:Q", color=mechanism_color(_BOTH)
    )
    dots = base.mark_point(filled=True, size=50).encode(
        x=alt.X("ratio:Q", scale=scale),
        color=mechanism_color(_BOTH),
        tooltip=[
            "problem", "page", "rule", "best", "cp_async_us", "tma_tile_us", "ratio", "ratio_low", "ratio_high",
            "isolated", "regret", "gpu", "run_id",
        ],
    )  # fmt: skip
    alone = base.mark_tick(thickness=2, size=8).encode(
        x=alt.X("isolated:Q", scale=scale), color=alt.value("#7f8790")
    )
    chart = intervals + alone + dots + ceiling(1, "equal", "x")
    return chart.properties(width=420, height=alt.Step(9))


LEFT_EDGE = 0.93  # of the chart of model shapes


def model_shapes(cells: pd.DataFrame, phase: str) -> alt.LayerChart:
    """FlashAttention-3's whole calls by cp.async over those by TMA, shape by shape, and the library's choice beside it.

    Args:
        cells: of `findings.shape_cells`.
        phase: whose are drawn.
    """
    table = having(cells, phase=phase)
    table = table.assign(
        shape=[shape_name(cell) for cell in table.itertuples()],
        mechanism=table["rule"],
        page=table["page_rows"].astype(str) + " rows",
        tiles=table["page_rows"] // table.groupby(SHAPE)["page_rows"].transform("min"),
    )
    shapes = list(dict.fromkeys(table["shape"]))
    base = alt.Chart(table).encode(
        y=alt.Y("shape:N", title=None, sort=shapes, axis=alt.Axis(labelLimit=300)),
        yOffset=alt.YOffset("page:N"),
    )
    title, scale = (
        "Time with cp.async / with TMA",
        alt.Scale(domain=[LEFT_EDGE, 1.22], zero=False, clamp=True),
    )
    intervals = base.mark_rule().encode(
        x=alt.X("ratio_low:Q", title=title, scale=scale), x2="ratio_high:Q", color=mechanism_color(_BOTH)
    )
    dots = base.mark_point(filled=True, size=50).encode(
        x=alt.X("ratio:Q", scale=scale),
        color=mechanism_color(_BOTH),
        tooltip=[
            "shape", "page", "rule", "best", "gather_us", "gather_tile", "tma_us", "tma_tile", "ratio", "ratio_low",
            "ratio_high", "rule_us", "rule_tile", "chosen", "gpu", "run_id",
        ],
    )  # fmt: skip
    ticks = base.transform_filter("datum.rule == 'cp_async'").mark_tick(thickness=2, size=8)
    chosen = ticks.encode(x=alt.X("chosen:Q", scale=scale), color=alt.value("#7f8790"))
    chart = intervals + chosen + dots + ceiling(1, "equal", "x")
    return chart.properties(width=330, height=alt.Step(9), title=phase.capitalize())


def shape_name(cell: Any) -> str:
    """A shape in words: `MLA, 128/1 heads: 8 × 1 on 32768, 8 splits`.

    Args:
        cell: with the columns of `findings.SHAPE` as attributes.
    """
    dims = str(cell.head_dim) if cell.head_dim == cell.head_dim_v else f"{cell.head_dim}/{cell.head_dim_v}"
    model = "MLA" if cell.head_dim_v == 512 else f"dim {dims}"
    splits = f", {cell.num_splits} splits" if cell.num_splits > 1 else ""
    return f"{model}, {cell.heads}/{cell.kv_heads} heads: {cell.batch} × {cell.seqlen_q} on {cell.seqlen_k}{splits}"


def small_pages(table: pd.DataFrame, phase: str) -> alt.LayerChart:
    """FlashAttention-3's time over that of a contiguous cache, by rows of a page.

    Args:
        table: of `findings.over_contiguous`.
        phase: whose rows are drawn.
    """
    dots = alt.Chart(where(table, phase=phase)).encode(
        x=alt.X("page_rows:O", title="Rows of a page", axis=alt.Axis(labelAngle=0)),
        xOffset="mechanism:N",
        color=mechanism_color(_BOTH),
        tooltip=[
            "batch", "seqlen_q", "seqlen_k", "heads", "page_rows", "route", "mechanism", "median", "gpu", "run_id",
        ],
    )  # fmt: skip

    def y(column: str) -> alt.Y:
        scale = alt.Scale(domain=[0.94, 1.14], zero=False)
        return alt.Y(f"{column}:Q", title="Time / contiguous", scale=scale)

    medians = dots.mark_point(filled=True, size=45).encode(y=y("median"))
    intervals = dots.mark_rule().encode(y=y("p05"), y2="p95")
    chart = intervals + medians + _bound(1, "contiguous")
    return chart.properties(width=270, height=240, title=phase.capitalize())


def page_table(costs: pd.DataFrame, phase: str) -> alt.LayerChart:
    """FlashAttention-3's time by TMA with a page table over that without, by element type and head dim.

    Args:
        costs: of `findings.page_table_cost`.
        phase: whose rows are drawn.
    """
    table = having(costs, phase=phase).sort_values(["dtype", "head_dim", "page_rows"])
    table = table.assign(
        shape=[f"{c.dtype}, {c.head_dim} (tile of {c.tile_n})" for c in table.itertuples()],
        page=table["page_tiles"].astype(str),
    )
    shapes: Sequence[str] = list(dict.fromkeys(table["shape"]))
    base = alt.Chart(table).encode(
        y=alt.Y("shape:N", title=None, sort=shapes),
        yOffset=alt.YOffset("page:N"),
        color=mechanism_color(["tma_tile"]),
    )
    title, scale = "Time with pages / contiguous", alt.Scale(zero=False)
    intervals = base.mark_rule().encode(x=alt.X("ratio_low:Q", title=title, scale=scale), x2="ratio_high:Q")
    dots = base.mark_point(filled=True, size=50).encode(
        x=alt.X("ratio:Q", scale=scale),
        tooltip=[
            "dtype", "head_dim", "page_rows", "page_tiles", "route", "contiguous_us", "paged_us", "ratio", "ratio_low",
            "ratio_high", "gpu", "run_id",
        ],
    )  # fmt: skip
    chart = intervals + dots + ceiling(1, "contiguous", "x")
    return chart.properties(width=220, height=alt.Step(9), title=phase.capitalize())
