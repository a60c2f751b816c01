"""`rules`: the rules of thumb, each judged on a GPU's stored rows."""

from argparse import Namespace
from collections.abc import Iterator

from labkernels.commands import GPU, READS, Answer, Option
from labkernels.protocols.progress import track
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.rules import foremost_first, judge


def options() -> Iterator[Option]:
    """Whose rows."""
    yield GPU
    yield READS


def run(arguments: Namespace) -> Answer:
    """Every rule with its scope, its verdict and the sentence of evidence, the dozen that matter most first."""
    store = Store(arguments.data)
    store.require_runs()
    gpus = select.require_gpus(store, arguments.gpu)
    found = foremost_first(verdict for gpu in gpus for verdict in judge(store, gpu, progress=track))
    told = ("id", "chapter", "operands", "take", "statement", "scope")
    rows = [
        {"gpu": v.gpu, "outcome": v.outcome, "evidence": v.sentence, "run_ids": v.run_ids}
        | {name: getattr(v.rule, name) for name in told}
        for v in found
    ]
    lines = [
        f"{v.gpu}  {v.rule.chapter}/{v.rule.id}: {v.outcome}\n  {v.rule.statement}\n"
        f"  On {v.rule.scope}.\n  {v.sentence}".rstrip()
        for v in found
    ]
    return Answer({"rules": rows}, "\n".join(lines))
