"""The paper's questions, as its abstract has them, beside the rules that this book judges."""

import pandas as pd

from labkernels.charts.tables import Table
from labkernels.charts.text import span
from labkernels.store import Store, published
from labkernels.studies.rules import judge

#: What the abstract announces, in our words, and the rules that answer it here.
QUESTIONS: dict[str, tuple[str, ...]] = {
    "From which size on does TMA win over cp.async?": (
        "equal_shared_memory",
        "cp_async_with_little_in_flight",
    ),
    "How does multicast scale with the cluster?": ("gains_from_l2", "nothing_from_hbm", "up_to_twelve"),
    "Multicast, or distributed shared memory?": ("multicast_beats_dsm", "computed_pair", "round_trip"),
    "Paged KV: what does the page size decide?": (
        "paged_decode",
        "paged_prefill",
        "paged_short",
        "fa3_decode",
    ),
    "Does the data type change it?": ("paged_odd_rows",),
    "Do prefill and decode differ?": ("paged_prefill", "paged_decode", "gemm_decode"),
    "Does the shape of the model (heads, head dim, group size) change it?": (
        "fa3_prefill",
        "fa3_decode",
        "mla_pages",
    ),
}


def beside(store: Store, gpu: str) -> Table:
    """The questions, a row for each rule that answers them."""
    wanted = {name for names in QUESTIONS.values() for name in names}
    verdicts = {one.rule.id: one for one in judge(store, gpu, ids=wanted)}
    rows, pages = [], []
    for question, names in QUESTIONS.items():
        for name in names:
            one = verdicts[name]
            rows.append([question, one.rule.statement, one.sentence, one.outcome, one.rule.chapter])
            pages.append(f"{one.rule.chapter}.html")
    frame = pd.DataFrame(rows, columns=["the abstract asks", "we say", "measured", "verdict", "chapter"])
    return Table(frame, description="The paper's questions and our rules", links={"chapter": pages})


def apart() -> str:
    """TileOPs' full kernels over the larger of loads alone and compute floor, least and most."""
    rows = published("gemm_time", gpu="H200").assign(
        shape=lambda f: f["conditions"].str.extract(r"shape (\d)")
    )
    times = rows.pivot(index="shape", columns="variant", values="value")
    return span(times["full_kernel"] / times[["loads_alone", "compute_floor"]].max(axis=1), 2)
