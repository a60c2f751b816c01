"""What a reader sees, looked at by the browser: nothing clipped, overprinted, without a symbol, or cut off."""

import pytest
from test_book import HTML, each_chapter

from labkernels.book.hygiene import chapters

pytestmark = pytest.mark.book

PAGES = [HTML / "book" / f"{chapter.stem}.html" for chapter in chapters()]
#: Faults of the live charts of a page, a sentence each.
FAULTS = """() => {
  const found = [], look = node => getComputedStyle(node);
  const isSeen = node => look(node).visibility !== "hidden" && look(node).opacity !== "0";
  for (const figure of document.querySelectorAll("figure.lab-chart")) {
    const svg = figure.querySelector(".lab-chart-live svg"), frame = svg.getBoundingClientRect();
    const name = figure.getAttribute("aria-label").slice(0, 40);
    const texts = [...svg.querySelectorAll("text")].filter(text => text.textContent.trim() && isSeen(text));
    const boxes = texts.map(text => [text.textContent.trim(), text.getBoundingClientRect()]);
    for (const [text, box] of boxes)
      if (box.left < frame.left - 2 || box.right > frame.right + 2) found.push(`${name}: clipped "${text}"`);
    boxes.forEach(([text, box], at) => boxes.slice(at + 1).forEach(([other, next]) => {
      const wide = Math.min(box.right, next.right) - Math.max(box.left, next.left);
      const high = Math.min(box.bottom, next.bottom) - Math.max(box.top, next.top);
      if (wide > 2 && high > 3 && text !== other) found.push(`${name}: "${text}" over "${other}"`);
    }));
    const titles = [...svg.querySelectorAll(".role-legend-title text")].map(title => title.textContent);
    if (new Set(titles).size < titles.length) found.push(`${name}: a legend twice`);
    for (const symbol of svg.querySelectorAll(".role-legend-symbol path")) {
      const { fill, fillOpacity, stroke, strokeWidth } = look(symbol);
      if ((fill === "none" || fillOpacity === "0") && (stroke === "none" || strokeWidth === "0px"))
        found.push(`${name}: a legend without symbols`);
    }
  }
  return [...new Set(found)];
}"""

#: How many of some elements reach beyond a right edge.
BEYOND = """([selector, edge]) => [...document.querySelectorAll(selector)]
  .filter(one => one.getBoundingClientRect().right > edge + 2).length"""


@pytest.fixture
def opened(chromium):
    """Open a page in a window of a width."""
    contexts = []

    def open_(path, width, **options):
        contexts.append(chromium.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.goto(path.as_uri())
        page.wait_for_function("!document.querySelector('figure.lab-chart:not([data-live])')")
        return page

    yield open_
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", [1280, 390])
@each_chapter
def test_no_label_is_clipped_overprinted_or_without_its_symbol(chapter, width, opened):
    assert opened(chapter, width).evaluate(FAULTS) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_placeholder_stands_in_the_text(path, opened):
    spoken = opened(path, 1280).locator(".bd-article :is(p, li, h1, h2, h3, figcaption)")
    text = "\n".join(spoken.all_inner_texts())
    assert not [word for word in ("{", "glue:", "undefined", "<NA>") if word in text]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_tables_fit_paper_and_a_phone(path, opened):
    page = opened(path, 390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(BEYOND, [".lab-table table", 390]) == 0
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 without its margins
    page.emulate_media(media="print")
    assert page.evaluate(BEYOND, [".bd-article table", 718]) == 0
