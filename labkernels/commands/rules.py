"""`rules`: the rules of thumb, each judged on a GPU's stored rows."""

from argparse import Namespace
from collections.abc import Iterator

from labkernels.commands import GPU, READS, Answer, Option
from labkernels.protocols.progress import track
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.rules import judge


def options() -> Iterator[Option]:
    """Whose rows."""
    yield GPU
    yield READS


def run(arguments: Namespace) -> Answer:
    """Every rule with its verdict and the sentence of evidence."""
    store = Store(arguments.data)
    store.require_runs()
    found = [
        verdict
        for gpu in select.require_gpus(store, arguments.gpu)
        for verdict in judge(store, gpu, progress=track)
    ]
    told = ("id", "chapter", "operands", "take", "statement", "scope")
    rows = [
        {"gpu": v.gpu, "outcome": v.outcome, "evidence": v.sentence, "run_ids": v.run_ids}
        | {name: getattr(v.rule, name) for name in told}
        for v in found
    ]
    lines = [
        f"{v.gpu}  {v.rule.chapter}/{v.rule.id}: {v.outcome}\n  {v.rule.statement}\n  {v.sentence}".rstrip()
        for v in found
    ]
    return Answer({"rules": rows}, "\n".join(lines))
