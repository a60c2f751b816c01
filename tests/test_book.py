"""The built book works with no network, live or static, in light, in dark and on paper: `make test-book`."""

import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from labkernels.book.hygiene import chapters
from labkernels.paths import BOOK

pytestmark = pytest.mark.book

HTML = BOOK.parent / "_build" / "html"
PAGES = sorted(HTML.rglob("*.html"))
#: Pages of the book, but those of words alone, as *What we got wrong*.
CHAPTERS = [
    HTML / "book" / f"{chapter.stem}.html"
    for chapter in chapters()
    if "charts.figure(" in chapter.read_text("utf8")
]
PAGE_LIMIT_BYTES = 1_500_000
LOCAL = ("file:", "data:", "blob:")
REMOTE_IN_CSS = re.compile(r"(url\(|@import)\s*[\"']?(https?:)?//")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(HTML)))
each_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)


def soup(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf8"), "html.parser")


def test_every_chapter_is_built():
    assert CHAPTERS
    assert [page for page in CHAPTERS if not page.exists()] == []


@each_page
def test_page_refers_to_no_remote_asset(page):
    remote = re.compile(r"^(https?:)?//")
    tags = soup(page)
    found = [tag for tag in tags(src=remote) if tag.name != "a"]
    found += [tag for tag in tags("link", href=remote) if not {"canonical", "license"} & set(tag["rel"])]
    found += [
        script for script in tags("script") if re.search(r"(from|import|src=)\W*https?://", script.text)
    ]
    found += [style for style in tags("style") if re.search(r"(url\(|@import)\W*(https?:)?//", style.text)]
    assert found == []


def test_no_stylesheet_refers_to_a_remote_asset():
    remote = re.compile(r"(url\(|@import)\s*[\"']?(https?:)?//")
    assert [
        sheet.name for sheet in HTML.rglob("*.css") if remote.search(sheet.read_text(encoding="utf8"))
    ] == []


@each_page
def test_links_between_pages_lead_somewhere(page):
    local = [
        link["href"].partition("#")[0] for link in soup(page)("a", href=re.compile(r"^(?![a-z]+:|#|//)"))
    ]
    assert [href for href in local if href and not (page.parent / href.partition("?")[0]).exists()] == []


@each_page
def test_page_is_light(page):
    assert page.stat().st_size <= PAGE_LIMIT_BYTES


@each_chapter
def test_every_figure_is_whole(chapter):
    figures = soup(chapter)("figure", class_="lab-chart")
    assert figures, "a chapter without a chart"
    for figure in figures:
        assert figure["aria-label"].strip()
        assert figure.find("script", type="application/json").text.startswith("{")
        assert figure.select_one(".lab-chart-static svg path, .lab-chart-static svg line")
        caption = figure.find("figcaption").text.strip()
        assert caption, "no caption: finish the chart with charts.figure"
        if re.search(r'"run_id": ?"\d{8}T', figure.find("script", type="application/json").text):
            assert re.search(r"\bcards?\b", caption), "which cards measured it?"


@pytest.fixture
def open_page(chromium):
    """Open a page in a fresh profile; afterwards, no request left the machine and no script failed."""
    contexts, faults = [], []

    def open_(path: Path, **options):
        contexts.append(chromium.new_context(**options))
        page = contexts[-1].new_page()
        page.on(
            "request",
            lambda request: request.url.startswith(("file:", "data:", "blob:")) or faults.append(request.url),
        )
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: message.type == "error" and faults.append(message.text))
        page.goto(path.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert faults == []


def contrast(foreground: str, background: str) -> float:
    def luminance(color: str) -> float:
        channels = [int(value) / 255 for value in re.findall(r"\d+", color)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(foreground), luminance(background)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@each_chapter
def test_charts_are_live_and_legible_without_network(chapter, scheme, open_page):
    page = open_page(chapter, color_scheme=scheme)
    count = page.locator("figure.lab-chart").count()
    page.wait_for_function(
        "count => document.querySelectorAll('figure.lab-chart[data-live]').length === count", arg=count
    )
    live = page.locator("figure.lab-chart[data-live=true] .lab-chart-live svg")
    assert live.count() == count
    assert page.locator(".lab-chart-static svg:visible").count() == 0
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    for i in range(count):
        box = live.nth(i).bounding_box()
        assert box["width"] > 200 and box["height"] > 100
        ink = live.nth(i).locator("text").first.evaluate("text => getComputedStyle(text).fill")
        assert contrast(ink, paper) >= 4.5, f"text {ink} on {paper}"


@each_chapter
def test_charts_fit_a_narrow_screen(chapter, open_page):
    page = open_page(chapter, viewport={"width": 400, "height": 800})
    page.wait_for_selector("figure.lab-chart[data-live=true]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


@each_chapter
def test_charts_are_visible_without_javascript(chapter, open_page):
    page = open_page(chapter, java_script_enabled=False)
    pictures = page.locator("figure.lab-chart .lab-chart-static > svg")
    assert pictures.count() == page.locator("figure.lab-chart").count()
    for i in range(pictures.count()):
        assert pictures.nth(i).is_visible()
        box = pictures.nth(i).bounding_box()
        assert box["width"] > 200 and box["height"] > 100


@each_chapter
def test_paper_gets_the_static_charts_in_dark_ink(chapter, open_page):
    page = open_page(chapter, color_scheme="dark")
    page.wait_for_selector("figure.lab-chart[data-live=true]")
    page.emulate_media(media="print")
    assert page.locator(".lab-chart-live svg:visible").count() == 0
    assert page.locator(".lab-chart-static > svg:visible").count() == page.locator("figure.lab-chart").count()
    text = page.locator(".lab-chart-static > svg text").first
    assert text.evaluate("text => getComputedStyle(text).fill") == "rgb(0, 0, 0)"


@each_chapter
def test_a_pick_in_the_legend_is_answered(chapter, open_page):
    page = open_page(chapter)
    page.wait_for_function("!document.querySelector('figure.lab-chart:not([data-live])')")
    entries = page.locator('figure[data-picks="true"] .lab-chart-live .role-legend-symbol path')
    if entries.count() < 2:
        pytest.skip("no chart whose legend offers a choice")
    entry = entries.first
    opacities = """() => [...document.querySelectorAll('.lab-chart-live .role-mark path')]
        .map(path => path.getAttribute('opacity') ?? path.getAttribute('stroke-opacity')).join()"""
    entry.evaluate("entry => entry.scrollIntoView({behavior: 'instant', block: 'center'})")
    before = page.evaluate(opacities)
    box = entry.bounding_box()  # of a line: without height, which Locator.click refuses
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_timeout(300)
    assert page.evaluate(opacities) != before
