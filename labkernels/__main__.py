"""`python -m labkernels`: the process around the command line."""

import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from labkernels.cli import main


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """End the assemblers and disassemblers that are at work, so that nobody waits for them."""
    for worker in multiprocessing.active_children():  # whose parent may be a server of their own
        worker.terminate()
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM)
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _interrupt)
    sys.exit(main())
