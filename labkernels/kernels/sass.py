"""SASS as NVIDIA's own disassembler prints it: functions, opcodes, loops, calls, and the mechanisms in it."""

import math
import re
import signal
import struct
import subprocess
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from cuda.pathfinder import find_nvidia_binary_utility

from labkernels.errors import LabError
from labkernels.mechanisms import MECHANISMS

#: What else a census reports, with its opcodes: accesses of unknown address space, atomics, cluster traffic, and so on.
FEATURES = {
    "generic_load": ("LD",),
    "generic_store": ("ST",),
    "atomic": ("ATOM", "ATOMG", "RED", "REDG"),
    "dsm_atomic": ("REDAS",),
    "cluster_barrier": ("UCGABAR_ARV", "UCGABAR_WAIT"),
    "remote_arrive": ("SYNCS.ARRIVE.RED",),
    "prefetch": ("UBLKPF", "UTMAPF", "CCTL.PF1", "CCTL.PF2"),
    "tensormap_prefetch": ("UTMACCTL.PF",),
    "tma_gather": ("UTMALDG.GATHER4", "UTMALDG.GATHER4.MULTICAST"),
    "tma_scatter": ("UTMASTG.SCATTER4",),
    "multimem": ("LDGMC",),
    "tensormap_write": (),
    "tensormap_fence": ("UTMACCTL.IV",),
    "tma_syscall": (),
}

#: What the driver runs in the place of a copy that the architecture has for a CTA's own shared memory only.
TMA_SYSCALL = "__cuda_syscall_cp_async_bulk"

FIRST_WITH_CLUSTERS = 90

MEMORY_LIMIT_KIB = 4 << 20
LISTING = (
    "-c",
    "-ndf",
)  # code alone; the analysis of branches that is left out changes no line, and costs a quarter
TIME_LIMIT_S = 30
TIME_LIMIT_S_PER_BYTE = 2e-6
IDLE = 60  # times the limit of CPU time: what neither works nor ends is given up


#: Instructions from a compare-and-exchange to what takes its place in local memory, at most.
EXCHANGE_LENGTH = 24


class DisassemblyError(LabError, ValueError):
    """NVIDIA's tool refused the input; the message names the input and says what the tool said."""


@dataclass(frozen=True)
class Instruction:
    """One SASS instruction; `address` counts bytes from the start of its text section."""

    address: int
    predicate: str
    opcode: str
    operands: str

    @property
    def base(self) -> str:
        """The opcode without modifiers: `UTMALDG` of `UTMALDG.4D.MULTICAST`."""
        return self.opcode.partition(".")[0]

    @property
    def registers(self) -> list[str]:
        """Registers named in the operands, in order."""
        return re.findall(r"\bU?R\d+\b", self.operands)

    @property
    def pointer(self) -> str | None:
        """The register inside the brackets of an access, or its first half."""
        found = re.search(r"\[(U?R\d+)", re.sub(r"desc\[\w+\]", "", self.operands))
        return found[1] if found else None

    @property
    def is_bare(self) -> bool:
        """Whether a generic access has neither a descriptor nor `.64` at its address.

        From sm_90 on the compiler writes it so where it knows the address to lie in the cluster's shared window.
        """
        generic = self.base in ("LD", "ST", "ATOM")
        return generic and "desc[" not in self.operands and ".64" not in self.operands


@dataclass(frozen=True)
class Function:
    """One function of a cubin.

    Attributes:
        name: Linker name.
        entry: Whether it is a kernel.
        sm: Architecture as a number, 90 for sm_90a.
        instructions: In code order.
        labels: Address of each branch label.
    """

    name: str
    entry: bool
    sm: int
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    @property
    def opcodes(self) -> Counter[str]:
        """How often each full opcode stands in the code (padding left out)."""
        return Counter(i.opcode for i in self.instructions if i.base != "NOP")

    @property
    def callees(self) -> set[str]:
        """Names of the functions this one calls directly."""
        direct = (re.match(r"`\((.+)\)$", i.operands) for i in self.instructions if i.base == "CALL")
        return {call[1] for call in direct if call}

    @property
    def calls_indirectly(self) -> bool:
        """Whether a call goes through a register, so that its target is not written in the code."""
        return any(i.base == "CALL" and i.operands.startswith(("R", "UR")) for i in self.instructions)

    @cached_property
    def loops(self) -> tuple[frozenset[int], ...]:
        """Addresses of each loop's instructions, one set per backward branch that control can return to.

        A body is what the branch's target reaches and what reaches the branch: code that the compiler placed
        inside the address range but that never returns is left out, code placed behind the loop is included.
        """
        forward = self._successors()
        backward: dict[int, list[int]] = {}
        for source, targets in forward.items():
            for target in targets:
                backward.setdefault(target, []).append(source)
        bodies = []
        for source, targets in forward.items():
            for target in targets:
                if target < source and source in (after := _reach(target, forward)):
                    bodies.append(frozenset(after & _reach(source, backward)))
        return tuple(bodies)

    def opcodes_in_loops(self) -> Counter[str]:
        """Like `opcodes`, for the instructions that some loop contains."""
        inside = frozenset().union(*self.loops)
        return Counter(i.opcode for i in self.instructions if i.address in inside and i.base != "NOP")

    def mechanisms(self) -> Counter[str]:
        """How many instructions are of each name of MECHANISMS or FEATURES."""
        names = (self._mechanism(position) for position in range(len(self.instructions)))
        return Counter(name for name in names if name)

    def _successors(self) -> dict[int, list[int]]:
        result: dict[int, list[int]] = {}
        addresses = [i.address for i in self.instructions] + [-1]
        for instruction, following in zip(self.instructions, addresses[1:], strict=True):
            targets = []
            if instruction.base in ("BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU"):
                names = re.findall(r"\.L_x_\d+", instruction.operands)
                targets = [self.labels[name] for name in names if name in self.labels]
            leaves = instruction.base in ("EXIT", "RET", "BRX", "BRXU", "JMX", "JMXU", "KILL", "BPT") or (
                instruction.base in ("BRA", "JMP") and instruction.operands.startswith("`")
            )
            conditional = instruction.predicate not in ("", "@PT", "@UPT")
            if following >= 0 and (conditional or not leaves):
                targets.append(following)
            result[instruction.address] = targets
        return result

    def _mechanism(self, position: int) -> str | None:
        instruction = self.instructions[position]
        if self.sm < FIRST_WITH_CLUSTERS:
            return mechanism(instruction.opcode)
        name = mechanism(instruction.opcode, instruction.operands)
        if self._is_of_any_exchange(position):
            name = _named(instruction.opcode)
        if name in _THROUGH_MAPPED_POINTER and self._address_is_mapped(position):
            return _THROUGH_MAPPED_POINTER[name]
        return name

    def _is_of_any_exchange(self, position: int) -> bool:
        """Whether an access is part of a compare-and-exchange that may go anywhere.

        Such an exchange through a generic pointer has no descriptor either, nor have the load and the store that take
        its place where the pointer leads to local memory; they follow it and have its address.
        """
        if not (instruction := self.instructions[position]).is_bare:
            return False
        return any(
            one.base == "ATOM" and ".CAS" in one.opcode and one.is_bare and one.pointer == instruction.pointer
            for one in self.instructions[max(0, position - EXCHANGE_LENGTH) : position + 1]
        )

    def _address_is_mapped(self, position: int) -> bool:
        """Whether the address of a generic access comes from `mapa`: PRMT with selector 0x654.

        The same PRMT with the CTA's own rank only makes the address of its own shared memory, and so does rank 0 in
        code without a barrier of the cluster: there the compiler knows that a cluster is one CTA. Definitions are
        followed backwards in code order, through copies and what adds an offset to a pointer, so that an address
        which other arithmetic mixed, or which was loaded, shuffled or chosen, is never taken for a mapped one.
        """
        address = self.instructions[position].pointer
        return any(
            source.base in ("PRMT", "UPRMT")
            and " 0x654" in source.operands
            and not self._own_rank(source, at)
            for at, source in (self._origins(address, position, _pointers) if address else ())
        )

    def _own_rank(self, mapping: Instruction, position: int) -> bool:
        rank = re.match(r"\w+, (U?R(?:Z|\d+))", mapping.operands)
        if rank and rank[1].endswith("RZ"):
            return not any(i.base.startswith("UCGABAR") for i in self.instructions)
        return bool(rank) and any(
            "SR_CgaCtaId" in i.operands for _, i in self._origins(rank[1], position, _copied)
        )

    def constant(self, register: str, position: int) -> int | None:
        """What a register holds before an instruction, if that is a number written in the code."""
        found = {_number(origin) for _, origin in self._origins(register, position, _copied)}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def _written(self) -> dict[str, list[int]]:
        """Positions of the instructions whose first operand is each register."""
        result: dict[str, list[int]] = {}
        for position, instruction in enumerate(self.instructions):
            if first := _FIRST_REGISTER.match(instruction.operands):
                result.setdefault(first[0], []).append(position)
        return result

    def _origins(
        self, register: str, position: int, sources: Callable[[Instruction], list[str]]
    ) -> Iterator[tuple[int, Instruction]]:
        """Instructions (with their positions) that made a register's value, seen through those that have `sources`."""
        todo, seen = [(register, position)], set()
        while todo:
            register, position = todo.pop()
            written = self._written.get(register, [])
            if (before := bisect_left(written, position)) == 0 or (at := written[before - 1]) in seen:
                continue
            seen.add(at)
            if further := sources(self.instructions[at]):
                todo += [(source, at) for source in further]
            else:
                yield at, self.instructions[at]


_FIRST_REGISTER = re.compile(r"U?R\d+\b")
_COPIES = re.compile(r"U?MOV(?![\w])|R2UR|IMAD\.(MOV|U32)|UIMAD\.MOV")
_SUMS = re.compile(r"U?IADD(3|\.64)?(?![\w])(?!\.X)|VIADD(?![\w])|U?IMAD\.IADD")
_SCALED = {"IMAD": 3, "UIMAD": 3, "LEA": 2, "ULEA": 2}  # which operand the scaled index is added to


def _copied(instruction: Instruction) -> list[str]:
    """The register that an instruction only copies."""
    return instruction.registers[1:] if _COPIES.match(instruction.opcode) else []


def _number(instruction: Instruction) -> int | None:
    """The number that an instruction only puts into a register: as it is, or as the two halves of a product."""
    if _COPIES.match(instruction.opcode) and (whole := re.search(r", (0x[0-9a-f]+)$", instruction.operands)):
        return int(whole[1], 16)
    halves = re.fullmatch(r"U?R\d+, -RZ, RZ, ([-\d.e+]+), ([-\d.e+]+)", instruction.operands)
    if instruction.base == "HFMA2" and halves:
        low, high = (int.from_bytes(struct.pack("<e", float(halves[n])), "little") for n in (2, 1))
        return high << 16 | low
    return None


def _pointers(instruction: Instruction) -> list[str]:
    """Registers that may hold the pointer of which an instruction makes another by an offset."""
    if _COPIES.match(instruction.opcode) or _SUMS.match(instruction.opcode):
        return instruction.registers[1:]
    added = _SCALED.get(instruction.base)
    if added is None or ".HI" in instruction.opcode:
        return []
    operands = [o.strip() for o in instruction.operands.split(",")]
    operands = [o for o in operands if not re.fullmatch(r"!?U?P[\dT]", o)]
    return _FIRST_REGISTER.findall(operands[added]) if added < len(operands) else []


#: Opcode and modifiers that an instruction must have, and its name; of several that match, most modifiers win.
_PATTERNS = [
    (opcode.split("."), name)
    for name, opcodes in [*((m.name, m.opcodes) for m in MECHANISMS.values()), *FEATURES.items()]
    for opcode in opcodes
]


@cache
def _named(opcode: str) -> str | None:
    base, *modifiers = opcode.split(".")
    found = [
        (len(wanted), name)
        for (first, *wanted), name in _PATTERNS
        if first == base and _in_order(wanted, modifiers)
    ]
    return max(found, key=lambda one: one[0])[1] if found else None


def _in_order(wanted: list[str], modifiers: list[str]) -> bool:
    left = iter(modifiers)
    return all(one in left for one in wanted)


#: Generic accesses, by what they are where their address is another CTA's.
_THROUGH_MAPPED_POINTER = {_named(m.generic): m.name for m in MECHANISMS.values() if m.generic} | {
    "atomic": "dsm_atomic"
}


def mechanism(opcode: str, operands: str = "") -> str | None:
    """The name in MECHANISMS or FEATURES of one instruction, or None.

    Args:
        opcode: With its modifiers, as in `UBLKCP.S.G`.
        operands: Decide, from sm_90 on, whether LD, ST and ATOM go through the shared window of a cluster, and
            whether an exchange writes a tensor map.
    """
    name = _named(opcode)
    if operands and Instruction(0, "", opcode, operands).is_bare:
        return _THROUGH_MAPPED_POINTER[name]
    # Publishing a tensor map (tensormap.cp_fenceproxy) is the one exchange whose address has no descriptor.
    if (
        operands
        and name == "atomic"
        and opcode.startswith("ATOMG.")
        and "EXCH" in opcode
        and "desc[" not in operands
    ):
        return "tensormap_write"
    return name


def moves_memory(opcode: str) -> bool:
    """Whether an opcode is of any mechanism or feature."""
    return mechanism(opcode) is not None


def tool(name: str) -> str:
    """Path of one of NVIDIA's binaries (`nvdisasm`, `cuobjdump`, `ptxas`) as installed from PyPI.

    Raises:
        LabError: Not installed; the message says which package brings it.
    """
    path = find_nvidia_binary_utility(name)
    if path is None:
        package = {"ptxas": "numba-cuda[cu12]"}.get(name, f"nvidia-cuda-{name}")
        raise LabError(f"{name} is not installed: pip install {package}")
    return path


def run_tool(name: str, *arguments: str, cwd: Path | None = None) -> str:
    """Standard output of one of NVIDIA's binaries, under a memory and a time limit: input may be hostile.

    Raises:
        DisassemblyError: It failed; the message carries what it said.
        LabError: It is not installed.
    """
    input_bytes = sum(Path(a).stat().st_size for a in arguments if Path(a).is_file())
    limit_s = math.ceil(TIME_LIMIT_S + input_bytes * TIME_LIMIT_S_PER_BYTE)
    limits = f"ulimit -v {MEMORY_LIMIT_KIB}; ulimit -t {limit_s}"  # of time at work: a busy machine costs no result
    limited = ["sh", "-c", f'{limits}; exec "$0" "$@"', tool(name), *arguments]
    try:
        done = subprocess.run(
            limited, capture_output=True, text=True, errors="replace", cwd=cwd, timeout=limit_s * IDLE
        )
    except subprocess.TimeoutExpired:
        raise DisassemblyError(f"{name} did not come back within {limit_s * IDLE} s") from None
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise DisassemblyError(f"{name} took more than {limit_s} s of CPU time")
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and " warning " not in line]
        # ptxas says where in lines of their own, and last only that it gave up.
        where = [
            f"line {at[1]}: {at[2]}"
            for line in said
            if (at := re.match(r"\w+ .*, line (\d+); \w+ +: (.*)", line))
        ]
        last = [re.sub(rf"^{name} (fatal|error|info)\s*: ", "", line) for line in said[-1:]]
        reason = "; ".join(where[:3] or last or [f"exit status {done.returncode}"])
        raise DisassemblyError(f"{name}: {reason}")
    return done.stdout


def disassemble(cubin: bytes | str | Path) -> dict[str, Function]:
    """Functions of one cubin by their linker names.

    Args:
        cubin: Its bytes, or the path of a file.

    Raises:
        DisassemblyError: Not a cubin, or damaged.
    """
    if isinstance(cubin, bytes):
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            return _parse(run_tool("nvdisasm", *LISTING, file.name))
    return _parse(run_tool("nvdisasm", *LISTING, str(cubin)))


def count(cubin: bytes | str | Path) -> dict[str, Counter[str]]:
    """Opcodes (with modifiers) of every function of a cubin, and how often each stands in the code."""
    return {name: function.opcodes for name, function in disassemble(cubin).items()}


def mechanisms(cubin: bytes | str | Path) -> dict[str, Counter[str]]:
    """Mechanisms and features of every kernel of a cubin, with those of the functions it calls."""
    functions = disassemble(cubin)
    return {
        name: sum((f.mechanisms() for f in reachable(functions, name)), Counter())
        for name, function in functions.items()
        if function.entry
    }


def reachable(functions: dict[str, Function], name: str) -> list[Function]:
    """A function and all it may call, each once; an indirect call may reach any function but a kernel."""
    seen: dict[str, Function] = {}
    todo = [name]
    while todo:
        function = functions.get(todo.pop())
        if function is None or function.name in seen:
            continue
        seen[function.name] = function
        todo.extend(function.callees)
        if function.calls_indirectly:
            todo.extend(other.name for other in functions.values() if not other.entry)
    return list(seen.values())


_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?(@\S+\s+)?([A-Z][\w.]*)(.*)")
_LABEL = re.compile(r"(\S+):$")
_TYPE = re.compile(r"\s*\.type\s+(.+),@function$")
_ARCH = re.compile(r"EF_CUDA_SM(\d+)|^\s*\.target\s+sm_(\d+)", re.MULTILINE)
_ENTRY = re.compile(r"\s*\.other\s+(.+),@\"STO_CUDA_ENTRY")


def _parse(text: str) -> dict[str, Function]:
    arch = _ARCH.search(text)
    sm = int(arch[1] or arch[2]) if arch else FIRST_WITH_CLUSTERS
    names: set[str] = set()
    entries: set[str] = set()
    code: dict[str, list[Instruction]] = {}
    labels: dict[str, int] = {}
    current: list[Instruction] = []
    pending: list[str] = []
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            address = int(match[1], 16)
            labels.update(dict.fromkeys(pending, address))
            pending.clear()
            operands = match[4].rstrip(" }").removesuffix(";").strip()
            current.append(Instruction(address, (match[2] or "").strip(), match[3], operands))
        elif match := _LABEL.match(line):
            if match[1].startswith(".L_"):
                pending.append(match[1])
            elif not match[1].startswith(".text."):
                current = code.setdefault(match[1], [])
        elif match := _TYPE.match(line):
            names.add(match[1])
        elif match := _ENTRY.match(line):
            entries.add(match[1])
    return {
        name: Function(name, name in entries, sm, tuple(body), labels)
        for name, body in code.items()
        if name in names
    }


def _reach(start: int, edges: dict[int, Iterable[int]]) -> set[int]:
    seen = {start}
    todo = [start]
    while todo:
        fresh = set(edges.get(todo.pop(), ())) - seen
        seen |= fresh
        todo.extend(fresh)
    return seen
