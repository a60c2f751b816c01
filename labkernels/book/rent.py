"""What a batch on a rented GPU takes and costs, from the rows of the newest that was run."""

import altair as alt
import pandas as pd

from labkernels.charts import PALETTE
from labkernels.errors import NotMeasured
from labkernels.store import RUNS, Store, datasheet
from labkernels.studies.experiments import studies


def newest_batch(store: Store, gpu: str) -> pd.DataFrame:
    """The quick runs of one card at one commit: the newest that are of half as many experiments as any card's at least.

    Raises:
        NotMeasured: the GPU has no quick runs.
    """
    runs = store.read(RUNS)
    runs = runs[runs["gpu_name"].eq(gpu) & runs["preset"].eq("quick")].sort_values("run_id")
    if runs.empty:
        raise NotMeasured(f"no quick runs of {gpu}: run python -m labkernels batch")
    groups = [rows for _, rows in runs.groupby(["gpu_uuid_hash", "commit"], dropna=False)]
    most = max(rows["experiment"].nunique() for rows in groups)
    return max(
        (rows for rows in groups if rows["experiment"].nunique() >= most / 2),
        key=lambda rows: rows["run_id"].max(),
    )


def minutes(runs: pd.DataFrame) -> float:
    """From the start of the first run to the end of the last.

    Args:
        runs: of `newest_batch`.
    """
    ends = runs["started_utc"] + pd.to_timedelta(runs["wall_s"], unit="s")
    return (ends.max() - runs["started_utc"].min()).total_seconds() / 60


def full_minutes(store: Store, gpu: str) -> float:
    """What the newest full run of every experiment took, together."""
    runs = store.read(RUNS)
    runs = runs[runs["gpu_name"].eq(gpu) & runs["preset"].eq("full")]
    return float(runs.sort_values("run_id").groupby("experiment")["wall_s"].last().sum() / 60)


def costs(store: Store, gpu: str, took: float) -> pd.DataFrame:
    """What so many minutes cost, by published prices; of other GPUs as if they took as long."""
    sheet = datasheet(gpu)
    rows = store.read("rents")
    return pd.DataFrame(
        {
            "GPU": rows["gpu"],
            "provider": rows["provider"],
            "$ an hour": rows["usd_per_hour"].map("{:.2f}".format),
            "seen on": rows["seen_on"],
            "$ for the batch": (rows["usd_per_hour"] * took / 60).map("{:.2f}".format),
            "minutes": [
                "measured" if sheet and name == sheet.name else "taken as equal" for name in rows["gpu"]
            ],
            "note": rows["note"],
            "source": rows["source"],
        }
    )


def where_time_goes(runs: pd.DataFrame) -> alt.Chart:
    """Seconds of each experiment, by the study it belongs to.

    Args:
        runs: of `newest_batch`.
    """
    table = runs.assign(study=runs["experiment"].map(studies()))[["experiment", "study", "wall_s", "run_id"]]
    return (
        alt.Chart(table)
        .mark_bar(color=PALETTE[0])
        .encode(
            y=alt.Y("experiment:N", title=None, sort="-x"),
            x=alt.X("wall_s:Q", title="Seconds, assembling and checks included"),
            tooltip=list(table.columns),
        )
    )
