"""Charts of stores: the rate by the length of rows, and from tensor-core fragments by each way out."""

import altair as alt
import pandas as pd

from labkernels.charts import grammar as charts
from labkernels.studies.stats import having
from labkernels.studies.stores import findings

PLACES = {"hbm": "to HBM", "l2": "to lines in L2"}
_ALSO = ("form", "tile_bytes", "stages", "ctas_per_sm", "threads")
_RATE = "GB/s written"


def by_row(table: pd.DataFrame, own: pd.DataFrame, fill_gbps: float) -> alt.HConcatChart:
    """The fastest cell of each form over the length of a tile's rows, a panel for each destination.

    Args:
        table: of `findings.boxes`, forms that start from rows.
        own: the same of the reader's own run; may have no rows.
        fill_gbps: rate of the driver's fill of HBM.
    """
    x = charts.bytes_axis("row_bytes", "Bytes of a row")

    def panel(place: str) -> alt.LayerChart:
        chart = charts.band_and_line(having(table, destination=place), x, y_title=_RATE, also=_ALSO)
        if place == "hbm":
            chart += charts.ceiling(fill_gbps, "the driver's fill")
        if len(mine := having(own, destination=place)):
            chart += charts.own_points(mine, x, "median")
        return chart.properties(width=270, height=260, title=PLACES[place])

    return alt.hconcat(*(panel(place) for place in PLACES)).resolve_scale(y="shared")


def fragments(table: pd.DataFrame, own: pd.DataFrame) -> alt.FacetChart:
    """Tiles of fragments by each way out, a panel for each destination.

    Args:
        table: of `findings.boxes`, forms that start from fragments.
        own: the same of the reader's own run; may have no rows.
    """
    both = pd.concat([table.assign(whose="stored"), own.assign(whose="own")])
    both = both.assign(place=both["destination"].map(PLACES))
    columns = ["mechanism", "form", "place", "whose", "p05", "median", "p95", *_ALSO[1:], "gpu", "run_id"]
    base = alt.Chart(both[columns]).encode(
        y=alt.Y("form:N", title=None, sort=list(findings.FORMS), axis=alt.Axis(labelLimit=260)),
        color=charts.mechanism_color(table["mechanism"], dots=True),
        tooltip=columns,
    )
    stored = base.transform_filter("datum.whose == 'stored'")
    x = alt.X("median:Q", title=_RATE, scale=alt.Scale(zero=True))
    layers = [
        stored.mark_rule(strokeWidth=4, opacity=0.4).encode(x=alt.X("p05:Q", title=_RATE), x2="p95:Q"),
        stored.mark_point(filled=True, size=70).encode(x=x),
    ]
    if len(own):
        layers.append(base.transform_filter("datum.whose == 'own'").mark_point(**charts.OWN).encode(x=x))
    panel = alt.layer(*layers).properties(width=200, height=100)
    return panel.facet(column=alt.Column("place:N", title=None, sort=list(PLACES.values())))
