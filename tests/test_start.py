"""Landing page and cheat sheet: every rule they name exists, and the tree opens without JavaScript."""

import pytest
from bs4 import BeautifulSoup

from labkernels.book.decide import address
from labkernels.book.start import TREE, Branch, Leaf, Sheet, Tree, answer, rules_of
from labkernels.model.advisor import advise
from labkernels.paths import BOOK
from labkernels.store import Store
from labkernels.studies.rules import RULES
from labkernels.studies.select import gpus

PAGE = BOOK.parent / "_build" / "html" / "book" / "index.html"
GPU = gpus(Store())[-1]


def leaves(tree):
    for end in tree.answers.values():
        yield from leaves(end) if isinstance(end, Branch) else (end,)


def test_the_rules_of_the_tree_and_of_the_sheet_exist():
    known = {rule.id for rule in RULES}
    assert set(rules_of(TREE)) <= known


def test_every_end_says_what_was_measured_and_leads_on():
    page = BeautifulSoup(Tree(Store(), GPU)._repr_html_(), "html.parser")
    ends = list(leaves(TREE))
    assert len(page("details")) == len(ends) + sum(isinstance(one, Branch) for one in TREE.answers.values())
    assert not page("script") and len(page("strong")) == len(ends)
    assert {link["href"].split("#")[0] for link in page("a")} >= {"decide.html", "crossover.html"}


@pytest.mark.parametrize("leaf", [one for one in leaves(TREE) if one.question], ids=lambda one: one.rule)
def test_an_operand_of_the_tree_can_be_asked_about(leaf: Leaf):
    assert address(leaf.question).startswith("#") and advise(leaf.question, GPU).ranked


def test_the_sheet_has_a_number_a_scope_and_a_link_for_each_rule():
    page = BeautifulSoup(Sheet(Store(), GPU)._repr_html_(), "html.parser")
    lines = page("li")
    assert len(lines) == 12
    assert all(
        any(c.isdigit() for c in one.text) and one.a and one.small.text.split("; on ")[1] for one in lines
    )


def test_the_short_answer_has_intervals():
    assert all("(" in text for text in answer(Store(), GPU).values())


@pytest.mark.book
def test_the_sheet_is_one_page_of_paper(chromium, tmp_path):
    page = chromium.new_page()
    page.goto((PAGE.parent / "sheet.html").as_uri())
    page.pdf(
        path=tmp_path / "sheet.pdf",
        format="A4",
        margin=dict.fromkeys(("top", "bottom", "left", "right"), "1cm"),
    )
    assert (tmp_path / "sheet.pdf").read_bytes().count(b"/Type /Page\n") == 1


@pytest.mark.book
def test_the_tree_opens_without_javascript(chromium):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(PAGE.as_uri())
    page.get_by_text("Global memory; one CTA needs it").click()
    page.get_by_text("Yes, and tensor cores work beside it").click()
    assert page.get_by_text("Take TMA.", exact=True).first.is_visible()
    context.close()
