"""PTX modules linked into machine code, and what that code contains."""

import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from labkernels.kernels import sass
from labkernels.kernels.registry import KernelSpec
from labkernels.kernels.render import AssemblyError


@contextmanager
def _stderr_of_libraries(said: list[str]) -> Iterator[None]:
    """Take what C code writes to file descriptor 2: nvJitLink prints a mismatched prototype there and links anyway."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))


def link(modules: Iterable[str], arch: str, max_registers: int | None = None) -> bytes:
    """Link PTX modules into a cubin with nvJitLink. A log that is not clean is an error.

    Raises:
        AssemblyError: with the log; nvJitLink prints «Prototype doesn't match» and links anyway.
    """
    from cuda.core import Linker, LinkerOptions, ObjectCode

    linker = None
    said: list[str] = []
    try:
        with _stderr_of_libraries(said):
            linker = Linker(
                *(ObjectCode.from_ptx(module.encode()) for module in modules),
                options=LinkerOptions(arch=arch, max_register_count=max_registers),
            )
            code = bytes(linker.link("cubin").code)
    except Exception as error:
        raise AssemblyError(_in_one_line(f"{error}\n{linker.get_error_log() if linker else ''}")) from error
    if log := "".join([*said, linker.get_error_log(), linker.get_info_log()]).strip("\0 \n"):
        raise AssemblyError(f"the link log is not clean: {_in_one_line(log)}")
    return code


def _in_one_line(log: str) -> str:
    """The errors of a log with their lines in the PTX; where it names none, all of it."""
    errors = re.findall(r"(line \d+); error\s*: (.+)", log)
    found = dict.fromkeys(f"{line}: {what.strip()}" for line, what in errors)
    return "; ".join(found) or " ".join(log.replace("\0", " ").split())


def inline(entry: str, mechanism: str) -> str:
    """One PTX module: the mechanism's function, which is not `.visible`, in place of the entry's call to it.

    ptxas then compiles one kernel: no call, uniform registers throughout, addresses folded into instructions.
    """
    mechanism = re.sub(r"//.*", "", mechanism)
    function = re.search(r"\.func \(\.reg \.b64 result\) \w+\((.*?)\)\s*\{\n(.*)\n\}", mechanism, re.S)
    call = re.search(r"\{ // callseq.*?\} // callseq \d+", entry, re.S)
    values = re.findall(r"st\.param\.b(\d+)\s+\[param\d+(?:\+0)?\], (\S+);", call[0])
    names = re.findall(r"\.reg \.b\d+ (\w+)", function[1])
    result = re.search(r"ld\.param\.b64\s+(\S+), \[retval0(?:\+0)?\];", call[0])[1]
    passed = [
        f".reg .b{width} {name};\nmov.b{width} {name}, {value};"
        for name, (width, value) in zip(names, values, strict=True)
    ]
    body = re.sub(r"\bret;", "bra.uni RETURNED;", function[2])
    text = "\n".join(["{", ".reg .b64 result;", *passed, body, f"RETURNED:\nmov.b64 {result}, result;", "}"])
    entry = entry[: call.start()] + text + entry[call.end() :]
    declarations = mechanism[: function.start()]
    target = re.search(r"^\.target.*$", declarations, re.M)[0]
    declarations = re.sub(r"^\.(version|target|address_size)\b.*\n", "", declarations, flags=re.M)
    entry = re.sub(r"^\.target.*$", target, entry, count=1, flags=re.M)
    return re.sub(r"^\.extern \.func.*?^;$", lambda _: declarations, entry, count=1, flags=re.S | re.M)


def examine(spec: KernelSpec, cubin: bytes) -> tuple[dict, list[str]]:
    """What a kernel's machine code contains: the fields of `BuiltKernel`, and the mechanisms of all code.

    Raises:
        AssemblyError: a call or a spill in a timed loop.
    """
    functions = sass.disassemble(cubin)
    timed = functions.get(spec.function) or next(one for one in functions.values() if one.entry)
    opcodes = sum((function.opcodes for function in functions.values()), Counter())
    inside = sorted(timed.opcodes_in_loops())
    if calls := [opcode for opcode in inside if opcode.startswith("CALL")]:
        raise AssemblyError(f"{spec.name}: {calls[0]} inside a timed loop")
    if any(opcode.startswith(("LDL", "STL")) for opcode in inside):
        raise AssemblyError(f"{spec.name}: registers spill inside a timed loop")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = sass.run_tool("cuobjdump", "-res-usage", file.name)
    facts = {
        "registers": max(map(int, re.findall(r"REG:(\d+)", usage))),
        "shared_bytes": max(map(int, re.findall(r"SHARED:(\d+)", usage))),
        "opcodes": dict(sorted(opcodes.items())),
        "mechanisms": dict(sorted(timed.mechanisms().items())),
        "loop_opcodes": inside,
        "timed": timed.name,
    }
    return facts, sorted({name for one in functions.values() for name in one.mechanisms()})
