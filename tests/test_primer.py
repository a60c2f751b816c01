"""Chapter 1: the table and the ten lines come from the registry, and the pictures follow the page's ink."""

import re
from xml.etree import ElementTree

import pytest

from labkernels.book import primer
from labkernels.book.pictures import PICTURES, Picture
from labkernels.charts.grammar import HUES
from labkernels.kernels.render import render
from labkernels.mechanisms import MECHANISMS

SHOWN = [name for name in MECHANISMS if primer.example(name)]
TIMED = ("ldg", "cp_async", "tma_bulk", "tma_tile", "tma_multicast", "dsm_load", "dsm_store", "dsm_bulk")


def test_every_load_that_is_timed_is_shown():
    assert set(TIMED) <= set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_an_excerpt_is_of_the_kernel_and_has_the_mechanisms_own_instruction(name):
    spec, one = primer.example(name), MECHANISMS[name]
    lines = primer.excerpt(spec).splitlines()
    text = re.sub(r"\s+", " ", re.sub(r"//.*", "", render(spec, "sm_90a")))
    assert 1 <= len(lines) <= 10 and len(set(lines)) == len(lines)
    assert all(line in text for line in lines)
    own = primer.instruction(name)
    assert own.startswith(one.ptx.split(".multicast")[0]) and any(own in line for line in lines)
    if one.counts_bytes:
        assert "complete_tx" in own and "try_wait" in "".join(lines)


def test_the_mechanisms_whose_instructions_are_alike_are_told_apart():
    told = [primer.instruction(name) for name in SHOWN]
    assert len(set(told)) == len(told)


def test_the_table_has_a_row_for_each_mechanism_and_limits_out_of_the_rules():
    frame = primer.loads().frame.set_index("name")
    assert list(frame.index) == list(MECHANISMS)
    assert "at most 256" in frame.loc["tma_tile", "limits"]
    assert "at most 256" not in frame.loc["tma_bulk", "limits"]
    assert "at least 2: CTAs" in frame.loc["dsm_bulk", "limits"]


@pytest.mark.parametrize("path", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_is_drawn_in_the_pages_ink_and_says_what_it_shows(path):
    text = path.read_text("utf8")
    root = ElementTree.fromstring(text)
    assert not re.search(
        r"#[0-9a-f]{3,6}\b(?!-)|rgb\(|black|white", re.sub(r"url\(#[\w-]+\)|href=\"#[\w-]+\"", "", text)
    )
    assert set(re.findall(r"var\(--(\w+)\)", text)) <= set(HUES)
    named = root.attrib["aria-labelledby"].split()
    inside = {one.attrib["id"]: one.text for one in root.iter() if "id" in one.attrib}
    assert all(inside[name] for name in named) and all(name.startswith(path.stem) for name in inside)
    assert "<svg" in Picture(path.stem, "a caption")._repr_html_()
