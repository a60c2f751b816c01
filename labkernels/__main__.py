"""`python -m labkernels`: the process around the command line."""

import multiprocessing
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from labkernels.cli import main


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """End the assemblers and disassemblers that are at work, so that nobody waits for them."""
    threading.excepthook = lambda _: None  # threads that lose their workers have nothing to report
    for worker in multiprocessing.active_children():  # whose parent may be a server of their own
        worker.terminate()
    pids: list[int] = []
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # of a thread that has ended meanwhile
            pids += map(int, children.read_text().split())
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _interrupt)
    sys.exit(main())
