"""What stored rows say of single transfers and of bursts of them: latency, cycles of one more copy."""

import pandas as pd

from labkernels.studies.stats import where


def latency(
    frame: pd.DataFrame,
    mechanism: str,
    variant: str,
    source: str,
    transfer_bytes: int = 16,
    protocol: str = "chain",
) -> pd.Series:
    """One row of table `latency`.

    Raises:
        NotMeasured: there is none.
    """
    return where(
        frame,
        mechanism=mechanism,
        variant=variant,
        source=source,
        transfer_bytes=transfer_bytes,
        protocol=protocol,
    ).iloc[-1]


def issue_slope_cycles(
    frame: pd.DataFrame,
    mechanism: str,
    transfer_bytes: int,
    longest: int = 8,
    per_copy: str = "copy",
    shortest: int = 1,
) -> float:
    """Cycles per further transfer of a burst: the slope between one of `shortest` and one of `longest`.

    `per_copy` is what each comes with: `copy` (nothing), `expect`, `wait` or `lookup`; see ptx/macros/issue.ptx.

    Raises:
        NotMeasured: there is no such burst.
    """
    rows = where(frame, mechanism=mechanism, transfer_bytes=transfer_bytes, variant=per_copy)
    short, long = (
        where(rows, train_length=length)["cycles_median"].iloc[-1] for length in (shortest, longest)
    )
    return float((long - short) / (longest - shortest))


def burst_cycles(
    frame: pd.DataFrame, mechanism: str, train: int, transfer_bytes: int = 512, warps: int = 1
) -> float:
    """Median cycles of a warp until the last copy of a burst is issued: rows of `issue_inline`.

    Raises:
        NotMeasured: there is no such burst.
    """
    shape = {"train_length": train, "transfer_bytes": transfer_bytes, "warps": warps}
    return float(where(frame, mechanism=mechanism, **shape)["cycles_median"].iloc[-1])
