"""Charts of the GEMM chapter."""

from collections.abc import Sequence
from math import log

import altair as alt
import pandas as pd

from labkernels.charts.grammar import PALETTE, ceiling
from labkernels.studies.gemm.findings import PARTS

GROUPS = ("square", "prefill", "gqa", "wave", "decode")
TRANSPORTS = ("alone", "independent", "handshake", "multicast", "library")
CLUSTER_COLORS = {
    "1×1": PALETTE[7],
    "2×1": PALETTE[0],
    "1×2": PALETTE[1],
    "2×2": PALETTE[2],
    "4×1": PALETTE[5],
    "1×4": PALETTE[6],
}
WORDS = {
    "alone": "no cluster",
    "independent": "cluster, unicast",
    "handshake": "cluster, unicast, cluster-wide release",
    "multicast": "cluster, multicast",
    "library": "library",
}


def _legend(**options: object) -> alt.Legend:
    """A legend of filled squares: none of these charts tells apart by dash."""
    return alt.Legend(symbolType="square", symbolSize=120, symbolStrokeWidth=0, **options)


def _cluster_color(clusters: Sequence[str]) -> alt.Color:
    scale = alt.Scale(domain=list(CLUSTER_COLORS), range=list(CLUSTER_COLORS.values()))
    values = [name for name in CLUSTER_COLORS if name in set(clusters)]
    return alt.Color("cluster:N", title="Cluster", scale=scale, legend=_legend(columns=6, values=values))


def transport_color(shown: Sequence[str]) -> alt.Color:
    """Colour by column `transport`; multicast keeps its color of the other chapters."""
    colors = {
        "alone": PALETTE[7],
        "independent": PALETTE[3],
        "handshake": PALETTE[5],
        "multicast": PALETTE[4],
        "library": PALETTE[0],
    }
    scale = alt.Scale(
        domain=[WORDS[name] for name in TRANSPORTS], range=[colors[name] for name in TRANSPORTS]
    )
    legend = _legend(columns=3, labelLimit=280, values=[WORDS[name] for name in shown])
    return alt.Color("way:N", title=None, scale=scale, legend=legend)


def over_library(table: pd.DataFrame) -> alt.LayerChart:
    """Best kernel over library by shape, with intervals; `table` from `study.over_library`."""
    shown = table[["shape", "group", "kernel", "swizzle", "ratio", "low", "high", "tflops", "gpu", "run_id"]]
    order = list(table.sort_values(["group", "ratio"])["shape"])
    base = alt.Chart(shown).encode(
        y=alt.Y("shape:N", title=None, sort=order, axis=alt.Axis(grid=True, labelLimit=220)),
        color=alt.Color(
            "group:N", title=None, scale=alt.Scale(domain=list(GROUPS), range=PALETTE[:5]), legend=_legend()
        ),
    )
    scale = alt.Scale(zero=False, nice=False, padding=12)
    interval = base.mark_rule(strokeWidth=2).encode(
        x=alt.X(
            "low:Q", title="Library's time over the kernel's (right of 1: the kernel is quicker)", scale=scale
        ),
        x2="high:Q",
    )
    points = base.mark_point(filled=True, size=60, opacity=1).encode(
        x=alt.X("ratio:Q", scale=scale), tooltip=list(shown.columns)
    )
    chart = interval + points + ceiling(1.0, "library", axis="x")
    return chart.properties(height=alt.Step(18))


def cluster_effect(table: pd.DataFrame) -> alt.FacetChart:
    """Cycles with a cluster over cycles without, by shape, one column per swizzle.

    Args:
        table: Columns `shape`, `cluster`, `swizzle`, `ratio` (against no cluster at the default order) and `waves`.
    """
    order = list(dict.fromkeys(table["shape"]))
    points = (
        alt.Chart(table)
        .mark_point(filled=True, size=60, opacity=0.85)
        .encode(
            x=alt.X(
                "ratio:Q",
                title="Cycles over no cluster's in default order",
                scale=alt.Scale(type="log", domain=[0.6, 2.2], clamp=True, nice=False),
                axis=alt.Axis(values=[0.6, 0.75, 1, 1.25, 1.5, 2]),
            ),
            y=alt.Y("shape:N", title=None, sort=order, axis=alt.Axis(grid=True, labelLimit=200)),
            color=_cluster_color(table["cluster"]),
            tooltip=list(table.columns),
        )
        .properties(width=245, height=alt.Step(20))
    )
    return points.facet(column=alt.Column("order:N", title=None), spacing=24)


def decomposition(table: pd.DataFrame) -> alt.FacetChart:
    """The parts of each cluster's effect as bars beside each other, its measured total as a tick.

    Args:
        table: From `study.decompositions`.
    """
    shown = table[
        ["shape", "tile", "cluster", "swizzle", "part", "ratio", "low", "high", "log_percent"]
    ].assign(total_percent=100 * table["total"].map(log), rank=table["part"].map(PARTS.index))
    scale = alt.Scale(domain=list(PARTS), range=[PALETTE[i] for i in (7, 6, 3, 5, 4, 1)])
    base = alt.Chart(shown).encode(y=alt.Y("cluster:N", title=None, sort=None))
    bars = base.mark_bar().encode(
        x=alt.X("sum(log_percent):Q", title="Change of time, 100 · ln (right of 0: slower)"),
        color=alt.Color(
            "part:N",
            title=None,
            scale=scale,
            sort=list(PARTS),
            legend=_legend(columns=6),
        ),
        order=alt.Order("rank:Q"),
        tooltip=[
            "shape",
            "tile",
            "cluster",
            "part",
            *(alt.Tooltip(c, format=".3f") for c in ("ratio", "low", "high")),
        ],
    )
    total = base.mark_tick(thickness=2, size=16, color="currentColor").encode(
        x="total_percent:Q",
        tooltip=["shape", "cluster", alt.Tooltip("total_percent:Q", format=".1f", title="measured")],
    )
    return (
        (bars + total)
        .properties(width=250, height=alt.Step(20))
        .facet(
            facet=alt.Facet("shape:N", title=None, sort=list(dict.fromkeys(table["shape"]))),
            columns=2,
            spacing=24,
        )
    )


def shares(table: pd.DataFrame) -> alt.LayerChart:
    """What multicast alone changes, by shape; `table` from `study.multicast_shares`."""
    shown = table[["shape", "tile", "cluster", "swizzle", "ratio", "low", "high", "total", "run_id"]]
    shapes, clusters = list(dict.fromkeys(shown["shape"])), list(dict.fromkeys(shown["cluster"]))
    scale = alt.Scale(zero=False, nice=False, padding=10)
    base = alt.Chart(shown).encode(
        y=alt.Y("shape:N", title=None, sort=shapes, axis=alt.Axis(grid=True, labelLimit=220)),
        yOffset=alt.YOffset("cluster:N", sort=clusters),
        color=_cluster_color(clusters),
    )
    interval = base.mark_rule(opacity=0.5).encode(
        x=alt.X(
            "low:Q",
            title="Cycles with multicast over cycles with the cluster-wide release alone",
            scale=scale,
        ),
        x2="high:Q",
    )
    points = base.mark_point(filled=True, size=28, opacity=1).encode(
        x=alt.X("ratio:Q", scale=scale),
        shape=alt.Shape("tile:N", title="Tile", legend=alt.Legend(symbolSize=80, symbolType=alt.Undefined)),
        tooltip=list(shown.columns),
    )
    return (interval + points + ceiling(1.0, "no change", axis="x")).properties(height=alt.Step(7))


def traffic(table: pd.DataFrame) -> alt.FacetChart:
    """Bytes of one product by transport: into the SMs, read in L2, read from memory.

    Args:
        table: Columns `tile`, `cluster`, `transport`, `swizzle`, `what`, `gib`.
    """
    shown = table.assign(way=table["transport"].map(WORDS))
    bars = (
        alt.Chart(shown)
        .mark_bar()
        .encode(
            x=alt.X("gib:Q", title="GiB"),
            y=alt.Y("cluster:N", title=None, sort=None),
            yOffset=alt.YOffset("way:N", sort=[WORDS[name] for name in TRANSPORTS]),
            color=transport_color([name for name in TRANSPORTS if name in set(table["transport"])]),
            tooltip=[
                "tile",
                "cluster",
                "way",
                "swizzle",
                "what",
                alt.Tooltip("gib:Q", format=".2f"),
                "run_id",
            ],
        )
        .properties(width=180, height=150)
    )
    what = list(dict.fromkeys(table["what"]))
    return bars.facet(
        column=alt.Column("what:N", title=None, sort=what), row=alt.Row("order:N", title=None), spacing=20
    ).resolve_scale(x="independent")


SETTLED = {"megacycles": "million cycles", "sm_clock_mhz": "SM clock, MHz", "tflops": "TFLOP/s"}


def sustained(table: pd.DataFrame) -> alt.FacetChart:
    """Cycles of a product, clock and rate once power has settled, one row per kernel.

    Args:
        table: From `study.settled`.
    """
    shown = table.melt(
        ["kernel", "transport", "power_w", "gpu", "run_id"],
        list(SETTLED),
        var_name="quantity",
        value_name="value",
    )
    shown = shown.assign(way=shown["transport"].map(WORDS), what=shown["quantity"].map(SETTLED))
    points = (
        alt.Chart(shown)
        .mark_point(filled=True, size=80, opacity=1)
        .encode(
            x=alt.X(
                "value:Q", title=None, scale=alt.Scale(zero=False, padding=14), axis=alt.Axis(tickCount=4)
            ),
            y=alt.Y(
                "kernel:N", title=None, sort=list(table["kernel"]), axis=alt.Axis(grid=True, labelLimit=240)
            ),
            color=transport_color([name for name in TRANSPORTS if name in set(table["transport"])]),
            tooltip=["kernel", "what", alt.Tooltip("value:Q", format=",.4~r"), "power_w", "gpu", "run_id"],
        )
        .properties(width=125, height=alt.Step(20))
    )
    return points.facet(
        column=alt.Column("what:N", title=None, sort=list(SETTLED.values())), spacing=18
    ).resolve_scale(x="independent")


def ragged(table: pd.DataFrame, floor_us: float | None) -> alt.LayerChart:
    """Time of a decode product by rows of A inside the tile, by transport.

    Args:
        table: Medians of one tile and its cluster along N: `m`, `duration_us`, `low`, `high`, `transport`.
        floor_us: Time to read B from memory once at its peak rate, where a data sheet gives it.
    """
    shown = table.assign(way=table["transport"].map(WORDS))
    x = alt.X("m:Q", title="Rows of A (M); the tile has 128", axis=alt.Axis(values=[16, 32, 64, 96, 128]))
    base = alt.Chart(shown).encode(
        x=x, color=transport_color([name for name in TRANSPORTS if name in set(table["transport"])])
    )
    line = base.mark_line().encode(y=alt.Y("duration_us:Q", title="µs"))
    points = base.mark_point(filled=True, size=50, opacity=1).encode(
        y="duration_us:Q", tooltip=["kernel", "m", "duration_us", "gpu", "run_id"]
    )
    chart = line + points
    return chart if floor_us is None else chart + ceiling(floor_us, "B from memory at its peak rate")


def regret(table: pd.DataFrame) -> alt.LayerChart:
    """Share of held-out cases within a regret, one line per rule; `table` has `rule`, `regret`, `share`."""
    rules = list(dict.fromkeys(table["rule"]))
    lines = (
        alt.Chart(table)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X(
                "regret:Q",
                title="Time of the choice over time of the best",
                scale=alt.Scale(type="log", domain=[1, 3], clamp=True, nice=False),
                axis=alt.Axis(values=[1, 1.05, 1.2, 1.5, 2, 3]),
            ),
            y=alt.Y("share:Q", title="Share of held-out shapes and tiles", axis=alt.Axis(format="%")),
            color=alt.Color(
                "rule:N",
                title=None,
                sort=rules,
                scale=alt.Scale(domain=rules, range=PALETTE),
                legend=alt.Legend(columns=2, labelLimit=300),
            ),
            tooltip=["rule", "shape", "tile", "chosen", "best", alt.Tooltip("regret:Q", format=".3f")],
        )
    )
    return lines
