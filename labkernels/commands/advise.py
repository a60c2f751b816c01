"""`advise`: from an operand to a mechanism, with predicted times and reasons."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict

from labkernels.commands import READS, Answer, Option, filled, form_options, option
from labkernels.model.advisor import Question, advise, describe


def options() -> Iterator[Option]:
    """The operand, and whose constants."""
    yield option(
        "--gpu",
        help="a GPU with fitted constants (default: the first), or one that they are projected to",
    )
    yield READS
    yield from form_options(Question)


def run(arguments: Namespace) -> Answer:
    """The advice for one operand."""
    advice = advise(filled(Question, arguments), arguments.gpu, arguments.data)
    return Answer(asdict(advice), describe(advice))
