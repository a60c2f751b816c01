"""The plan of the package: who may import whom, read from the source of every module."""

import ast
from graphlib import CycleError, TopologicalSorter

import pytest

from labkernels.paths import PACKAGE

#: Floors from the ground up; a room may import what lies below it, and rooms of one floor do not know each other.
FLOORS = (
    ("errors", "paths", "mechanisms", "operand", "legality", "forms", "charts"),
    ("kernels",),
    ("device", "store"),
    ("protocols", "production"),
    ("studies",),
    ("model",),
    ("book",),
    ("cli", "commands", "__init__", "__main__"),
)
GROUND, ROOF = FLOORS[0], FLOORS[-1]  # whose modules may know each other, as long as there is no cycle
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
MOST_FILES = 10  # directly in labkernels/


def _modules() -> dict[str, ast.Module]:
    """Every module of the package by its name, without `labkernels.`."""
    files = sorted(PACKAGE.rglob("*.py"))
    names = [".".join(file.relative_to(PACKAGE).with_suffix("").parts) for file in files]
    return {name: ast.parse(file.read_text("utf8")) for name, file in zip(names, files, strict=True)}


MODULES = _modules()


def _module(name: str) -> str:
    """The module that is executed when a name is imported."""
    return name if name in MODULES else f"{name}.__init__".removeprefix(".")


def imported(tree: ast.Module) -> set[str]:
    """Modules of ours that a module imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            known = [name for name in inside if _module(_own(name)) in MODULES]
            names = known if len(known) == len(inside) else [*known, node.module]
        else:
            continue
        found |= {_module(_own(name)) for name in names if name.split(".")[0] == PACKAGE.name}
    return found


def _own(name: str) -> str:
    return name.removeprefix(PACKAGE.name).removeprefix(".")


IMPORTS = {name: imported(tree) for name, tree in MODULES.items()}


def _room(module: str) -> str:
    return module.split(".")[0]


def _study(module: str) -> str | None:
    """The chapter's folder that a module lies in, if it lies in one."""
    parts = module.split(".")
    return parts[1] if parts[0] == "studies" and len(parts) > 2 else None


def forbidden(module: str, target: str) -> str | None:
    """Why one module may not import another, or None."""
    here, there = _room(module), _room(target)
    if {here, there} <= {*GROUND} or {here, there} <= {*ROOF}:
        return None
    if here != there and FLOOR[here] <= FLOOR[there]:
        return f"{here} lies on floor {FLOOR[here]}, {there} on {FLOOR[there]}"
    if _study(module) and _study(target) not in (None, _study(module)):
        return "no study knows another: what two of them need lies beside them"
    return None


def test_every_room_has_a_floor():
    assert {_room(name) for name in MODULES} <= set(FLOOR)


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_what_lies_below_them(module):
    broken = {target: forbidden(module, target) for target in IMPORTS[module]}
    assert {target: why for target, why in broken.items() if why} == {}


def test_no_module_imports_itself_in_a_circle():
    try:
        TopologicalSorter(IMPORTS).prepare()
    except CycleError as cycle:
        pytest.fail(" -> ".join(reversed(cycle.args[1])))


def test_few_files_lie_at_the_top():
    assert len([path for path in PACKAGE.iterdir() if path.is_file()]) <= MOST_FILES


@pytest.mark.parametrize(
    ("source", "target", "allowed"),
    [
        ("from labkernels.store import Store", "studies.select", True),
        ("from labkernels.studies import select", "store.store", False),
        ("from labkernels.studies.paged import findings", "studies.gemm.rules", False),
        ("import labkernels.studies.paged.findings", "studies.gemm.rules", False),
        ("def late():\n    from labkernels.model.fit import save", "studies.run", False),
        ("from labkernels.studies.stats import where", "studies.gemm.rules", True),
        ("from labkernels.production import catalog", "protocols.cluster_pipeline", False),
    ],
)
def test_an_arrow_that_runs_up_is_seen(source, target, allowed):
    (name,) = imported(ast.parse(source))
    assert (forbidden(target, name) is None) is allowed
