"""Are the quoted lines of the catalog where it says? Read from git clones of the libraries.

`python -m labkernels.production.sources FOLDER` looks at `FOLDER/<name of the repository>`; `make sources` clones them.
"""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pandas as pd

from labkernels.errors import LabError
from labkernels.store import Store

#: Where each system's source is.
REPOSITORIES = {
    "FlashAttention-3": "https://github.com/Dao-AILab/flash-attention",
    "FlashAttention-4": "https://github.com/Dao-AILab/flash-attention",
    "CUTLASS": "https://github.com/NVIDIA/cutlass",
    "FlashInfer": "https://github.com/flashinfer-ai/flashinfer",
    "FlashMLA": "https://github.com/deepseek-ai/FlashMLA",
    "DeepGEMM": "https://github.com/deepseek-ai/DeepGEMM",
    "DeepEP": "https://github.com/deepseek-ai/DeepEP",
    "ThunderKittens": "https://github.com/HazyResearch/ThunderKittens",
    "quack": "https://github.com/Dao-AILab/quack",
    "FBGEMM": "https://github.com/pytorch/FBGEMM",
    "vLLM": "https://github.com/vllm-project/vllm",
    "SGLang": "https://github.com/sgl-project/sglang",
}
BETWEEN = " ¦ "  # quotes of several files


class SourceError(LabError):
    """A file of a library cannot be read: no clone, or not that commit; the message says which."""


@cache
def _lines(clone: Path, commit: str, path: str) -> tuple[str, ...]:
    asked = ["git", "-C", str(clone), "show", f"{commit}:{path}"]
    shown = subprocess.run(asked, capture_output=True, text=True, errors="replace")
    if shown.returncode:
        raise SourceError(f"{clone.name} {commit[:12]}:{path}: {shown.stderr.strip() or 'git failed'}")
    return tuple(shown.stdout.splitlines())


def within(lines: tuple[str, ...], ranges: str) -> list[str]:
    """The lines of some ranges, as in `56;208;248-253`, or of `all`.

    Raises:
        SourceError: the file ends before.
    """
    if ranges.strip() == "all":
        return list(lines)
    found = []
    for part in ranges.replace(",", ";").split(";"):
        first, _, last = part.strip().partition("-")
        if int(last or first) > len(lines):
            raise SourceError(f"line {last or first} of {len(lines)}")
        found += lines[int(first) - 1 : int(last or first)]
    return found


def wrong(operands: pd.DataFrame, folder: Path) -> tuple[list[str], list[str]]:
    """Rows whose quote does not stand where they say, and systems that could not be looked at.

    Args:
        operands: table `operands`.
        folder: of clones, each named as its repository.
    """
    faults, missing = [], []
    for system, rows in operands.groupby("system", sort=False):
        clone = folder / REPOSITORIES[system].rpartition("/")[2]
        if not clone.exists():
            missing.append(f"{system} ({len(rows)} rows): {REPOSITORIES[system]} is not in {folder}")
            continue
        for row in rows.itertuples():
            paths, quotes = row.path.split("; "), row.quote.split(BETWEEN)
            ranges = row.lines.split("; ") if len(paths) > 1 else [row.lines]
            for path, part, quote in zip(paths, ranges, quotes, strict=True):
                try:
                    found = within(_lines(clone, row.commit, path), part)
                except SourceError as error:
                    faults.append(f"{system}, {row.operand}: {path} {part}: {error}")
                    continue
                if not any(quote in line for line in found):
                    faults.append(f"{system}, {row.operand}: {path} {part} does not say {quote!r}")
    return faults, missing


def main(folder: str) -> int:
    """Print what is wrong and what was not looked at; 1 if anything is wrong."""
    operands = Store().read("operands")
    faults, missing = wrong(operands, Path(folder))
    for line in (*faults, *(f"not looked at: {one}" for one in missing)):
        print(line)
    print(f"{len(operands)} rows, {len(faults)} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
