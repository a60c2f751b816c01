"""`ptx`: the PTX of one kernel, as it is assembled."""

from argparse import Namespace
from collections.abc import Iterator

from labkernels.commands import Answer, Option, option
from labkernels.errors import BadArgument
from labkernels.kernels.registry import kernels
from labkernels.kernels.render import render
from labkernels.mechanisms import ARCHITECTURES


def options() -> Iterator[Option]:
    """Which kernel."""
    yield option("kernel", help="name as `kernels` prints it")
    yield option("--arch", choices=ARCHITECTURES, default=ARCHITECTURES[0], help="(default: %(default)s)")


def run(arguments: Namespace) -> Answer:
    """The text itself."""
    found = [spec for spec in kernels() if spec.name == arguments.kernel]
    if not found:
        raise BadArgument(f"no kernel {arguments.kernel!r}; python -m labkernels kernels lists them")
    text = render(found[0], arguments.arch)
    return Answer({"kernel": arguments.kernel, "arch": arguments.arch, "ptx": text}, text)
