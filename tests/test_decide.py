"""The decision page answers as Python does, quickly, shareably, and without JavaScript by its table."""

import random
import re
from math import inf, nan

import pytest

from labkernels.book.decide import TYPICAL, Form, address, typical
from labkernels.errors import BadArgument
from labkernels.forms import entries
from labkernels.model import other_gpus
from labkernels.model.advisor import PREFERENCE, Question, advise, gpus
from labkernels.paths import BOOK

PAGE = BOOK.parent / "_build" / "html" / "book" / "decide.html"
GPU = gpus()[0]
PRODUCTS = [(0, 0)] * 8 + [(128, 0), (64, 8), (128, 128), (256, 128)]  # none, half of one, and three
QUESTIONS, LEGAL, TOLERANCE, ANSWER_MS = 4000, 1000, 1e-3, 100


def questions(count: int, seed: int = 20260131) -> list[dict]:
    """What forms may hold: random operands, most of them legal for something, some for nothing."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        element = draw.choice([1, 2, 4, 8])
        cluster = draw.choice([1, 1, 1, 1, 2, 3, 4, 8, 16])
        row = draw.choice([element * draw.randint(1, 300), 16, 32, 64, 96, 128, 128, 192, 256, 256, 512])
        found.append(
            dict(
                row_bytes=row,
                rows=draw.choice([1, 8, 16, 32, 64, 64, 100, 128, 300]),
                pitch_bytes=draw.choice([0, 0, 0, row, 2 * row, 4096, 3 * row + element]),
                element_bytes=element,
                alignment_bytes=draw.choice([0, 0, 0, 1, 2, 4, 8, 16, 16, 256]),
                swizzle=draw.choice(["none", "none", "32B", "64B", "128B"]),
                stages=draw.choice([1, 2, 3, 4, 6, 8, 12]),
                pipeline=draw.choice(["any", "any", "specialized", "multistage"]),
                ctas_per_sm=draw.choice([1, 1, 1, 2, 2, 4, 40]),
                threads=draw.choice([32, 100, 128, 128, 256, 256, 512, 2048]),
                cluster=cluster,
                pace=draw.choice(["together", "together", "apart"]),
                tensor_mib=draw.choice([1, 16, 50, 256, 5000]),
                source=draw.choice(["hbm", "hbm", "hbm", "l2"] + ["computed"] * 2 * (cluster > 1)),
                index_rows=draw.choice([0, 0, 0, 1, 16, 64, 500]),
                issuers=draw.choice([1, 2, 4]),
                compute_cycles=draw.choice([0.0, 0.0, 250.5, 4000.0]),
                consumer=draw.choice(["shared", "shared", "shared", "registers"]),
                **dict(zip(("product_rows", "product_columns"), draw.choice(PRODUCTS), strict=True)),
            )
        )
    return found


def asked(given: dict, gpu: str = GPU) -> dict:
    try:
        return {"advice": advise(Question(**given), gpu)}
    except BadArgument as error:
        return {"error": str(error)}


def test_random_operands_are_of_both_kinds():
    kinds = [next(iter(asked(question))) for question in questions(200)]
    assert 50 < kinds.count("advice") < 190


def test_every_entry_of_a_question_has_a_field_with_its_default_and_its_limits():
    page = Form(GPU)._repr_html_()
    for one in entries(Question):
        default = f"{one.default:g}" if one.kind is float else one.default
        assert f'name="{one.name}"' in page and f'data-default="{default}"' in page
        assert one.help and one.label and one.group and len(one.label) < 25
        if one.choices:
            assert all(f">{value}</option>" in page for value in one.choices)
        else:
            assert f'min="{one.least}" max="{one.most}"' in page


def test_the_table_answers_without_javascript():
    frame = typical(GPU).frame
    assert (
        list(frame["operand"]) == list(TYPICAL) and frame["take"].str.partition(",")[0].isin(PREFERENCE).all()
    )
    assert address(Question(stages=1, source="l2")) == "#source=l2&stages=1"


@pytest.fixture(scope="module")
def page(chromium):
    page = chromium.new_page()
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(PAGE.as_uri())
    yield page
    assert faults == []
    page.close()


@pytest.mark.book
def test_page_and_python_agree_on_random_operands(page):
    chosen = questions(QUESTIONS)
    answers = page.evaluate(
        "asked => asked.map(question => document.querySelector('.lab-decide').advise(question))",
        chosen,
    )
    legal = 0
    for question, answer in zip(chosen, answers, strict=True):
        python = asked(question)
        assert ("error" in answer) == ("error" in python), f"{question}: {answer} / {python}"
        if "error" in answer:
            assert answer["error"] == python["error"], question
            continue
        legal += 1
        advice = python["advice"]
        assert (answer["choice"], answer["in_cluster"]) == (advice.choice, advice.in_cluster), question
        assert answer["excluded"] == {name: list(why) for name, why in advice.excluded.items()}, question
        assert tuple(answer["outside"]) == advice.outside, question
        assert [one["statement"] for one in answer["rules"]] == [one.statement for one in advice.rules], (
            question
        )
        assert sorted(answer["tied"]) == sorted(advice.no_difference), question
        times = {one["mechanism"]: one for one in answer["ranked"]}
        assert times.keys() == {one.mechanism for one in advice.ranked}, question
        for one in advice.ranked:
            told = times[one.mechanism]
            assert told["time_us"] == pytest.approx(one.time_us, rel=TOLERANCE), question
            assert told["low_us"] == pytest.approx(one.low_us, rel=TOLERANCE)
            assert told["gbps"] == pytest.approx(one.gbps, rel=TOLERANCE)
            assert (told["binding"], told["share"], told["form"]) == (one.binding, one.share, one.form)
        assert answer["gain"] == pytest.approx(advice.change_gain, rel=TOLERANCE)
    assert legal >= LEGAL


@pytest.mark.book
@pytest.mark.parametrize("gpu", other_gpus.known())
def test_page_and_python_agree_on_projections(page, gpu):
    chosen = questions(300, seed=7)
    answers = page.evaluate(
        "([asked, gpu]) => asked.map(question => document.querySelector('.lab-decide').advise(question, gpu))",
        [chosen, gpu],
    )
    for question, answer in zip(chosen, answers, strict=True):
        python = asked(question, gpu)
        assert ("error" in answer) == ("error" in python), question
        if "error" not in answer:
            times = {one["mechanism"]: one["time_us"] for one in answer["ranked"]}
            told = {one.mechanism: one.time_us for one in python["advice"].ranked}
            assert times == pytest.approx(told, rel=TOLERANCE), question


@pytest.mark.book
@pytest.mark.parametrize("value", [0, -1, -5, 3, 1.5, 2**21, 2**62, nan, inf])
def test_page_and_python_refuse_the_same_numbers_in_the_same_words(page, value):
    default = {one.name: one.default for one in entries(Question)}
    for one in entries(Question):
        if one.kind is str or (python := asked(given := default | {one.name: value})).keys() != {"error"}:
            continue
        text = "NaN" if value != value else "Infinity" if value == inf else value
        answer = page.evaluate(
            "([given, name, text]) => document.querySelector('.lab-decide').advise({ ...given, [name]: Number(text) })",
            [default, one.name, text],
        )
        without_value = [re.sub(r" is [^,:]*", " is", said["error"]) for said in (answer, python)]
        assert without_value[0] == without_value[1], given


@pytest.mark.book
def test_an_input_is_answered_at_once_and_kept_in_the_address(page):
    field = page.locator(".lab-decide [name=stages]")
    for stages in (1, 2, 8):
        field.fill(str(stages))
        assert float(page.locator(".lab-decide").get_attribute("data-milliseconds")) <= ANSWER_MS
        assert (
            page.locator(".lab-decide-answer")
            .inner_text()
            .startswith(advise(Question(stages=stages), GPU).choice)
        )
        assert page.evaluate("location.hash") == f"#stages={stages}"
    field.fill("4")
    assert page.evaluate("location.hash") == ""


@pytest.mark.book
def test_a_shared_address_fills_the_form(page):
    question = Question(cluster=4, row_bytes=512, rows=64, source="l2", tensor_mib=32)
    page.goto(PAGE.as_uri() + address(question))
    page.reload()
    assert page.locator(".lab-decide [name=cluster]").input_value() == "4"
    assert page.locator(".lab-decide [name=source]").input_value() == "l2"
    assert page.locator(".lab-decide-answer").inner_text().startswith("tma_multicast")


@pytest.mark.book
def test_the_answer_stays_in_view_on_a_phone_while_the_last_field_is_filled(chromium):
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(PAGE.as_uri())
    page.locator(".lab-decide [name=compute_cycles]").fill("4000")
    box = page.locator(".lab-decide-answer").bounding_box()
    assert 0 <= box["y"] < 844 and box["x"] >= 0 and box["x"] + box["width"] <= 390
    context.close()


@pytest.mark.book
def test_a_contradiction_is_a_sentence_on_the_page(page):
    page.goto(PAGE.as_uri() + "#source=l2&tensor_mib=256")
    page.reload()
    assert "source is l2" in page.locator(".lab-decide-answer").inner_text()
    assert page.locator(".lab-decide tbody tr").count() == 0


@pytest.mark.book
def test_without_javascript_there_is_the_table_and_no_dead_form(chromium):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(PAGE.as_uri())
    assert not page.locator(".lab-decide form").is_visible()
    assert page.locator(".lab-table").get_by_text(next(iter(TYPICAL)), exact=True).is_visible()
    context.close()
