"""Which loads a warp has in flight together, read from the control words of its machine code (Volta to Hopper).

A load names one of six scoreboards; an instruction that needs its data waits until no load on that scoreboard is under
way. Loads of two sets of registers overlap only if the use of one does not wait for the other's scoreboard.
"""

import re
import tempfile
from collections import Counter
from dataclasses import dataclass

from labkernels.kernels import sass

SCOREBOARDS = 6
# Control bits of the upper word: stall (4), yield (1), scoreboard set on write (3), on read (3), waited for (6).
_ON_WRITE, _WAITED = 46, 52
_CODE = re.compile(
    r"/\*([0-9a-f]{4,})\*/ +(?:@\S+ +)?([A-Z][\w.]*)[^\n]*/\* 0x[0-9a-f]{16} \*/\n\s*/\* 0x([0-9a-f]{16}) \*/"
)


@dataclass(frozen=True)
class Scheduled:
    """One instruction: its address and opcode, the scoreboard it sets when it has written, those that it waits for."""

    address: int
    opcode: str
    sets: int | None
    waits: frozenset[int]


def schedule(cubin: bytes, function: str) -> list[Scheduled]:
    """The instructions of a function of a cubin, with their scoreboards.

    Raises:
        DisassemblyError: not a cubin.
        KeyError: it has no such function.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = sass.run_tool("nvdisasm", "-c", "-hex", file.name)
    sections = dict(re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\.text\.|\Z)", text, re.M | re.S))
    instructions = []
    for address, opcode, word in _CODE.findall(sections[function]):
        control = int(word, 16)
        on_write, waited = control >> _ON_WRITE & 7, control >> _WAITED & 63
        instructions.append(
            Scheduled(
                int(address, 16),
                opcode,
                on_write if on_write < SCOREBOARDS else None,
                frozenset(board for board in range(SCOREBOARDS) if waited >> board & 1),
            )
        )
    return instructions


def loads_left_in_flight(cubin: bytes, function: str, load: str = "LDG") -> list[int]:
    """How many loads are still under way after each wait for one, in the loop that has the most loads.

    All zeros: whoever waits for a load waits for all of them.
    """
    loops = sass.disassemble(cubin)[function].loops
    code = schedule(cubin, function)

    def loads(body: frozenset[int]) -> int:
        return sum(one.address in body and one.opcode.split(".")[0] == load for one in code)

    loop = [one for one in code if one.address in max(loops, key=loads)]
    under_way: Counter[int] = Counter()
    left = []
    for turn in range(2):  # the first fills the pipeline
        for one in loop:
            if done := [board for board in one.waits if under_way[board]]:
                for board in done:
                    del under_way[board]
                left += [under_way.total()] * turn
            if one.opcode.split(".")[0] == load and one.sets is not None:
                under_way[one.sets] += 1
    return left
