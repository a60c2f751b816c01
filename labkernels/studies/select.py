"""Which stored rows a chapter, a headline or a rule looks at."""

from collections.abc import Collection

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.store import RUNS, Store
from labkernels.studies.experiments import experiment as find

RUN_COLUMNS = ("gpu_name", "sm_count", "sm_clock_mhz_median", "l2_bytes")


def gpus(store: Store) -> list[str]:
    """Names of the GPUs that have rows, those of the newest run last."""
    return list(dict.fromkeys(store.read(RUNS).sort_values("run_id")["gpu_name"]))


def require_gpus(store: Store, wanted: str | None = None) -> list[str]:
    """The wanted GPU, or all that have rows.

    Raises:
        NotMeasured: there are no rows of it, or of any.
    """
    names = gpus(store)
    if not names:
        raise NotMeasured(
            f"{store.root} holds no runs: measure here, merge another machine's, or name its folder"
        )
    if wanted and wanted not in names:
        raise NotMeasured(
            f"no runs of {wanted!r} in {store.root}: give {' or '.join(names)}, or measure there"
        )
    return [wanted] if wanted else names


def latest_run(
    store: Store,
    experiment: str,
    gpu: str | None = None,
    *,
    without: Collection[str] = (),
    preset: str | None = None,
) -> str | None:
    """Newest run of an experiment on a GPU (any GPU by default): of a preset, by default its fullest; or None.

    A quick run never hides a full one; runs `without` are passed over.

    Raises:
        UnknownExperiment: there is no such experiment, measured or not.
    """
    name = find(experiment).name
    runs = store.read(RUNS)
    runs = runs[runs["experiment"].eq(name) & (runs["gpu_name"].eq(gpu) if gpu else True)]
    runs = runs[~runs["run_id"].isin(without)]
    for name in [preset] if preset else ("full", *sorted(set(runs["preset"]) - {"full"})):
        if len(chosen := runs[runs["preset"].eq(name)]):
            return str(chosen["run_id"].max())
    return None


def rows(store: Store, experiment: str, run_ids: list[str], *, table: str | None = None) -> pd.DataFrame:
    """Rows of some runs of an experiment with what a chart needs of their run: `gpu`, SM count, clock and L2 size.

    Args:
        store: where.
        experiment: whose runs these are.
        run_ids: which runs; of none, the frame is empty.
        table: which of the experiment's tables; by default the main one.

    Raises:
        UnknownExperiment: there is no such experiment.
        ValueError: the experiment does not fill that table; the message names those it does.
    """
    frame = store.read(find(experiment).table(table), run_ids=run_ids, run_columns=RUN_COLUMNS)
    return frame.rename(columns={"gpu_name": "gpu"}).fillna({"variant": ""})


def latest_rows(
    store: Store, experiment: str, gpu: str | None = None, *, table: str | None = None
) -> pd.DataFrame:
    """Rows of the newest run of an experiment; an empty frame where there is none. Errors as in `rows`."""
    run_id = latest_run(store, experiment, gpu)
    return rows(store, experiment, [run_id] if run_id else [], table=table)


def require_rows(store: Store, experiment: str, gpu: str, without: Collection[str] = ()) -> pd.DataFrame:
    """As `latest_rows`, of one GPU, where there have to be some.

    Raises:
        NotMeasured: there are none; the message says how to measure.
    """
    run_id = latest_run(store, experiment, gpu, without=without)
    frame = rows(store, experiment, [run_id] if run_id else [])
    if frame.empty:
        raise NotMeasured(f"no rows of {experiment} on {gpu}: run python -m labkernels measure {experiment}")
    return frame


def quick_pair(store: Store, experiment: str, gpu: str) -> pd.DataFrame:
    """Rows of the two newest quick runs of an experiment on a GPU.

    Raises:
        NotMeasured: there are not two; the message says how to measure.
    """
    runs = store.read(RUNS)
    runs = runs[runs["experiment"].eq(experiment) & runs["gpu_name"].eq(gpu) & runs["preset"].eq("quick")]
    if len(runs) < 2:
        raise NotMeasured(
            f"{experiment} has no two quick runs on {gpu}: run python -m labkernels measure {experiment} twice"
        )
    return rows(store, experiment, sorted(runs["run_id"])[-2:])
