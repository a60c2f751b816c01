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
        applies_to: operands that a rule applies to.
        follows: those of them that do as it says.
    """

    applies_to: str
    follows: str


@dataclass(frozen=True)
class Followed:
    """Operands of the catalog that follow a rule, and those that do not, by system and mechanism, in words."""

    follow: str
    against: str
    follow_count: int
    against_count: int


def _named(rows: pd.DataFrame) -> str:
    names = rows.groupby(["system", "mechanism"], sort=False)["operand"].unique()
    return "; ".join(f"{system}: {', '.join(found)} by {by}" for (system, by), found in names.items())


def followed(operands: pd.DataFrame, practices: Mapping[str, Practice]) -> dict[str, Followed]:
    """Production choices by rule; a rule that applies to no operand in the catalog is left out.

    Args:
        operands: table `operands` of the catalog.
        practices: queries by the rule's id.
    """
    found = {}
    for id, practice in practices.items():
        rows = operands.query(practice.applies_to)
        kept = rows.query(practice.follows)
        lost = rows.drop(kept.index)
        if len(rows):
            found[id] = Followed(_named(kept), _named(lost), len(kept), len(lost))
    return found


def counts(by_rule: Mapping[str, Followed], statements: Mapping[str, str]) -> pd.DataFrame:
    """Numbers of operands that do as each rule says, and otherwise: `rule` (its id), `statement`, `does`, `operands`.

    Args:
        by_rule: of `followed`.
        statements: sentences by the rule's id.
    """
    return pd.DataFrame(
        {"rule": id, "statement": statements[id], "does": does, "operands": number}
        for id, found in by_rule.items()
        for does, number in (("as the rule says", found.follow_count), ("otherwise", found.against_count))
    )


def beside_measured(
    by_rule: Mapping[str, Followed], statements: Mapping[str, str], verdicts: Mapping[str, tuple[str, str]]
) -> pd.DataFrame:
    """Each rule that production departs from, with what was measured of it, those with most departures first.

    Args:
        by_rule: of `followed`.
        statements: sentences by the rule's id.
        verdicts: outcome and evidence by the rule's id.

    Returns:
        Columns `rule`, `as it says`, `otherwise` (operands), `verdict`, `measured`, and `who departs`.
    """
    rows = [
        {
            "rule": statements[id],
            "as it says": found.follow_count,
            "otherwise": found.against_count,
            "verdict": verdicts[id][0],
            "measured": verdicts[id][1],
            "who departs": found.against,
        }
        for id, found in by_rule.items()
        if found.against_count
    ]
    return pd.DataFrame(sorted(rows, key=lambda row: -row["otherwise"]))
