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


POLL_CYCLES = 43  # from a poll of a barrier to the next in the kernels of `descriptors`, as their rows show


def map_cycles(
    frame: pd.DataFrame, use: str, source: str = "l2", column: str = "arrived_cycles", **equal: int
) -> float:
    """Median over the rounds of a column of `descriptors`, of one block unless `equal` says otherwise.

    Raises:
        NotMeasured: maps were not used so.
    """
    return float(where(frame, use=use, source=source, **{"blocks": 1} | equal)[column].median())


def most_maps(frame: pd.DataFrame) -> int:
    """The largest number of maps in use, of which none is at hand when its turn comes."""
    return int(where(frame, use="plain")["maps"].max())


def descriptor_cold_cycles(frame: pd.DataFrame) -> float:
    """What a copy takes longer when its map has to come from L2: a map of many against one in use."""
    return map_cycles(frame, "plain", maps=most_maps(frame)) - map_cycles(frame, "plain", maps=1)


def descriptor_replace_cycles(frame: pd.DataFrame) -> float:
    """What a copy takes longer whose map was rewritten, published and acquired right before."""
    return map_cycles(frame, "replace") - map_cycles(frame, "plain", maps=1)


def burst_cycles(
    frame: pd.DataFrame, mechanism: str, train: int, transfer_bytes: int = 512, warps: int = 1
) -> float:
    """Median cycles of a warp until the last copy of a burst is issued: rows of `issue_inline`.

    Raises:
        NotMeasured: there is no such burst.
    """
    shape = {"train_length": train, "transfer_bytes": transfer_bytes, "warps": warps}
    return float(where(frame, mechanism=mechanism, **shape)["cycles_median"].iloc[-1])
