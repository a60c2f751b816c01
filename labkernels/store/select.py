"""Which stored rows a chapter, a headline or a rule looks at."""

from collections.abc import Collection

import pandas as pd

from labkernels.store import RUNS, Store

RUN_COLUMNS = ("gpu_name", "sm_count", "sm_clock_mhz_median", "l2_bytes")


def gpus(store: Store) -> list[str]:
    """Names of the GPUs that have rows, those of the newest run last."""
    return list(dict.fromkeys(store.read(RUNS).sort_values("run_id")["gpu_name"]))


def latest_run(
    store: Store, experiment: str, gpu: str | None = None, *, without: Collection[str] = ()
) -> str | None:
    """Newest run of an experiment on a GPU (any GPU by default): of its fullest preset, or None.

    A quick run never hides a full one; runs `without` are passed over.
    """
    runs = store.read(RUNS)
    runs = runs[runs["experiment"].eq(experiment) & (runs["gpu_name"].eq(gpu) if gpu else True)]
    runs = runs[~runs["run_id"].isin(without)]
    for preset in ("full", *sorted(set(runs["preset"]) - {"full"})):
        if len(chosen := runs[runs["preset"].eq(preset)]):
            return str(chosen["run_id"].max())
    return None


def rows(store: Store, table: str, run_ids: list[str]) -> pd.DataFrame:
    """Rows of some runs with what a chart needs of their run: `gpu`, SM count, clock and L2 size."""
    frame = store.read(table, run_ids=run_ids, run_columns=RUN_COLUMNS)
    return frame.rename(columns={"gpu_name": "gpu"}).fillna({"variant": ""})


def latest_rows(store: Store, table: str, experiment: str, gpu: str | None = None) -> pd.DataFrame:
    """Rows of the newest run of an experiment; an empty frame where there is none."""
    run_id = latest_run(store, experiment, gpu)
    return rows(store, table, [run_id] if run_id else [])


def quick_pair(store: Store, table: str, experiment: str, gpu: str) -> pd.DataFrame:
    """Rows of the two newest quick runs of an experiment on a GPU.

    Raises:
        LookupError: there are not two; the message says how to measure.
    """
    runs = store.read(RUNS)
    runs = runs[runs["experiment"].eq(experiment) & runs["gpu_name"].eq(gpu) & runs["preset"].eq("quick")]
    if len(runs) < 2:
        raise LookupError(
            f"{experiment} has no two quick runs on {gpu}: run python -m labkernels measure {experiment} twice"
        )
    return rows(store, table, sorted(runs["run_id"])[-2:])
