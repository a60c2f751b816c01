"""Which mechanisms compiled kernels use: static counts of their instructions, with a one-line reading."""

import os
import re
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from labkernels.kernels import sass
from labkernels.mechanisms import CLUSTER, GLOBAL, MECHANISMS, names
from labkernels.production import flash_names
from labkernels.production.containers import ALL, Cubin, Selection, files, unpack
from labkernels.production.elf import Elf
from labkernels.production.flash_names import FlashKernel
from labkernels.production.mainloop import Mainloop, mainloop

#: Cubins unpacked or read ahead of the one that is waited for, for each core.
AHEAD = 16


@dataclass(frozen=True)
class KernelCensus:
    """What one kernel's code contains, with the code of the functions it calls.

    Attributes:
        file: The file asked about.
        member: The library inside it, for a wheel.
        arch: As in `sm_90a`.
        kernel: Demangled name without parameters.
        symbol: Linker name.
        registers: Per thread, callees included.
        shared_bytes: Static shared memory per CTA.
        opcodes: Counts of all memory, cluster and prefetch opcodes with their modifiers.
        mechanisms: Counts per name of `MECHANISMS`.
        features: Counts per name of `sass.FEATURES`.
        flash: What a FlashAttention-3 name says.
        mainloop: What its code shows of its pipeline, if that was asked for.
    """

    file: str
    member: str
    arch: str
    kernel: str
    symbol: str
    registers: int
    shared_bytes: int
    opcodes: tuple[tuple[str, int], ...]
    mechanisms: tuple[tuple[str, int], ...]
    features: tuple[tuple[str, int], ...]
    flash: FlashKernel | None
    mainloop: Mainloop | None = None

    @property
    def reading(self) -> str:
        """One line: which mechanism moves what."""
        return _read_flash(self) or _read(self)


@dataclass(frozen=True)
class Found:
    """What one cubin of a file gave: kernels in order of their names, or what kept it from being read."""

    file: str
    kernels: tuple[KernelCensus, ...] = ()
    problem: str = ""


def stream(paths: Iterable[Path], selection: Selection = ALL, with_mainloop: bool = False) -> Iterator[Found]:
    """Count the mechanisms of every kernel in some files, cubin by cubin in their order. Needs no GPU.

    Args:
        paths: Cubins, fatbins, objects, libraries, wheels, PTX, and folders of them.
        selection: Which architectures and kernels.
        with_mainloop: Whether to look at their loops, too.

    Yields:
        What each cubin gave as soon as those before it are done; a kernel that a file carries twice comes once.
    """
    workers = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(workers) as pool:
        waiting: deque[tuple[str, Cubin | None, Future | str]] = deque()
        seen: set[KernelCensus] = set()

        def done() -> Found:
            file, cubin, job = waiting.popleft()
            if cubin is None:
                return Found(file, problem=job)
            try:
                kernels = [kernel for kernel in job.result() if kernel not in seen]
            except sass.DisassemblyError as error:
                where = ", ".join(filter(None, (cubin.member, f"cubin {cubin.path.name}")))
                return Found(file, problem=f"{where}: {error}")
            seen.update(kernels)
            return Found(file, tuple(sorted(kernels, key=lambda k: (k.kernel, k.opcodes))))

        try:
            for number, (path, in_folder) in enumerate(_files(paths)):
                file = str(path)
                directory = Path(scratch) / str(number)
                directory.mkdir()
                for found in unpack(path, directory, selection, in_folder):
                    if isinstance(found, str):
                        waiting.append((file, None, found))
                    else:
                        waiting.append(
                            (file, found, pool.submit(_of_cubin, file, found, selection, with_mainloop))
                        )
                    # What is unpacked but not yet read lies on the disk: not much of it at a time.
                    while len(waiting) > AHEAD * workers or (waiting and _is_done(waiting[0][2])):
                        yield done()
            while waiting:
                yield done()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # whoever interrupts does not wait for the rest
            raise


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    for path in dict.fromkeys(paths):
        for file in files(path):
            yield file, file != path


def _is_done(job: Future | str) -> bool:
    return isinstance(job, str) or job.done()


def census(
    paths: Iterable[Path], selection: Selection = ALL
) -> tuple[list[KernelCensus], dict[str, list[str]]]:
    """All that `stream` finds: the kernels, and for each file that could not be read wholly, what was wrong."""
    kernels: list[KernelCensus] = []
    errors: dict[str, list[str]] = {}
    for found in stream(paths, selection):
        kernels += found.kernels
        if found.problem:
            errors.setdefault(found.file, []).append(found.problem)
    order = {file: number for number, file in enumerate(dict.fromkeys(kernel.file for kernel in kernels))}
    return sorted(kernels, key=lambda k: (order[k.file], k.member, k.arch, k.kernel, k.opcodes)), errors


def _of_cubin(file: str, cubin: Cubin, selection: Selection, with_mainloop: bool) -> list[KernelCensus]:
    try:
        functions = sass.disassemble(cubin.path)
        resources = _resources(cubin.path)
        image = Elf(cubin.path.read_bytes())
        calls = image.calls()
    except (OSError, ValueError) as error:
        raise (
            error if isinstance(error, sass.DisassemblyError) else sass.DisassemblyError(str(error))
        ) from None
    finally:
        if str(cubin.path) != file:
            cubin.path.unlink()  # a large wheel would fill the disk
    result = []
    for symbol, function in functions.items():
        if not function.entry or not selection.has_kernel(symbol):
            continue
        reached = sass.reachable(functions, symbol)
        counts = sum((f.mechanisms() for f in reached), Counter())
        counts["tma_syscall"] = sum(
            callee.startswith(sass.TMA_SYSCALL) for f in reached for callee in calls.get(f.name, ())
        )
        opcodes = sum((f.opcodes for f in reached), Counter())
        name = flash_names.demangle(symbol)
        registers, shared_bytes = resources.get(symbol, (0, 0))
        result.append(
            KernelCensus(
                file=file,
                member=cubin.member,
                arch=cubin.arch,
                kernel=name,
                symbol=symbol,
                registers=registers,
                shared_bytes=shared_bytes,
                opcodes=tuple(sorted((op, n) for op, n in opcodes.items() if sass.moves_memory(op))),
                mechanisms=tuple((m, counts[m]) for m in MECHANISMS if counts[m]),
                features=tuple((m, counts[m]) for m in sass.FEATURES if counts[m]),
                flash=flash_names.parse(name),
                mainloop=mainloop(function, image.most_threads(symbol)) if with_mainloop else None,
            )
        )
    return result


def _resources(cubin: Path) -> dict[str, tuple[int, int]]:
    text = sass.run_tool("cuobjdump", "-res-usage", str(cubin))
    found = re.findall(r"^ Function (.+):\n\s+REG:(\d+) .*?SHARED:(\d+)", text, re.MULTILINE)
    return {name: (int(registers), int(shared_bytes)) for name, registers, shared_bytes in found}


def _titles(mechanisms: Iterable[str]) -> dict[str, str]:
    """What a sentence calls some mechanisms; those of the copy engine first."""
    chosen = sorted(
        (MECHANISMS[name] for name in mechanisms),
        key=lambda m: (m.by_threads, m.reduces, m.through_registers, not m.takes_tensor_map),
    )
    return {m.name: m.title for m in chosen}


_LOADS = (
    {"tma_gather": "TMA gather4"}
    | _titles(names(source=GLOBAL))
    | {"multimem": "multimem.ld_reduce", "generic_load": "generic ld"}
    | _titles(names(source=CLUSTER))
)
_STORES = (
    {"tma_scatter": "TMA scatter4"}
    | _titles(names(destination=GLOBAL))
    | {"generic_store": "generic st", "atomic": "atomics"}
)
_BESIDES = {
    "tensormap_write": "writes tensor maps",
    "tensormap_fence": "reads tensor maps written on the device",
    "tma_syscall": "TMA in part by a system call",
}
_TO_OTHER_CTAS = _titles(names(pushes=True)) | {"dsm_atomic": "atomics"}
_COPY_ENGINE_LOADS = names(source=GLOBAL, by_threads=False)
_ASYNCHRONOUS = names(touches_global=True, through_registers=False, reduces=False)


def _read(kernel: KernelCensus) -> str:
    counts = dict(kernel.mechanisms) | dict(kernel.features)

    def named(titles: dict[str, str]) -> str:
        return ", ".join(title + _detail(kernel, name) for name, title in titles.items() if name in counts)

    parts = []
    if loads := named(_LOADS):
        parts.append(f"loads by {loads}")
    if stores := named(_STORES):
        parts.append(f"stores by {stores}")
    if others := named(_TO_OTHER_CTAS):
        parts.append(f"{others} to other CTAs of the cluster")
    copied = [name for name in _COPY_ENGINE_LOADS if name in counts]
    if (copied or "tma_gather" in counts) and not any("MULTICAST" in op for op, _ in kernel.opcodes):
        parts.append("no multicast")
    parts += [said for name, said in _BESIDES.items() if name in counts]
    return "; ".join(parts) or "moves no data to or from global or remote shared memory"


def _detail(kernel: KernelCensus, name: str) -> str:
    """Ranks of a tensor copy and widths of cp.async, in parentheses."""
    opcodes = [op for op, _ in kernel.opcodes if sass.mechanism(op) == name]
    if name == "cp_async":
        widths = {next((int(m) // 8 for m in op.split(".") if m in ("64", "128")), 4) for op in opcodes}
        return f" ({', '.join(map(str, sorted(widths)))} B)"
    ranks = sorted({m for op in opcodes for m in op.split(".") if re.fullmatch(r"[1-5]D", m)})
    return f" ({', '.join(ranks)})" if ranks else ""


def _read_flash(kernel: KernelCensus) -> str | None:
    """Operand by operand, if the name is a FlashAttention-3 forward kernel's and the code agrees with it."""
    flash, counts = kernel.flash, dict(kernel.mechanisms)
    if flash is None or flash.direction != "forward":
        return None
    tma = "TMA multicast" if flash.cluster_m > 1 else "TMA"
    moves = [
        ("K/V", "cp.async" if flash.paged_cp_async else tma),
        ("Q", "cp.async" if flash.pack_gqa else "TMA"),
    ]
    if flash.append:
        moves.append(("new K/V", tma))
    if not (flash.varlen or flash.split or flash.pack_gqa):
        moves.append(("O", "TMA store"))
    titles = _LOADS | _STORES
    claimed = {name for name, title in titles.items() if title in [by for _, by in moves]}
    if claimed != {*_ASYNCHRONOUS} & counts.keys():
        return None
    if ("O", "TMA store") not in moves:
        moves.append(("O", "plain stores"))
    text = ", ".join(f"{operand} by {by}" for operand, by in moves)
    return text if flash.cluster_m > 1 else f"{text}, no multicast"


OF_KERNEL = ("member", "arch", "kernel", "registers", "shared_bytes")
COUNTED = (*MECHANISMS, *sass.FEATURES)
COLUMNS = ("file", *OF_KERNEL, *COUNTED, "opcodes", "reading")


def row(kernel: KernelCensus) -> dict[str, object]:
    """A kernel with a column for each mechanism and feature, as `--csv` prints it."""
    return (
        {"file": Path(kernel.file).name}
        | {column: getattr(kernel, column) for column in OF_KERNEL}
        | dict.fromkeys(COUNTED, 0)
        | dict(kernel.mechanisms)
        | dict(kernel.features)
        | {"opcodes": " ".join(f"{opcode}={count}" for opcode, count in kernel.opcodes)}
        | {"reading": kernel.reading}
    )
