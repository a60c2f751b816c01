"""How numbers read in the book's sentences, captions and labels."""

from collections.abc import Iterable

import pandas as pd


def percent(share: float, digits: int = 0) -> str:
    """A share in percent: `37%`."""
    return f"{100 * share:.{digits}f}%"


def change(ratio: float, digits: int = 1) -> str:
    """What a ratio changes, in percent with its sign: `+2.3%`."""
    return f"{100 * (ratio - 1):+.{digits}f}%".replace("-", "\N{MINUS SIGN}")


def span(values: Iterable[float], digits: int = 0) -> str:
    """Smallest and largest of some values: `17 to 20`, or `21` where both read the same."""
    ordered = sorted(values)
    ends = [f"{end:.{digits}f}" for end in (ordered[0], ordered[-1])]
    return " to ".join(dict.fromkeys(ends))


def kib(count: float) -> str:
    """Bytes in KiB: `32 KiB`."""
    return f"{count / 1024:.0f} KiB"


def tbps(gbps: float, digits: int = 1) -> str:
    """A rate in TB/s: `4.5 TB/s`."""
    return f"{gbps / 1e3:.{digits}f} TB/s"


def ends(table: pd.DataFrame, by: str, x: str, y: str, digits: int = 0) -> str:
    """First and last value of each line of a chart, for those who cannot see it: `cp_async 506 to 4,478, ldg …`.

    Args:
        table: a row for each point.
        by: column that tells lines apart.
        x: column along which lines run.
        y: column of the values.
        digits: of the values.
    """
    lines = {name: rows.sort_values(x)[y] for name, rows in table.groupby(by, sort=False)}
    return ", ".join(
        f"{name} {values.iloc[0]:,.{digits}f} to {values.iloc[-1]:,.{digits}f}"
        for name, values in lines.items()
    )
