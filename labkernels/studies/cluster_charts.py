"""Charts of clusters: a transport has its mechanism's color and a dash of its own."""

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import pandas as pd

from labkernels.charts.grammar import MECHANISM_STYLES, OWN
from labkernels.studies.cluster_rows import TRANSPORTS

_SOLID, _DASHED, _DOTTED = (1, 0), (7, 3), (2, 2)
_DASHES = {"slices": _SOLID, "everyone": _SOLID, "leader": _DASHED, "alone": _DASHED, "scattered": _DOTTED}
#: One pick for all charts of transports: those of one concatenation share it.
PICK = alt.selection_point(name="picked_transport", fields=["transport"], bind="legend")


def transport_legend(transports: Iterable[str], **look: Any) -> alt.Legend:
    """The legend of column `transport`: the given ones, in their order, looking as `look` says."""
    present = set(transports)
    shown = [transport for transport in TRANSPORTS.values() if transport in present]
    return alt.Legend(values=shown, columns=3, labelLimit=260, **look)


def transport_color(transports: Iterable[str], **look: Any) -> alt.Color:
    """Colour by column `transport`; the legend lists the given ones, and looks as `look` says."""
    colors = [MECHANISM_STYLES[mechanism][0] for mechanism, _ in TRANSPORTS]
    scale = alt.Scale(domain=list(TRANSPORTS.values()), range=colors)
    return alt.Color(
        "transport:N", title="Transport", scale=scale, legend=transport_legend(transports, **look)
    )


def transport_dash(transports: Iterable[str]) -> alt.StrokeDash:
    """Dash by column `transport`, merged into the legend of `transport_color`."""
    scale = alt.Scale(domain=list(TRANSPORTS.values()), range=[_DASHES[share] for _, share in TRANSPORTS])
    return alt.StrokeDash("transport:N", title="Transport", scale=scale, legend=transport_legend(transports))


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


def fan_out_axis(title: str = "Fan-out: CTAs that need the same tile") -> alt.X:
    """The x axis of fan-outs: base-2 logarithm."""
    scale = alt.Scale(type="log", base=2, nice=False)
    return alt.X("fan_out:Q", title=title, scale=scale, axis=alt.Axis(values=[1, 2, 4, 8, 16], format="d"))


def transports(
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
        table: columns `transport`, `gpu`, `run_id`, those of `x`, `y`, `low`, `high` and `also`.
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
    columns = list(dict.fromkeys(["transport", field, y, low, high, *also, "gpu", "run_id"]))
    present = table["transport"].unique()
    tooltip = [
        alt.Tooltip(name, format=",.4~r") if name in (y, low, high) else alt.Tooltip(name) for name in columns
    ]
    vertical = alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(zero=True))
    base = alt.Chart(table[columns]).encode(x=x, color=transport_color(present))
    shown = alt.when(PICK).then(alt.value(1)).otherwise(alt.value(0.12))
    band = base.mark_area().encode(
        y=alt.Y(f"{low}:Q", title=y_title),
        y2=high,
        opacity=alt.when(PICK).then(alt.value(0.2)).otherwise(alt.value(0.04)),
    )
    line = base.mark_line().encode(y=vertical, strokeDash=transport_dash(present), opacity=shown)
    points = base.mark_point(filled=True, size=36).encode(y=vertical, opacity=shown, tooltip=tooltip)
    return alt.layer(band, line.add_params(PICK), over(points, own)).properties(width=width, height=height)


def bound(points: pd.DataFrame, x: alt.X, y: str, label: str) -> alt.LayerChart:
    """A bound that varies along x: a thin dashed line, labeled at its right end.

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
    last = points.loc[[points[x.to_dict()["field"]].idxmax()]].assign(bound=label)
    text = (
        alt.Chart(last)
        .mark_text(align="right", baseline="bottom", dy=-4)
        .encode(x=x, y=f"{y}:Q", text="bound:N")
    )
    return line + text
