"""What is declared, pinned, shipped and installed."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from labkernels.commands import doctor
from labkernels.paths import BOOK, DATA, PACKAGE, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
#: What is imported under another name than its distribution's, where it need not be installed.
OPTIONAL = {"nvMatmulHeuristics": "nvidia-matmul-heuristics"}


def named(requirements):
    return {canonicalize_name((one := Requirement(text)).name): one for text in requirements}


def pins(*files):
    """Versions by name; of a requirement that only names something, None."""
    lines = [
        line.partition("#")[0].strip() for file in files for line in (ROOT / file).read_text().splitlines()
    ]
    found = {}
    for one in map(Requirement, (line for line in lines if line and not line.startswith("-c"))):
        exact = [clause.version for clause in one.specifier if clause.operator == "=="]
        found[canonicalize_name(one.name)] = exact[0] if exact else None
    return found


def test_requirements_are_those_that_the_project_declares_and_their_pins_fit():
    declared = named(
        PROJECT["dependencies"] + EXTRAS["cu12"] + EXTRAS["book"] + EXTRAS["batch"] + EXTRAS["test"]
    )
    pinned = pins("requirements.txt")
    assert pinned.keys() == declared.keys()
    by_cuda = {cuda: pins(f"constraints-{cuda}.txt") for cuda in ("cu12", "cu13")}
    for cuda, constraints in by_cuda.items():
        for name, one in (declared | named(EXTRAS[cuda])).items():
            version = pinned[name] or constraints[name]
            assert one.specifier.contains(version, prereleases=True), f"{name}, {cuda}"


def test_what_the_owner_asked_for_is_required():
    assert pins("requirements.txt").keys() >= {
        *("jupyter-book", "numba-cuda", "numpy", "altair", "papermill", "pandas")
    }


def third_party(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] not in sys.stdlib_module_names)


OF = metadata.packages_distributions()


def distribution(module):
    """Which distribution a module is of: of a namespace that several share, the one with its name."""
    top, _, rest = module.partition(".")
    if top == "cuda":
        return f"cuda-{rest.partition('.')[0]}"
    if top == "numba":
        return "numba-cuda"
    of = OF.get(top, [OPTIONAL.get(top, top)])
    return canonicalize_name(of[0])


def sources():
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), ROOT / "setup.py"]:
        yield path, path.read_text("utf8")
    for path in BOOK.glob("*.ipynb"):
        cells = json.loads(path.read_text("utf8"))["cells"]
        yield path, "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_whatever_is_imported_is_declared():
    declared = named([*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)])
    own = {"labkernels", *(path.stem for path in (ROOT / "tests").glob("*.py"))}
    missing = {
        (distribution(module), path.name)
        for path, source in sources()
        for module in third_party(source)
        if module.partition(".")[0] not in own
    }
    assert {pair for pair in missing if pair[0] not in declared} <= {("setuptools", "setup.py")}


def test_doctor_looks_at_every_declared_package():
    groups = {
        "commands": PROJECT["dependencies"],
        "kernels": EXTRAS["cu12"],
        "book": EXTRAS["book"],
        "batch": EXTRAS["batch"],
    }
    looked_at = {
        canonicalize_name(name): purpose for purpose, names in doctor.PACKAGES.items() for name in names
    }
    for purpose, declared in groups.items():
        assert {name for name in named(declared) if looked_at.get(name) not in (purpose, "commands")} == set()
    assert looked_at.keys() == {name for declared in groups.values() for name in named(declared)}


def needed(requirements):
    """Names of requirements and of all that they need in turn, as far as they are installed."""
    todo, found = [*requirements], {}
    while todo:
        one = todo.pop()
        name, extras = canonicalize_name(one.name), one.extras or {""}
        if found.get(name, set()) >= extras:
            continue
        try:
            needs = map(Requirement, metadata.requires(name) or [])
        except metadata.PackageNotFoundError:
            continue
        found[name] = found.get(name, set()) | extras
        todo += [n for n in needs if not n.marker or any(n.marker.evaluate({"extra": e}) for e in extras)]
    return found.keys()


def test_whatever_is_installed_is_pinned():
    texts = PROJECT["dependencies"] + EXTRAS["cu12"] + EXTRAS["book"] + EXTRAS["batch"] + EXTRAS["test"]
    pinned = pins(
        "requirements.txt", "constraints.txt", *(path.name for path in ROOT.glob("constraints-cu*.txt"))
    )
    assert needed(map(Requirement, texts)) | {"pip", "setuptools", "wheel"} <= pinned.keys()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built without a network from a copy, so that nothing is left in the checkout."""
    wanted = Requirement(
        tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["build-system"]["requires"][0]
    )
    try:
        found = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        found = "0"
    if not wanted.specifier.contains(found):
        pytest.skip(f"{wanted} builds the wheel; {found} is here")
    copy = tmp_path_factory.mktemp("copy") / "project"
    ignored = shutil.ignore_patterns("__pycache__", "*.new")
    for name in ("labkernels", "data"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "LICENSE-TEXT"):
        shutil.copy(ROOT / name, copy)
    built = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", built, copy]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = built.glob("*.whl")
    return path


def test_the_wheel_carries_all_that_the_commands_read(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    code = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    tables = [
        path for path in DATA.rglob("*") if path.suffix in (".csv", ".json") or path.name == "SHA256SUMS"
    ]
    expected = {str(path.relative_to(ROOT)) for path in code}
    expected |= {f"labkernels/{path.relative_to(ROOT)}" for path in tables}
    assert expected <= inside
    assert {name for name in inside - expected if ".dist-info/" not in name} == set()


def test_the_wheel_says_whose_it_is_and_what_it_needs(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        told = archive.read(name).decode()
    assert "Author: The Which Load? authors" in told and "# Which Load?" in told
    assert len(re.findall(r"^Requires-Dist: [^;\n]*$", told, re.M)) == len(PROJECT["dependencies"])


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ("advise", 0, "tma_tile"),
        ("dispatch fa3 --heads 8 --kv-heads 8 --seqlen-q 1", 0, "tma_tile"),
        ("rules", 0, "holds"),
        ("census FILE", 0, "moves no data"),
        ("ptx ldg.issue", 2, "python -m labkernels kernels lists them"),
        ("check", 0, "data and provenance are sound"),
        ("fit", 2, "the following arguments are required: --data"),
        ("measure latency", 2, "the following arguments are required: --data"),
        ("merge FOLDER", 2, "the following arguments are required: --data"),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) and value else "",
)
def test_commands_work_without_a_checkout_or_say_what_is_missing(
    installed, tmp_path, arguments, status, said
):
    ptx = tmp_path / "x.ptx"
    ptx.write_text(".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() { ret; }\n")
    given = {"FILE": str(ptx), "FOLDER": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "labkernels", *(given.get(word, word) for word in arguments.split())],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status and said in done.stdout + done.stderr, done.stderr
    assert "Traceback" not in done.stderr and (status or not done.stderr)


@pytest.fixture
def makefile(tmp_path):
    """What make would do, in a folder whose environment has a Python that says another version than this one."""
    names = ("Makefile", "pyproject.toml", "setup.py")
    for path in [*ROOT.glob("*.mk"), *ROOT.glob("*.txt"), *(ROOT / name for name in names)]:
        shutil.copy(path, tmp_path)

    def python(path, version):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{version} {path}'\n")
        path.chmod(0o755)
        return path

    mine = python(tmp_path / ".venv" / "bin" / "python", "3.12.9")
    other = python(tmp_path / "other" / "python3", "3.13.9")

    def make(*arguments):
        for name in (*tmp_path.glob("*.*"), tmp_path / "Makefile"):
            name.touch()
        stamp = tmp_path / ".venv" / ".installed-cu12-3.12.9"
        stamp.touch()
        done = subprocess.run(["make", "-n", *arguments], cwd=tmp_path, capture_output=True, text=True)
        return done.stdout + done.stderr

    make.mine, make.other = mine, other
    return make


def test_an_environment_is_kept_whatever_python_it_has(makefile):
    assert "venv" not in makefile("lint").replace(".venv/bin/ruff", "")
    assert "venv" not in makefile("lint", f"PYTHON={makefile.mine}").replace(".venv/bin/ruff", "")


def test_another_python_or_cuda_starts_the_environment_afresh(makefile):
    assert f"{makefile.other} -m venv --clear .venv" in makefile("lint", f"PYTHON={makefile.other}")
    assert f"{makefile.mine} -m venv --clear .venv" in makefile("lint", "CUDA=cu13")


def test_make_names_what_there_is(makefile):
    assert "CUDA=cu14 is none of cu12 cu13: give one of them" in makefile("book", "CUDA=cu14")
    assert "nosuch is no Python that runs; name one with make PYTHON=python3.11" in makefile(
        "lint", "PYTHON=nosuch"
    )


def test_a_book_is_built_with_signs_of_life_and_no_noise(makefile):
    said = makefile("book", "CUDA=cu13")
    assert "etc/ipython/ipython_kernel_config.py" in said and 'log_level = "ERROR"' in said
    assert "jupyter-book build" in said and "--quiet ." not in said.partition("jupyter-book")[2]


def test_what_make_gemm_fetches_does_not_disturb_the_environment(makefile):
    fetched = makefile("gemm").partition("nvidia-cutlass")[0].rpartition("pip install")[2]
    assert "--no-deps" in fetched and "--target .cache/cutlass" in fetched


def test_clean_leaves_nothing_that_git_ignores_but_the_readers_own(makefile):
    removed = set(makefile("clean").split())
    ignored = {line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()}
    assert ignored - removed == {"/runs", "__pycache__", ".ipynb_checkpoints"}


def test_ci_runs_every_python_and_cuda_that_readme_promises():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf8"))
    legs = workflow["jobs"]["test"]["strategy"]["matrix"]["include"]
    assert {leg["python"] for leg in legs} == {"3.11", "3.12", "3.13", "3.14"}
    assert "(3.11 to 3.14)" in (ROOT / "README.md").read_text("utf8")
    assert {leg["cuda"] for leg in legs} == {"cu12", "cu13"}
    assert all("test" in leg["targets"].split() for leg in legs)
