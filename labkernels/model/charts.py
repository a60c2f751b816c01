"""Charts of model and advisor: predicted over measured time, regret, projections, and one operand along an axis."""

from collections.abc import Mapping

import altair as alt
import pandas as pd

from labkernels.charts import grammar as charts

_LOG = alt.Scale(type="log", nice=False)


def accuracy(parts: Mapping[str, pd.DataFrame], own: pd.DataFrame | None) -> alt.TopLevelMixin:
    """Predicted over measured throughput in four panels, with a band of 15 %; a click on the legend picks a mechanism.

    Args:
        parts: four sets of configurations by the panel's title, in the form of `fit.predicted` with `cell`.
        own: the reader's own rows in the same form, drawn into the first panel.
    """
    columns = ["mechanism", "panel", "cell", "median", "predicted_gbps", "binding", "ratio", "run_id"]
    tables = [table.assign(panel=title)[columns] for title, table in parts.items()]
    points = pd.concat(tables, ignore_index=True)
    rates = points[["median", "predicted_gbps"]]
    ends = pd.Series([rates.min().min(), rates.max().max()])
    band = alt.Chart(pd.DataFrame({"median": ends, "under": ends * 0.85, "over": ends * 1.15}))
    x = alt.X("median:Q", title="Measured, GB/s", scale=_LOG)
    y = alt.Y("predicted_gbps:Q", title="Predicted, GB/s", scale=_LOG)
    pick = alt.selection_point(name="picked_mechanism", fields=["mechanism"], bind="legend")
    numbers = ("median", "predicted_gbps", "ratio")
    tooltip = [alt.Tooltip(name, format=",.4~r") if name in numbers else name for name in columns]

    def panel(table: pd.DataFrame) -> alt.LayerChart:
        within = band.mark_area(opacity=0.15, color="#7f8790").encode(
            x=x, y=alt.Y("under:Q", title="Predicted, GB/s", scale=_LOG), y2="over:Q"
        )
        dots = alt.Chart(table).mark_point(filled=True, size=28)
        dots = dots.encode(
            x=x,
            y=y,
            color=charts.mechanism_color(points["mechanism"], dots=True),
            tooltip=tooltip,
            opacity=alt.when(pick).then(alt.value(0.7)).otherwise(alt.value(0.06)),
        ).add_params(pick)
        return alt.layer(within, dots).properties(width=260, height=220, title=table["panel"].iloc[0])

    panels = [panel(table) for table in tables]
    if own is not None:
        panels[0] += charts.own_points(own.assign(gpu="your GPU"), x, "predicted_gbps")
    return alt.vconcat(alt.hconcat(*panels[:2]), alt.hconcat(*panels[2:]))


def regret(cells: pd.DataFrame, sets: Mapping[str, str]) -> alt.LayerChart:
    """Share of cells within a regret, a line for each set.

    Args:
        cells: of `validate.all_choices`.
        sets: `validate.SETS`, in the order of the legend.
    """
    ranked = cells.sort_values("regret").assign(
        share=lambda frame: frame.groupby("set")["regret"].rank(method="first", pct=True)
    )
    pick = alt.selection_point(name="picked_set", fields=["set"], bind="legend")
    title, names = "Time of the choice over the best", alt.Scale(domain=list(sets))
    scale = alt.Scale(domain=[1, max(1.1, 1.01 * cells["regret"].max())], nice=False)
    shown = alt.when(pick).then(alt.value(1)).otherwise(alt.value(0.12))
    base = alt.Chart(ranked[["set", "cell", "choice", "best", "regret", "share"]]).encode(
        x=alt.X("share:Q", title="Share of cells", axis=alt.Axis(format="%")),
        y=alt.Y("regret:Q", title=title, scale=scale),
        color=alt.Color("set:N", title="Tested on", scale=names),
        opacity=shown,
    )
    lines = base.mark_line(interpolate="step-after").encode(
        strokeDash=alt.StrokeDash("set:N", title="Tested on", scale=names)
    )
    tooltip = ["set", "cell", "choice", "best", alt.Tooltip("regret:Q", format=".3f")]
    points = base.mark_point(filled=True, size=20).encode(tooltip=tooltip)
    return alt.layer(lines.add_params(pick), points) + charts.ceiling(1.05, "5 % lost")


def projections(curves: Mapping[str, pd.DataFrame]) -> alt.TopLevelMixin:
    """The model on other GPUs beside published points, a panel for each.

    Args:
        curves: of `project.projected`, by the panel's title.
    """
    columns = [
        "mechanism", "gpu", "bytes_in_flight_per_sm", "value", "predicted_gbps", "ratio", "conditions", "source",
    ]  # fmt: skip
    x = charts.bytes_axis("bytes_in_flight_per_sm", "Bytes in flight per SM")
    mechanisms = pd.concat(list(curves.values()))["mechanism"]

    def panel(title: str, curve: pd.DataFrame) -> alt.LayerChart:
        rows = curve[columns].astype({"bytes_in_flight_per_sm": float})
        line = alt.Chart(rows[["mechanism", "bytes_in_flight_per_sm", "predicted_gbps"]]).mark_line()
        line = line.encode(
            x=x,
            y=alt.Y("predicted_gbps:Q", title="GB/s from HBM"),
            color=charts.mechanism_color(mechanisms),
            strokeDash=charts.mechanism_dash(mechanisms),
        )
        return (line + charts.published_points(rows, x, "value")).properties(
            width=260, height=240, title=title
        )

    return alt.hconcat(*(panel(title, curve) for title, curve in curves.items()))


def along_in_flight(predictions: pd.DataFrame, own: pd.DataFrame) -> alt.LayerChart:
    """Predicted throughput over bytes in flight, with its interval.

    Args:
        predictions: of `project.along_in_flight`.
        own: the reader's own rows, of `crossover.findings.frontier`; may have none.
    """
    x = charts.bytes_axis("bytes_in_flight_per_sm", "Bytes in flight per SM")
    panel = charts.band_and_line(
        predictions, x, median="gbps", low="low", high="high", y_title="GB/s from HBM", also=["binds"]
    )
    return panel + charts.own_points(own, x, "median") if len(own) else panel
