"""`dispatch`: what FlashAttention-3 or -4 choose for each operand, and why."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict

from labkernels.commands import Answer, Option, filled, form_options, option
from labkernels.production.dispatch import RULES, AttentionCall


def options() -> Iterator[Option]:
    """The library and the forward pass."""
    yield option("library", choices=RULES, help="whose rules")
    yield from form_options(AttentionCall)


def run(arguments: Namespace) -> Answer:
    """A line for each field of the choice."""
    choice = asdict(RULES[arguments.library](filled(AttentionCall, arguments)))
    lines = [
        f"{name:<11}{value!s:<15}{choice['reasons'][name]}"
        for name, value in choice.items()
        if name != "reasons"
    ]
    return Answer(choice, "\n".join(lines))
