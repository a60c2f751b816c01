"""Charts of pairs of GEMM kernels that differ in their loads or stores only."""

import altair as alt
import pandas as pd

from labkernels.charts.grammar import PALETTE


def speedups(table: pd.DataFrame, title: str) -> alt.FacetChart:
    """Rate with TMA over the other's, by shape; a panel for each element type, a color for each schedule.

    Args:
        table: Of `pair_findings.speedups`.
        title: Of the axis of ratios.
    """
    shapes = table.sort_values(["m", "n", "k"])[["m", "n", "k"]].astype(str).agg(" × ".join, axis=1).unique()
    table = table.assign(shape=table[["m", "n", "k"]].astype(str).agg(" × ".join, axis=1))
    tooltip = ["shape", "dtype", "schedule", "stages", "other_stages", "ratio", "low", "high", "over_library"]
    tooltip += ["gpu", "run_id"]
    y = alt.Y("shape:N", title=None, sort=list(shapes), axis=alt.Axis(labelLimit=160))
    offset = alt.YOffset("schedule:N")
    color = alt.Color("schedule:N", title="Schedule", scale=alt.Scale(range=list(PALETTE[:3])))
    base = alt.Chart().encode(y=y, yOffset=offset, color=color, tooltip=tooltip)
    bars = base.mark_rule().encode(x=alt.X("low:Q", title=title, scale=alt.Scale(zero=False)), x2="high:Q")
    dots = base.mark_point(filled=True, size=50).encode(x="ratio:Q")
    one = alt.Chart().mark_rule(strokeDash=[3, 3], color="currentColor").encode(x=alt.datum(1))
    layers = alt.layer(bars, dots, one, data=table[tooltip]).properties(width=240)
    return layers.facet(column=alt.Column("dtype:N", title=None))
