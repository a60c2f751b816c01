"""Charts of streams: bandwidth by bytes in flight, by footprint and by length of rows; cycles per tile."""

import altair as alt
import pandas as pd

from labkernels.charts import grammar as charts
from labkernels.operand import KIB, MIB

_PRICES = {
    "bytes_in_flight_per_sm": "Bytes in flight per SM",
    "shared_bytes_per_sm": "Shared memory taken per SM, bytes",
}
_CELL = ("kernel", "tile_bytes", "stages", "ctas_per_sm", "threads")
_INTO_SHARED = "GB/s into shared memory"
_DASHED = {"strokeDash": [3, 3], "color": "currentColor"}


def bandwidth(
    table: pd.DataFrame,
    ceiling: alt.LayerChart | None,
    price: str = "bytes_in_flight_per_sm",
    *,
    y_title: str = _INTO_SHARED,
    published: pd.DataFrame | None = None,
    own: pd.DataFrame | None = None,
) -> alt.LayerChart:
    """Bandwidth over bytes in flight or shared memory taken, a line for each mechanism.

    Args:
        table: of `prices.frontier`, rows of one source.
        ceiling: the bound, where one is known.
        price: the column of the x axis.
        y_title: with its unit.
        published: rows of table `published` with a rate over bytes in flight.
        own: the reader's own rows, of `prices.frontier`.
    """
    x = charts.bytes_axis(price, _PRICES[price])
    chart = charts.band_and_line(table, x, y_title=y_title, also=_CELL)
    if ceiling is not None:
        chart += ceiling
    if published is not None:
        theirs = published.dropna(subset=["bytes_in_flight_per_sm"]).rename(columns={"value": "gbps"})
        chart += charts.published_points(theirs.astype({"bytes_in_flight_per_sm": int}), x, "gbps")
    if own is not None and len(own):
        chart += charts.own_points(own, x, "median")
    return chart


def footprints(table: pd.DataFrame, l2_bytes: int, own: pd.DataFrame) -> alt.LayerChart:
    """Bandwidth over the memory that is read again and again; half of L2 as a rule.

    Args:
        table: of `findings.by_footprint`.
        l2_bytes: size of L2.
        own: the same of the reader's own run; may have no rows.
    """
    scale = alt.Scale(type="log", base=2, domain=[4, 128], nice=False)
    x = alt.X("mebibytes:Q", title="MiB read again and again", scale=scale)
    chart = charts.band_and_line(table, x, y_title=_INTO_SHARED, also=["footprint_bytes", "variant"])
    if len(own):
        chart += charts.own_points(own, x, "median")
    half = alt.Chart(alt.Data(values=[{"mebibytes": l2_bytes / (2 * MIB)}]))
    return chart + half.mark_rule(**_DASHED).encode(x=x)


def ratios(table: pd.DataFrame) -> alt.FacetChart:
    """TMA over cp.async with its interval, a panel for each source and price.

    Args:
        table: of `prices.panels`.
    """
    panel = charts.band_and_line(
        table,
        charts.bytes_axis("bytes", "Bytes per SM"),
        median="ratio",
        low="low",
        high="high",
        y_title="TMA ÷ cp.async",
        y_scale=alt.Scale(domain=[0.6, 1.1]),
        also=["panel", "first", "second"],
    ).properties(width=270, height=180)
    return panel.facet(facet=alt.Facet("panel:N", title=None), columns=2)


def same_pipeline(table: pd.DataFrame) -> alt.FacetChart:
    """TMA over cp.async in the same pipeline over its stages, a panel for each tile, a color for the warps.

    Args:
        table: of `prices.same_pipeline`, one CTA per SM.
    """
    shown = table.assign(
        tile=table["tile_bytes"].map(charts.bytes_label),
        pairs=table["warps"].map(lambda warps: f"{warps} + {warps}"),
    ).drop(columns="equal")
    base = alt.Chart(shown).encode(
        x=alt.X("stages:Q", title="Stages"),
        color=alt.Color("pairs:N", title="Producer + consumer warps"),
        tooltip=[
            "tile",
            "stages",
            "pairs",
            alt.Tooltip("ratio:Q", format=".3f"),
            "low",
            "high",
            "gpu",
            "run_id",
        ],
    )
    scale = alt.Scale(domain=[0.96, 1.08])
    bars = base.mark_rule(strokeWidth=3, opacity=0.35).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q")
    points = base.mark_point(filled=True, size=40).encode(
        y=alt.Y("ratio:Q", title="TMA ÷ cp.async", scale=scale)
    )
    panel = alt.layer(bars, points).properties(width=180, height=200)
    sizes = [charts.bytes_label(size) for size in sorted(table["tile_bytes"].unique())]
    return panel.facet(column=alt.Column("tile:N", title="Tile", sort=sizes))


def plain_loads(table: pd.DataFrame) -> alt.FacetChart:
    """The fastest plain loads over bytes in flight, a panel for each source, a line for each form.

    Args:
        table: of `numbers.forms_of_loads`.
    """
    x = charts.bytes_axis("bytes_in_flight_per_sm", _PRICES["bytes_in_flight_per_sm"])
    base = alt.Chart(table).encode(
        x=x,
        y=alt.Y("median:Q", title="GB/s"),
        color=alt.Color("form:N", title="Form", sort=list(table["form"].unique())),
        tooltip=[
            "form",
            "kernel",
            "threads",
            "ctas_per_sm",
            alt.Tooltip("median:Q", format=",.0f"),
            "gpu",
            "run_id",
        ],
    )
    panel = alt.layer(base.mark_line(), base.mark_point(filled=True, size=36)).properties(
        width=270, height=220
    )
    return panel.facet(column=alt.Column("place:N", title=None))


def cycles_per_tile(pipelines: pd.DataFrame, bytes_per_clock: float) -> alt.LayerChart:
    """Cycles that one pipeline takes for a tile, over the tile's size, and what the memory's rate would allow.

    Args:
        pipelines: of `findings.with_cycles_per_tile`, one row for each mechanism and tile.
        bytes_per_clock: rate of the memory, for each SM.
    """
    x = charts.bytes_axis("tile_bytes", "Tile")
    line = charts.band_and_line(
        pipelines.assign(low=pipelines["cycles_per_tile"], high=pipelines["cycles_per_tile"]),
        x,
        median="cycles_per_tile",
        low="low",
        high="high",
        y_title="SM cycles per tile",
        also=["stages", "variant"],
    )
    sizes = [KIB << power for power in range(6)]
    limit = [{"tile_bytes": size, "cycles": size / bytes_per_clock} for size in sizes]
    return line + alt.Chart(alt.Data(values=limit)).mark_line(**_DASHED).encode(x=x, y="cycles:Q")


def row_lengths(shapes: pd.DataFrame) -> alt.FacetChart:
    """Bandwidth of one tile by the length of its rows, a panel for each place and tensor.

    Args:
        shapes: of `findings.by_row_shape`, without swizzle and promotion.
    """
    panel = charts.band_and_line(
        shapes, charts.bytes_axis("inner_bytes", "Bytes of a row"), y_title=_INTO_SHARED, also=["place"]
    ).properties(width=270, height=200)
    return panel.facet(facet=alt.Facet("place:N", title=None), columns=2)


def promotion(shapes: pd.DataFrame) -> alt.FacetChart:
    """Bandwidth of TMA tiles by the length of their rows and by L2 promotion, a panel for each tensor.

    Args:
        shapes: of `findings.by_row_shape`, TMA tiles from HBM without swizzle.
    """
    words = {0: "none", 128: "128 B", 256: "256 B"}
    points = (
        alt.Chart(shapes.assign(promotion=shapes["l2_promotion_bytes"].map(words)))
        .mark_point(filled=True, size=60)
        .encode(
            x=alt.X("inner_bytes:O", title="Bytes of a row"),
            y=alt.Y("median:Q", title="GB/s from HBM"),
            color=alt.Color(
                "promotion:N",
                title="L2 promotion",
                sort=list(words.values()),
                legend=alt.Legend(symbolType="circle", symbolSize=80),
            ),
            tooltip=[
                "promotion",
                "inner_bytes",
                "pitch_bytes",
                alt.Tooltip("median:Q", format=",.0f"),
                "gpu",
                "run_id",
            ],
        )
        .properties(width=270, height=200)
    )
    return points.facet(column=alt.Column("tensor:N", title=None))


def repeatability(table: pd.DataFrame) -> alt.Chart:
    """Spread over rounds of every configuration by its throughput.

    Args:
        table: of `findings.rates`, with `spread_percent`, 95th over 5th percentile.
    """
    return (
        alt.Chart(table)
        .mark_point(filled=True, size=30, opacity=0.6)
        .encode(
            x=alt.X("median:Q", title="GB/s (median)"),
            y=alt.Y("spread_percent:Q", title="Spread of nine rounds, %", scale=alt.Scale(type="symlog")),
            color=charts.mechanism_color(table["mechanism"], dots=True),
            tooltip=[
                "kernel",
                "source",
                "tile_bytes",
                "stages",
                "ctas_per_sm",
                alt.Tooltip("spread_percent:Q", format=".1f"),
                "gpu",
                "run_id",
            ],
        )
    )
