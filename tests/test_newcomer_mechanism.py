"""A newcomer's mechanism: its PTX, an entry, a line of axes, a line in an experiment; what was forgotten is named."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from labkernels.paths import BOOK, DATA, PACKAGE, ROOT

PTX = """\
/*% Prefetch to L2, then cp.async.bulk, global -> shared: does asking twice pay? SASS: UBLKPF, UBLKCP.S.G %*/
//% import "macros/mbarrier.ptx" as mbarrier
//% include "macros/header.ptx"

//% if protocol == "stream"
//% import "macros/stream.ptx" as stream
//% import "macros/walk.ptx" as walk
${stream.ring_storage()}
${stream.function("bulk_prefetch_stream")}
{
    ${stream.registers()}
    ${stream.ring_begin(full_arrivals=1)}
    elect.sync _|leader, 0xffffffff;
    @!leader bra DONE;
    //% call stream.ring_produce(outer_bits=64)
        ${mbarrier.expect("full_at", "tile_bytes")}
        ${walk.address("at")}
        cp.async.bulk.prefetch.L2.global [at], tile_bytes;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [stage], [at], tile_bytes, [full_at];
    //% endcall
    ${stream.ring_consume()}
    ${stream.finish()}
}
//% endif
"""
ENTRY = """\
        Mechanism(
            name="bulk_prefetch",
            title="bulk copy after a prefetch",
            ptx="cp.async.bulk.prefetch",
            opcodes=("UBLKCP.S.G",),
            source=GLOBAL,
            destination=SHARED,
            by_threads=False,
            counts_bytes=True,
            hue="green",
            dash=(8, 4, 2, 4),
        ),
"""
AXES = '    "bulk_prefetch": {"stream": ({},)},\n'
MEASURED = '                yield Configuration(kernel("bulk_prefetch", "stream"), bulk, source)\n'

PTX_FILE = "labkernels/kernels/ptx/bulk_prefetch.ptx"
MECHANISMS = "labkernels/mechanisms.py"
REGISTRY = "labkernels/kernels/registry.py"
EXPERIMENT = "labkernels/studies/crossover/throughput.py"
#: File, the line before which the newcomer's stand, and those.
EDITS = (
    (MECHANISMS, '        Mechanism(\n            name="tma_tile"', ENTRY),
    (REGISTRY, '    "tma_tile": {\n', AXES),
    (EXPERIMENT, '                yield Configuration(kernel("tma_tile"', MEASURED),
)


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name}: {old!r}"
    path.write_text(text.replace(old, new))


@pytest.fixture
def copy(tmp_path):
    """The repository with the newcomer's mechanism in it."""
    for folder in (PACKAGE, ROOT / "tests"):
        shutil.copytree(folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (DATA, BOOK, ROOT / "README.md"):
        (tmp_path / path.name).symlink_to(path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / PTX_FILE).write_text(PTX)
    for file, before, added in EDITS:
        edit(tmp_path / file, before, added + before)
    return tmp_path


def python(folder, *arguments, stdin=""):
    return subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )


ASKED = ("kernels", "--mechanism", "bulk_prefetch", "--arch", "sm_90a", "--json")


def own_tests(folder, *files, only=""):
    """Exit status and text of some of the repository's own tests in the copy."""
    chosen = ("-k", only) if only else ()
    done = python(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, *files)
    return done.returncode, done.stdout


def test_four_files_add_a_mechanism(copy):
    done = python(copy, "-m", "labkernels", *ASKED)
    (kernel,) = json.loads(done.stdout)["kernels"]
    assert kernel["kernel"] == "bulk_prefetch.stream" and kernel["verdict"] == "ok"
    assert {opcode.partition(".")[0] for opcode in kernel["opcodes"]} >= {"UBLKPF", "UBLKCP"}
    status, text = own_tests(copy, "tests/test_mechanisms.py", "tests/test_charts.py")
    assert status == 0, text
    files = ("tests/test_arguments.py", "tests/test_catalog.py")
    status, text = own_tests(copy, *files, only="bulk_prefetch or mechanism or stages")
    assert status == 0 and "passed" in text, text


#: What the PTX lacks: text, what stands there instead, and what is said.
PTX_FAULTS = {
    "a function": (PTX, "", "declares no .func bulk_prefetch_stream: give it a branch for protocol 'stream'"),
    "the branch": ('== "stream"', '== "chase"', "give it a branch for protocol 'stream'"),
    "an axis": ("tile_bytes, [full_at]", "${size}, [full_at]", "'size' is undefined; its axes in kernels/registry.py"),
    "an end": ("//% endcall\n", "", "kernels/ptx/bulk_prefetch.ptx, line 23: "),
    "an operand": (", tile_bytes, [full_at]", ", [full_at]", "Arguments mismatch for instruction 'cp.async.bulk'"),
    "a bound": ("    //% endcall", "        cp.async.cg.shared.global [stage], [at], 16;\n    //% endcall",
                "cp_async in its code, beside bulk_prefetch"),
}  # fmt: skip
TRY_ALL = f"""
import contextlib, io, json, pathlib, sys
from labkernels.cli import main
from labkernels.kernels import render
said = []
for text in json.load(sys.stdin):
    file = pathlib.Path("{PTX_FILE}")
    file.unlink(missing_ok=True)
    if text is not None:
        file.write_text(text)
    render._templates.cache_clear()
    render.declared.cache_clear()
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        status = main({ASKED!r})
    said.append([status, errors.getvalue()])
print(json.dumps(said))
"""


def test_what_the_ptx_lacks_is_named_in_one_line(copy):
    faults = {**PTX_FAULTS, "the file": (PTX, None, "there is no kernels/ptx/bulk_prefetch.ptx: write it")}
    texts = [new if new is None else PTX.replace(old, new) for old, new, _ in faults.values()]
    done = python(copy, "-c", TRY_ALL, stdin=json.dumps(texts))
    for (status, said), (_, _, expected) in zip(json.loads(done.stdout), faults.values(), strict=True):
        assert status == 2 and said.count("\n") == 1, said
        assert said.startswith("labkernels: ") and "bulk_prefetch" in said and expected in said


FORGOTTEN = {
    "the opcode": (MECHANISMS, ENTRY, ENTRY.replace(".S.G", ".S.S"), "no bulk_prefetch (UBLKCP.S.S) in its timed code"),
    "the entry": (MECHANISMS, ENTRY, "", "has axes for 'bulk_prefetch', which has no entry in mechanisms.py: add one"),
    "a field": (MECHANISMS, "            dash=(8, 4, 2, 4),\n", "", "missing 1 required keyword-only argument: 'dash'"),
    "the axes": (REGISTRY, AXES, "", "'bulk_prefetch' has no kernel: choose one of ldg, "),
    "the protocol": (REGISTRY, AXES, AXES.replace("stream", "steam"), "give it a branch for protocol 'steam'"),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGOTTEN)
def test_what_was_forgotten_is_named(copy, what):
    file, old, new, says = FORGOTTEN[what]
    edit(copy / file, old, new)
    done = python(copy, "-m", "labkernels", *ASKED)
    assert done.returncode and says in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("dash=(8, 4, 2, 4)", "dash=(2, 2)", "mechanisms tma_bulk and bulk_prefetch are drawn alike"),
        (ENTRY, ENTRY.replace("green", "teal"), "has the hue 'teal'; give it one of blue, "),
    ],
)
def test_a_style_of_its_own_is_asked_for(copy, old, new, says):
    edit(copy / MECHANISMS, old, new)
    assert says in python(copy, "-c", "import labkernels.charts.grammar").stderr.splitlines()[-1]


def test_an_experiment_is_asked_for(copy):
    edit(copy / EXPERIMENT, MEASURED, "")
    status, text = own_tests(copy, "tests/test_mechanisms.py", only="experiment")
    assert status and "no experiment measures bulk_prefetch: " in text


def test_readme_names_the_steps():
    text = (ROOT / "README.md").read_text()
    steps = text[text.index("To add a mechanism") : text.index("To add an experiment")]
    for file in (MECHANISMS, PTX_FILE.replace("bulk_prefetch", "<name>"), REGISTRY, EXPERIMENT):
        assert file in steps
