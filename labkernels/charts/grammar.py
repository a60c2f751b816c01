"""The book's charts: one grammar, one theme, and a renderer that needs neither network nor JavaScript."""

import hashlib
import html
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence

import altair as alt
import pandas as pd

from labkernels.errors import LabError
from labkernels.mechanisms import MECHANISMS

try:
    import vl_convert as vlc
except ImportError:  # a slim installation draws live charts only
    vlc = None

VL_VERSION = ".".join(alt.VEGALITE_VERSION.split(".")[:2])
VEGA_LITE_MIME = f"application/vnd.vegalite.v{alt.VEGALITE_VERSION.split('.')[0]}+json"

# Okabe-Ito hues, darkened or lightened until each has a contrast of 3:1 to white and to the book's dark page.
HUES = {
    "blue": "#0072b2",
    "vermilion": "#d55e00",
    "green": "#009e73",
    "pink": "#c2609a",
    "gold": "#b07c00",
    "violet": "#8468d8",
    "brown": "#9a6b3f",
    "grey": "#7f8790",
}
PALETTE = list(HUES.values())


def _styles() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Colour and dash of each mechanism: a hue is a data path, a dash tells apart what shares it.

    Raises:
        LabError: an unknown hue, or a style that another mechanism has.
    """
    styles: dict[str, tuple[str, tuple[int, ...]]] = {}
    for one in MECHANISMS.values():
        if one.hue not in HUES:
            raise LabError(
                f"mechanism {one.name} has the hue {one.hue!r}; give it one of {', '.join(HUES)} in mechanisms.py"
            )
        style = HUES[one.hue], one.dash
        if same := [name for name, known in styles.items() if known == style]:
            raise LabError(
                f"mechanisms {same[0]} and {one.name} are drawn alike ({one.hue}, {one.dash}); "
                "give one of them another dash in mechanisms.py"
            )
        styles[one.name] = style
    return styles


MECHANISM_STYLES = _styles()

# One name everywhere: charts of one concatenation then share what the reader picked, and Altair need not warn of it.
warnings.filterwarnings("ignore", message="Automatically deduplicated selection parameter")
_PICK = alt.selection_point(name="picked_mechanism", fields=["mechanism"], bind="legend")


def bytes_label(count: int) -> str:
    """A count of bytes in the largest binary unit that divides it: `32 KiB`."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count} B"


_BYTES_LABEL_EXPR = (
    "datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? datum.value / 1024 + ' KiB' : "
    "datum.value < 1073741824 ? datum.value / 1048576 + ' MiB' : datum.value / 1073741824 + ' GiB'"
)


def bytes_axis(field: str, title: str) -> alt.X:
    """The x axis of bytes: base-2 logarithm, labeled in B, KiB, MiB and GiB.

    Args:
        field: Column in bytes, above zero.
        title: What the bytes are, such as `Bytes in flight per SM`.
    """
    axis = alt.Axis(
        labelExpr=_BYTES_LABEL_EXPR,
        values=[2**e for e in range(41)],
        labelOverlap="parity",
        labelSeparation=8,
        labelFlush=False,
    )
    return alt.X(f"{field}:Q", title=title, scale=alt.Scale(type="log", base=2, nice=False), axis=axis)


def _present(mechanisms: Iterable[str]) -> list[str]:
    names = set(mechanisms)
    if unknown := sorted(names - MECHANISM_STYLES.keys()):
        raise ValueError(
            f"no mechanism {', '.join(map(repr, unknown))}; known are {', '.join(MECHANISM_STYLES)}"
        )
    return [name for name in MECHANISM_STYLES if name in names]


def _scale(index: int) -> alt.Scale:
    # Always the whole vocabulary: layers with different domains would fight over the shared scale.
    styles = MECHANISM_STYLES.values()
    return alt.Scale(domain=list(MECHANISM_STYLES), range=[style[index] for style in styles])


def mechanism_color(mechanisms: Iterable[str], *, dots: bool = False) -> alt.Color:
    """Colour by column `mechanism`; the legend lists the given names in the vocabulary's order.

    Args:
        mechanisms: names in the chart.
        dots: whether it has filled marks alone: the legend's lines would be without color.
    """
    look = {"symbolType": "circle", "symbolSize": 80, "symbolStrokeWidth": 0} if dots else {}
    legend = alt.Legend(values=_present(mechanisms), **look)
    return alt.Color("mechanism:N", title="Mechanism", scale=_scale(0), legend=legend)


def mechanism_dash(mechanisms: Iterable[str]) -> alt.StrokeDash:
    """Dash by column `mechanism`, merged into the legend of `mechanism_color`."""
    legend = alt.Legend(values=_present(mechanisms))
    return alt.StrokeDash("mechanism:N", title="Mechanism", scale=_scale(1), legend=legend)


def ceiling(value: float, label: str, axis: str = "y") -> alt.LayerChart:
    """A bound: a dashed rule across the chart with its label.

    Args:
        value: Where the bound lies, in the unit of the axis.
        label: What binds there, such as `HBM peak 4.8 TB/s`.
        axis: `y` for a horizontal rule, `x` for a vertical one.
    """
    if axis not in ("x", "y"):
        raise ValueError(f"axis {axis!r} is neither 'x' nor 'y'")
    base = alt.Chart(alt.Data(values=[{"bound": label}]))
    tooltip = [alt.Tooltip("bound:N", title="Bound")]
    if axis == "y":
        at = alt.YDatum(value, type="quantitative")
        rule = base.mark_rule(strokeDash=[3, 3]).encode(y=at, tooltip=tooltip)
        text = base.mark_text(align="right", baseline="bottom", dy=-3).encode(y=at, x=alt.value("width"))
    else:
        at = alt.XDatum(value, type="quantitative")
        rule = base.mark_rule(strokeDash=[3, 3]).encode(x=at, tooltip=tooltip)
        text = base.mark_text(align="left", baseline="bottom", dx=4, dy=-4).encode(
            x=at, y=alt.value("height")
        )
    return rule + text.encode(text=alt.value(label))


def _columns(frame: pd.DataFrame, wanted: Sequence[str]) -> pd.DataFrame:
    if missing := [name for name in wanted if name not in frame.columns]:
        raise ValueError(f"chart data lack column {', '.join(missing)}; they have {', '.join(frame.columns)}")
    return frame[list(dict.fromkeys(wanted))]


def _field(channel: alt.X) -> str:
    return str(channel.to_dict()["field"])


def _tooltip(data: pd.DataFrame, measured: Sequence[str]) -> list[alt.Tooltip]:
    return [alt.Tooltip(name, format=",.4~r") if name in measured else alt.Tooltip(name) for name in data]


def band_and_line(
    frame: pd.DataFrame,
    x: alt.X,
    *,
    y_title: str,
    median: str = "median",
    low: str = "p05",
    high: str = "p95",
    y_scale: alt.Scale | None = None,
    y_ticks: Sequence[float] | None = None,
    also: Sequence[str] = (),
) -> alt.LayerChart:
    """Measured rows: a line through the medians, a band from p05 to p95, one line for each mechanism.

    A click on the legend singles a mechanism out. The tooltip names the run and its GPU.

    Args:
        frame: One row for each point, with columns `mechanism`, `run_id`, `gpu` and those named here.
        x: The x axis, such as `bytes_axis(...)`.
        y_title: Title of the y axis, with its unit.
        median: Column of the line; by default those of `studies.stats.spread`.
        low: Column of the band's lower edge (p05).
        high: Column of the band's upper edge (p95).
        y_scale: The y scale; by default linear from zero.
        y_ticks: Where the y axis has its ticks; by default where Vega puts them.
        also: Further columns for the tooltip, or to facet by.

    Raises:
        ValueError: A column is missing, or a mechanism is not in the vocabulary.
    """
    data = _columns(frame, ["mechanism", _field(x), median, low, high, *also, "gpu", "run_id"])
    scale = alt.Undefined if y_scale is None else y_scale
    axis = alt.Undefined if y_ticks is None else alt.Axis(values=list(y_ticks))

    def y(column: str) -> alt.Y:
        return alt.Y(f"{column}:Q", title=y_title, scale=scale, axis=axis)

    mechanisms = data["mechanism"].unique()
    base = alt.Chart(data).encode(x=x, color=mechanism_color(mechanisms))
    band = base.mark_area().encode(
        y=y(low),
        y2=high,
        opacity=alt.when(_PICK).then(alt.value(0.25)).otherwise(alt.value(0.04)),
    )
    shown = alt.when(_PICK).then(alt.value(1)).otherwise(alt.value(0.12))
    line = base.mark_line().encode(y=y(median), strokeDash=mechanism_dash(mechanisms), opacity=shown)
    points = base.mark_point(filled=True, size=36).encode(
        y=y(median), opacity=shown, tooltip=_tooltip(data, [median, low, high])
    )
    return alt.layer(band, line.add_params(_PICK), points)


def _points(frame: pd.DataFrame, x: alt.X, y: str, also: Sequence[str], mark: dict) -> alt.Chart:
    data = _columns(frame, ["mechanism", _field(x), y, *also])
    _present(data["mechanism"])
    return (
        alt.Chart(data)
        .mark_point(**mark)
        .encode(
            x=x,
            y=alt.Y(f"{y}:Q"),
            color=alt.Color("mechanism:N", title="Mechanism", scale=_scale(0)),
            tooltip=_tooltip(data, [y]),
        )
    )


def published_points(
    frame: pd.DataFrame, x: alt.X, y: str, also: Sequence[str] = ("gpu", "conditions", "source")
) -> alt.Chart:
    """Numbers of others as hollow diamonds; the tooltip names GPU, conditions and source.

    Args:
        frame: Columns `mechanism`, those of `x` and `y`, and those of `also`.
        x: The same x axis as the measured layer's.
        y: Column on the y axis, in the measured layer's unit.
        also: Columns that say where a number is from.
    """
    mark = {"shape": "diamond", "filled": False, "size": 90, "strokeWidth": 1.8}
    return _points(frame, x, y, also, mark)


#: The mark of a reader's own rows.
OWN = {"shape": "triangle-up", "filled": True, "size": 90, "opacity": 1}


def own_points(frame: pd.DataFrame, x: alt.X, y: str, also: Sequence[str] = ("gpu", "run_id")) -> alt.Chart:
    """The reader's own run over the stored one: filled triangles. Arguments as `published_points`."""
    return _points(frame, x, y, also, OWN)


def figure(chart: alt.TopLevelMixin, *, title: str, description: str, held_fixed: str) -> alt.TopLevelMixin:
    """The finished chart: title, description for readers who cannot see it, and a caption.

    Args:
        chart: Any chart; a single or layered view fills the width of the page.
        title: What is drawn against what; short, as it does not wrap.
        description: What the chart shows, in a sentence: text for a screen reader.
        held_fixed: What does not vary in the chart, for its caption.
    """
    enable()
    return chart.properties(title=title, description=description, usermeta={"caption": held_fixed})


def book_renderer(spec: dict, **_metadata: object) -> dict[str, object]:
    """Mime bundle of a chart: a static picture with the specification that makes it live beside it.

    Raises:
        ValueError: The chart has no description on its outermost level.
    """
    label = spec.get("description")
    if not label:
        raise ValueError("chart needs .properties(description=...) on its outermost level: see charts.figure")
    if vlc is None:  # a front end that knows Vega-Lite draws it; others print the description
        return {VEGA_LITE_MIME: spec, "text/plain": label}
    svg = vlc.vegalite_to_svg(spec, vl_version=VL_VERSION)
    # Marks have no labels: their roles would announce nameless pictures.
    svg = re.sub(r' role="graphics-\w+"| aria-roledescription="[^"]*"', "", svg)
    # Several pictures share a page: `clip0` of one must not be found in another.
    prefix = hashlib.sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r'(\bid="|url\(#)(?=clip|gradient)', rf"\g<1>{prefix}-", svg)
    blob = json.dumps(spec, separators=(",", ":")).replace("</", "<\\/")
    caption = spec.get("usermeta", {}).get("caption", "")
    caption = html.escape(caption + _on_cards(spec, caption))
    page = (
        f'<figure class="lab-chart" aria-label="{html.escape(label, quote=True)}">'
        f'<div class="lab-chart-static">{svg}</div>'
        f'<script type="application/json">{blob}</script>'
        f"<figcaption>{caption}</figcaption></figure>"
    )
    return {"text/html": page, "image/svg+xml": svg, "text/plain": label}


_card_of_run: dict[str, str] = {}


def tell_cards(card_of_run: Mapping[str, str]) -> None:
    """Say which card each run was made on: captions count the cards behind their chart."""
    _card_of_run.update(card_of_run)


def _on_cards(spec: dict, caption: str) -> str:
    """On how many cards a chart was measured, as a sentence; none if neither rows nor caption name a known run."""
    rows = (row for table in spec.get("datasets", {}).values() for row in table if isinstance(row, dict))
    runs = {*(row.get("run_id") for row in rows), *caption.replace(".", " ").split()}
    cards = {_card_of_run[run] for run in runs if run in _card_of_run}
    return f" Measured on {'one card' if len(cards) == 1 else f'{len(cards)} cards'}." if cards else ""


@alt.theme.register("lab", enable=False)
def lab_theme() -> alt.theme.ThemeConfig:
    """Ink is `currentColor`: the page's own text color, light, dark or on paper."""
    ink = "currentColor"
    font = "system-ui, sans-serif"
    return {
        "config": {
            "aria": False,  # the figure has its label; one for each of a thousand marks would be noise
            "background": "transparent",
            "font": font,
            "range": {"category": PALETTE},
            "view": {"stroke": None, "continuousWidth": 600, "continuousHeight": 320},
            "title": {"color": ink, "subtitleColor": ink, "anchor": "start", "fontSize": 14, "offset": 8},
            "axis": {
                "labelColor": ink,
                "titleColor": ink,
                "domainColor": ink,
                "tickColor": ink,
                "gridColor": ink,
                "gridOpacity": 0.12,
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "titlePadding": 10,
            },
            "legend": {
                "orient": "top",
                "labelColor": ink,
                "titleColor": ink,
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "symbolType": "stroke",
                "symbolOpacity": 1,
                "symbolSize": 700,
                "symbolStrokeWidth": 2.5,
                "columns": 5,
                "columnPadding": 16,
            },
            "header": {"labelColor": ink, "titleColor": ink, "labelFontSize": 12, "titleFontSize": 12},
            "facet": {"spacing": 40},
            "concat": {"spacing": 40},
            "text": {"color": ink, "fontSize": 11},
            "rule": {"color": ink},
            "line": {"strokeWidth": 2},
        },
    }


def enable() -> None:
    """Switch theme and renderer on, as every finished chart does."""
    alt.theme.enable("lab")
    alt.renderers.register("book", book_renderer)
    alt.renderers.enable("book")
