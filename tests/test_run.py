"""Measuring without a GPU of one's own: what is skipped, what fails, what is stored, and the exit status of it all."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from labkernels.cli import main
from labkernels.device.counters import NoCounters
from labkernels.errors import LabError, NotInstalled
from labkernels.protocols.experiment import Experiment, Result, needs
from labkernels.studies import run as runner
from labkernels.studies.run import Outcome, WrongTables, run, run_all


@dataclass(frozen=True)
class Parameters:
    """What the experiments here may be told."""

    rounds: int = 9


class Kernel:
    """Stands for what was measured."""

    ptx_sha256 = "0" * 64


class Shelf:
    """A store that keeps what it is given in a list."""

    root = "a shelf"

    def __init__(self, *_):
        self.kept = []

    def record(self, described, tables):
        self.kept.append((described, tables))
        return described["run_id"]


class Monitor:
    """Watches nothing."""

    def __init__(self, board):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def summary(self):
        return {}


def missing_tool():
    raise NotInstalled("no such tool here: install it")


def made_up(name, measure, *required, tables=("t",)):
    presets = {"quick": Parameters(), "full": Parameters(99)}
    return Experiment(name, "Does it?", tables, presets, measure, needs(*required))


def rows(gpu, parameters, progress):
    return Result({"t": [{"rounds": parameters.rounds}]}, [Kernel()])


def refused(gpu, parameters, progress):
    raise LabError("byte 3 is wrong")


def not_permitted(gpu, parameters, progress):
    raise NoCounters("ncu may not count")


def broken(gpu, parameters, progress):
    return [][1]


@pytest.fixture
def lab(monkeypatch):
    """A machine with a GPU and these experiments; returns the store."""
    experiments = {}
    shelf = Shelf()
    monkeypatch.setattr(runner, "studies", lambda: experiments)
    monkeypatch.setattr(runner, "experiment", experiments.__getitem__)
    monkeypatch.setattr(runner, "Gpu", lambda: SimpleNamespace(board=None))
    monkeypatch.setattr(runner, "Monitor", Monitor)
    monkeypatch.setattr(runner, "describe", lambda gpu: {})
    monkeypatch.setattr("labkernels.commands.measure.Store", lambda *_: shelf)

    def put(*made):
        experiments.update({one.name: one for one in made})
        return shelf

    return put


def test_all_skips_what_the_machine_lacks_and_goes_on_after_what_fails(lab, capsys):
    shelf = lab(
        made_up("a", refused), made_up("b", rows, missing_tool), made_up("c", broken), made_up("d", rows)
    )
    a, b, c, d = run_all("full", shelf)
    assert a == Outcome("a", failed="byte 3 is wrong")
    assert b == Outcome("b", skipped="no such tool here: install it")
    assert c == Outcome("c", failed="IndexError: list index out of range")
    assert d.run_id and d == Outcome("d", run_id=d.run_id)
    ((described, tables),) = shelf.kept
    assert described["experiment"] == "d" and tables == {"t": [{"rounds": 99}]}
    said = capsys.readouterr().err
    assert said.count("Traceback") == 1 and "IndexError" in said, "of a bug, and of nothing else"


@pytest.mark.parametrize(
    ("made", "status"),
    [
        ([("a", rows, ()), ("b", rows, (missing_tool,))], 0),
        ([("a", rows, (missing_tool,)), ("b", not_permitted, ())], 0),
        ([("a", refused, ()), ("b", rows, ())], 1),
    ],
)
def test_the_exit_status_of_all_says_whether_something_failed(lab, made, status, capsys):
    lab(*(made_up(name, measure, *required) for name, measure, required in made))
    assert main(["measure", "all", "--json"]) == status
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert list(found["runs"]) == [
        name for name, measure, required in made if measure is rows and not required
    ]
    assert list(found["skipped"]) == [
        name for name, measure, required in made if required or measure is not_permitted
    ]
    assert list(found["failed"]) == [name for name, measure, _ in made if measure is refused]
    assert "Traceback" not in shown.err and len(shown.err.splitlines()) == len(made)


def test_parameters_that_one_experiment_lacks_stop_all_of_them_before_anything_is_measured(lab):
    shelf = lab(made_up("a", rows), made_up("b", rows))
    with pytest.raises(ValueError, match="a has no parameter 'tiles'; it has rounds"):
        list(run_all("quick", shelf, {"tiles": 3}))
    assert not shelf.kept


def test_one_experiment_that_lacks_something_is_a_sentence(lab):
    shelf = lab(made_up("a", rows, missing_tool))
    with pytest.raises(LabError, match="no such tool here: install it"):
        run("a", store=shelf)
    assert not shelf.kept


@pytest.mark.parametrize("named", [("t", "u"), ("u",)])
def test_what_fills_other_tables_than_it_names_is_not_stored(lab, named):
    shelf = lab(made_up("a", rows, tables=named))
    with pytest.raises(WrongTables, match=rf"a filled t, but names {', '.join(named)}"):
        run("a", store=shelf)
    assert not shelf.kept


@pytest.mark.parametrize("what", ["all", "throughput"])
def test_without_a_gpu_there_is_one_sentence_and_exit_status_2(what, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "labkernels", "measure", what, "--data", tmp_path],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.count("\n") == 1 and "GPU" in done.stderr and not list(tmp_path.iterdir())


def test_what_describes_the_machine_fails_before_anything_is_measured(lab, monkeypatch):
    def cannot(gpu):
        raise LabError("no driver")

    shelf = lab(made_up("a", lambda *_: pytest.fail("measured")))
    monkeypatch.setattr(runner, "describe", cannot)
    with pytest.raises(LabError, match="no driver"):
        runner.run("a", "full", shelf)
    assert shelf.kept == []
