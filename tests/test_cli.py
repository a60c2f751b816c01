"""The command line: every command has help, machines get JSON, mistakes are one line and exit status 2."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from labkernels.book import hygiene
from labkernels.cli import main, parser
from labkernels.paths import DATA
from labkernels.store import Store
from labkernels.studies import select

COMMANDS = ["kernels", "ptx", "measure", "check", "merge", "headline", "doctor", "census"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as done:
        main([command, "--help"])
    assert done.value.code == 0 and len(capsys.readouterr().out) > 100


def test_the_module_runs():
    done = subprocess.run(
        [sys.executable, "-m", "labkernels", "--help"], capture_output=True, text=True, check=True
    )
    assert all(command in done.stdout for command in COMMANDS)


def test_kernels_for_machines(capsys):
    assert (
        main(["kernels", "--arch", "sm_90a", "--mechanism", "tma_bulk", "--protocol", "issue", "--json"]) == 0
    )
    first, *others = json.loads(capsys.readouterr().out)["kernels"]
    assert first["kernel"] == "tma_bulk.issue[per_copy=copy]" and first["verdict"] == "ok"
    assert len(first["ptx_sha256"]) == 64 and len(others) == 3


def test_ptx_of_a_kernel(capsys):
    assert main(["ptx", "tma_tile.issue[per_copy=copy,rank=2]"]) == 0
    assert "cp.async.bulk.tensor.2d" in capsys.readouterr().out


def test_headline_figures_for_machines(capsys):
    assert main(["headline", "--json"]) == 0
    for figures in json.loads(capsys.readouterr().out).values():
        assert set(figures["hbm_read_gbps"]) == {"value", "unit", "low", "high", "run_id"}


def test_check_finds_the_stored_data_sound(capsys):
    assert main(["check"]) == 0


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
        (["ptx", "tma.stream"], "no kernel 'tma.stream'"),
        (["measure", "latency", "--preset", "slow"], "no preset 'slow'; choose one of quick, full"),
        (["measure", "latency", "--set", "rounds"], "give NAME=VALUE"),
        (["measure", "latency", "--set", "sizes=3"], "no parameter 'sizes'"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_help_lists_every_experiment():
    from labkernels.studies.experiments import studies

    text = parser().format_help() + "".join(
        action.format_help() for action in parser()._subparsers._group_actions[0].choices.values()
    )
    assert all(name in text for name in studies())


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m labkernels rules | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.count("\n") == 1
