"""The command line: every command has help, machines get JSON, mistakes are one line and exit status 2."""

import json
import shutil
import subprocess
import sys

import pytest

from labkernels.cli import main, parser
from labkernels.paths import DATA

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


def test_check_says_what_is_wrong_and_where(tmp_path, capsys):
    for file in (*DATA.glob("*.csv"), DATA / "datapackage.json"):
        shutil.copy(file, tmp_path)
    table = tmp_path / "latency.csv"
    table.write_text(table.read_text()[:-3])
    assert main(["check", "--data", str(tmp_path), "--json"]) == 1
    assert any("latency.csv, line" in problem for problem in json.loads(capsys.readouterr().out)["problems"])


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
