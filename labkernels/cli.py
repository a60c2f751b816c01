"""The command line: a table of commands, their answers printed, their errors as one line."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from labkernels import __version__
from labkernels.commands import Answer, Option, option_name, printable, write
from labkernels.errors import BadArgument, LabError

PROGRAM = "python -m labkernels"
INTERRUPTED = 130

#: What each command does; `labkernels/commands/<name>.py` does it.
COMMANDS = {
    "advise": "From an operand to a mechanism, with predicted times and reasons; no GPU",
    "rules": "Rules of thumb, each judged on a GPU's stored rows",
    "dispatch": "What a library chooses for each operand, and why; no GPU",
    "census": "Which mechanisms the kernels in a file use, counted in their machine code; no GPU",
    "kernels": "Assemble every kernel, count its SASS, check the registry's promises; no GPU",
    "ptx": "Print the PTX of one kernel, as it is assembled",
    "measure": "Run an experiment on this machine's GPU and store its rows",
    "batch": "Run chapters with parameter sets by papermill, on one GPU or many; resumes",
    "compare": "Two GPUs, or a card and the others of its name, against each other",
    "headline": "The figures that README and introduction quote, per GPU",
    "check": "Check data/ against its schema, provenance and chapters; exit status says",
    "merge": "Take the runs of another data folder that are not here yet",
    "fit": "Fit the performance model to the stored microbenchmarks",
    "seal": "Freeze what the model says of GPUs that nobody has measured",
    "doctor": "What this machine has, what is missing, and what works without it",
}


class UsageError(LabError):
    """Arguments that no command takes."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        write("")
        super().exit(status, message)


def _top() -> _Parser:
    listed = "\n".join(f"  {name:10} {does}" for name, does in COMMANDS.items())
    top = _Parser(
        prog=PROGRAM,
        description="Which Load? TMA, multicast, DSM and cp.async on NVIDIA Hopper, measured.",
        epilog=f"commands:\n{listed}\n\n{PROGRAM} COMMAND --help says what each takes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"labkernels {__version__}")
    top.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    return top


def _own(name: str, module: ModuleType) -> _Parser:
    own = _Parser(prog=f"{PROGRAM} {name}", description=f"{COMMANDS[name]}.")
    _take(own, module.options(), default=False)
    if hasattr(module, "branches"):
        below = own.add_subparsers(dest="branch", required=True, metavar="LIBRARY")
        for branch, title, options in module.branches():
            # What is not given to a branch must not undo what its command was given.
            _take(below.add_parser(branch, help=title, description=title), options, default=argparse.SUPPRESS)
    return own


def _take(parser: _Parser, options: Iterable[Option], default: Any) -> None:
    for names, how in options:
        parser.add_argument(*names, **how)
    parser.add_argument("--json", action="store_true", default=default, help="for machines")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an expected error becomes a line on stderr and exit status 2, Ctrl-C one and 130.

    Whoever reads the output may stop early (`| head`): that is no error.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        return _main(list(argv))
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BadArgument as error:
        return _say(error.said(option_name))
    except LabError as error:
        return _say(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "labkernels":
            raise
        return _say(f"{error.name} is not installed: {PROGRAM} doctor says what is missing")
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _say(named)


def _main(argv: list[str]) -> int:
    if sys.stdout is None:
        raise UsageError("standard output is closed; give > /dev/null to see nothing")
    if hasattr(sys.stdout, "reconfigure"):  # what the terminal's encoding lacks is no reason to stop
        sys.stdout.reconfigure(errors="backslashreplace")
    name = _top().parse_args(argv[:1]).command
    module = import_module(f"labkernels.commands.{name}")
    arguments = _own(name, module).parse_args(argv[1:])
    answer: Answer = module.run(arguments)
    if arguments.json or answer.text:
        text = json.dumps(answer.value, indent=1, allow_nan=False) if arguments.json else answer.text
        write(f"{text}\n")
    for note in answer.notes:
        _say(f"{name}: {note}")
    return answer.status


def _say(text: str, status: int = 2) -> int:
    if sys.stderr is not None:  # print would take stdout instead
        print(printable(f"labkernels: {text}").replace("\n", "\n  "), file=sys.stderr)
    return status
