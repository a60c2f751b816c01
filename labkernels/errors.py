"""Errors that a user can act on. Each says in one sentence what is wrong, the limit and the fix; none is a bug."""

import re
from collections.abc import Callable

#: Kinds of barriers, as the kernels' PTX numbers them in a status.
BARRIERS = {1: "full", 2: "empty", 3: "arrival", 4: "landed", 5: "ready"}


class LabError(Exception):
    """An expected error: the command line prints its sentence and exits with 2. Anything else is a bug."""


class BadArgument(LabError, ValueError):
    """An argument that cannot be; the message names it, its value, the limit and what to give.

    Args:
        text: the message, with names of arguments in backticks: each interface writes them in its own way.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(self.said(str))

    def said(self, write: Callable[[str], str]) -> str:
        """The message, with each argument's name as `write` gives it."""
        return re.sub(r"`(\w+)`", lambda name: write(name[1]), self.text)


class NotMeasured(LabError):
    """There are no rows for what was asked. Never a KeyError: a typo must not look like a missing measurement."""


class NotInstalled(LabError):
    """A package, tool or file that a measurement needs is not here; the message says how to get it."""


class NoGpu(LabError):
    """There is no usable GPU; the message says what is missing and what works without one."""


class StalledWait(LabError):
    """A barrier was never completed: the wait gave up, the kernel ended, and the GPU is usable.

    Attributes:
        kernel: name of the kernel.
        barrier: `full` (data never arrived), `empty` (a stage was never released), `arrival`; of a CTA that passes data
            on, `landed` (its own part never came) or `ready` (the others' never did).
        stage: index of the barrier in its pipeline.
        block: first block that reported it.
    """

    def __init__(self, kernel: str, status: int, block: int, blocks: int) -> None:
        self.kernel, self.block = kernel, block
        self.barrier, self.stage = BARRIERS.get(status >> 8, f"kind {status >> 8}"), status & 0xFF
        super().__init__(
            f"{kernel}: block {block} waited 2^30 cycles for barrier {self.barrier}[{self.stage}] and gave up "
            f"({blocks} blocks did). Fewer bytes arrived than the barrier expects, or its stage was not released"
        )
