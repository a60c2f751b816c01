"""Which production choices follow a rule of thumb and which break it: queries over the catalog, by the rule's id."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from labkernels.mechanisms import GLOBAL, names

_TO_SHARED = "direction == 'load' and consumer == 'shared'"
_PAGED = "direction == 'load' and operand in ['K (paged)', 'V (paged)']"
_MAY_MULTICAST = (
    "direction == 'load' and operand in ['A', 'B'] and system == 'CUTLASS' and access == 'regular'"
)
_TMA = f"mechanism in {names(source=GLOBAL, by_threads=False)}"

#: A rule's id, the operands of the catalog it speaks of, and those of them that follow it.
QUERIES: dict[str, tuple[str, str]] = {
    "registers_stay_behind": (_TO_SHARED, "mechanism != 'ldg'"),
    "issue_pays_from_2_kib": (
        f"{_TO_SHARED} and phase == 'mainloop' and access == 'regular' and alignment_bytes >= 16",
        _TMA,
    ),
    "paged_decode": (_PAGED, f"mechanism == 'cp_async' or {_TMA}"),
    "paged_prefill": (_PAGED, _TMA),
    "fa3_decode": (f"{_PAGED} and system == 'FlashAttention-3'", _TMA),
    "gemm_no_gain": (_MAY_MULTICAST, "mechanism != 'tma_multicast'"),
    "paged_odd_rows": (
        "direction == 'load' and consumer == 'shared' and operand in ['LSE', 'LSE_log2', 'dPsum', 'dQ_accum (fp32)']",
        "mechanism == 'tma_bulk'",
    ),
}


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


def beside(operands: pd.DataFrame, ids: Iterable[str] = QUERIES) -> dict[str, Beside]:
    """Production choices by rule; a rule that speaks of no operand in the catalog is left out.

    Args:
        operands: table `operands` of the catalog.
        ids: rules to look for.
    """
    found = {}
    for id in ids:
        if id not in QUERIES:
            continue
        scope, follow = QUERIES[id]
        rows = operands.query(scope)
        kept = rows.query(follow)
        lost = rows.drop(kept.index)
        if len(rows):
            found[id] = Beside(_named(kept), _named(lost), len(kept), len(lost))
    return found
