"""Which mechanisms compiled kernels use: static counts of their instructions, with a one-line reading."""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from labkernels.kernels import sass
from labkernels.mechanisms import CLUSTER, GLOBAL, MECHANISMS, names
from labkernels.production import flash_names
from labkernels.production.containers import Cubin, unpack
from labkernels.production.flash_names import FlashKernel


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

    @property
    def reading(self) -> str:
        """One line: which mechanism moves what."""
        return _read_flash(self) or _read(self)


def census(
    paths: Iterable[Path], progress: Callable[..., Iterable] = lambda items, what, total: items
) -> tuple[list[KernelCensus], dict[str, list[str]]]:
    """Count the mechanisms of every kernel in some files. Needs no GPU.

    Args:
        paths: Cubins, fatbins, objects, libraries, wheels, PTX.
        progress: Passes items on and shows how many of the total are done.

    Returns:
        The kernels in order of the files and their names, a kernel that a file carries twice only once; and
        for each file that could not be read wholly, what was wrong.
    """
    kernels: set[KernelCensus] = set()
    errors: dict[str, list[str]] = {}
    order = {str(path): number for number, path in enumerate(paths)}
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs: dict[Future, tuple[str, Cubin]] = {}
        try:
            for file, number in order.items():
                directory = Path(scratch) / str(number)
                directory.mkdir()
                cubins, problems = unpack(Path(file), directory)
                jobs |= {pool.submit(_of_cubin, file, cubin): (file, cubin) for cubin in cubins}
                if problems:
                    errors[file] = problems
            for job in progress(as_completed(jobs), "census, cubins", len(jobs)):
                file, cubin = jobs[job]
                try:
                    kernels.update(job.result())
                except sass.DisassemblyError as error:
                    errors.setdefault(file, []).append(f"{cubin.member or cubin.path.name}: {error}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # whoever interrupts does not wait for the rest
            raise
    return sorted(kernels, key=lambda k: (order[k.file], k.member, k.arch, k.kernel, k.opcodes)), errors


def _of_cubin(file: str, cubin: Cubin) -> list[KernelCensus]:
    functions = sass.disassemble(cubin.path)
    resources = _resources(cubin.path)
    if str(cubin.path) != file:
        cubin.path.unlink()  # a large wheel would fill the disk
    result = []
    for symbol, function in functions.items():
        if not function.entry:
            continue
        reached = sass.reachable(functions, symbol)
        counts = sum((f.mechanisms() for f in reached), Counter())
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


_LOADS = _titles(names(source=GLOBAL)) | {"generic_load": "generic ld"} | _titles(names(source=CLUSTER))
_STORES = _titles(names(destination=GLOBAL)) | {"generic_store": "generic st", "atomic": "atomics"}
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
    if copied and not any(MECHANISMS[name].crosses_ctas for name in copied):
        parts.append("no multicast")
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


def rows(kernels: Sequence[KernelCensus]) -> list[dict[str, object]]:
    """One row per kernel, one column per mechanism and feature, as `--csv` prints them."""
    return [
        {"file": Path(kernel.file).name}
        | {column: getattr(kernel, column) for column in OF_KERNEL}
        | dict.fromkeys(COUNTED, 0)
        | dict(kernel.mechanisms)
        | dict(kernel.features)
        | {"opcodes": " ".join(f"{opcode}={count}" for opcode, count in kernel.opcodes)}
        | {"reading": kernel.reading}
        for kernel in kernels
    ]
