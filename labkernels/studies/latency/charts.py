"""Charts of single transfers: latency by size and by way, and what starting a copy costs."""

import altair as alt
import pandas as pd

from labkernels.charts import grammar as charts
from labkernels.operand import KIB
from labkernels.studies.stats import having

#: What a transfer is called, by its variant.
WAYS = {
    "register nc": "ld.global, kept in a register",
    "shared nc": "ld.global → st.shared",
    "group": "cp.async, wait_group",
    "mbarrier": "cp.async, mbarrier",
    "try_wait": "cp.async.bulk",
    "2d": "cp.async.bulk.tensor, 2-D",
}
MAP_PLACES = {"l2": "L2", "hbm": "HBM"}
PLACES = {"l2_near": "from L2 (near)", "l2_far": "from L2 (far)", "hbm": "from HBM"}


def chain(transfers: pd.DataFrame) -> pd.DataFrame:
    """The transfers into shared memory that `by_size` shows, one at a time from near L2 and from HBM.

    Args:
        transfers: rows of one run of `latency`.
    """
    shown = transfers[
        transfers["protocol"].eq("chain")
        & transfers["variant"].isin(["shared nc", "group", "try_wait", "2d"])
        & transfers["source"].isin(["l2_near", "hbm"])
    ]
    return shown.assign(place=shown["source"].map(PLACES))


def by_size(table: pd.DataFrame, own: pd.DataFrame) -> alt.HConcatChart:
    """Cycles of one dependent transfer by its size, a panel for each place.

    Args:
        table: of `chain`.
        own: the same of the reader's own run; may have no rows.
    """
    axis = charts.bytes_axis("transfer_bytes", "Bytes of the transfer")

    def panel(place: str) -> alt.LayerChart:
        chart = charts.band_and_line(
            having(table, place=place),
            axis,
            median="cycles_median",
            low="cycles_p05",
            high="cycles_p95",
            y_title="SM cycles",
            also=["variant", "threads", "place"],
        )
        if len(mine := having(own, place=place)):
            chart += charts.own_points(mine, axis, "cycles_median", ("variant", "gpu", "run_id"))
        return chart.properties(width=270, height=260, title=place)

    return alt.hconcat(*(panel(place) for place in sorted(table["place"].unique()))).resolve_scale(y="shared")


def sixteen_bytes(transfers: pd.DataFrame) -> pd.DataFrame:
    """The chains of 16 bytes that `by_way` shows: `way` and `place` in words.

    Args:
        transfers: rows of one run of `latency`.
    """
    small = transfers[
        transfers["transfer_bytes"].eq(16)
        & transfers["protocol"].eq("chain")
        & transfers["variant"].isin(WAYS)
    ]
    return small.assign(way=small["variant"].map(WAYS), place=small["source"].map(PLACES))


def by_way(table: pd.DataFrame, published: pd.DataFrame) -> alt.FacetChart:
    """Latency of 16 bytes by way, a panel for each place; numbers of others as diamonds.

    Args:
        table: of `sixteen_bytes`.
        published: latencies of table `published`.
    """
    theirs = published[published["memory"].isin(PLACES) & published["mechanism"].isin(["ldg", "tma_bulk"])]
    theirs = theirs.assign(
        way=theirs["mechanism"].map({"ldg": WAYS["register nc"], "tma_bulk": WAYS["try_wait"]}),
        place=theirs["memory"].map(PLACES),
        cycles_median=theirs["value"],
        kind="published",
    )
    both = pd.concat([table.assign(kind="measured", conditions=""), theirs])
    columns = [
        "mechanism", "way", "place", "kind", "gpu", "conditions", "cycles_p05", "cycles_median", "cycles_p95", "n",
        "run_id",
    ]  # fmt: skip
    cycles = ["cycles_p05", "cycles_median", "cycles_p95"]
    base = alt.Chart(both[columns]).encode(
        y=alt.Y("way:N", title=None, sort=list(WAYS.values())),
        color=charts.mechanism_color(table["mechanism"]),
        tooltip=["gpu", "way", "place", *cycles, "n", "conditions", "run_id"],
    )
    measured, others = (
        base.transform_filter(f"datum.kind == '{kind}'") for kind in ("measured", "published")
    )
    x = alt.X("cycles_median:Q", title="SM cycles")
    spread = alt.X("cycles_p05:Q", title="SM cycles")
    panel = alt.layer(
        measured.mark_rule(strokeWidth=4, opacity=0.4).encode(x=spread, x2="cycles_p95:Q"),
        measured.mark_point(filled=True, size=60).encode(x=x),
        others.mark_point(shape="diamond", filled=False, size=90).encode(x=x),
    ).properties(width=150, height=180)
    return panel.facet(column=alt.Column("place:N", title=None, sort=list(PLACES.values())))


def tensor_maps(table: pd.DataFrame, own: pd.DataFrame) -> alt.HConcatChart:
    """Cycles of a copy by how many maps are in use, and by how long before it its map was prefetched.

    Args:
        table: rows of one run of `descriptors`.
        own: rows of the reader's own; may be none.
    """

    def panel(frame: pd.DataFrame, mine: pd.DataFrame, x: alt.X, title: str) -> alt.LayerChart:
        by = [str(x.to_dict()["field"]), "place", "gpu", "run_id"]
        medians = [
            part.assign(place=part["source"].map(MAP_PLACES))
            .groupby(by, as_index=False)[["arrived_cycles_p05", "arrived_cycles", "arrived_cycles_p95"]]
            .median()
            for part in (frame, mine)
        ]
        base, points = (
            alt.Chart(part).encode(
                x=x,
                y=alt.Y("arrived_cycles:Q", title="SM cycles"),
                color=alt.Color("place:N", title="The map lies in", sort=list(MAP_PLACES.values())),
                tooltip=list(part.columns),
            )
            for part in medians
        )
        band = base.mark_area(opacity=0.2).encode(y=alt.Y("arrived_cycles_p05:Q"), y2="arrived_cycles_p95:Q")
        chart = alt.layer(band, base.mark_line(), base.mark_point(filled=True, size=36))
        if len(medians[1]):
            chart += points.mark_point(**charts.OWN)
        return chart.properties(width=270, height=240, title=title)

    plain, prefetched = (
        [frame[frame["use"].eq(use) & frame["blocks"].eq(1)] for frame in (table, own)]
        for use in ("plain", "prefetch")
    )
    scale = alt.Scale(type="log", base=2)
    maps = alt.X("maps:Q", title="Maps in use, in turns", scale=scale)
    ahead = alt.X("ahead_cycles:Q", title="Cycles from prefetch to copy")
    in_l2 = [frame[frame["source"].eq("l2")] for frame in plain]
    return alt.hconcat(
        panel(*in_l2, maps, "without a prefetch"), panel(*prefetched, ahead, "with prefetch.tensormap")
    ).resolve_scale(y="shared")


def per_copy(bursts: pd.DataFrame) -> pd.DataFrame:
    """Cycles of the thread for each copy of a burst, as `issue` shows them.

    Args:
        bursts: rows of one run of `issue`.
    """
    engine = bursts[
        bursts["variant"].eq("copy")
        & bursts["mechanism"].isin(["tma_bulk", "tma_tile"])
        & bursts["transfer_bytes"].isin([KIB, 8 * KIB, 16 * KIB])
    ]
    return engine.assign(
        size=engine["transfer_bytes"].map(charts.bytes_label),
        per_copy=engine["cycles_median"] / engine["train_length"],
        low=engine["cycles_p05"] / engine["train_length"],
        high=engine["cycles_p95"] / engine["train_length"],
    )


def issue(table: pd.DataFrame) -> alt.FacetChart:
    """What a copy costs the thread that starts it, by the length of the burst, a panel for each size.

    Args:
        table: of `per_copy`.
    """
    title = "Copies issued back to back"
    panel = charts.band_and_line(
        table,
        alt.X("train_length:Q", title=title, scale=alt.Scale(type="log", base=2)),
        median="per_copy",
        low="low",
        high="high",
        y_title="Cycles of the thread per copy",
        also=["size"],
    ).properties(width=180, height=220)
    sizes = [charts.bytes_label(size) for size in sorted(table["transfer_bytes"].unique())]
    return panel.facet(column=alt.Column("size:N", title="Bytes per copy", sort=sizes))
