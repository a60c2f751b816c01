"""Charts of main loops: what tensor cores, or FFMA, reach beside each producer."""

import altair as alt
import pandas as pd

from labkernels.charts import grammar as charts

_RATE = "Share of the tensor cores' peak"
_FULL = alt.Scale(domain=[0, 1.05])


def by_stages(table: pd.DataFrame, own: pd.DataFrame) -> alt.HConcatChart:
    """Share of the peak over the stages of the pipeline, a panel for each tile, a line for each producer.

    Args:
        table: of `mainloop_findings.contest`.
        own: the same of the reader's own run; may have no rows.
    """

    def panel(tile: str) -> alt.LayerChart:
        rows = table[table["tile"].eq(tile)]
        x = alt.X(
            "stages:Q", title="Stages", axis=alt.Axis(values=sorted(rows["stages"].unique()), format="d")
        )
        line = charts.band_and_line(
            rows,
            x,
            median="share",
            low="share_low",
            high="share_high",
            y_title=_RATE,
            y_scale=_FULL,
            also=["tile", "producer_warps", "median"],
        )
        if len(mine := own[own["tile"].eq(tile)] if len(own) else own):
            line += charts.own_points(mine, x, "share")
        return line.properties(width=160, height=220, title=tile)

    return alt.hconcat(*(panel(tile) for tile in table["tile"].unique())).resolve_scale(y="shared")


def by_warps(table: pd.DataFrame) -> alt.HConcatChart:
    """Share of the peak over the warps that copy, a panel for each tile.

    Args:
        table: of `mainloop_findings.by_warps`.
    """
    axis = alt.Axis(values=[1, 2, 4, 8], format="d")

    def panel(tile: str) -> alt.LayerChart:
        rows = table[table["tile"].eq(tile)]
        x = alt.X(
            "producer_warps:Q",
            title="Warps that copy",
            scale=alt.Scale(type="log", base=2, domain=[1, 8]),
            axis=axis,
        )
        line = charts.band_and_line(
            rows,
            x,
            median="share",
            low="share_low",
            high="share_high",
            y_title=_RATE,
            y_scale=_FULL,
            also=["tile", "stages", "median"],
        )
        return line.properties(width=160, height=220, title=tile)

    return alt.hconcat(*(panel(tile) for tile in table["tile"].unique())).resolve_scale(y="shared")


def by_swizzle(table: pd.DataFrame) -> alt.HConcatChart:
    """Cycles of a step by the tile's swizzle, a panel for each consumer, a line for each producer.

    Args:
        table: of `mainloop_findings.by_swizzle`, one order of lanes.
    """

    def panel(consumer: str) -> alt.LayerChart:
        rows = table[table["consumer"].eq(consumer)]
        x = alt.X(
            "width:Q",
            title="Bytes of a column of the tile",
            scale=alt.Scale(type="log", base=2, domain=[16, 128], reverse=True),
            axis=alt.Axis(values=[16, 32, 64, 128], format="d"),
        )
        chart = charts.band_and_line(
            rows,
            x,
            y_title="Cycles of a step",
            y_scale=alt.Scale(type="log", base=2, domain=[256, 4096]),
            y_ticks=[256, 512, 1024, 2048, 4096],
            also=["consumer"],
        )
        if (bound := rows["bound_cycles_per_step"].max()) > 0:
            chart += charts.ceiling(bound, "the products")
        return chart.properties(width=250, height=240, title=consumer)

    return alt.hconcat(*(panel(consumer) for consumer in table["consumer"].unique())).resolve_scale(
        y="shared"
    )


def left_over(table: pd.DataFrame) -> alt.LayerChart:
    """Share of the FFMA rate alone that is left beside each producer, over FFMA for each word.

    Args:
        table: of `mainloop_findings.left_over`.
    """
    order = list(table["way"].unique())
    legend = alt.Legend(columns=3, symbolType="circle", symbolSize=80, symbolStrokeWidth=0)
    base = alt.Chart(table).encode(
        x=alt.X("ffma_per_word:O", title="FFMA for each word of 4 bytes", axis=alt.Axis(labelAngle=0)),
        color=alt.Color("way:N", title=None, sort=order, legend=legend),
        xOffset=alt.XOffset("way:N", sort=order),
    )
    scale = alt.Scale(domain=[0, 1.05])
    bars = base.mark_rule(strokeWidth=3, opacity=0.4).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q")
    points = base.mark_point(filled=True, size=70).encode(
        y=alt.Y("ratio:Q", title="FFMA rate over that alone", scale=scale),
        tooltip=[
            "way",
            "ffma_per_word",
            alt.Tooltip("ratio:Q", format=".3f"),
            "low",
            "high",
            "gpu",
            "run_id",
        ],
    )
    return bars + points
