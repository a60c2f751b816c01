"""Chart of the clusters that the library takes."""

import altair as alt
import pandas as pd

from labkernels.charts.grammar import PALETTE

COLORS = dict(
    zip(
        ("2×1", "1×2", "4×1", "1×4", "2×4", "4×2"),
        (PALETTE[0], PALETTE[1], PALETTE[5], PALETTE[6], PALETTE[3], PALETTE[2]),
        strict=True,
    )
)


def clusters(launched: pd.DataFrame) -> alt.FacetChart:
    """Each product by its rows and columns of D, colored by the library's cluster; a panel for each type.

    Args:
        launched: of `library_clusters.launches`.
    """
    shown = ["dtype", "shape", "m", "n", "k", "tile", "stages", "cluster", "library_kernel", "run_id"]
    found = [name for name in COLORS if name in set(launched["cluster"])]
    colors = alt.Scale(domain=found, range=[COLORS[name] for name in found])
    pick = alt.selection_point(name="picked_cluster", fields=["cluster"], bind="legend")

    def side(column: str, title: str) -> dict:
        return {
            "shorthand": f"{column}:Q",
            "title": title,
            "scale": alt.Scale(type="log", base=2, nice=False),
        }

    return (
        alt.Chart(launched[shown])
        .mark_point(filled=True, size=80)
        .encode(
            x=alt.X(**side("m", "M, rows of D")),
            y=alt.Y(**side("n", "N, columns of D")),
            color=alt.Color(
                "cluster:N",
                title="Cluster, M × N",
                scale=colors,
                legend=alt.Legend(symbolType="circle", symbolSize=120, columns=6),
            ),
            opacity=alt.when(pick).then(alt.value(0.75)).otherwise(alt.value(0.07)),
            tooltip=shown,
        )
        .add_params(pick)
        .properties(width=270, height=270)
        .facet(column=alt.Column("dtype:N", title=None))
    )
