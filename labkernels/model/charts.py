"""Charts of model and advisor: predicted over measured time, regret, projections, and one operand along an axis."""

from collections.abc import Mapping

import altair as alt
import pandas as pd

from labkernels.charts import grammar as charts

_LOG = alt.Scale(type="log", nice=False)


def accuracy(parts: Mapping[str, pd.DataFrame], own: pd.DataFrame | None = None) -> alt.TopLevelMixin:
    """Predicted over measured throughput, a panel a set, with a band of 15%; a click on the legend picks a mechanism.

    Args:
        parts: sets of configurations by the panel's title, in the form of `fit.predicted` with `cell`.
        own: the reader's own rows in the same form, drawn into the first panel.
    """
    columns = ["mechanism", "panel", "cell", "median", "predicted_gbps", "ratio", "run_id"]
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
    return alt.vconcat(*(alt.hconcat(*panels[at : at + 2]) for at in range(0, len(panels), 2)))


def kernel_pairs(table: pd.DataFrame) -> alt.LayerChart:
    """Predicted over measured gain of TMA, a color for each source, with a band of 10%.

    Args:
        table: of `kernel_pairs.pairs`.
    """
    ends = pd.Series(
        [table[["measured", "predicted"]].min().min(), table[["measured", "predicted"]].max().max()]
    )
    band = alt.Chart(pd.DataFrame({"measured": ends, "under": ends * 0.9, "over": ends * 1.1}))
    title = "Measured: time without TMA over that with it"
    x = alt.X("measured:Q", title=title, scale=alt.Scale(zero=False, nice=False))
    y_title, y_scale = "Predicted", alt.Scale(zero=False, nice=False)
    order = list(dict.fromkeys(table["source"]))
    base = alt.Chart(table).encode(
        y=alt.Y("predicted:Q", title=y_title, scale=y_scale),
        color=alt.Color(
            "source:N",
            title="Kernels",
            sort=order,
            scale=alt.Scale(domain=order, range=charts.PALETTE[: len(order)]),
        ),
        tooltip=[
            "source",
            "kernel",
            *(alt.Tooltip(name, format=".3f") for name in ("measured", "low", "high", "predicted")),
        ],
    )
    within = band.mark_area(opacity=0.15, color="#7f8790").encode(
        x=x, y=alt.Y("under:Q", title=y_title, scale=y_scale), y2="over:Q"
    )
    bars = base.mark_rule(opacity=0.5).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    return alt.layer(within, bars, base.mark_point(filled=True, size=40).encode(x=x)).properties(
        width=420, height=300
    )


def splits(scores: pd.DataFrame) -> alt.LayerChart:
    """95th percentile of regret of each policy, a line of the chart for each split.

    Args:
        scores: rows of table `splits` of one GPU.
    """
    shown = [
        "split",
        "policy",
        "cells",
        "regret_mean",
        "regret_p95",
        "regret_p95_low",
        "regret_p95_high",
        "regret_max",
    ]
    table, order = scores[shown], list(dict.fromkeys(scores["policy"]))
    pick = alt.selection_point(name="picked_policy", fields=["policy"], bind="legend")
    y = alt.Y("split:N", title="Left out", sort=None)
    scale = alt.Scale(type="log", nice=False)
    base = alt.Chart(table).encode(
        y=y,
        color=alt.Color(
            "policy:N",
            title="Who chooses",
            sort=order,
            legend=alt.Legend(symbolType="circle", symbolSize=80, symbolStrokeWidth=0, columns=4),
        ),
        opacity=alt.when(pick).then(alt.value(1)).otherwise(alt.value(0.1)),
    )
    title = "Time of the choice over the best, 95th percentile"
    rules = base.mark_rule().encode(
        x=alt.X("regret_p95_low:Q", title=title, scale=scale), x2="regret_p95_high:Q"
    )
    points = base.mark_point(filled=True, size=60).encode(
        x=alt.X("regret_p95:Q", title=title, scale=scale),
        shape=alt.Shape("policy:N", sort=order, legend=None),
        tooltip=[alt.Tooltip(name, format=".3f") if name.startswith("regret") else name for name in shown],
    )
    return alt.layer(rules.add_params(pick), points) + charts.ceiling(1.03, "3% lost", axis="x")


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
