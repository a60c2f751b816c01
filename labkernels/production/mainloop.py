"""What machine code tells of a kernel's pipeline: what its loops load, how deep, which bytes a stage expects."""

import re
from collections import Counter
from dataclasses import dataclass

from labkernels.kernels import sass
from labkernels.kernels.sass import Function, Instruction
from labkernels.mechanisms import GLOBAL, names

#: Opcodes of the tensor cores.
TENSOR_CORES = re.compile(r"([HQIDOBU]|UTC\w*)G?MMA\b")

_LOADS = (*names(source=GLOBAL), "tma_gather")
_COPIED = names(source=GLOBAL, by_threads=False)
_WIDTH = re.compile(r"\.(?:U?S?(8|16)|(64|128))\b")


@dataclass(frozen=True)
class Mainloop:
    """What a kernel's code shows of its loads. None is what it does not show.

    Attributes:
        loads: Instructions by mechanism that stand in a loop; of a kernel that loads in no loop, all of them.
        in_loop: Whether they stand in one.
        tensor_cores: Whether tensor cores work in a loop.
        stages: Tiles that shared memory holds, as barriers or outstanding groups show.
        stage_bytes: Bytes that a stage's barrier expects, or that a CTA's threads copy for a group.
        copies: Instructions of the copy engine for one stage.
        copy_bytes: Widths of cp.async or plain loads.
        threads: Of a CTA, the most that it was compiled for.
        spills: Stores of spilled registers.
    """

    loads: tuple[tuple[str, int], ...]
    in_loop: bool
    tensor_cores: bool
    stages: int | None
    stage_bytes: int | None
    copies: int | None
    copy_bytes: tuple[int, ...]
    threads: int | None
    spills: int


def mainloop(function: Function, threads: int | None = None) -> Mainloop:
    """Read the pipeline of a kernel.

    Args:
        function: The kernel itself; what it calls is left out.
        threads: Of a CTA, as the cubin says.
    """
    body = frozenset().union(*function.loops)
    inside = [i for i in function.instructions if i.address in body]
    loads = _loads(inside)
    in_loop = bool(loads)
    if not in_loop:
        loads = _loads(function.instructions)
    found = inside if in_loop else function.instructions
    stages, stage_bytes, copies = None, None, None
    if loads.keys() & {*_COPIED, "tma_gather"}:
        stages, stage_bytes = _barriers(function), _expected(function)
        # The loops that choose one thread to copy, and unrolling, leave the ratio of all of them as it is.
        arming = sum(map(_arms, function.instructions))
        engine = sum(
            n for name, n in _loads(function.instructions).items() if name in (*_COPIED, "tma_gather")
        )
        copies = engine // arming if arming and engine % arming == 0 else None
    elif "cp_async" in loads:
        stages, stage_bytes = _groups(function, inside, threads)
    return Mainloop(
        loads=tuple(loads.items()),
        in_loop=in_loop,
        tensor_cores=any(TENSOR_CORES.match(i.base) for i in inside),
        stages=stages,
        stage_bytes=stage_bytes,
        copies=copies,
        copy_bytes=tuple(sorted({_width(i) for i in found if i.base in ("LDG", "LDGSTS")})),
        threads=threads,
        spills=sum(i.base == "STL" for i in function.instructions),
    )


def _loads(instructions: tuple[Instruction, ...] | list[Instruction]) -> dict[str, int]:
    counts = Counter(sass.mechanism(i.opcode, i.operands) for i in instructions)
    return {name: counts[name] for name in _LOADS if counts[name]}


def _width(instruction: Instruction) -> int:
    found = _WIDTH.search(instruction.opcode)
    return int(found[1] or found[2]) // 8 if found else 4


def _arms(instruction: Instruction) -> bool:
    """Whether an instruction tells a barrier how many bytes to expect: an arrival with a count of them."""
    return (
        instruction.opcode.startswith("SYNCS.ARRIVE.TRANS64")
        and not {"RED", "A1T0", "ART0"} & {*instruction.opcode.split(".")}
        and len(instruction.registers) > 0
    )


def _barriers(function: Function) -> int | None:
    """Stages of a ring: its barriers, or half of them where consumers release what producers wait for."""
    made = [i.operands.split("[")[1].split("]")[0] for i in function.instructions if "SYNCS.EXCH" in i.opcode]
    releases = any(i.opcode.startswith("SYNCS.ARRIVE") and not _arms(i) for i in function.instructions)
    return (len(set(made)) // 2 if releases else len(set(made))) or None


def _expected(function: Function) -> int | None:
    """Bytes of the one count that every armed barrier is given; None where it is computed, or there are several."""
    counts = set()
    for position, instruction in enumerate(function.instructions):
        if _arms(instruction):
            counts.add(function.constant(instruction.registers[-1], position))
    return counts.pop() if len(counts) == 1 else None


def _groups(
    function: Function, inside: list[Instruction], threads: int | None
) -> tuple[int | None, int | None]:
    """Stages of a pipeline of cp.async groups, and the bytes of one.

    A loop waits once for each tile, however often it is unrolled. Besides the groups that a wait leaves under way,
    one tile is in use and one is asked for.
    """
    copies = [_width(i) for i in inside if i.base == "LDGSTS"]
    waits = [re.fullmatch(r"SB0, (0x[0-9a-f]+)", i.operands) for i in inside if i.opcode == "DEPBAR.LE"]
    left = {int(wait[1], 16) for wait in waits if wait}
    groups = sum(i.base == "LDGDEPBAR" for i in inside) // max(1, len(waits))
    if not groups or len(copies) % max(1, len(waits)):
        return None, None
    stages = left.pop() // groups + 2 if len(left) == 1 else None
    return stages, sum(copies) // max(1, len(waits)) * threads if threads else None
