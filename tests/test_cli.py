"""The command line: help for every command, JSON for machines, a line for a mistake, and it runs where Python does."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module

import pytest

from labkernels import __version__, cli
from labkernels.book import hygiene
from labkernels.cli import COMMANDS, main
from labkernels.commands import doctor
from labkernels.errors import BadArgument
from labkernels.paths import DATA, PACKAGE
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.experiments import studies

#: Runs each command quickly, for what concerns all of them.
EXAMPLES = {
    "advise": [],
    "rules": ["--gpu", "NVIDIA H200"],
    "dispatch": ["fa3", "--heads", "8", "--kv-heads", "8", "--seqlen-q", "1"],
    "kernels": ["--arch", "sm_90a", "--mechanism", "tma_bulk", "--protocol", "issue"],
    "ptx": ["tma_tile.issue[per_copy=copy,rank=2]"],
    "check": [],
    "batch": ["--dry-run"],
}


def run(*arguments, **how):
    how = {"capture_output": True, "text": True} | how
    return subprocess.run([sys.executable, "-m", "labkernels", *arguments], **how)


def test_every_command_has_a_module_and_every_module_a_command():
    files = {path.stem for path in (PACKAGE / "commands").glob("*.py")} - {"__init__"}
    assert files == COMMANDS.keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_says_what_it_does_and_each_option_means(command, capsys):
    with pytest.raises(SystemExit) as done:
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert done.value.code == 0 and COMMANDS[command] in text and "--json" in text
    for names, how in import_module(f"labkernels.commands.{command}").options():
        assert how.get("help"), f"{command} {names}"


@pytest.mark.parametrize("command", EXAMPLES)
def test_every_command_answers_machines_in_json(command, capsys):
    assert main([command, *EXAMPLES[command], "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_the_module_runs_and_lists_its_commands():
    done = run("--help", check=True)
    assert all(f"{command} " in done.stdout and does in done.stdout for command, does in COMMANDS.items())
    assert run("--version", check=True).stdout == f"labkernels {__version__}\n"


EVERY_HELP = """
from labkernels.cli import COMMANDS, main
for arguments in ([], *([command] for command in COMMANDS)):
    try:
        main([*arguments, "--help"])
    except SystemExit as done:
        assert done.code == 0
"""


@pytest.mark.parametrize(("flag", "encoding"), [("-OO", "utf8"), ("-B", "ascii")])
def test_help_needs_no_docstrings_and_no_wide_terminal(flag, encoding):
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, flag, "-c", EVERY_HELP], capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.count(b"usage: ") == len(COMMANDS) + 1


def test_advice_needs_no_docstrings():
    command = [sys.executable, "-OO", "-m", "labkernels", "advise", "--stages", "2"]
    assert subprocess.run(command, capture_output=True, check=True).stdout


def test_help_lists_every_experiment(capsys):
    with pytest.raises(SystemExit):
        main(["measure", "--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in studies())


def test_kernels_for_machines(capsys):
    assert main(["kernels", *EXAMPLES["kernels"], "--json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)["kernels"]
    assert first["kernel"] == "tma_bulk.issue[per_copy=copy]" and first["verdict"] == "ok"
    assert len(first["ptx_sha256"]) == 64 and len(others) == 3


def test_ptx_of_a_kernel(capsys):
    assert main(["ptx", "tma_tile.issue[per_copy=copy,rank=2]"]) == 0
    assert "cp.async.bulk.tensor.2d" in capsys.readouterr().out


def test_headline_figures_for_machines(capsys):
    assert main(["headline", "--json"]) == 0
    for figures in json.loads(capsys.readouterr().out, parse_constant=pytest.fail).values():
        of_cards = {"cards", "cards_low", "cards_high"}
        assert set(figures["hbm_read_gbps"]) == {"value", "unit", "low", "high", "run_id", "note"} | of_cards


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A folder with one stored run, and a book without a fault."""
    monkeypatch.setattr(hygiene, "book_problems", lambda store: [])
    run_id = select.latest_run(Store(), "latency")
    for file in DATA.glob(f"*/{run_id}*.csv"):
        (tmp_path / file.parent.name).mkdir()
        shutil.copy(file, tmp_path / file.parent.name)
    return tmp_path


def test_check_says_what_is_wrong_and_where(copied, capsys):
    (table,) = copied.glob("latency/*.csv")
    table.write_text(table.read_text()[:-3])
    left = copied / "latency" / "x.csv.0.new"
    left.write_text("")
    before = sorted(copied.rglob("*"))
    assert main(["check", "--data", str(copied), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert [f"latency/{table.name}, line" in problem for problem in said["problems"]] == [True]
    assert said["leftovers"] == ["latency/x.csv.0.new"]
    assert sorted(copied.rglob("*")) == before, "check only reads"


def test_check_goes_on_after_broken_runs(copied, capsys, monkeypatch):
    monkeypatch.undo()
    (run,) = copied.glob("runs/*.csv")
    run.write_text("x\n")
    (copied / "stray.csv").write_text("")
    assert main(["check", "--data", str(copied)]) == 1
    found = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in found][:2] == [f"runs/{run.name}, line 1", "stray.csv"]


def test_what_a_killed_writer_left_is_no_fault(copied, capsys):
    (copied / "latency" / "x.csv.0.new").write_text("")
    assert main(["check", "--data", str(copied)]) == 0
    assert "latency/x.csv.0.new is no stored run's" in capsys.readouterr().out


def test_check_looks_at_the_book_when_the_description_of_the_tables_is_broken(tmp_path, monkeypatch, capsys):
    (tmp_path / "_toc.yml").write_text("root: book/index\nchapters:\n- file: book/lost\n")
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "index.ipynb").write_text("{")
    (tmp_path / "datapackage.json").write_text("{")
    monkeypatch.setattr(hygiene, "ROOT", tmp_path)
    monkeypatch.setattr(hygiene, "BOOK", tmp_path / "book")
    monkeypatch.setattr(Store.__init__, "__kwdefaults__", {"package": tmp_path / "datapackage.json"})
    assert main(["check", "--data", str(tmp_path)]) == 1
    found = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[::2] for line in found][1:] == [
        ("_toc.yml lists book/lost", "there is no book/lost.ipynb"),
        (
            "index.ipynb",
            "is no notebook: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
    ]
    assert found[0].startswith(f"{tmp_path}/datapackage.json: Expecting property name")


def test_check_of_a_folder_that_is_not_there(tmp_path, capsys):
    assert main(["check", "--data", str(tmp_path / "x")]) == 1
    assert f"{tmp_path}/x: is no folder; give the folder that holds runs/" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["headline", "rules", "fit"])
def test_missing_data_is_a_sentence(command, tmp_path, capsys):
    assert main([command, "--data", str(tmp_path)]) == 2
    assert f"{tmp_path} holds no runs: give the folder that holds runs/" in capsys.readouterr().err


def test_merge_for_machines(copied, tmp_path, capsys):
    (run,) = copied.glob("runs/*.csv")
    for new in ([run.stem], []):
        assert main(["merge", str(copied), "--data", str(tmp_path / "new"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"runs": new}


@pytest.mark.parametrize("place", ["other", "other/runs", "other/runs/x.csv", "other/datapackage.json"])
def test_merge_does_not_wait_for_a_pipe(copied, place, capsys):
    (copied / place).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(copied / place)
    assert main(["merge", str(copied / "other"), "--data", str(copied)]) == 2
    assert f"{copied}/other" in (said := capsys.readouterr().err) and said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND; see python -m labkernels --help"),
        (["advice"], "invalid choice: 'advice'"),
        (
            ["advise", "--speed", "1"],
            "unrecognized arguments: --speed 1; see python -m labkernels advise --help",
        ),
        (["advise", "--rows", "many"], "--rows is 'many', not a whole number"),
        (["advise", "--row-bytes", "0"], "--row-bytes is 0, below the limit of 1: give 1 or more"),
        (["advise", "--tensor-mib", "-4"], "--tensor-mib is -4, below the limit of 1: give 1 or more"),
        (
            ["advise", "--rows", "1" + "0" * 400],
            "--rows is a number of more than 20 digits, above the limit of",
        ),
        (["advise", "--rows", "1" + "0" * 5000], "not a whole number"),
        (["advise", "--compute-cycles", "nan"], "--compute-cycles is nan, not a finite number"),
        (
            ["advise", "--compute-cycles", "1e308"],
            "--compute-cycles is 1e+308, above the limit of 1000000000",
        ),
        (["advise", "--alignment-bytes", "12"], "--alignment-bytes is 12, not a power of two: give 4"),
        (["advise", "--cluster", "3"], "--cluster is 3, measured were 1, 2, 4, 8, 16: give one of them"),
        (["advise", "--source", "l2"], "--source is l2, the tensor has 268435456 bytes"),
        (["advise", "--gpu", "NVIDIA H9999"], "no model of 'NVIDIA H9999': choose NVIDIA H200"),
        (["rules", "--gpu", "NVIDIA H9999"], "no runs of 'NVIDIA H9999' in"),
        (["fit", "--gpu", "NVIDIA H9999"], "no runs of 'NVIDIA H9999' in"),
        (["kernels", "--protocol", "nosuch"], "argument --protocol: invalid choice: 'nosuch'"),
        (["headline", "--data", "/nonexistent"], "argument --data: '/nonexistent' is no folder"),
        (["rules", "--data", "/nonexistent"], "argument --data: '/nonexistent' is no folder"),
        (["fit", "--data", "/nonexistent"], "argument --data: '/nonexistent' is no folder"),
        (["ptx", "tma.stream"], "no kernel 'tma.stream'"),
        (["measure", "latency", "--preset", "slow"], "no preset 'slow'; choose one of quick, full"),
        (["measure", "latency", "--set", "rounds"], "--set rounds: give NAME=VALUE"),
        (["measure", "latency", "--set", "name=xyz"], "--set name=xyz: 'xyz' is no JSON"),
        (["measure", "latency", "--set", "sizes=3"], "no parameter 'sizes'"),
        (["measure", "latency", "--set", "rounds=true"], "parameter rounds is True; give a int like 9"),
        (["census", "x", "--csv", "--json"], "--csv and --json exclude each other: give one"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_mistakes_are_one_line_that_names_what_was_typed(arguments, message, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("labkernels: ") and said.count("\n") == 1 and len(said) < 400


def test_a_model_that_fit_wrote_is_one_that_advise_reads(tmp_path, capsys):
    shutil.copytree(DATA / "model", tmp_path / "model")
    constants = tmp_path / "model" / "constants.csv"
    constants.write_text(constants.read_text().replace("NVIDIA H200", "Another GPU"))
    assert main(["advise", "--data", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu"] == "Another GPU"


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_fitted(copied, monkeypatch, capsys):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr("labkernels.commands.fit.save", pytest.fail)
    assert main(["fit", "--data", str(copied)]) == 2
    assert "cannot be written: copy" in capsys.readouterr().err


@pytest.mark.parametrize("bug", [ValueError, TypeError, KeyError, IndexError, RuntimeError])
def test_a_bug_is_not_taken_for_a_mistake_of_the_user(bug, monkeypatch):
    def broken(arguments):
        raise bug("here")

    monkeypatch.setattr("labkernels.commands.advise.run", broken)
    with pytest.raises(bug):
        main(["advise"])


def test_expected_errors_are_a_line_with_their_file(monkeypatch, capsys):
    def full(arguments):
        raise OSError(28, "No space left on device", "some.csv")

    monkeypatch.setattr("labkernels.commands.advise.run", full)
    assert main(["advise"]) == 2
    assert capsys.readouterr().err == "labkernels: some.csv: No space left on device\n"


def test_names_of_arguments_are_written_as_each_interface_has_them():
    error = BadArgument("`row_bytes` is 3: give 4")
    assert str(error) == "row_bytes is 3: give 4"
    assert error.said(cli.option_name) == "--row-bytes is 3: give 4"


def test_what_the_terminal_cannot_show_is_written_out(capsys, monkeypatch):
    monkeypatch.setattr("labkernels.commands.ptx.render", lambda *_: "a\x1b[2J\x9b\tb\nµ")
    assert main(["ptx", *EXAMPLES["ptx"]]) == 0
    assert capsys.readouterr().out == "a\\x1b[2J\\x9b\tb\nµ\n"
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert main(["ptx", *EXAMPLES["ptx"]]) == 0
    assert narrow.buffer.getvalue().endswith(b"\\xb5\n")


@pytest.mark.parametrize("arguments", ["advise", "advise --help", "--version", "dispatch fa3 --help"])
def test_output_that_cannot_be_written_is_an_error(arguments):
    full = subprocess.run(
        f"{sys.executable} -m labkernels {arguments} > /dev/full", shell=True, capture_output=True, text=True
    )
    assert full.returncode == 2 and full.stderr == (
        "labkernels: standard output cannot be written: No space left on device\n"
    )
    closed = subprocess.run(
        f"{sys.executable} -m labkernels {arguments} >&-", shell=True, capture_output=True, text=True
    )
    assert closed.returncode == 2 and closed.stderr.startswith("labkernels: standard output is closed")


def test_a_closed_stderr_is_no_reason_to_talk_into_the_answer():
    command = f"{sys.executable} -m labkernels advise --rows 0 2>&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("arguments", ["advise", "--help"])
def test_a_reader_that_stops_early_is_no_error(arguments):
    command = f"{sys.executable} -m labkernels {arguments} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


AT_WORK = """
import multiprocessing, os, runpy, sys, time
from pathlib import Path

MARK, COMMAND, START = Path(os.environ["MARK"]), *sys.argv[1:3]

def never(*arguments):
    MARK.touch()
    time.sleep(600)

if __name__ == "__main__":
    from labkernels.kernels import build, sass
    from labkernels.production import census
    from labkernels.production.containers import Cubin

    multiprocessing.set_start_method(START)
    build.assemble = never
    sass.tool = lambda name: str(MARK.with_name("tool"))
    census.unpack = lambda path, *how: iter([Cubin("", "sm_90a", path)] * 9)
    options = {"kernels": ["--arch", "sm_90a", "--mechanism", "ldg"], "census": [str(MARK.with_name("tool"))]}
    sys.argv = ["labkernels", COMMAND, *options[COMMAND]]
    runpy.run_module("labkernels", run_name="__main__")
"""


@pytest.mark.parametrize("to_all", [True, False], ids=["from a terminal", "to the process"])
@pytest.mark.parametrize(
    ("command", "start"), [("kernels", "fork"), ("kernels", "forkserver"), ("census", "fork")]
)
def test_an_interrupt_ends_all_that_is_at_work(command, start, to_all, tmp_path):
    script, tool, mark = tmp_path / "at_work.py", tmp_path / "tool", tmp_path / "mark"
    script.write_text(AT_WORK)
    tool.write_text(f"#!/bin/sh\ntouch {mark}\nexec sleep 600\n")
    tool.chmod(0o755)
    started = subprocess.Popen(
        [sys.executable, script, command, start],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent), "MARK": str(mark)},
    )
    try:
        for _ in range(4000):
            if mark.exists() or started.poll() is not None:
                break
            time.sleep(0.05)
        (os.killpg if to_all else os.kill)(started.pid, signal.SIGINT)
        out, err = started.communicate(timeout=120)
    except BaseException:
        os.killpg(started.pid, signal.SIGKILL)
        raise
    assert (started.returncode, out.count("\n") < 2, err) == (130, True, "labkernels: interrupted\n")
    with pytest.raises(ProcessLookupError):
        while True:  # the last of them may still be on its way out
            os.killpg(started.pid, 0)
            time.sleep(0.05)


BLOCKED = """
import importlib, json, sys
from labkernels.book import hygiene
from labkernels.commands import doctor

class Blocked:
    name = None

    def find_spec(self, name, path=None, target=None):
        if name == self.name or name.startswith(f"{self.name}."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

blocked, found = Blocked(), {}
sys.meta_path.insert(0, blocked)
for module in [name for purpose in doctor.PACKAGES.values() for name in purpose.values() if name]:
    blocked.name = module
    for name in list(sys.modules):
        if name == module or name.startswith((f"{module}.", "labkernels.")) and name != doctor.__name__:
            del sys.modules[name]
    found[module] = [(one.verdict, one.what, one.detail) for one in doctor.findings()]
print(json.dumps(found))
"""


def test_doctor_runs_whichever_package_is_missing_and_says_which_and_what_to_do():
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    for purpose, packages in doctor.PACKAGES.items():
        for distribution, module in packages.items():
            if module:
                said = {what: detail for verdict, what, detail in found[module] if verdict == "FIX"}
                detail = said[f"packages for the {purpose}"]
                assert distribution in detail and "pip install -r requirements.txt" in detail, module


BARE = """
import sys
from labkernels.cli import main

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "labkernels"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Bare())
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, "doctor"),
        (["doctor"], 1, "numpy cannot be imported (No module named 'numpy')"),
        (["advise"], 0, "tma_tile"),
        (["dispatch", *EXAMPLES["dispatch"]], 0, "tma_tile"),
        (["headline"], 2, "is not installed: python -m labkernels doctor says what is missing"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_nothing_is_imported_that_is_not_needed(arguments, status, said):
    done = subprocess.run([sys.executable, "-c", BARE, *arguments], capture_output=True, text=True)
    assert done.returncode == status and said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_calls_nothing_broken_that_may_be_left_out():
    one = doctor.Finding("GPU", ok=False, detail="", optional=True)
    assert one.verdict == "none" and doctor.Finding("Python", ok=False, detail="").verdict == "FIX"
