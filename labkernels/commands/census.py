"""`census`: which mechanisms the kernels in some files use."""

import csv
import io
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from labkernels.commands import READS, Answer, Option, form_options, option, option_name, printable, write
from labkernels.errors import BadArgument
from labkernels.forms import entries
from labkernels.model.advisor import Question
from labkernels.model.from_code import CodeAdvice, describe, from_code
from labkernels.production.census import COLUMNS, KernelCensus, row, stream
from labkernels.production.containers import Selection
from labkernels.protocols.progress import track

#: What the advisor asks that no machine code says.
ASKED = (
    "row_bytes",
    "rows",
    "pitch_bytes",
    "element_bytes",
    "cluster",
    "ctas_per_sm",
    "tensor_mib",
    "source",
)


def options() -> Iterator[Option]:
    """The files, which of their kernels, and another form of the answer."""
    about = "cubin, fatbin, .o, .a, .so, wheel, PTX, or a folder of them"
    yield option("files", nargs="+", metavar="FILE", help=about)
    about = "only this architecture, as in sm_90a; may be repeated"
    yield option("--arch", action="append", default=[], metavar="ARCH", help=about)
    yield option("--kernel", default="", metavar="TEXT", help="only kernels whose name holds this")
    about = "also libraries whose licence forbids to disassemble them: for who has leave"
    yield option("--may-disassemble", action="store_true", help=about)
    yield option("--csv", action="store_true", help="one row per kernel, one column per mechanism")
    about = "of each kernel, what it loads, how deep, and what to try first; the options below say what no code does"
    yield option("--advise", action="store_true", help=about)
    yield option("--gpu", help="whose rules and constants (default: the first that has them)")
    yield READS
    yield from (one for one in form_options(Question) if one[0][0] in map(option_name, ASKED))


def run(arguments: Namespace) -> Answer:
    """A line for each kernel as soon as it is read; exit status 1 when a file could not be read wholly."""
    if arguments.csv and (arguments.json or arguments.advise):
        other = "json" if arguments.json else "advise"
        raise BadArgument(f"`csv` and `{other}` exclude each other: give one")
    selection = Selection(tuple(arguments.arch), arguments.kernel, arguments.may_disassemble)
    asked = [one for one in entries(Question) if getattr(arguments, one.name, None) is not None]
    given = {one.name: one.read(getattr(arguments, one.name)) for one in asked if one.name in ASKED}
    for one in asked:
        one.require(given[one.name])
    if given and not arguments.advise:
        raise BadArgument(f"`{next(iter(given))}` is for advice: give --advise, too")
    shown = _csv if arguments.csv else _line

    def advice(kernel: KernelCensus) -> CodeAdvice | None:
        if kernel.mainloop is None:
            return None
        return from_code(kernel.mainloop, kernel.registers, given, arguments.gpu, arguments.data)

    kernels: list[dict[str, object]] = []
    failed: list[dict[str, str]] = []
    spoken_of: set[Path] = set()
    if not arguments.json:
        write(shown(COLUMNS if arguments.csv else ("arch", "regs", "smem_B", "reading", "kernel")))
    with closing(stream(map(Path, arguments.files), selection, arguments.advise)) as results:
        for found in track(results, "census, cubins"):
            if found.kernels or found.problem:
                spoken_of.add(Path(found.file))
            if found.problem:
                failed.append({"file": found.file, "error": found.problem})
            if arguments.json:
                kernels += (
                    _json(kernel) | ({"advice": asdict(said)} if (said := advice(kernel)) else {})
                    for kernel in found.kernels
                )
                continue
            for kernel in found.kernels:
                write(shown(_cells(kernel, arguments.csv)))
                if said := advice(kernel):
                    write(describe(said))
    notes = [f"{one['file']}: {one['error']}" for one in failed]
    for file in map(Path, dict.fromkeys(arguments.files)):
        if not any(one.is_relative_to(file) for one in spoken_of):
            wanted = " of those asked for" if selection.archs or selection.kernel else ""
            notes.append(f"{file}: device functions at most, no kernel{wanted}")
    value = {"kernels": kernels, "errors": failed}
    return Answer(value, "", int(bool(failed)), tuple(printable(note, keep="") for note in notes))


def _json(kernel: KernelCensus) -> dict[str, object]:
    found = asdict(kernel) | {"reading": kernel.reading}
    return found | {name: dict(found[name]) for name in ("opcodes", "mechanisms", "features")}


def _cells(kernel: KernelCensus, all_of_it: bool) -> Iterable[object]:
    if all_of_it:
        return row(kernel).values()
    name = kernel.flash.label if kernel.flash else kernel.kernel
    figures = kernel.arch, kernel.registers, kernel.shared_bytes, kernel.reading
    return *figures, name if len(name) <= 80 else name[:79] + "…"


def _csv(cells: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(printable(str(cell), keep="") for cell in cells)
    return text.getvalue()


def _line(cells: Iterable[object]) -> str:
    """A row whose columns stay in place while rows come one after another; what is longer pushes the rest."""
    arch, registers, shared, reading, name = (printable(str(cell), keep="") for cell in cells)
    return f"{arch:8} {registers:>4} {shared:>7}  {reading:70}  {name}\n"
