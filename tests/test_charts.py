"""The grammar of the charts, without a built book."""

import altair as alt
import pandas as pd
import pytest

from labkernels import charts
from labkernels.charts import text

LIGHT_PAGE, DARK_PAGE = "#ffffff", "#14181e"


def rows(**columns):
    base = {"mechanism": ["ldg", "tma_bulk"], "size_bytes": [1024, 4096], "gpu": "none", "run_id": "a test"}
    return pd.DataFrame({**base, "gbps": [1.0, 2.0], "low": [0.9, 1.9], "high": [1.1, 2.1], **columns})


def measured(frame, **more):
    x = charts.bytes_axis("size_bytes", "Bytes")
    return charts.band_and_line(frame, x, median="gbps", low="low", high="high", y_title="GB/s", **more)


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("page", [LIGHT_PAGE, DARK_PAGE])
@pytest.mark.parametrize("color", charts.PALETTE)
def test_colours_stand_out_from_light_and_dark_pages(color, page):
    low, high = sorted((luminance(color), luminance(page)))
    assert (high + 0.05) / (low + 0.05) >= 3


def test_each_mechanism_has_its_own_style():
    styles = list(charts.MECHANISM_STYLES.values())
    assert len(set(styles)) == len(styles)


def test_a_mechanism_keeps_its_style_whatever_is_drawn_with_it():
    scales = [charts.mechanism_color(names).to_dict()["scale"] for names in (["ldg"], ["tma_tile", "ldg"])]
    assert scales[0] == scales[1]
    assert charts.mechanism_color(["tma_tile", "ldg"]).to_dict()["legend"]["values"] == ["ldg", "tma_tile"]


def test_unknown_mechanism_is_named():
    with pytest.raises(ValueError, match=r"'tma_tyle'.*known are ldg"):
        measured(rows(mechanism=["ldg", "tma_tyle"]))


@pytest.mark.parametrize("column", ["run_id", "gpu", "low", "mechanism", "size_bytes"])
def test_missing_column_is_named(column):
    with pytest.raises(ValueError, match=f"lack column {column}"):
        measured(rows().drop(columns=column))


def test_tooltip_names_run_and_gpu():
    fields = {entry["field"] for entry in measured(rows()).to_dict()["layer"][-1]["encoding"]["tooltip"]}
    assert {"run_id", "gpu"} <= fields


def test_a_chart_without_description_is_refused():
    charts.enable()
    with pytest.raises(ValueError, match="description"):
        charts.book_renderer(measured(rows()).to_dict())


def test_every_layer_of_the_grammar_renders_together():
    charts.enable()
    x = charts.bytes_axis("size_bytes", "Bytes")
    published = rows()[["mechanism", "size_bytes", "gbps"]].assign(gpu="other", conditions="", source="paper")
    chart = charts.figure(
        measured(rows())
        + charts.ceiling(4, "the bound")
        + charts.ceiling(2048, "the crossover", axis="x")
        + charts.published_points(published, x, "gbps")
        + charts.own_points(rows(), x, "gbps"),
        title="Test",
        description="Two points & a bound.",
        held_fixed="Everything <else>.",
    )
    bundle = charts.book_renderer(chart.to_dict())
    assert "the bound" in bundle["image/svg+xml"] and "the crossover" in bundle["image/svg+xml"]
    assert 'aria-label="Two points &amp; a bound."' in bundle["text/html"]
    assert "<figcaption>Everything &lt;else&gt;.</figcaption>" in bundle["text/html"]
    assert "4 KiB" in bundle["image/svg+xml"]
    assert 'fill="#000' not in bundle["image/svg+xml"] and 'fill="black"' not in bundle["image/svg+xml"]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (["one", "one"], " Measured on one card."),
        (["one", "same"], " Measured on one card."),
        (["one", "other"], " Measured on 2 cards."),
        (["one", "published"], " Measured on one card."),
        (["published"] * 2, ""),
    ],
)
def test_a_caption_counts_the_cards_behind_its_chart(runs, said):
    charts.tell_cards({"one": "a", "same": "a", "other": "b"})
    chart = charts.figure(measured(rows(run_id=runs)), title="T", description="D", held_fixed="Tiles.")
    page = charts.book_renderer(chart.to_dict())["text/html"]
    assert f"<figcaption>Tiles.{said}</figcaption>" in page


def test_a_run_that_only_the_caption_names_counts_too():
    charts.tell_cards({"20260101T000000Z-00000000": "a"})
    chart = charts.figure(
        measured(rows(run_id="?")), title="T", description="D", held_fixed="Run 20260101T000000Z-00000000."
    )
    assert "00000000. Measured on one card." in charts.book_renderer(chart.to_dict())["text/html"]


def test_without_vl_convert_the_chart_is_live_only(monkeypatch):
    monkeypatch.setattr(charts.grammar, "vlc", None)
    spec = alt.Chart(rows(), description="A test.").mark_point().to_dict()
    assert charts.book_renderer(spec) == {charts.VEGA_LITE_MIME: spec, "text/plain": "A test."}


def test_a_span_of_one_value_is_one_number():
    assert text.span([17.4, 20.3, 18]) == "17 to 20"
    assert text.span([21.2, 21.3]) == "21"
    assert text.span([21.2, 21.3], 1) == "21.2 to 21.3"


def test_ends_name_each_line_with_its_first_and_last_value():
    table = rows(size_bytes=[4096, 1024]).assign(mechanism="ldg")
    assert text.ends(table, "mechanism", "size_bytes", "gbps", 1) == "ldg 2.0 to 1.0"


@pytest.mark.parametrize(
    ("count", "label"), [(0, "0 B"), (16, "16 B"), (1000, "1000 B"), (32768, "32 KiB"), (3 << 20, "3 MiB")]
)
def test_bytes_label(count, label):
    assert charts.bytes_label(count) == label
