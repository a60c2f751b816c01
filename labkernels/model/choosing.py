"""Choosing between candidates for one place, by predictions or by a simpler policy, and what the choice costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from labkernels.mechanisms import MECHANISMS
from labkernels.model.advisor import NO_DIFFERENCE, SAME_FORM
from labkernels.model.closed_form import ALONE, PREFERENCE, SHARES, SMALL_TILE_BYTES, VECTOR_BYTES
from labkernels.operand import KIB

#: Takes the candidates of one cell, with `predicted_gbps`, and gives the index of one.
Policy = Callable[[pd.DataFrame], object]
ADVISOR = "advisor"


@dataclass(frozen=True)
class Score:
    """Choices over some cells.

    Attributes:
        cells: how many.
        agreement: share in which the choice is within 1.5% of the measured best, or within its noise.
        regret_mean: time of the choice over time of the best, of all that was measured there.
        regret_p95: 95th percentile.
        regret_max: largest.
    """

    cells: int
    agreement: float
    regret_mean: float
    regret_p95: float
    regret_max: float


def score(cells: pd.DataFrame) -> Score:
    """Agreement and regret of rows of `choices`."""
    regret = cells["regret"]
    return Score(
        len(cells),
        float(cells["agrees"].mean()),
        float(regret.mean()),
        float(regret.quantile(0.95)),
        float(regret.max()),
    )


def instructions(rows: pd.DataFrame) -> pd.Series:
    """Copies of a tile that the busiest thread issues."""
    by_threads = rows["mechanism"].map(lambda name: MECHANISMS[name].by_threads)
    return (rows["tile_bytes"] / VECTOR_BYTES / rows["threads"]).clip(lower=1).where(by_threads, 1.0)


def choose(rows: pd.DataFrame, rate: pd.Series) -> object:
    """As the advisor: of each mechanism the fewest warps that are nearly as fast as more; then the fewest instructions.

    Args:
        rows: candidates for one place, with `instructions` and `warps`.
        rate: of each, as somebody predicts it.
    """
    table = rows.assign(rate=rate, rank=rows["mechanism"].map(PREFERENCE.index))
    table = table[table["rate"] * SAME_FORM >= table.groupby("mechanism")["rate"].transform("max")]
    table = table.sort_values(["warps", "rate"], ascending=[True, False], kind="stable")
    table = table.drop_duplicates("mechanism")
    near = table[table["rate"] * NO_DIFFERENCE >= table["rate"].max()]
    return near.sort_values(["instructions", "rank"]).index[0]


def by_prediction(rows: pd.DataFrame) -> object:
    """The advisor: of what is on its menu, by predicted rates; large tiles of one CTA by one warp (`forms_of`)."""
    several = rows["mechanism"].map(lambda name: MECHANISMS[name].crosses_ctas)
    menu = rows[rows["warps"].eq(1) | several | rows["tile_bytes"].le(SMALL_TILE_BYTES)]
    return choose(menu, menu["predicted_gbps"])


def simplest(rows: pd.DataFrame) -> object:
    """The fewest instructions and warps."""
    return choose(rows, pd.Series(1.0, index=rows.index))


def always(*mechanisms: str) -> Policy:
    """The simplest form of the first mechanism that is there, of several CTAs without a cluster; else of any."""

    def take(rows: pd.DataFrame) -> object:
        for name in mechanisms:
            its = rows[rows["mechanism"].eq(name)]
            alone = its[its["variant"].eq(ALONE)]
            if len(its):
                return simplest(alone if len(alone) else its)
        return simplest(rows)

    return take


def three_lines(rows: pd.DataFrame) -> object:
    """A rule of three lines, written with all rows known: it has seen what is left out."""
    cell = rows.iloc[0]
    most = rows[rows["warps"].eq(rows["warps"].max())]  # as many as the slots allow
    in_flight = cell["tile_bytes"] * cell["slots"]
    if cell["fan_out"] in (4, 8) and cell["source"] != "hbm" and in_flight >= 48 * KIB:
        return always("tma_multicast")(most[most["variant"].ne(SHARES[0])])
    if (
        cell["slots"] == 1
        or cell["row_bytes"] < (64 if cell["is_dense"] else 32)
        or 0 < cell["piece_rows"] < 8
    ):
        return always("cp_async", "tma_tile")(rows)
    return always("tma_tile")(rows if cell["tile_bytes"] > SMALL_TILE_BYTES else most)


def choices(table: pd.DataFrame, by: Sequence[str], policies: Mapping[str, Policy]) -> pd.DataFrame:
    """What each policy takes in each cell of several mechanisms, and what that costs; the very variant it takes counts.

    Args:
        table: measured configurations with predictions.
        by: what rivals for one place have in common.
        policies: by name.

    Returns:
        Columns of `by`, `policy`, `choice`, `best`, `regret` (time of the choice over time of the best), `agrees`
        (within 1.5% of the best, or their 5% to 95% intervals of rounds overlap) and `tied` (predictions do not
        differ).
    """
    table = table.assign(instructions=instructions(table)) if "instructions" not in table else table
    found = []
    for cell, rows in table.groupby(list(by), sort=False):
        if rows["mechanism"].nunique() < 2:
            continue
        best = rows.loc[rows["median"].idxmax()]
        for name, take in policies.items():
            taken = rows.loc[take(rows)]
            regret = best["median"] / taken["median"]
            gap = max(best["predicted_gbps"], taken["predicted_gbps"]) / min(
                best["predicted_gbps"], taken["predicted_gbps"]
            )
            found.append(
                dict(zip(by, cell, strict=True))
                | {"policy": name, "choice": taken["mechanism"], "best": best["mechanism"], "regret": regret}
                | {"agrees": bool(regret <= NO_DIFFERENCE or taken["p95"] >= best["p05"])}
                | {"tied": bool(gap <= NO_DIFFERENCE)}
            )
    return pd.DataFrame(found, columns=[*by, "policy", "choice", "best", "regret", "agrees", "tied"])
