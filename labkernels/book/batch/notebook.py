"""One notebook, executed in a process that ends with the one that started it: `NOTEBOOK RESULT PARAMETERS.json`."""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

import papermill
from papermill.exceptions import PapermillExecutionError

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>: send this process a signal when its parent ends


def main(notebook: str, result: str, parameters: str, parent: str) -> int:
    """Execute; 1 where a cell failed, and the result holds its error."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it ended before that was asked for
        return 1
    try:
        papermill.execute_notebook(
            notebook, result, json.loads(Path(parameters).read_text("utf8")), progress_bar=False
        )
    except PapermillExecutionError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
