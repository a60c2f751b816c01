"""python -m labkernels …: kernels, measurements, stored data and figures from the command line."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

if TYPE_CHECKING:
    from labkernels.store import Store


def _kernels(arguments: argparse.Namespace) -> int:
    from labkernels.kernels.build import assemble_all
    from labkernels.kernels.registry import kernels

    specs = kernels(arguments.mechanism, arguments.protocol)
    built = [
        kernel
        for arch in arguments.arch
        for kernel in tqdm(
            assemble_all(specs, arch),
            total=sum(arch in spec.architectures for spec in specs),
            desc=arch,
            leave=False,
        )
    ]
    described = [
        {
            "kernel": kernel.spec.name,
            "arch": kernel.arch,
            "mechanism": kernel.spec.mechanism,
            "ptx_sha256": kernel.ptx_sha256,
            "registers": kernel.registers,
            "shared_bytes": kernel.shared_bytes,
            "opcodes": kernel.opcodes,
            "verdict": "ok",  # assemble refuses code that breaks the registry's promise
        }
        for kernel in built
    ]
    if arguments.json:
        print(json.dumps({"kernels": described}, indent=1))
        return 0
    for row, kernel in zip(described, built, strict=True):
        own = ", ".join(f"{name} {count}" for name, count in kernel.mechanisms.items())
        print(
            f"{row['arch']:8} {row['kernel']:56} {row['ptx_sha256'][:12]} {row['registers']:4} registers "
            f"{row['shared_bytes']:6} B shared  {own:24} {row['verdict']}"
        )
    return 0


def _ptx(arguments: argparse.Namespace) -> int:
    from labkernels.kernels.build import render
    from labkernels.kernels.registry import kernels

    found = [spec for spec in kernels() if spec.name == arguments.kernel]
    if not found:
        raise ValueError(f"no kernel {arguments.kernel!r}; python -m labkernels kernels lists them")
    print(render(found[0], arguments.arch))
    return 0


def _measure(arguments: argparse.Namespace) -> int:
    from labkernels.studies.run import Outcome, run, run_all

    overrides = {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set {text}: give NAME=VALUE, with VALUE in JSON")
        overrides[name] = json.loads(value)
    store = _store(arguments)
    given = (arguments.preset, store, overrides)
    one = arguments.experiment
    outcomes = run_all(*given) if one == "all" else [Outcome(one, run_id=run(one, *given))]
    found: dict[str, dict[str, str]] = {"runs": {}, "skipped": {}, "failed": {}}
    for name, *what in outcomes:
        for kind, text in zip(found, what, strict=True):
            if text is not None:
                found[kind][name] = text
                said = text if kind == "runs" else f"{name} {kind}: {text}"
                print(said, file=sys.stdout if kind == "runs" and not arguments.json else sys.stderr)
    if arguments.json:
        print(json.dumps({**found, "data": str(store.root)}))
    return 1 if found["failed"] else 0


def _store(arguments: argparse.Namespace) -> "Store":
    from labkernels.store import Store

    return Store(arguments.data) if arguments.data else Store()


def _stored(arguments: argparse.Namespace) -> "Store":
    """The store of a command that has nothing to say of an empty one."""
    store = _store(arguments)
    store.require_runs()
    return store


def _check(arguments: argparse.Namespace) -> int:
    from labkernels.book.hygiene import book_problems
    from labkernels.store import StoreError

    store, leftovers = None, []
    try:
        store = _store(arguments)
        problems, leftovers = store.check(), store.leftovers()
    except StoreError as error:  # the tables are not described; the chapters can be checked all the same
        problems = error.problems
    found = [*map(str, problems), *book_problems(store)]
    if arguments.json:
        print(json.dumps({"problems": found, "leftovers": leftovers}))
        return 1 if found else 0
    print("\n".join(found) or "data, provenance and chapters are sound")
    for path in leftovers:
        print(f"{path} is no stored run's: a writer that was stopped left it, and it may be removed")
    return 1 if found else 0


def _merge(arguments: argparse.Namespace) -> int:
    new = _store(arguments).merge(arguments.folder)
    print(json.dumps({"runs": new}) if arguments.json else "\n".join(new) or "nothing new")
    return 0


def _headline(arguments: argparse.Namespace) -> int:
    from labkernels.book.headline import headline

    by_gpu = headline(_stored(arguments))
    if arguments.json:
        print(
            json.dumps({gpu: {n: asdict(f) for n, f in figures.items()} for gpu, figures in by_gpu.items()})
        )
        return 0
    for gpu, figures in by_gpu.items():
        print(gpu)
        for name, figure in figures.items():
            text = "not measured" if figure.value is None else f"{figure.value:,.4g} {figure.unit}"
            high = "open" if figure.high is None else f"{figure.high:,.4g}"
            interval = f"  [{figure.low:,.4g}, {high}]" if figure.low is not None else ""
            print(f"  {name:40} {text}{interval}  {figure.run_id or ''}".rstrip())
    return 0


def _rules(arguments: argparse.Namespace) -> int:
    from labkernels.studies import select
    from labkernels.studies.rules import judge

    store = _stored(arguments)
    found = [v for gpu in select.require_gpus(store, arguments.gpu) for v in judge(store, gpu)]
    if arguments.json:
        rows = [
            {"gpu": v.gpu, "outcome": v.outcome, "evidence": v.sentence, "run_ids": v.run_ids}
            | {
                name: getattr(v.rule, name)
                for name in ("id", "chapter", "operands", "take", "statement", "scope")
            }
            for v in found
        ]
        print(json.dumps({"rules": rows}))
        return 0
    for v in found:
        print(
            f"{v.gpu}  {v.rule.chapter}/{v.rule.id}: {v.outcome}\n  {v.rule.statement}\n  {v.sentence}".rstrip()
        )
    return 0


def _advise(arguments: argparse.Namespace) -> int:
    from labkernels.model.advisor import Question, describe

    given = {name: getattr(arguments, name) for name in Question.__dataclass_fields__}
    advice = Question(**given).advise(arguments.gpu)
    print(json.dumps(asdict(advice)) if arguments.json else describe(advice))
    return 0


def _fit(arguments: argparse.Namespace) -> int:
    from labkernels.model.fit import save
    from labkernels.studies import select

    store = _stored(arguments)
    folders = {}
    for gpu in select.require_gpus(store, arguments.gpu):
        save(store, gpu)
        folders[gpu] = str(store.root / "model")
    print(json.dumps({"models": folders}) if arguments.json else "\n".join(folders.values()))
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from labkernels.doctor import findings

    found = findings()
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in found]))
    else:
        for finding in found:
            print(f"{'ok  ' if finding.ok else 'FIX '} {finding.what}: {finding.detail}")
    return 0 if all(finding.ok or finding.optional for finding in found) else 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    from labkernels.kernels.registry import AXES
    from labkernels.mechanisms import ARCHITECTURES
    from labkernels.model.advisor import options as advisor_options
    from labkernels.studies.experiments import studies

    top = argparse.ArgumentParser(prog="python -m labkernels", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, function: object, text: str, data: bool = False) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(function=function)
        added.add_argument("--json", action="store_true", help="for machines")
        if data:
            added.add_argument(
                "--data", type=Path, metavar="DIR", help="folder of the tables (data/ by default)"
            )
        return added

    one = command(
        "kernels", _kernels, "Assemble every kernel, count its SASS, check the registry's promises; no GPU"
    )
    one.add_argument("--arch", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    one.add_argument("--mechanism", choices=list(AXES))
    one.add_argument("--protocol")
    one = command("ptx", _ptx, "Print the PTX of one kernel, as it is assembled")
    one.add_argument("kernel", help="name as `kernels` prints it")
    one.add_argument("--arch", choices=ARCHITECTURES, default=ARCHITECTURES[0])
    one = command(
        "measure", _measure, "Run an experiment on this machine's GPU and store its rows", data=True
    )
    one.add_argument("experiment", choices=[*studies(), "all"])
    one.add_argument("--preset", default="quick", help="quick (default) or full")
    one.add_argument("--set", action="append", default=[], metavar="NAME=JSON", help="replace one parameter")
    command(
        "check",
        _check,
        "Check data/ against its schema, provenance and chapters; exit status says",
        data=True,
    )
    one = command("merge", _merge, "Take the runs of another data folder that are not here yet", data=True)
    one.add_argument("folder", type=Path)
    command("headline", _headline, "The figures that README and introduction quote, per GPU", data=True)
    one = command("rules", _rules, "Rules of thumb, each judged on a GPU's stored rows", data=True)
    one.add_argument("--gpu", help="name of a GPU (all by default)")
    one = command(
        "advise", _advise, "From an operand to a mechanism, with predicted times and reasons; no GPU"
    )
    one.add_argument("--gpu", help="name of a GPU with fitted constants")
    for name, default, text in advisor_options():
        one.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=text)
    one = command("fit", _fit, "Fit the performance model to the stored microbenchmarks", data=True)
    one.add_argument("--gpu", help="name of a GPU (all by default)")
    from labkernels.production import census, dispatch

    one = commands.add_parser("dispatch", help="What FlashAttention-3 or -4 choose for each operand; no GPU")
    dispatch.add_arguments(one)
    one.set_defaults(function=dispatch.main)
    one = commands.add_parser("census", help="Which mechanisms the kernels in a file use; no GPU")
    census.add_arguments(one)
    one.set_defaults(function=census.main)
    command("doctor", _doctor, "What this machine has, what is missing, and what works without it")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; expected errors become one line on stderr and exit status 2.

    Whoever reads the output may stop early (`| head`): that is no error.
    """
    from labkernels.errors import LabError

    arguments = parser().parse_args(argv)
    try:
        status = arguments.function(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is flushed at exit
        return 0
    except (LabError, ValueError, TypeError, LookupError, OSError) as error:
        print(f"labkernels: {error}", file=sys.stderr)
        return 2
