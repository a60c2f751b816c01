"""How every chapter prints its rules: what each says, on what it was measured, its verdict and the evidence."""

from collections.abc import Sequence

import pandas as pd

from labkernels.charts import tables
from labkernels.studies.rules import Verdict


def verdict_table(verdicts: Sequence[Verdict], *, across: bool = False) -> tables.Table:
    """Rules with their verdicts.

    Args:
        verdicts: from `labkernels.studies.rules.judge`.
        across: whether they are of several chapters or GPUs: with columns and filters for these.
    """
    rows = [
        {"rule": v.rule.statement, "verdict": v.outcome, "measured": v.sentence, "on": v.rule.scope}
        | ({"operands": v.rule.operands, "take": v.rule.take, "GPU": v.gpu} if across else {})
        | ({"chapter": v.rule.chapter, "id": v.rule.id} if across else {})
        | {"run": ", ".join(v.run_ids)}
        for v in verdicts
    ]
    pages = [f"{v.rule.chapter}.html" for v in verdicts]
    return tables.Table(
        pd.DataFrame(rows),
        description="Rules of thumb, each with its verdict, what was measured, and on what",
        filters=["chapter", "verdict", "GPU"] if across else [],
        links={"chapter": pages} if across else None,
    )
