"""Charts of multicast: fan-out, no cluster, lags, the coalescer, what binds, turn-around, handshake, latency."""

import altair as alt
import pandas as pd

from labkernels.charts.grammar import PALETTE, bytes_axis, ceiling
from labkernels.operand import KIB
from labkernels.studies.cluster_charts import (
    PICK,
    bound,
    fan_out_axis,
    over,
    transport_color,
    transport_legend,
    transports,
)
from labkernels.studies.cluster_rows import IN_STEP, LARGE, TRANSPORTS
from labkernels.studies.multicast.findings import AT_ONCE, FENCES, RELEASES, WATCHED
from labkernels.studies.multicast.whole_gpu import PIPELINES_KIB
from labkernels.studies.stats import having, where

_SHAPES = {
    "slices": "circle", "everyone": "circle", "leader": "square", "alone": "square", "scattered": "cross"
}  # fmt: skip
_PORT_BYTES_PER_CLOCK = 128  # what an SM writes into its shared memory
_FAN_OUTS = [1, 2, 4, 8, 16]
_SHARED = _FAN_OUTS[1:]


def fan_out(
    table: pd.DataFrame, own: pd.DataFrame, source: str, published: pd.DataFrame | None = None
) -> alt.LayerChart:
    """Delivered bytes over fan-out, a line for each transport, under the bound of reads that all share.

    Args:
        table: of `cluster_rows.rates`.
        own: the same of the reader's own run; may have no rows.
        source: whose rows are drawn, those of `LARGE` pipelines.
        published: rows of table `published` on multicast, with their fan-out in the conditions.
    """
    rows, axis = where(table, source=source, **LARGE), fan_out_axis()
    alone = rows.loc[rows["fan_out"].eq(1), "median"].max()
    limit = pd.DataFrame({"fan_out": [1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 16]})
    limit["limit"] = (limit["fan_out"] * alone).clip(upper=_PORT_BYTES_PER_CLOCK)
    shape = {"also": ["tile_bytes", "stages", "ctas"], "own": having(own, source=source, **LARGE)}
    chart = transports(rows, axis, **shape, width=280, height=300)
    chart += bound(limit, axis, "limit", "reads shared by all")
    if published is not None:
        theirs = published[["value", "gpu", "conditions", "source"]].assign(
            fan_out=published["conditions"].str.extract(r"fan-out (\d+)")[0].astype(int)
        )
        diamonds = {
            "shape": "diamond",
            "filled": False,
            "size": 90,
            "strokeWidth": 1.8,
            "color": "currentColor",
        }
        chart += (
            alt.Chart(theirs[["fan_out", "value", "gpu", "conditions", "source"]])
            .mark_point(**diamonds)
            .encode(x=axis, y="value:Q", tooltip=["gpu", "value", "conditions", "source"])
        )
    return chart


def reads(counted: pd.DataFrame, own: pd.DataFrame, tile_bytes: int) -> alt.LayerChart:
    """Bytes that L2 reads for a delivered byte over fan-out, beside one over fan-out.

    Args:
        counted: of `findings.read_ratios`.
        own: the same of the reader's own run; may have no rows.
        tile_bytes: whose pipelines of six stages in step are drawn.
    """
    shape = {"source": "l2", **IN_STEP, "tile_bytes": tile_bytes, "stages": LARGE["stages"]}
    axis = fan_out_axis("Fan-out")
    chart = transports(
        where(counted, **shape),
        axis,
        y="read",
        low="read",
        high="read",
        y_title="Bytes read from L2 per byte delivered",
        own=having(own, **shape),
        width=280,
        height=280,
    )
    floor = pd.DataFrame({"fan_out": _FAN_OUTS, "floor": [1 / fan_out for fan_out in _FAN_OUTS]})
    return chart + bound(floor, axis, "floor", "1/fan-out")


def gains(table: pd.DataFrame, own: pd.DataFrame, source: str) -> alt.LayerChart:
    """What multicast delivers to the whole GPU over neighbors without a cluster, by shared memory, a line a fan-out.

    Args:
        table: of `whole_gpu.gains`.
        own: the same of the reader's own run; may have no rows.
        source: whose rows are drawn.
    """
    rows = where(table, source=source)
    scale, title = alt.Scale(domain=[0.6, 1.6]), "Whole GPU: multicast over neighbours"
    y = alt.Y("ratio:Q", title=title, scale=scale)
    columns = [
        "fan_out",
        "pipeline_kib",
        "ratio",
        "low",
        "high",
        "multicast_gbps",
        "neighbours_gbps",
        "multicast_pipeline",
    ]
    columns += ["neighbours_pipeline", "gpu", "run_id"]
    look = {"title": "Fan-out", "legend": alt.Legend(symbolType="circle", symbolSize=80)}
    color = alt.Color(
        "fan_out:N", scale=alt.Scale(domain=_SHARED, range=list(PALETTE[: len(_SHARED)])), **look
    )
    axis = alt.Axis(values=list(PIPELINES_KIB), format="d")
    x = alt.X(
        "pipeline_kib:Q",
        title="Pipeline of a CTA, KiB",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=axis,
    )
    base = alt.Chart(rows[columns]).encode(x=x, color=color)
    band = base.mark_rule().encode(y=alt.Y("low:Q", title=title, scale=scale), y2="high:Q")
    points = base.mark_point(filled=True, size=50).encode(y=y, tooltip=columns)
    layers = base.mark_line().encode(y=y) + band + over(points, having(own, source=source))
    return (layers + ceiling(1, "no cluster")).properties(width=280, height=260)


def lag(table: pd.DataFrame, own: pd.DataFrame, fan_out: int) -> alt.LayerChart:
    """Rates of the whole GPU over the lag between CTAs, a line for each transport.

    Args:
        table: of `whole_gpu.out_of_step`.
        own: the same of the reader's own run; may have no rows.
        fan_out: whose rows are drawn.
    """
    axis = alt.X(
        "lag:Q",
        title="Lag of each CTA behind the one before, cycles",
        scale=alt.Scale(type="log", base=10, nice=False),
        axis=alt.Axis(
            values=[25, 200, 1000, 5000],
            labelExpr="datum.value == 25 ? '0' : datum.value",
        ),
    )
    rows, mine = where(table, fan_out=fan_out), having(own, fan_out=fan_out)
    title = "GB/s, the whole GPU"
    return transports(rows, axis, y_title=title, also=["lag_cycles", "ctas"], own=mine, width=280, height=240)


def walls(table: pd.DataFrame, own: pd.DataFrame, source: str) -> alt.LayerChart:
    """What each transport takes from L2 and brings into the SMs; rules where any transport of any source took most.

    Args:
        table: `findings.traffic` of the stored rows.
        own: the same of the reader's own run; may have no rows.
        source: whose points are drawn.
    """
    rows, own = (frame[frame["source"].eq(source)] for frame in (table, own))
    present = table["transport"].unique()
    look = {"symbolType": alt.Undefined, "symbolSize": 80}
    scale = alt.Scale(domain=list(TRANSPORTS.values()), range=[_SHAPES[share] for _, share in TRANSPORTS])
    shape = alt.Shape("transport:N", title="Transport", scale=scale, legend=transport_legend(present, **look))
    columns = [
        "transport",
        "fan_out",
        "ctas",
        "median",
        "from_l2",
        "into_sms",
        "low",
        "high",
        "gpu",
        "run_id",
    ]
    counted = ("median", "from_l2", "into_sms", "low", "high")
    x = alt.X("from_l2:Q", title="Read from L2, bytes per clock and SM", scale=alt.Scale(zero=True))
    y = alt.Y("into_sms:Q", title="Into the SMs, bytes per clock and SM", scale=alt.Scale(zero=True))
    shown = alt.when(PICK).then(alt.value(1)).otherwise(alt.value(0.12))
    base = alt.Chart(rows[columns]).encode(x=x, color=transport_color(present, **look), opacity=shown)
    points = base.mark_point(filled=True, size=60).encode(
        y=y,
        shape=shape,
        tooltip=[
            alt.Tooltip(name, format=".1f") if name in counted else alt.Tooltip(name) for name in columns
        ],
    )
    span = base.mark_rule().encode(y="low:Q", y2="high:Q")
    named = alt.Chart(_apart(rows[columns])).encode(
        x=x, color=transport_color(present, **look), opacity=shown
    )
    labels = named.mark_text(align="right", dx=-7).encode(y=y, text="fan_out:N")
    into_sms, from_l2 = table["into_sms"].max(), table["from_l2"].max()
    most = ceiling(into_sms, f"most {into_sms:.1f}") + ceiling(from_l2, f"most {from_l2:.1f}", axis="x")
    return alt.layer(most, span.add_params(PICK), over(points, own), labels)


def _apart(rows: pd.DataFrame, share: float = 0.06) -> pd.DataFrame:
    """Points whose labels do not overprint each other: a share of an axis apart, large fan-outs first."""
    kept: list[tuple[float, float]] = []
    places = rows[["from_l2", "into_sms"]] / rows[["from_l2", "into_sms"]].max()
    for x, y in places.loc[rows["fan_out"].sort_values(ascending=False, kind="stable").index].itertuples(
        index=False
    ):
        if all(abs(x - a) > share or abs(y - b) > share for a, b in kept):
            kept.append((x, y))
    return rows[[(x, y) in kept for x, y in places.itertuples(index=False)]]


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
        layers = (
            base.mark_line() + bars + over(points, mine) + ceiling(_PORT_BYTES_PER_CLOCK, "port of an SM")
        )
        return layers.properties(width=280, height=260, title=heading)

    return panel("slices", "Multicast") | panel("everyone", "Unicast")


def widths(table: pd.DataFrame, own: pd.DataFrame) -> alt.LayerChart:
    """Bytes into each SM by how many CTAs one multicast serves, a line for so many clusters at once.

    Args:
        table: of `findings.widths`.
        own: the same of the reader's own run; may have no rows.
    """
    shape = {"share": "leader"}
    rows, mine = (
        one[one["cluster"].eq(one["fan_out"])] for one in (where(table, **shape), having(own, **shape))
    )
    columns = ["fan_out", "clusters", "at_once", "median", "p05", "p95", "gpu", "run_id"]
    title = "Bytes per clock into each SM"
    y = alt.Y("median:Q", title=title, scale=alt.Scale(domain=[0, 130]))
    look = {"title": "Clusters", "legend": alt.Legend(symbolType="circle", symbolSize=80, labelLimit=200)}
    color = alt.Color("at_once:N", scale=alt.Scale(domain=list(AT_ONCE), range=list(PALETTE[:3])), **look)
    x = alt.X(
        "fan_out:Q",
        title="CTAs that one multicast serves",
        axis=alt.Axis(values=list(range(2, 17, 2)), format="d"),
    )
    base = alt.Chart(rows[columns]).encode(x=x, color=color)
    spread = base.mark_rule().encode(y=alt.Y("p05:Q", title=title), y2="p95:Q")
    points = base.mark_point(filled=True, size=50).encode(y=y, tooltip=columns)
    layers = base.mark_line().encode(y=y) + spread + over(points, mine)
    return (layers + ceiling(_PORT_BYTES_PER_CLOCK, "port of an SM")).properties(width=600, height=260)


def arrivals(table: pd.DataFrame, own: pd.DataFrame, cluster: int) -> alt.LayerChart:
    """Cycles until a copy is visible over its bytes, a line for what is watched.

    Args:
        table: of `findings.arrivals`.
        own: the same of the reader's own run; may have no rows.
        cluster: whose rows are drawn.
    """
    rows = where(table, cluster=cluster)
    columns = ["watched", "transfer_bytes", "median", "p05", "p95", "gpu", "run_id"]
    y = alt.Y("median:Q", title="Cycles until it is visible", scale=alt.Scale(domain=[250, 800]))
    names = list(WATCHED.values())
    look = {
        "title": None,
        "legend": alt.Legend(symbolType="circle", symbolSize=80, labelLimit=260, columns=2),
    }
    color = alt.Color("watched:N", scale=alt.Scale(domain=names, range=list(PALETTE[: len(names)])), **look)
    base = alt.Chart(rows[columns]).encode(x=bytes_axis("transfer_bytes", "Copy"), color=color)
    points = base.mark_point(filled=True, size=40).encode(y=y, tooltip=columns)
    layers = base.mark_line().encode(y=y) + over(points, having(own, cluster=cluster))
    return layers.properties(width=280, height=260)


def turn(table: pd.DataFrame, own: pd.DataFrame, warps: str) -> alt.LayerChart:
    """Cycles per tile over the tile's size, above what an SM's port would allow.

    Args:
        table: of `findings.turns`.
        own: the same of the reader's own run; may have no rows.
        warps: producer and consumer warps whose rows are drawn, as in `1 + 1`.
    """
    axis = bytes_axis("tile_bytes", "Tile")
    chart = transports(
        where(table, warps=warps),
        axis,
        y="cycles_per_tile",
        low="low",
        high="high",
        y_title="Cycles per tile",
        also=["stages"],
        own=having(own, warps=warps),
        width=175,
        height=240,
    )
    limits = pd.DataFrame({"tile_bytes": [2 * KIB * 2 ** (step / 2) for step in range(9)]})
    limits["limit"] = limits["tile_bytes"] / _PORT_BYTES_PER_CLOCK
    return chart + bound(limits, axis, "limit", f"{_PORT_BYTES_PER_CLOCK} B/clk")


def releases(table: pd.DataFrame, own: pd.DataFrame) -> alt.LayerChart:
    """Cycles per tile by how a stage is released, a mark for each fan-out.

    Args:
        table: of `findings.releases`.
        own: the same of the reader's own run; may have no rows.
    """
    y = alt.Y("said:N", title=None, sort=list(RELEASES.values()), axis=alt.Axis(labelLimit=260))
    columns = ["said", "fan_out", "cycles_per_tile", "low", "high", "fence", "gpu", "run_id"]
    base = alt.Chart(table[columns]).encode(y=y)
    scale = alt.Scale(type="log", base=2, domain=[200, 8192], nice=False)
    points = base.mark_point(filled=True, size=70).encode(
        x=alt.X("cycles_per_tile:Q", title="Cycles per tile", scale=scale),
        shape=alt.Shape(
            "fan_out:N",
            title="Fan-out",
            scale=alt.Scale(range=["circle", "square", "diamond", "cross"]),
            legend=alt.Legend(symbolType=alt.Undefined, symbolSize=80, orient="bottom"),
        ),
        color=alt.Color(
            "fence:N",
            title=None,
            scale=alt.Scale(domain=list(FENCES.values()), range=PALETTE[:2]),
            legend=alt.Legend(symbolType="circle", symbolSize=80, labelLimit=240),
        ),
        tooltip=["said", "fan_out", alt.Tooltip("cycles_per_tile", format=".0f"), "gpu", "run_id"],
    )
    bars = base.mark_rule().encode(x="low:Q", x2="high:Q")
    return (bars + over(points, own)).properties(width=430, height=alt.Step(24))


def stage_loops(table: pd.DataFrame, own: pd.DataFrame, tile_bytes: int, fan_out: int) -> alt.LayerChart:
    """Cycles from one use of a stage to the next over stages, from HBM.

    Args:
        table: of `findings.stage_loops`.
        own: the same of the reader's own run; may have no rows.
        tile_bytes: of the pipelines that are drawn.
        fan_out: of the pipelines that are drawn.
    """
    shape = {"source": "hbm", "tile_bytes": tile_bytes, "fan_out": fan_out}
    scale, ticks = alt.Scale(type="log", base=2, nice=False), alt.Axis(values=[2, 4, 6, 12], format="d")
    return transports(
        where(table, **shape),
        alt.X("stages:Q", title="Stages", scale=scale, axis=ticks),
        y="loop",
        low="loop_low",
        high="loop_high",
        y_title="Cycles from use to use of a stage",
        also=["fan_out"],
        own=having(own, **shape),
        width=280,
        height=240,
    )
