"""The runs behind the book: which of them it shows, with kernels that are still the same or not, and their clocks."""

import altair as alt
import pandas as pd

from labkernels.book.headline import OF_ROWS
from labkernels.charts import PALETTE
from labkernels.charts.text import percent
from labkernels.errors import NotMeasured
from labkernels.store import RUNS, Store
from labkernels.store.provenance import kernels_unchanged
from labkernels.studies import cards, select
from labkernels.studies.experiments import studies
from labkernels.studies.stats import having

#: Experiments whose quick runs are compared with one another, to say how far two runs lie apart.
REPEATED = ("throughput", "row_shape")
_COLUMNS = [
    "experiment", "preset", "kernels", "driver_version", "toolkit_version", "sm_clock_mhz_min", "sm_clock_mhz_median",
    "sm_clock_mhz_max", "power_w_max", "temperature_c_max", "throttle_reasons", "wall_s", "commit",
]  # fmt: skip


def runs(store: Store, gpu: str) -> pd.DataFrame:
    """The runs of a GPU, oldest first.

    Returns:
        The run table with `kernels` (`unchanged`; `changed since`, which a kernel that is gone is too; or `of others`,
        which are not hashed here) and `shown`, whether the book shows the run.
    """
    table = store.read(RUNS)
    table = table[table["gpu_name"].eq(gpu)].sort_values("run_id")
    unchanged = table["run_id"].map(kernels_unchanged(store))
    of_others = unchanged.isna() & ~table["experiment"].isin(table["experiment"][unchanged.notna()])
    kernels = unchanged.map({True: "unchanged"}).fillna("changed since").mask(of_others, "of others")
    return table.assign(kernels=kernels, shown=table["run_id"].isin(_shown(store, table, gpu)))


def _shown(store: Store, table: pd.DataFrame, gpu: str) -> set[str]:
    """The newest full run of every experiment, the newest of a preset of its own, and pairs of quick runs."""
    special = table[~table["preset"].isin(["quick", "full"])]
    shown = {select.latest_run(store, experiment, gpu) for experiment in studies()}
    shown |= set(special.groupby(["experiment", "preset"])["run_id"].max())
    for experiment in REPEATED:
        try:
            shown |= set(select.quick_pair(store, experiment, gpu)["run_id"])
        except NotMeasured:
            continue
    return shown - {None}


def lead(table: pd.DataFrame) -> str:
    """How many of the runs that the book shows were made by the kernels that are here now, in a sentence.

    Args:
        table: of `runs`.
    """
    shown = table[table["shown"]]
    count = shown["kernels"].value_counts()
    stale = sorted(set(shown.loc[shown["kernels"].eq("changed since"), "experiment"]))
    others = f"; {count['of others']} timed kernels of others" if "of others" in count else ""
    changed = f"; changed since: {', '.join(stale)}" if stale else "; no kernel has changed since"
    same = f"{count.get('unchanged', 0)} were made by the kernels that are here now"
    return f"Of the {len(shown)} runs that it shows, {same}{others}{changed}."


def listing(table: pd.DataFrame) -> pd.DataFrame:
    """Runs as the page lists them, by their id.

    Args:
        table: of `runs`.
    """
    return table.set_index("run_id")[_COLUMNS].assign(
        commit=table.set_index("run_id")["commit"].fillna("").str[:10]
    )


def clocks(table: pd.DataFrame) -> alt.LayerChart:
    """Lowest, median and highest SM clock of each run.

    Args:
        table: of `runs`.
    """
    lowest, highest = table["sm_clock_mhz_min"].min(), table["sm_clock_mhz_max"].max()
    domain = [(lowest - 150) // 100 * 100, highest + 70]  # room for the names on the left
    clock = [f"sm_clock_mhz_{of}" for of in ("min", "median", "max")]
    columns = ["run_id", "experiment", "preset", *clock, "power_w_max"]
    base = alt.Chart(table[columns]).encode(
        y=alt.Y("run_id:N", title=None, sort=list(table["run_id"]), axis=alt.Axis(labels=False, ticks=False)),
        tooltip=columns,
    )
    span = base.mark_rule(strokeWidth=4, opacity=0.5).encode(
        x=alt.X("sm_clock_mhz_min:Q", title="SM clock, MHz", scale=alt.Scale(domain=domain)),
        x2="sm_clock_mhz_max:Q",
    )
    middle = base.mark_point(filled=True, size=50).encode(
        x="sm_clock_mhz_median:Q", color=alt.value(PALETTE[0])
    )
    names = base.mark_text(align="right", dx=-8).encode(x=alt.X("sm_clock_mhz_min:Q"), text="experiment:N")
    return span + middle + names


def on_cards(table: pd.DataFrame) -> alt.LayerChart:
    """What each card measured over what all of them did, an experiment a line.

    Args:
        table: of `cards.cells`.
    """
    base = alt.Chart(table).encode(
        y=alt.Y("experiment:N", title=None, sort=list(table["experiment"])), tooltip=list(table.columns)
    )
    x = alt.X("p05:Q", title="Card ÷ median of the cards", scale=alt.Scale(zero=False))
    every = base.mark_rule(strokeWidth=4, opacity=0.4).encode(x=x, x2="p95:Q")
    ends = [
        base.mark_point(filled=True, size=50).encode(x=f"{end}:Q", color=alt.value(PALETTE[0]))
        for end in ("lowest", "highest")
    ]
    one = alt.Chart(alt.Data(values=[{"ratio": 1}])).mark_rule(strokeDash=[3, 3]).encode(x="ratio:Q")
    return alt.layer(one, every, *ends)


def apart(table: pd.DataFrame) -> dict[str, str]:
    """How far the cards' medians lie apart, at most: of all rates together, and of latencies, in percent.

    Args:
        table: of `cards.cells`; may have no rows.
    """
    widths = (table["highest"] - table["lowest"]).groupby(table["quantity"].eq("gbps")).max()
    latency = having(table, experiment="latency")
    of = {"rates_apart": widths.get(True), "latency_apart": (latency["highest"] - latency["lowest"]).max()}
    return {name: "not measured" if pd.isna(width) else percent(width, 1) for name, width in of.items()}


def judged_on_cards(store: Store, gpu: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Stored verdicts that several cards judged, and, as the page lists them, those on which the cards differ."""
    verdicts = having(store.read("verdicts"), gpu=gpu)
    judged = verdicts[verdicts["cards"].gt(1)]
    differing = judged[judged["cards_hold"].lt(judged["cards"])]
    listed = differing[["statement", "chapter", "cards_hold", "cards"]]
    return judged, listed.rename(columns={"cards_hold": "holds on", "cards": "of cards"}).reset_index(
        drop=True
    )


def plain_l2(store: Store, gpu: str) -> str:
    """Plain loads from L2 with 32 KiB in flight: the range over cards, in words."""
    _, experiment, find = OF_ROWS["ldg_l2_read_gbps_at_32_kib"]
    try:
        frame = select.require_rows(store, experiment, gpu)
    except NotMeasured:
        return "not measured"
    run_id, value = str(frame["run_id"].iloc[0]), find(frame)[0]
    over = cards.over_cards(
        store, experiment, lambda rows: find(rows)[0], run_id, value, cards.runs_by_card(store, gpu)
    )
    return f"{over.low:,.0f} to {over.high:,.0f}"
