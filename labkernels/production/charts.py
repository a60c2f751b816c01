"""Charts of what production kernels choose: operands of the catalog, compiled kernels, sizes of pages."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from labkernels.charts.grammar import PALETTE, mechanism_color
from labkernels.kernels.sass import MECHANISMS

#: The shape of each system's mark.
SYSTEMS = {
    "FlashAttention-3": "circle",
    "FlashAttention-4": "square",
    "CUTLASS": "triangle-up",
    "FlashInfer": "diamond",
    "FlashMLA": "cross",
    "DeepGEMM": "triangle-down",
    "DeepEP": "triangle-left",
    "ThunderKittens": "triangle-right",
    "quack": "M0,-1L0.3,-0.3L1,-0.3L0.45,0.15L0.65,0.9L0,0.45L-0.65,0.9L-0.45,0.15L-1,-0.3L-0.3,-0.3Z",
    "FBGEMM": "M-0.45,-0.8L0.45,-0.8L0.9,0L0.45,0.8L-0.45,0.8L-0.9,0Z",
    "vLLM": "M-0.8,-0.9L0.8,-0.9L-0.8,0.9L0.8,0.9Z",
    "SGLang": "M-0.9,-0.8L-0.9,0.8L0.9,-0.8L0.9,0.8Z",
}
_CHOICE = [
    "system",
    "kernel",
    "arch",
    "operand",
    "mechanism",
    "variant",
    "condition",
    "reason",
    "path",
    "lines",
]
_GRID_ABOVE = alt.Axis(orient="top", labelAngle=0, grid=True)


def _choose(name: str, label: str, options: dict[str, str | None]) -> alt.Parameter:
    """A select box of the page; the option without a value shows everything."""
    bound = alt.binding_select(options=list(options.values()), labels=list(options), name=f"{label}: ")
    return alt.param(name, bind=bound)


def operand_map(choices: pd.DataFrame) -> alt.Chart:
    """Operand by mechanism, those with most mechanisms on top; select boxes single out a system and an index.

    Args:
        choices: rows of table `operands` with a mechanism.
    """
    rows = choices.assign(
        name=choices["operand"].str.replace(r" \(.*\)| =.*", "", regex=True),
        index=choices["index_granularity"].fillna("none"),
    )
    contested = rows.groupby("name")["mechanism"].nunique()
    order = sorted(contested.index, key=lambda name: (-contested[name], list(rows["name"]).index(name)))
    system = _choose("system", "System", {"all": None} | {name: name for name in SYSTEMS})
    index = _choose(
        "indexed", "Index", {"any": None, "none": "none", "one per tile": "tile", "one per row": "row"}
    )
    shown = "(!system || datum.system == system) && (!indexed || datum.index == indexed)"
    shapes = alt.Scale(domain=list(SYSTEMS), range=list(SYSTEMS.values()))
    legend = alt.Legend(orient="top", columns=6, symbolSize=80)
    return (
        alt.Chart(rows[["name", "index", *_CHOICE]])
        .mark_point(filled=True, size=75)
        .encode(
            x=alt.X("mechanism:N", title=None, sort=list(MECHANISMS), axis=_GRID_ABOVE),
            y=alt.Y("name:N", title=None, sort=order, axis=alt.Axis(grid=True)),
            xOffset=alt.XOffset("system:N", sort=list(SYSTEMS)),
            shape=alt.Shape("system:N", title=None, scale=shapes, legend=legend),
            color=mechanism_color(rows["mechanism"].unique()).legend(None),
            opacity=alt.condition(shown, alt.value(1), alt.value(0.06)),
            tooltip=_CHOICE,
        )
        .add_params(system, index)
        .properties(width=560, height=alt.Step(17))
    )


def features(spread: pd.DataFrame) -> alt.FacetChart:
    """How operands spread over mechanisms by each value of each feature: areas and numbers.

    Args:
        spread: of `catalog.by_feature`.
    """
    values = set(spread["value"]) - {"not known"}
    sizes = sorted((one for one in values if one.endswith(" B")), key=lambda one: int(one.split()[0]))
    order = [*sizes, *sorted(values - {*sizes}), "not known"]
    base = alt.Chart(spread).encode(
        x=alt.X("mechanism:N", title=None, sort=list(MECHANISMS), axis=_GRID_ABOVE),
        y=alt.Y("value:N", title=None, sort=order, axis=alt.Axis(grid=True)),
    )
    dots = base.mark_point(filled=True, opacity=0.85).encode(
        size=alt.Size("operands:Q", scale=alt.Scale(range=[40, 700], domain=[1, 60]), legend=None),
        color=mechanism_color(spread["mechanism"].unique()).legend(None),
        tooltip=["feature", "value", "mechanism", "operands", "which"],
    )
    numbers = base.mark_text(dx=20, align="left").encode(text="operands:Q")
    header = alt.Header(orient="left", labelAngle=0, labelAlign="left")
    features = list(dict.fromkeys(spread["feature"]))
    return (
        (dots + numbers)
        .properties(width=430, height=alt.Step(24))
        .facet(row=alt.Row("feature:N", title=None, sort=features, header=header), spacing=12)
        .resolve_scale(y="independent")
    )


def instructions(kernels: pd.DataFrame, mechanisms: Sequence[str]) -> alt.FacetChart:
    """How many instructions of each mechanism stand in compiled kernels, grouped by what the source selects.

    Args:
        kernels: of `catalog.flash_kernels`, forward ones.
        mechanisms: columns to draw, a panel each.
    """
    counts = kernels.assign(group=[_group(kernel) for kernel in kernels.itertuples()]).melt(
        ["group", "label", "registers", "arch"], mechanisms, var_name="mechanism", value_name="instructions"
    )
    groups = sorted(counts["group"].unique(), key=lambda name: ("K/V cp" in name, "K/V TMA" in name, name))
    return (
        alt.Chart(counts)
        .mark_point(filled=True, size=60, opacity=0.5)
        .encode(
            x=alt.X("instructions:Q", title=None, axis=alt.Axis(tickCount=3, grid=False)),
            y=alt.Y("group:N", title=None, sort=groups, axis=alt.Axis(grid=True, labelLimit=320)),
            color=mechanism_color(mechanisms).legend(None),
            tooltip=["label", "mechanism", "instructions", "registers", "arch"],
        )
        .properties(width=92, height=alt.Step(26))
        .facet(column=alt.Column("mechanism:N", title=None, sort=list(mechanisms)), spacing=18)
        .resolve_scale(x="independent")
    )


def _group(kernel: object) -> str:
    keys = "cp.async" if kernel.paged_cp_async else "multicast" if kernel.cluster_m > 1 else "TMA"
    new = ", new K/V TMA" if kernel.append else ""
    out = "plain" if kernel.varlen or kernel.split or kernel.pack_gqa else "TMA"
    return f"K/V {keys}{new}; Q {'cp.async' if kernel.pack_gqa else 'TMA'}; O {out}"


def page_sizes(grid: pd.DataFrame) -> alt.FacetChart:
    """Which mechanism brings paged keys, by page size and kernel, a panel for each number of queries.

    Args:
        grid: of `catalog.page_sizes`.
    """
    cells = alt.Chart(grid.drop(columns="tile")).encode(
        x=alt.X("page:O", title="Rows of a page", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("kernel:N", title=None, sort=None, axis=alt.Axis(labelLimit=300)),
    )
    squares = cells.mark_rect(stroke="white", strokeWidth=1, opacity=0.85).encode(
        color=mechanism_color(["tma_tile", "cp_async"]).legend(None),
        tooltip=["kernel", "page", "queries", "mechanism", "why"],
    )
    label = cells.mark_text(fontSize=10, color="white", fontWeight="bold").encode(
        text=alt.condition("datum.mechanism == 'tma_tile'", alt.value("TMA"), alt.value("cp"))
    )
    queries = list(dict.fromkeys(grid["queries"]))
    header = alt.Header(orient="top", labelAnchor="start")
    return (
        (squares + label)
        .properties(width=410, height=alt.Step(26))
        .facet(row=alt.Row("queries:N", title=None, sort=queries, header=header), spacing=26)
    )


def followed(counts: pd.DataFrame) -> alt.Chart:
    """How many operands of the catalog do what each rule says, and how many do not.

    Args:
        counts: of `practice.counts`.
    """
    pick = alt.selection_point(name="picked_does", fields=["does"], bind="legend")
    does = list(counts["does"].unique())
    return (
        alt.Chart(counts)
        .mark_bar()
        .encode(
            x=alt.X("operands:Q", title="Operands in the catalog"),
            y=alt.Y("rule:N", title=None, sort=None, axis=alt.Axis(labelLimit=320)),
            color=alt.Color(
                "does:N",
                title="Production does",
                scale=alt.Scale(domain=does, range=[PALETTE[2], PALETTE[1]]),
                legend=alt.Legend(symbolType="square", symbolSize=150),
            ),
            opacity=alt.when(pick).then(alt.value(1)).otherwise(alt.value(0.15)),
            tooltip=["statement", "does", "operands"],
        )
        .add_params(pick)
    )


def cluster_shapes(shapes: pd.DataFrame) -> alt.Chart:
    """Share of a library's kernels by cluster shape.

    Args:
        shapes: of `library_kernels.clusters`.
    """
    order = sorted(shapes["cluster"].unique(), key=lambda name: [int(side) for side in name.split("×")])
    order.sort(key=lambda name: int(name[0]) * int(name[-1]))
    pick = alt.selection_point(name="picked_cluster", fields=["cluster"], bind="legend")
    hues = {"1×1": 7, "2×1": 0, "1×2": 1, "2×2": 2, "4×1": 5, "1×4": 6, "1×8": 4, "2×4": 3}
    colors = [
        PALETTE[hues[name]] if name in hues else "#4d5358" if name == "4×2" else "#c3c8cd" for name in order
    ]
    scale = alt.Scale(domain=order, range=colors)
    return (
        alt.Chart(shapes.assign(place=shapes["cluster"].map(order.index)))
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="Share of kernels", axis=alt.Axis(format="%")),
            y=alt.Y("library:N", title=None, axis=alt.Axis(labelLimit=220)),
            color=alt.Color(
                "cluster:N",
                title="Cluster, M × N of the kernel",
                scale=scale,
                legend=alt.Legend(orient="top", symbolType="square", symbolSize=120, columns=10),
            ),
            order="place:Q",
            opacity=alt.when(pick).then(alt.value(1)).otherwise(alt.value(0.15)),
            tooltip=["library", "cluster", "kernels", alt.Tooltip("share:Q", format=".0%")],
        )
        .add_params(pick)
    )
