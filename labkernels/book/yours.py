"""What the chapter about the reader's GPU draws and says: two sides, of `model.versus`, beside each other."""

import altair as alt
import pandas as pd

from labkernels.charts import PALETTE
from labkernels.charts.text import percent
from labkernels.model.validate import within
from labkernels.model.versus import Side
from labkernels.store import RUNS, Store


def speeds(table: pd.DataFrame) -> alt.LayerChart:
    """The speed of each experiment with its interval, over the band that a cell is expected in.

    Args:
        table: experiments, of `versus.compare`.
    """
    base = alt.Chart(table).encode(
        y=alt.Y("experiment:N", title=None, sort=list(table["experiment"])), tooltip=list(table.columns)
    )
    scale = alt.Scale(type="log", zero=False, nice=False)
    x = {"title": "Yours over ours, of speed", "scale": scale}
    band = base.mark_bar(opacity=0.2, color=PALETTE[7]).encode(
        x=alt.X("expected_low:Q", **x), x2="expected_high:Q"
    )
    interval = base.mark_rule(strokeWidth=3).encode(
        x=alt.X("low:Q", **x), x2="high:Q", color=alt.value(PALETTE[0])
    )
    typical = base.mark_point(filled=True, size=50).encode(x="speed:Q", color=alt.value(PALETTE[0]))
    one = alt.Chart(alt.Data(values=[{"speed": 1}])).mark_rule(strokeDash=[3, 3]).encode(x="speed:Q")
    return alt.layer(band, one, interval, typical)


def lead(one: Side, other: Side, experiments: pd.DataFrame, rules: pd.DataFrame) -> dict[str, str | float]:
    """The chapter's first numbers.

    Args:
        one: the reader's side.
        other: the book's.
        experiments: of `versus.compare`.
        rules: of `versus.rules`.
    """
    judged = rules[rules[["first", "second"]].ne("not measured").all(axis=1)]
    worst = experiments.loc[(experiments["speed"] - 1).abs().idxmax()] if len(experiments) else None
    return {
        "yours": one.name,
        "yours_gpu": one.gpu,
        "ours": other.name,
        "ours_cards": len(other.by_card),
        "experiments": len(experiments),
        "cells": experiments["cells"].sum(),
        "outside": experiments["outside"].sum(),
        "farthest": "none" if worst is None else f"{worst.speed:.3f} in {worst.experiment}",
        "rules_judged": len(judged),
        "rules_alike": judged["they differ"].eq("").sum(),
        "rules_on_gpu": judged["they differ"].eq("on the GPU").sum(),
    }


def every_card(store: Store) -> pd.DataFrame:
    """Cards that have rows, the newest first: what they ran, when, and the state they were in."""
    runs = store.read(RUNS)
    days = runs["started_utc"].dt.strftime("%Y-%m-%d")
    groups = runs.assign(day=days).groupby(["gpu_name", "gpu_uuid_hash"], sort=False)
    table = groups.agg(
        experiments=("experiment", "nunique"),
        runs=("run_id", "size"),
        last=("day", "max"),
        driver=("driver_version", "max"),
        limit=("power_limit_w", "max"),
        lowest=("sm_clock_mhz_median", "min"),
        highest=("sm_clock_mhz_median", "max"),
    ).reset_index()
    table["throttled"] = (
        groups["throttle_reasons"].agg(lambda of: "; ".join(sorted(set(of.dropna())))).to_numpy()
    )
    names = {"gpu_name": "GPU", "gpu_uuid_hash": "card", "limit": "power limit, W"}
    names |= {"lowest": "SM clock of a run, MHz, lowest", "highest": "highest"}
    return table.sort_values("last", ascending=False, kind="stable").rename(columns=names)


def foretold(table: pd.DataFrame) -> dict[str, str | float]:
    """How near the predictions were.

    Args:
        table: of `versus.forecast`.
    """
    return {
        "foretold": len(table),
        "foretold_within": percent(within(table["ratio"])),
        "foretold_low": f"{table['ratio'].quantile(0.05):.2f}",
        "foretold_high": f"{table['ratio'].quantile(0.95):.2f}",
    }
