"""Notebooks that stand in for chapters: they store rows of a simulated GPU, fail, or have nothing to measure."""

import nbformat

PARAMETERS = """measure: bool = False
preset: str = "quick"
data_dir: str = ""
cell: int = 0
seconds: float = 0.0"""

CHAPTER = """def Chapter(namespace, *experiments):
    return experiments

Chapter(globals(), "latency")
"""

ROWS = (
    CHAPTER
    + """import hashlib, os, time
from datetime import UTC, datetime
from labkernels.store import RUNS, Store, new_run_id

began, device = datetime.now(UTC), os.environ["CUDA_VISIBLE_DEVICES"]
store = Store(data_dir)
run, row = (
    frame.astype(object).where(frame.notna(), None).iloc[0].to_dict()
    for frame in (store.read(table).head(1) for table in (RUNS, "latency"))
)
del run["rows"], row["run_id"]
time.sleep(seconds)
identity = hashlib.sha256(device.removeprefix("GPU-").encode()).hexdigest()[:12]
if measure:
    store.record(
        run
        | {"run_id": new_run_id(began), "started_utc": began, "experiment": "latency", "gpu_name": "stub"}
        | {"preset": preset, "gpu_uuid_hash": identity, "wall_s": (datetime.now(UTC) - began).total_seconds()},
        {"latency": [row | {"transfer_bytes": 16 * (number + 1)} for number in range(cell, cell + 2)]},
    )"""
)

OTHERS = {
    "fails": "raise ValueError('the third stage was never released')",
    "lacks": "from labkernels.errors import NotInstalled\nraise NotInstalled('ncu is not here: install it')",
    "partly": "from labkernels.book import NOT_HERE\nprint(f'{NOT_HERE}hints: ncu is not here')",
    "shares": CHAPTER
    + "import json, os\nfrom labkernels.store import Store\n"
    + "print(len(Store(data_dir).read('latency', run_ids=[json.loads(os.environ['LABKERNELS_MEASURED'])['latency']])))",
    "picky": "import os\nassert os.environ['CUDA_VISIBLE_DEVICES'] != 'GPU-00000000-0000-0000-0000-000000000000'",
    "dies": "import os\nos._exit(3)",
    "elsewhere": ROWS.replace('os.environ["CUDA_VISIBLE_DEVICES"]', '"GPU-another"'),
}


def write(book, *names):
    """Write the named ones into a folder; `rows` stores two rows, which its parameter `cell` tells."""
    book.mkdir(exist_ok=True)
    for name in names:
        code = nbformat.v4.new_code_cell
        cells = [code(PARAMETERS, metadata={"tags": ["parameters"]}), code(({"rows": ROWS} | OTHERS)[name])]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), book / f"{name}.ipynb")
