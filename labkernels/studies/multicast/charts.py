"""Charts of clusters: a way of bringing a tile has its mechanism's colour and a dash of its own."""

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import pandas as pd

from labkernels.charts.grammar import MECHANISM_STYLES, OWN, ceiling
from labkernels.studies.cluster_rows import WAYS

_SOLID, _DASHED, _DOTTED = (1, 0), (7, 3), (2, 2)
_DASHES = {"slices": _SOLID, "everyone": _SOLID, "leader": _DASHED, "alone": _DASHED, "scattered": _DOTTED}
_SHAPES = {
    "slices": "circle",
    "everyone": "circle",
    "leader": "square",
    "alone": "square",
    "scattered": "cross",
}
_PICK = alt.selection_point(name="picked_way", fields=["way"], bind="legend")


def _legend(ways: Iterable[str], **look: Any) -> alt.Legend:
    present = set(ways)
    shown = [way for way in WAYS.values() if way in present]
    return alt.Legend(values=shown, columns=3, labelLimit=260, **look)


def way_color(ways: Iterable[str], **look: Any) -> alt.Color:
    """Colour by column `way`; the legend lists the given ones, and looks as `look` says."""
    colors = [MECHANISM_STYLES[mechanism][0] for mechanism, _ in WAYS]
    scale = alt.Scale(domain=list(WAYS.values()), range=colors)
    return alt.Color("way:N", title="Way", scale=scale, legend=_legend(ways, **look))


def way_dash(ways: Iterable[str]) -> alt.StrokeDash:
    """Dash by column `way`, merged into the legend of `way_color`."""
    scale = alt.Scale(domain=list(WAYS.values()), range=[_DASHES[share] for _, share in WAYS])
    return alt.StrokeDash("way:N", title="Way", scale=scale, legend=_legend(ways))


def over(points: alt.Chart, own: pd.DataFrame | None) -> alt.Chart | alt.LayerChart:
    """Points, and over them the reader's own rows in the same encoding, as triangles; the points alone without any.

    Args:
        points: a chart of points over a frame.
        own: rows of the reader's own run, with the columns of that frame.
    """
    if own is None or own.empty:
        return points
    triangles = points.copy()
    triangles.data = own[list(points.data)]
    triangles.mark = alt.MarkDef(type="point", **OWN)
    triangles.encoding.shape = triangles.encoding.opacity = alt.Undefined
    return points + triangles


def fan_out_axis(title: str = "Fan-out: CTAs that want the same tile") -> alt.X:
    """The x axis of fan-outs: base-2 logarithm."""
    scale = alt.Scale(type="log", base=2, nice=False)
    return alt.X("fan_out:Q", title=title, scale=scale, axis=alt.Axis(values=[1, 2, 4, 8, 16], format="d"))


def ways(
    table: pd.DataFrame,
    x: alt.X,
    *,
    y: str = "median",
    low: str = "p05",
    high: str = "p95",
    y_title: str = "Bytes per clock and SM",
    also: Sequence[str] = (),
    own: pd.DataFrame | None = None,
    width: int = 600,
    height: int = 320,
) -> alt.LayerChart:
    """Lines through medians with bands from p05 to p95, one for each way; a click on the legend singles one out.

    Args:
        table: columns `way`, `gpu`, `run_id`, those of `x`, `y`, `low`, `high` and `also`.
        x: the x axis.
        y: column of the line.
        low: column of the band's lower edge.
        high: column of the band's upper edge.
        y_title: with its unit.
        also: further columns for the tooltip, or to facet by.
        own: the same columns for the reader's own run, drawn as triangles.
        width: of the plot, pixels.
        height: of the plot, pixels.
    """
    field = str(x.to_dict()["field"])
    columns = list(dict.fromkeys(["way", field, y, low, high, *also, "gpu", "run_id"]))
    present = table["way"].unique()
    tooltip = [
        alt.Tooltip(name, format=",.4~r") if name in (y, low, high) else alt.Tooltip(name) for name in columns
    ]
    vertical = alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(zero=True))
    base = alt.Chart(table[columns]).encode(x=x, color=way_color(present))
    shown = alt.when(_PICK).then(alt.value(1)).otherwise(alt.value(0.12))
    band = base.mark_area().encode(
        y=alt.Y(f"{low}:Q", title=y_title),
        y2=high,
        opacity=alt.when(_PICK).then(alt.value(0.2)).otherwise(alt.value(0.04)),
    )
    line = base.mark_line().encode(y=vertical, strokeDash=way_dash(present), opacity=shown)
    points = base.mark_point(filled=True, size=36).encode(y=vertical, opacity=shown, tooltip=tooltip)
    return alt.layer(band, line.add_params(_PICK), over(points, own)).properties(width=width, height=height)


def walls(table: pd.DataFrame, own: pd.DataFrame, source: str) -> alt.LayerChart:
    """What each way takes from L2 against what it brings into the SMs; rules where any way of any source took most.

    Args:
        table: `findings.traffic` of the stored rows.
        own: the same of the reader's own run; may have no rows.
        source: whose points are drawn.
    """
    rows, own = (frame[frame["source"].eq(source)] for frame in (table, own))
    present = table["way"].unique()
    look = {"symbolType": alt.Undefined, "symbolSize": 80}
    scale = alt.Scale(domain=list(WAYS.values()), range=[_SHAPES[share] for _, share in WAYS])
    shape = alt.Shape("way:N", title="Way", scale=scale, legend=_legend(present, **look))
    columns = ["way", "fan_out", "ctas", "median", "from_l2", "into_sms", "low", "high", "gpu", "run_id"]
    counted = ("median", "from_l2", "into_sms", "low", "high")
    x = alt.X("from_l2:Q", title="Read from L2, bytes per clock and SM", scale=alt.Scale(zero=True))
    y = alt.Y("into_sms:Q", title="Into the SMs, bytes per clock and SM", scale=alt.Scale(zero=True))
    shown = alt.when(_PICK).then(alt.value(1)).otherwise(alt.value(0.12))
    base = alt.Chart(rows[columns]).encode(x=x, color=way_color(present, **look), opacity=shown)
    points = base.mark_point(filled=True, size=60).encode(
        y=y,
        shape=shape,
        tooltip=[
            alt.Tooltip(name, format=".1f") if name in counted else alt.Tooltip(name) for name in columns
        ],
    )
    span = base.mark_rule().encode(y="low:Q", y2="high:Q")
    labels = base.mark_text(align="right", dx=-7).encode(y=y, text="fan_out:N")
    into_sms, from_l2 = table["into_sms"].max(), table["from_l2"].max()
    most = ceiling(into_sms, f"most {into_sms:.1f}") + ceiling(from_l2, f"most {from_l2:.1f}", axis="x")
    return alt.layer(most, span.add_params(_PICK), over(points, own), labels)


def bound(points: pd.DataFrame, x: alt.X, y: str, label: str) -> alt.LayerChart:
    """A bound that varies along x: a thin dashed line, labelled at its last point.

    Args:
        points: columns of `x` and `y`.
        x: the x axis.
        y: column of the bound, in the unit of the y axis.
        label: what binds.
    """
    base = alt.Chart(points.assign(bound=label)).encode(x=x, y=alt.Y(f"{y}:Q"))
    line = base.mark_line(strokeDash=[3, 3], strokeWidth=1.2, color="currentColor").encode(
        tooltip=[alt.Tooltip("bound:N", title="Bound"), alt.Tooltip(f"{y}:Q", format=",.4~r")]
    )
    last = points.iloc[[-1]].assign(bound=label)
    text = (
        alt.Chart(last)
        .mark_text(align="right", baseline="bottom", dy=-4)
        .encode(x=x, y=f"{y}:Q", text="bound:N")
    )
    return line + text


def crowd(table: pd.DataFrame, own: pd.DataFrame | None = None) -> alt.TopLevelMixin:
    """Bytes per clock and SM by clusters at once, a panel for multicast and one for unicast.

    Args:
        table: of `findings.by_clusters`.
        own: the reader's rows in the same form.
    """
    x = alt.X("clusters:Q", title="Clusters at once", scale=alt.Scale(type="log", base=2, nice=False))
    scale, title = alt.Scale(domain=[0, 130]), "Bytes per clock into each SM"
    y = alt.Y("median:Q", title=title, scale=scale)
    color = alt.Color("fan_out:O", title="Fan-out", scale=alt.Scale(scheme="viridis"))
    tooltip = ["share", "fan_out", "clusters", "ctas", alt.Tooltip("median:Q", format=".1f"), "gpu", "run_id"]

    def panel(share: str, heading: str) -> alt.LayerChart:
        rows = table[table["share"].eq(share)]
        base = alt.Chart(rows).encode(x=x, y=y, color=color)
        points = base.mark_point(filled=True, size=50).encode(tooltip=tooltip)
        mine = None if own is None else own[own["share"].eq(share)]
        bars = base.mark_rule().encode(y=alt.Y("p05:Q", title=title, scale=scale), y2="p95:Q")
        layers = base.mark_line() + bars + over(points, mine) + ceiling(128, "port of an SM")
        return layers.properties(width=280, height=260, title=heading)

    return panel("slices", "Multicast") | panel("everyone", "Every CTA for itself")
