"""`census`: which mechanisms the kernels in some files use."""

import csv
import io
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from labkernels.commands import Answer, Option, option, printable
from labkernels.errors import BadArgument
from labkernels.mechanisms import MECHANISMS
from labkernels.production.census import COUNTED, OF_KERNEL, KernelCensus, census, rows
from labkernels.protocols.progress import track


def options() -> Iterator[Option]:
    """The files, and another form of the answer."""
    yield option("files", nargs="+", metavar="FILE", help="cubin, fatbin, .o, .a, .so, wheel or PTX")
    yield option("--csv", action="store_true", help="one row per kernel, one column per mechanism")


def run(arguments: Namespace) -> Answer:
    """A line for each kernel; exit status 1 when a file could not be read wholly."""
    if arguments.csv and arguments.json:
        raise BadArgument("`csv` and `json` exclude each other: give one")
    kernels, errors = census(map(Path, arguments.files), track)
    failed = [{"file": file, "error": problem} for file, problems in errors.items() for problem in problems]
    notes = [f"{one['file']}: {one['error']}" for one in failed]
    for file in dict.fromkeys(arguments.files):
        if str(Path(file)) not in errors and all(kernel.file != str(Path(file)) for kernel in kernels):
            notes.append(f"{file}: device functions at most, no kernel")
    value = {"kernels": [_json(kernel) for kernel in kernels], "errors": failed}
    return Answer(
        value,
        (_csv if arguments.csv else _table)(kernels),
        int(bool(errors)),
        tuple(printable(note, keep="") for note in notes),
    )


def _json(kernel: KernelCensus) -> dict[str, object]:
    row = asdict(kernel) | {"reading": kernel.reading}
    return row | {name: dict(row[name]) for name in ("opcodes", "mechanisms", "features")}


def _csv(kernels: Sequence[KernelCensus]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["file", *OF_KERNEL, *COUNTED, "opcodes", "reading"], lineterminator="\n")
    writer.writeheader()
    for row in rows(kernels):
        writer.writerow({name: printable(str(cell), keep="") for name, cell in row.items()})
    return text.getvalue().rstrip("\n")


def _table(kernels: Sequence[KernelCensus]) -> str:
    used = {name for kernel in kernels for name, _ in kernel.mechanisms}
    columns = [name for name in MECHANISMS if name in used]
    lines = [["arch", "regs", "smem_B", *columns, "reading", "kernel"]]
    for kernel in kernels:
        counts = dict(kernel.mechanisms)
        name = printable(kernel.flash.label if kernel.flash else kernel.kernel, keep="")
        figures = [kernel.arch, kernel.registers, kernel.shared_bytes, *(counts.get(c, ".") for c in columns)]
        lines.append([*map(str, figures), kernel.reading, name if len(name) <= 80 else name[:79] + "…"])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (map(str.ljust, line, widths) for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)
