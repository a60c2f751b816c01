"""Charts of L2: what a prefetch gains by its lead, and rates by the policies of lines."""

import altair as alt
import pandas as pd

from labkernels.charts import grammar as charts
from labkernels.studies.l2 import findings as found

#: Policies of what streams by and of what is used again, in words.
PAIRS = {
    (found.FIRST, found.LAST): "evict_first, evict_last",
    (found.FIRST, found.NORMAL): "evict_first, none",
    (found.NORMAL, found.LAST): "none, evict_last",
    (found.NORMAL, found.NORMAL): "none, none",
    (found.LAST, found.FIRST): "evict_last, evict_first",
}
_ONE = alt.Chart(alt.Data(values=[{"ratio": 1}])).mark_rule(strokeDash=[3, 3], color="currentColor")


def gain(table: pd.DataFrame) -> alt.LayerChart:
    """Rate with a prefetch over the rate without, by bytes in flight: every pipeline with its best lead.

    Args:
        table: of `findings.best_gain`.
    """
    x = charts.bytes_axis("bytes_in_flight_per_sm", "Bytes in flight per SM")
    tooltip = ["mechanism", "tile_bytes", "stages", "lead", "ratio", "low", "high", "gpu", "run_id"]
    base = alt.Chart(table[[*tooltip, "bytes_in_flight_per_sm"]]).encode(
        x=x, color=charts.mechanism_color(table["mechanism"], dots=True), tooltip=tooltip
    )
    y = alt.Y("ratio:Q", title="With prefetch ÷ without", scale=alt.Scale(zero=False))
    bars = base.mark_rule(strokeWidth=3, opacity=0.4).encode(y=alt.Y("low:Q"), y2="high:Q")
    return alt.layer(_ONE.encode(y="ratio:Q"), bars, base.mark_point(filled=True, size=45).encode(y=y))


def too_far(table: pd.DataFrame, l2_bytes: int) -> alt.LayerChart:
    """The same by what L2 holds for later, of every lead; half of L2 as a rule.

    Args:
        table: of `findings.gains`.
        l2_bytes: size of L2.
    """
    tooltip = ["mechanism", "tile_bytes", "stages", "lead", "ratio", "low", "high", "gpu", "run_id"]
    base = alt.Chart(table[[*tooltip, "ahead_bytes", "bytes_in_flight_per_sm"]]).encode(
        x=charts.bytes_axis("ahead_bytes", "Bytes prefetched and not yet copied, all SMs"),
        y=alt.Y("ratio:Q", title="With prefetch ÷ without"),
        color=alt.Color(
            "bytes_in_flight_per_sm:Q",
            title="Bytes in flight per SM",
            scale=alt.Scale(type="log", scheme="viridis"),
            legend=alt.Legend(format="~s", symbolType="circle"),
        ),
        tooltip=tooltip,
    )
    half = alt.Chart(alt.Data(values=[{"ahead_bytes": l2_bytes / 2}])).mark_rule(strokeDash=[3, 3])
    points = base.mark_point(filled=True, size=30, opacity=0.8)
    return alt.layer(_ONE.encode(y="ratio:Q"), half.encode(x="ahead_bytes:Q"), points)


def policies(table: pd.DataFrame, own: pd.DataFrame) -> alt.LayerChart:
    """Rate over the size of the region that is used again, a line for each pair of policies.

    Args:
        table: of `findings.policies`, one mechanism.
        own: the same of the reader's own run; may have no rows.
    """

    def named(frame: pd.DataFrame) -> pd.DataFrame:
        pairs = [PAIRS[pair] for pair in zip(frame["streamed"], frame["reused"], strict=True)]
        return frame.assign(pair=pd.Series(pairs, index=frame.index, dtype=object))

    x = alt.X("mebibytes:Q", title="MiB used again and again")
    color = alt.Color("pair:N", title="Streams by, used again", sort=list(PAIRS.values()))
    tooltip = ["pair", "mebibytes", "p05", "median", "p95", "gpu", "run_id"]
    base = alt.Chart(named(table)[tooltip]).encode(x=x, color=color, tooltip=tooltip)
    y = alt.Y("median:Q", title="GB/s into shared memory, both together")
    band = base.mark_area(opacity=0.2).encode(y="p05:Q", y2="p95:Q")
    chart = alt.layer(band, base.mark_line().encode(y=y), base.mark_point(filled=True, size=36).encode(y=y))
    if len(own):
        chart += (
            alt.Chart(named(own)[tooltip])
            .mark_point(**charts.OWN)
            .encode(x=x, y=y, color=color, tooltip=tooltip)
        )
    return chart
