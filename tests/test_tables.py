import pandas as pd
import pytest
from bs4 import BeautifulSoup

from labkernels.charts.tables import Table

FRAME = pd.DataFrame(
    {"system": ["one", "two", "two"], "text": ["a <b> & c", None, "x" * 80], "count": [1, 2, 3]},
)


def soup(**options):
    return BeautifulSoup(Table(FRAME, description='all "rows"', **options)._repr_html_(), "html.parser")


def test_cells_are_escaped_and_empty_ones_stay_empty():
    rows = [[cell.text for cell in row("td")] for row in soup()("tr")[1:]]
    assert rows == [["one", "a <b> & c", "1"], ["two", "", "2"], ["two", "x" * 80, "3"]]
    assert soup().find(role="region")["aria-label"] == 'all "rows"'


def test_links_go_where_they_are_given():
    anchors = soup(links={"text": ["https://example.org/?a=1&b=2", "", "https://example.org/x"]})("a")
    assert [a["href"] for a in anchors] == ["https://example.org/?a=1&b=2", "https://example.org/x"]


def test_without_filters_there_is_no_script():
    assert not soup()("script")
    assert not soup()("select")


def test_filters_offer_the_values_of_their_column():
    table = soup(filters=["system"])
    assert [option.text for option in table.select_one("select")("option")] == ["all", "one", "two"]
    assert table.select_one(".lab-table-filters").has_attr("hidden"), "shown by the script alone"
    assert table.select_one("label")["for"] == table.select_one("select")["id"]


@pytest.mark.book
def test_filters_hide_rows(chromium):
    page = chromium.new_page()
    page.set_content(Table(FRAME, description="rows", filters=["system"])._repr_html_())
    visible = page.locator("tbody tr:visible")
    assert visible.count() == 3
    page.locator("select").select_option("two")
    assert visible.count() == 2
    page.locator("input").fill("XXX")
    assert visible.count() == 1
    assert page.locator("output").inner_text() == "1 of 3 rows"
    page.locator("input").fill("")
    page.locator("select").select_option("")
    assert visible.count() == 3


def test_text_form_holds_the_rows():
    assert "one" in repr(Table(FRAME, description="rows"))
