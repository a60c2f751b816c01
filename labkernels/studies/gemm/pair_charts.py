"""Charts of pairs of GEMM kernels that differ in their loads or stores only."""

import altair as alt
import pandas as pd

from labkernels.charts.grammar import PALETTE
from labkernels.studies.gemm.pair_findings import FORMS


def forms(table: pd.DataFrame) -> alt.FacetChart:
    """Rate with TMA over that with cp.async, by shape; a panel for each schedule, a color for each form of cp.async.

    Args:
        table: Of `pair_findings.over_forms`, of one element type.
    """
    forms = [form for form in FORMS.values() if form in set(table["form"])]
    return _dots(table, "TMA's rate ÷ cp.async's", "form", "cp.async", forms, "schedule")


def speedups(table: pd.DataFrame, title: str) -> alt.FacetChart:
    """Rate with TMA over the other's, by shape; a panel for each element type, a color for each schedule.

    Args:
        table: Of `pair_findings.speedups`.
        title: Of the axis of ratios.
    """
    return _dots(table, title, "schedule", "Schedule", sorted(table["schedule"].unique()), "dtype")


def _dots(
    table: pd.DataFrame, title: str, by: str, legend: str, order: list[str], panel: str
) -> alt.FacetChart:
    """Ratios with their intervals: a row for each shape, a color for each value of `by`, a panel for one of `panel`."""
    shapes = table.sort_values(["m", "n", "k"])[["m", "n", "k"]].astype(str).agg(" × ".join, axis=1).unique()
    table = table.assign(shape=table[["m", "n", "k"]].astype(str).agg(" × ".join, axis=1))
    tooltip = [
        *dict.fromkeys(["shape", "dtype", "schedule", by]),
        "stages",
        "other_stages",
        "ratio",
        "low",
        "high",
        "over_library",
    ]
    tooltip += ["gpu", "run_id"]
    y = alt.Y("shape:N", title=None, sort=list(shapes), axis=alt.Axis(labelLimit=160))
    offset = alt.YOffset(f"{by}:N", sort=order)
    scale = alt.Scale(domain=order, range=list(PALETTE[: len(order)]))
    color = alt.Color(f"{by}:N", title=legend, scale=scale, legend=alt.Legend(labelLimit=300))
    base = alt.Chart().encode(y=y, yOffset=offset, color=color, tooltip=tooltip)
    bars = base.mark_rule().encode(x=alt.X("low:Q", title=title, scale=alt.Scale(zero=False)), x2="high:Q")
    dots = base.mark_point(filled=True, size=50).encode(x="ratio:Q")
    one = alt.Chart().mark_rule(strokeDash=[3, 3], color="currentColor").encode(x=alt.datum(1))
    layers = alt.layer(bars, dots, one, data=table[tooltip]).properties(width=240)
    return layers.facet(column=alt.Column(f"{panel}:N", title=None))
