"""How quack chooses, on Hopper, the cluster that reduces a row, and so whether row sums cross CTAs.

`quack/rmsnorm_config.py` 47-91, `softmax.py` 44-64 and `reduction_base.py` 29-40 at commit c8ec3170.
"""

from dataclasses import dataclass, field
from math import gcd

from labkernels import forms
from labkernels.forms import entry

KI = 1024
MOST = 16  # CTAs of a cluster, on sm_90
THREADS = ((64, 8), (128, 16), (3072, 32), (6144, 64), (16384, 128))


@dataclass(frozen=True, kw_only=True)
class RowReduction:
    """One forward reduction over rows, as it is asked for."""

    work: str = entry("rmsnorm", help="what is done", choices=("rmsnorm", "layernorm", "softmax"))
    n: int = entry(help="values of a row", least=1, most=2**31 - 1)
    dtype: str = entry("bf16", help="type of the values", choices=("bf16", "fp16", "fp32"))

    def __post_init__(self) -> None:
        forms.require(self)


@dataclass(frozen=True)
class RowChoice:
    """What a reduction was chosen to do: mechanisms by this book's names.

    Attributes:
        x: what loads the row.
        row_sums: what carries the sums between CTAs, or `none`.
        y: what stores the result.
        cluster: CTAs that share a row.
        threads_per_row: threads of a CTA that share a row.
        reasons: why, for each of the fields above.
    """

    x: str
    row_sums: str
    y: str
    cluster: int
    threads_per_row: int
    reasons: dict[str, str] = field(compare=False)


def choose(call: RowReduction) -> RowChoice:
    """What quack chooses on sm_90."""
    wide = call.dtype == "fp32"
    first = (
        (8, 64, 128, 256)
        if wide and call.work == "layernorm"
        else (32, 64, 128, 256)
        if wide
        else (16, 32, 64, 128)
    )
    cluster = next(
        (size for limit, size in zip(first, (1, 2, 4, 8), strict=True) if call.n <= limit * KI), MOST
    )
    threads = next((count for limit, count in THREADS if call.n <= limit), 256)
    vectors = call.n // gcd(call.n, 4 if wide else 8)
    if call.work != "softmax":  # so that each CTA has columns of its own
        cluster = min(cluster, max(1, vectors // threads))
    clustered = cluster > 1
    return RowChoice(
        x="cp_async",
        row_sums="dsm_store" if clustered else "none",
        y="stg",
        cluster=cluster,
        threads_per_row=threads,
        reasons={
            "x": "read once into shared memory, 16 bytes a thread where the row allows",
            "row_sums": "st.async to every CTA of the cluster" if clustered else "one CTA holds the row",
            "y": "straight from registers",
            "cluster": f"{call.n:,} values of {call.dtype}: measured limits of the source",
            "threads_per_row": f"{call.n:,} values",
        },
    )
