"""Charts of the GEMM chapter."""

from collections.abc import Sequence
from math import log

import altair as alt
import pandas as pd

from labkernels.charts import PALETTE, ceiling
from labkernels.gemm.study import PARTS

GROUPS = ("square", "prefill", "gqa", "wave", "decode")
TRANSPORTS = ("alone", "independent", "handshake", "multicast", "library")
WORDS = {
    "alone": "no cluster",
    "independent": "cluster, each CTA for itself",
    "handshake": "cluster, slots released together",
    "multicast": "cluster with multicast",
    "library": "library",
}


def transport_color(shown: Sequence[str]) -> alt.Color:
    """Colour by column `transport`; multicast keeps its colour of the other chapters."""
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
    legend = alt.Legend(values=[WORDS[name] for name in shown], columns=3)
    return alt.Color("way:N", title=None, scale=scale, legend=legend)


def over_library(table: pd.DataFrame) -> alt.LayerChart:
    """Best kernel over library by shape, with intervals; `table` from `study.over_library`."""
    shown = table[["shape", "group", "kernel", "swizzle", "ratio", "low", "high", "tflops", "gpu", "run_id"]]
    order = list(table.sort_values(["group", "ratio"])["shape"])
    base = alt.Chart(shown).encode(
        y=alt.Y("shape:N", title=None, sort=order, axis=alt.Axis(grid=True, labelLimit=220)),
        color=alt.Color("group:N", title=None, scale=alt.Scale(domain=list(GROUPS), range=PALETTE[:5])),
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
    chart = interval + points + ceiling(1.0, "the library", axis="x")
    return chart.properties(height=alt.Step(18))


def cluster_effect(table: pd.DataFrame) -> alt.FacetChart:
    """Cycles with a cluster over cycles without, by shape, one column per swizzle.

    Args:
        table: Columns `shape`, `cluster`, `swizzle`, `ratio` (against no cluster at the default order) and `waves`.
    """
    order = list(dict.fromkeys(table["shape"]))
    clusters = list(dict.fromkeys(table["cluster"]))
    points = (
        alt.Chart(table)
        .mark_point(filled=True, size=60, opacity=0.85)
        .encode(
            x=alt.X(
                "ratio:Q",
                title="Cycles over those of no cluster, default order",
                scale=alt.Scale(type="log", domain=[0.7, 2.2], clamp=True, nice=False),
                axis=alt.Axis(values=[0.75, 1, 1.25, 1.5, 2]),
            ),
            y=alt.Y("shape:N", title=None, sort=order, axis=alt.Axis(grid=True, labelLimit=200)),
            color=alt.Color(
                "cluster:N", title="Cluster", sort=clusters, scale=alt.Scale(domain=clusters, range=PALETTE)
            ),
            shape=alt.Shape("cluster:N", title="Cluster", sort=clusters),
            tooltip=list(table.columns),
        )
        .properties(width=210, height=alt.Step(20))
    )
    return points.facet(column=alt.Column("order:N", title=None), spacing=16)


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
            legend=alt.Legend(columns=3, symbolType="square"),
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
    total = base.mark_tick(thickness=3, size=16, color="currentColor").encode(
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


def sustained(table: pd.DataFrame) -> alt.LayerChart:
    """Clock against cycles of a product once power has settled, one mark per kernel; the slopes are equal rates.

    Args:
        table: Medians by kernel: `kernel`, `transport`, `megacycles`, `sm_clock_mhz`, `clock_low`, `clock_high`,
            `power_w`, `tflops`.
    """
    shown = table.assign(way=table["transport"].map(WORDS))
    base = alt.Chart(shown).encode(
        x=alt.X(
            "megacycles:Q", title="Million cycles of one product", scale=alt.Scale(zero=False, padding=25)
        ),
        color=transport_color([name for name in TRANSPORTS if name in set(table["transport"])]),
    )
    y = alt.Scale(zero=False, padding=15)
    interval = base.mark_rule(strokeWidth=2).encode(
        y=alt.Y("clock_low:Q", title="SM clock that the power limit leaves, MHz", scale=y), y2="clock_high:Q"
    )
    points = base.mark_point(filled=True, size=80, opacity=1).encode(
        y=alt.Y("sm_clock_mhz:Q", scale=y),
        tooltip=["kernel", "sm_clock_mhz", "power_w", "tflops", "megacycles"],
    )
    text = base.mark_text(align="left", dx=8, dy=-6).encode(y="sm_clock_mhz:Q", text="label:N")
    return interval + points + text


def ragged(table: pd.DataFrame, floor_us: float) -> alt.LayerChart:
    """Time of a decode product by rows of A inside the tile, by transport.

    Args:
        table: Medians of one tile and its cluster along N: `m`, `duration_us`, `low`, `high`, `transport`.
        floor_us: Time to read B from memory once at the measured rate.
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
    return line + points + ceiling(floor_us, "B from memory at its peak rate")


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
                legend=alt.Legend(columns=2),
            ),
            strokeDash=alt.StrokeDash("rule:N", sort=rules),
            tooltip=["rule", "shape", "tile", "chosen", "best", alt.Tooltip("regret:Q", format=".3f")],
        )
    )
    return lines
