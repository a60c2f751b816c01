"""Leave one out: constants fitted without a tile size, a depth, a fan-out … judged on it, beside simpler advisors."""

from collections.abc import Callable, Iterator
from dataclasses import asdict

import numpy as np
import pandas as pd

from labkernels.model.choosing import (
    ADVISOR,
    Policy,
    always,
    by_prediction,
    choices,
    choose,
    score,
    simplest,
    three_lines,
)
from labkernels.model.closed_form import ALONE, Constants
from labkernels.model.configurations import CELL, Frames, configurations, predicted
from labkernels.model.fit import START, fitted, known_before, starts
from labkernels.protocols.experiment import Progress, silent
from labkernels.studies.stats import SEED, where

#: What is left out, by the split's name: a value for each configuration; all with the same value go at once.
SPLITS: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    "tile size": lambda table: table["tile_bytes"],
    "slots": lambda table: table["slots"],
    "bytes in flight": lambda table: (
        2 ** np.log2(table["tile_bytes"] * table["tiles_in_flight"] * table["ctas_per_sm"]).round()
    ),
    "CTAs per SM": lambda table: table["ctas_per_sm"].where(table["ctas_per_sm"].gt(1)),
    "source": lambda table: table["source"],
    "row length": lambda table: table["row_bytes"].where(table["experiment"].eq("row_shape")),
    "fan-out": lambda table: table["fan_out"].where(table["fan_out"].gt(1)),
    "warps": lambda table: table["warps"].where(table["warps"].gt(1)),
}
OF_SOURCES = ("latency", "throughput")  # experiments that say what is put in for a source that was left out
FORM = ["mechanism", "variant", "pipeline", "warps", "barriers"]


def _roofline(rows: pd.DataFrame, of: Constants) -> pd.Series:
    """Rates by the bandwidth of memory and of an SM's ingress alone; a multicast reads once for all."""
    served = rows["fan_out"].where(rows["mechanism"].eq("tma_multicast") | rows["source"].eq("hbm"), 1)
    memory = (
        rows["source"].map({name: of["gpu", f"{name}_bytes_per_cycle"] for name in ("hbm", "l2")}) * served
    )
    sms = rows["fan_out"].map({fan: of["gpu", f"sms_at_fan_out_{fan}"] for fan in rows["fan_out"].unique()})
    sms = sms.where(rows["variant"].ne(ALONE), of["gpu", "sms_at_fan_out_1"])
    ingress = sms * of["gpu", "ingest_bytes_per_cycle"]
    return np.minimum(memory, ingress) * of["gpu", "sm_clock_mhz"] / 1e3


def _place(table: pd.DataFrame) -> np.ndarray:
    """Where cells lie, for the nearest neighbour: powers of two of their numbers; another source is four away."""
    numbers = np.log2(table[["tile_bytes", "row_bytes", "slots", "ctas_per_sm", "fan_out"]].to_numpy(float))
    kinds = 4.0 * np.column_stack([table["source"].eq("hbm"), table["is_dense"]])
    return np.hstack([numbers, kinds])


class Nearest:
    """What was fastest in the nearest cell that was not left out, if it is possible here; else in the next."""

    def __init__(self, fitted_to: pd.DataFrame) -> None:
        best = fitted_to.loc[fitted_to.groupby(CELL)["median"].idxmax()]
        self.places, self.forms = _place(best), list(best[FORM].itertuples(index=False, name=None))

    def __call__(self, rows: pd.DataFrame) -> object:
        """Of one cell's candidates."""
        far = np.abs(self.places - _place(rows.head(1))).sum(axis=1)
        here = {
            form: index
            for index, form in zip(rows.index, rows[FORM].itertuples(index=False, name=None), strict=True)
        }
        for index in np.argsort(far, kind="stable"):
            if self.forms[index] in here:
                return here[self.forms[index]]
        return simplest(rows)


def folds(table: pd.DataFrame, split: str) -> Iterator[tuple[object, pd.Series, pd.Series]]:
    """Each value that is left out, which configurations have it, and all of the cells that these are rivals in.

    An experiment with one value alone stays: nothing else would say what it asks. Without a source nothing says what
    only it can show, requests that merge in L2 and short rows from HBM: judged are dense tiles of single CTAs.
    """
    key = SPLITS[split](table)
    several = key.groupby(table["experiment"]).transform("nunique").gt(1 - key.isna().any())
    key = key.where(several)
    cells = table.groupby(CELL, sort=False).ngroup()
    for value in sorted(key.dropna().unique()):
        out = key.eq(value)
        judged = cells.isin(cells[out])
        yield value, out, judged & (table["fan_out"].eq(1) & table["is_dense"] if split == "source" else True)


def left_out_source(of: Constants, latency: pd.DataFrame, streams: pd.DataFrame, source: str) -> Constants:
    """What is put in for a source that was left out: its latency in a pointer chase, and the best rate it gives."""
    chase = where(latency, mechanism="ldg", variant="register nc").groupby("source")["cycles_median"].median()
    step = float(chase["hbm"] - chase["l2_near"])
    other = "l2" if source == "hbm" else "hbm"
    best = (
        where(streams, source=source)
        .groupby(["kernel", "tile_bytes", "stages", "ctas_per_sm"])["gbps"]
        .median()
        .max()
    )
    return of | {
        ("gpu", f"latency_{source}_cycles"): of["gpu", f"latency_{other}_cycles"]
        + (step if source == "hbm" else -step),
        ("gpu", f"{source}_bytes_per_cycle"): float(best) * 1e3 / of["gpu", "sm_clock_mhz"],
    }


def policies(of: Constants, fitted_to: pd.DataFrame) -> dict[str, Policy]:
    """The advisor and what it is compared with, by name."""
    return {
        ADVISOR: by_prediction,
        "always cp.async": always("cp_async", "tma_tile"),
        "always TMA": always("tma_tile"),
        "roofline alone": lambda rows: choose(rows, _roofline(rows, of)),
        "nearest neighbor": Nearest(fitted_to),
        "three lines": three_lines,
    }


def leave_out(rows: Frames, split: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One split: predictions of all that was left out, by constants fitted without, and `choices`.

    Args:
        rows: of `configurations.frames`, of `OF_SOURCES` too where the source is left out.
        split: one of `SPLITS`.
    """
    known = known_before(rows)
    table = configurations(rows, starts(known))
    told, chosen = [], []
    table = table.assign(piece_rows=0)
    for value, out, judged in folds(table, split):
        if split == "source":
            absent = {("gpu", f"latency_{value}_cycles"), ("gpu", f"{value}_bytes_per_cycle"),
                      ("gpu", f"{value}_queue_sharpness")}  # fmt: skip
            of = fitted(table[~out], known | {key: START[key[1]] for key in absent})
            of = left_out_source(of, rows["latency"], rows["throughput"], str(value))
        else:
            of = fitted(table[~out], known)
        part = predicted(table[judged], of).assign(left_out=str(value))
        told.append(part[out[judged]])
        chosen.append(choices(part, CELL, policies(of, table[~out])).assign(left_out=str(value)))
    return pd.concat(told, ignore_index=True), pd.concat(chosen, ignore_index=True)


def scores(told: pd.DataFrame, chosen: pd.DataFrame) -> pd.DataFrame:
    """A row for each policy: what `Score` has, agreement and 95th percentile with intervals, and errors of time.

    Args:
        told: predictions, of which the advisor's errors of time are.
        chosen: of `choices`.
    """
    rng = np.random.default_rng(SEED)
    found = []
    for name, cells in chosen.groupby("policy", sort=False):
        draws = rng.integers(len(cells), size=(400, len(cells)))
        spread = {
            "agreement": cells["agrees"].to_numpy()[draws].mean(axis=1),
            "regret_p95": np.quantile(cells["regret"].to_numpy()[draws], 0.95, axis=1),
        }
        ends = {
            f"{what}_{end}": np.quantile(values, at)
            for what, values in spread.items()
            for end, at in (("low", 0.025), ("high", 0.975))
        }
        error = (told["ratio"] - 1).abs() if name == ADVISOR else pd.Series(dtype=float)
        times = {"time_error_mean": error.mean(), "time_error_p95": error.quantile(0.95)}
        found.append({"policy": name} | asdict(score(cells)) | ends | times)
    return pd.DataFrame(found)


def all_scores(rows: Frames, progress: Progress = silent) -> pd.DataFrame:
    """`scores` of every split, with `split`."""
    return pd.concat(
        [scores(*leave_out(rows, split)).assign(split=split) for split in progress(SPLITS, "leave one out")],
        ignore_index=True,
    )
