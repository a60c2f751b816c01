"""Charts of DSM forwarding: the port to other SMs, one transfer alone, broadcast by every transport, and reuse."""

import altair as alt
import pandas as pd

from labkernels.charts.grammar import OWN, band_and_line, bytes_axis, mechanism_color, own_points
from labkernels.operand import KIB
from labkernels.studies.broadcast.findings import PATTERNS, PORT_BOUND
from labkernels.studies.cluster_charts import bound, fan_out_axis, transports
from labkernels.studies.stats import having, where


def port(table: pd.DataFrame, own: pd.DataFrame, load: str) -> alt.FacetChart:
    """Bytes per clock that one CTA sends, by pattern and cluster, under the cap that others infer.

    Args:
        table: of `findings.patterns`.
        own: the same of the reader's own run; may have no rows.
        load: whose rows are drawn: `one cluster` or `GPU full`.
    """
    columns = ["mechanism", "who", "cluster", "median", "p05", "p95", "clusters", "gpu", "run_id"]
    rows, mine = where(table, load=load)[columns], having(own, load=load)[columns]
    if len(mine):  # a facet has one frame for all its layers
        rows = pd.concat([rows, mine.drop(columns=["p05", "p95"]).rename(columns={"median": "own"})])
    color = mechanism_color(rows["mechanism"].unique())
    base = alt.Chart(rows.assign(bound=PORT_BOUND)).encode(
        x=alt.X("cluster:O", title="CTAs of a cluster", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("mechanism:N"),
    )

    def tooltip(value: str) -> list[str | alt.Tooltip]:
        named = alt.Tooltip(value, format=".2f")
        return ["mechanism", "who", "cluster", "clusters", named, "gpu", "run_id"]

    scale = alt.Scale(domain=[0, 24])
    layers = [
        base.mark_rule(strokeDash=[3, 3]).encode(
            y="bound:Q",
            x=alt.value(0),
            x2=alt.value(96),
            xOffset=alt.value(0),
            tooltip=[alt.Tooltip("bound:Q", title="Bound", format=".2f")],
        ),
        base.mark_rule().encode(y="p05:Q", y2="p95:Q", color=color),
        base.mark_point(filled=True, size=55).encode(
            y=alt.Y("median:Q", title="Bytes per clock and sender", scale=scale),
            color=color,
            tooltip=tooltip("median"),
        ),
    ]
    if len(mine):
        layers.append(base.mark_point(**OWN).encode(y="own:Q", color=color, tooltip=tooltip("own")))
    who = alt.Column("who:N", title=None, sort=list(PATTERNS.values()))
    return alt.layer(*layers).properties(width=96, height=170).facet(column=who, spacing=8, title=load)


def alone(table: pd.DataFrame, own: pd.DataFrame) -> alt.LayerChart:
    """Cycles of one transfer alone by its size.

    Args:
        table: of `findings.singles`.
        own: the same of the reader's own run; may have no rows.
    """
    axis = bytes_axis("transfer_bytes", "Bytes of one transfer")
    chart = band_and_line(table, axis, y_title="Cycles")
    return chart + own_points(own, axis, "median") if len(own) else chart


def by_tile(table: pd.DataFrame, own: pd.DataFrame, source: str) -> alt.LayerChart:
    """Delivered bytes over the tile's size at fan-out 4, a line for each way.

    Args:
        table: of `cluster_rows.rates`.
        own: the same of the reader's own run; may have no rows.
        source: whose rows are drawn.
    """
    shape = {"source": source, "fan_out": 4, "hold_cycles": 0}
    axis = bytes_axis("tile_bytes", "Tile")
    return transports(where(table, **shape), axis, own=having(own, **shape), width=175, height=260)


def by_fan_out(table: pd.DataFrame, own: pd.DataFrame, source: str, port: float) -> alt.LayerChart:
    """Delivered bytes of 32 KiB tiles over fan-out, under what the port to other SMs allows.

    Args:
        table: of `cluster_rows.rates`.
        own: the same of the reader's own run; may have no rows.
        source: whose rows are drawn.
        port: bytes per clock that one CTA sends at most.
    """
    shape = {"source": source, "tile_bytes": 32 * KIB, "hold_cycles": 0}
    axis = fan_out_axis("Fan-out")
    chart = transports(where(table, **shape), axis, own=having(own, **shape), width=280, height=260)
    limit = pd.DataFrame({"fan_out": [2, 2.5, 3, 4, 5, 6, 8, 11, 16]})
    limit["limit"] = port * limit["fan_out"] / (limit["fan_out"] - 1)
    return chart + bound(limit, axis, "limit", "DSM port")


def reuse(table: pd.DataFrame, own: pd.DataFrame) -> alt.LayerChart:
    """Delivered bytes over passes that a tile is kept for, under the rate at which it can be read.

    Args:
        table: of `findings.kept`.
        own: the same of the reader's own run; may have no rows.
    """
    axis = alt.X(
        "passes:Q",
        title="Passes over a tile before it is released",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=[1, 2, 4, 8, 16], format="d"),
    )
    limit = pd.DataFrame({"passes": [2 ** (step / 4) for step in range(17)]})
    limit["limit"] = 128 / limit["passes"]
    limit = limit[limit["limit"].le(90)].iloc[::-1]
    return transports(table, axis, own=own) + bound(limit, axis, "limit", "128 B/clk ÷ passes")
