"""What a mechanism is stands in mechanisms.py alone: nothing else keeps a list of names, or reads one's spelling."""

import ast
import re
from pathlib import Path

import pytest

import labkernels
from labkernels.kernels.registry import AXES
from labkernels.mechanisms import MECHANISMS, names
from labkernels.paths import BOOK

PACKAGE = Path(labkernels.__file__).parent
FILES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
QUOTED = re.compile(rf"""["'`]({"|".join(MECHANISMS)})["'`]""")

# These name mechanisms by intent: one line of axes for each; the constants the model fits for each; and what is
# compared with what, in a chapter, a figure or a rule of a library's source.
NAMED_BY_INTENT = {
    "mechanisms.py",
    "kernels/registry.py",
    "model/configurations.py",
    "model/fit.py",
    "model/numbers.py",
    "model/project.py",
    "model/validate.py",
    "book/decide.py",
    "book/glossary.py",
    "book/headline.py",
    "production/catalog.py",
    "production/charts.py",
    "production/library_kernels.py",
    "production/source_rules.py",
}
# Where even one name in a condition would be a guess about what a mechanism is.
ENGINE = (
    "kernels/",
    "protocols/",
    "device/",
    "charts/",
    "legality.py",
    "operand.py",
    "book/decide.py",
    "model/closed_form.py",
    "model/advisor.py",
)


def mechanism_names(*nodes):
    return {
        name
        for node in nodes
        for constant in ast.walk(node)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
        for name in ([constant.value] if constant.value in MECHANISMS else QUOTED.findall(constant.value))
    }


def starts_a_name(call):
    if not (
        isinstance(call.func, ast.Attribute) and call.func.attr in ("startswith", "removeprefix", "partition")
    ):
        return False
    given = [
        text.value for argument in call.args for text in ast.walk(argument) if isinstance(text, ast.Constant)
    ]
    return any(text and name.startswith(str(text)) for text in given for name in MECHANISMS)


def offences(file):
    for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
        listed = set()
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            listed = mechanism_names(
                *(one for one in node.elts if isinstance(one, (ast.Constant, ast.Tuple)))
            )
        elif isinstance(node, ast.Dict):
            listed = mechanism_names(
                *(key for key in node.keys if isinstance(key, (ast.Constant, ast.Tuple)))
            )
        elif isinstance(node, ast.Constant):
            listed = mechanism_names(node)
        if len(listed) > 1 and file not in NAMED_BY_INTENT and not file.startswith("studies/"):
            yield f"line {node.lineno}: a list of {', '.join(sorted(listed))}"
        if isinstance(node, ast.Call) and starts_a_name(node):
            yield f"line {node.lineno}: the start of a name"
        if isinstance(node, ast.Compare) and file.startswith(ENGINE) and (one := mechanism_names(node)):
            yield f"line {node.lineno}: a comparison with {one.pop()}"


@pytest.mark.parametrize("file", FILES)
def test_modules_ask_what_a_mechanism_is(file):
    assert not list(offences(file)), "ask the fields of labkernels.mechanisms.Mechanism instead"


def test_the_files_allowed_to_name_mechanisms_do():
    for file in NAMED_BY_INTENT:
        assert len({*QUOTED.findall((PACKAGE / file).read_text())}) > 1, f"{file} needs no exception any more"


@pytest.mark.parametrize("mechanism", AXES)
def test_an_experiment_measures_each_mechanism_that_has_kernels(mechanism):
    files = [*(PACKAGE / "studies").rglob("*.py"), *(PACKAGE / "protocols").glob("*.py")]
    named = {name for file in files for name in mechanism_names(ast.parse(file.read_text()))}
    assert mechanism in named, f"no experiment measures {mechanism}: give it a configuration in studies/"


def test_the_form_takes_what_a_mechanism_is_from_the_page():
    assert not QUOTED.findall((BOOK / "_static" / "lab-decide.js").read_text())


def test_mechanisms_are_found_by_their_traits():
    assert names(takes_tensor_map=True, reduces=True) == ("tma_reduce",)
    assert names(pushes=True) == ("dsm_store", "dsm_bulk")
    with pytest.raises(AttributeError, match="by_threds"):
        names(by_threds=True)


@pytest.mark.parametrize("one", MECHANISMS.values(), ids=lambda one: one.name)
def test_fields_agree_with_each_other(one):
    assert one.source != one.destination
    assert bool(one.access_bytes) == one.by_threads, "threads move pieces of some size, the engine any size"
    assert one.opcodes or one.generic, "nothing in machine code would prove it"
    assert not (one.through_registers and not one.by_threads)
    assert not (one.takes_tensor_map and one.by_threads)
    assert {*one.carriers} <= {*MECHANISMS}


def test_preferences_are_a_ranking():
    ranks = sorted(one.preference for one in MECHANISMS.values() if one.preference)
    assert ranks == list(range(1, len(ranks) + 1))
