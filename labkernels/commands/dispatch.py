"""`dispatch`: what a library chooses for each operand, and why."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict

from labkernels.commands import Answer, Option, filled, form_options
from labkernels.production.dispatch import LIBRARIES


def options() -> Iterator[Option]:
    """None: each library has its own."""
    yield from ()


def branches() -> Iterator[tuple[str, str, Iterator[Option]]]:
    """Each library: its name on the command line, its title, and its options."""
    for name, library in LIBRARIES.items():
        yield name, library.title, form_options(library.form)


def run(arguments: Namespace) -> Answer:
    """A line for each field of the choice."""
    library = LIBRARIES[arguments.branch]
    choice = asdict(library.choose(filled(library.form, arguments)))
    lines = [
        f"{name:<15} {value!s:<14} {choice['reasons'][name]}"
        for name, value in choice.items()
        if name != "reasons"
    ]
    return Answer(choice, "\n".join(lines))
