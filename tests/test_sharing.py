"""What a reader cites, checks, prints and follows: edition, claims, sources, the book as one document."""

import re

import pytest
import yaml
from bs4 import BeautifulSoup

import labkernels
from labkernels.book import abstract, pdf, sharing
from labkernels.book.headline import FIGURES
from labkernels.book.hygiene import chapters
from labkernels.book.references import References
from labkernels.paths import ROOT
from labkernels.store import Store, published
from labkernels.studies.experiments import studies
from labkernels.studies.rules import RULES

README = (ROOT / "README.md").read_text("utf8")
CLAIMS = re.findall(
    r"^\| [^|]+ \| `(\w+)` \| `(\w+)`[^|]*\| ([\d.]+) \| ([\d.]+) \|",
    (ROOT / "ARTIFACT.md").read_text("utf8"),
    re.M,
)


def test_the_citation_is_of_this_version_and_has_what_its_format_requires():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf8"))
    assert cited.keys() >= {"cff-version", "message", "title", "authors"}
    assert str(cited["version"]) == labkernels.__version__
    assert all({"type", "title", "authors"} <= one.keys() for one in cited["references"])
    entry = sharing.bibtex()
    assert cited["title"] in entry and sharing.edition() in entry and entry.count("{") == entry.count("}")


def test_there_are_claims():
    assert len(CLAIMS) >= 10


@pytest.mark.parametrize(("figure", "experiment", "expected", "tolerance"), CLAIMS, ids=lambda text: text)
def test_a_claim_is_a_figure_of_the_headline_table_and_holds_there(figure, experiment, expected, tolerance):
    assert figure in FIGURES and experiment in studies()
    (value,) = re.findall(rf"^ +{figure} +([\d.,]+) ", README, re.M)
    assert abs(float(value.replace(",", "")) - float(expected)) <= float(tolerance)


def test_every_published_number_has_a_source_in_the_bibliography():
    sources = Store().read("sources")
    assert set(published()["source"]) == set(sources["source"])
    assert sources["key"].is_unique and sources["address"].dropna().str.startswith("https://").all()


def test_links_to_sources_lead_to_their_anchor():
    text = "".join(path.read_text("utf8") for path in chapters())
    linked = set(re.findall(r"references\.html#(\w+)", text))
    anchors = {one["id"] for one in BeautifulSoup(References()._repr_html_(), "html.parser")("li")}
    assert linked and linked <= anchors


def test_the_papers_questions_name_rules_that_there_are():
    assert {name for names in abstract.QUESTIONS.values() for name in names} <= {rule.id for rule in RULES}


@pytest.mark.book
def test_every_page_says_what_it_is_to_those_who_see_a_link(chromium):
    for name in pdf.pages():
        page = BeautifulSoup((pdf.HTML / "book" / f"{name}.html").read_text("utf8"), "html.parser")
        said = {one["property"]: one["content"] for one in page("meta", property=True)}
        assert said["og:title"] and len(said["og:description"]) > 60, name
        assert (pdf.HTML / "book" / said["og:image"]).exists()


@pytest.mark.book
def test_the_book_as_one_document_has_every_page_and_no_dead_link():
    page = BeautifulSoup(pdf.whole(pdf.pages()), "html.parser")
    assert [one["id"].removesuffix("--") for one in page("article")] == pdf.pages() and not page("script")
    anchors = {one["id"] for one in page(id=True)}
    dead = {one["href"] for one in page("a", href=re.compile("^#")) if one["href"][1:] not in anchors}
    assert not dead
