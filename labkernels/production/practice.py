"""Which production choices follow a rule of thumb and which break it: queries over the catalog."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from labkernels.mechanisms import GLOBAL, names

TMA = f"mechanism in {names(source=GLOBAL, by_threads=False)}"


@dataclass(frozen=True)
class Practice:
    """Queries over table `operands` of the catalog.

    Attributes:
        speaks_of: operands that a rule speaks of.
        follows: those of them that do as it says.
    """

    speaks_of: str
    follows: str


@dataclass(frozen=True)
class Beside:
    """Operands of the catalog beside a rule, by system and mechanism, in words."""

    follow: str
    against: str
    follow_count: int
    against_count: int


def _named(rows: pd.DataFrame) -> str:
    names = rows.groupby(["system", "mechanism"], sort=False)["operand"].unique()
    return "; ".join(f"{system}: {', '.join(found)} by {by}" for (system, by), found in names.items())


def beside(operands: pd.DataFrame, practices: Mapping[str, Practice]) -> dict[str, Beside]:
    """Production choices by rule; a rule that speaks of no operand in the catalog is left out.

    Args:
        operands: table `operands` of the catalog.
        practices: queries by the rule's id.
    """
    found = {}
    for id, practice in practices.items():
        rows = operands.query(practice.speaks_of)
        kept = rows.query(practice.follows)
        lost = rows.drop(kept.index)
        if len(rows):
            found[id] = Beside(_named(kept), _named(lost), len(kept), len(lost))
    return found


def counts(beside: Mapping[str, Beside], statements: Mapping[str, str]) -> pd.DataFrame:
    """Numbers of operands that do as each rule says, and otherwise: `rule` (its id), `statement`, `does`, `operands`.

    Args:
        beside: of `beside`.
        statements: sentences by the rule's id.
    """
    return pd.DataFrame(
        {"rule": id, "statement": statements[id], "does": does, "operands": number}
        for id, found in beside.items()
        for does, number in (("as the rule says", found.follow_count), ("otherwise", found.against_count))
    )
