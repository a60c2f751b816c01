"""Chapter 1: what each mechanism is, from the registry, and the ten lines of PTX that matter."""

import re
from dataclasses import dataclass

import altair as alt
import pandas as pd

from labkernels.charts.tables import Table
from labkernels.kernels.registry import KernelSpec, kernels
from labkernels.kernels.render import render
from labkernels.legality import ALL, RULES
from labkernels.mechanisms import CLUSTER, GLOBAL, MECHANISMS, SHARED, Mechanism
from labkernels.model.advisor import Question
from labkernels.model.closed_form import constants
from labkernels.operand import KIB
from labkernels.studies.crossover.prices import IN_FLIGHT

#: Protocols whose kernels are read first: whole pipelines.
_FIRST = ("pipeline", "stream", "exchange", "drain", "ring")
#: Instructions that move a tile or order it with others; the rest is addresses, loop control and time limits.
_MOVES = re.compile(
    r"(?:@!?\w+ )?((?:cp|ld|st|red|mapa|elect|fence|barrier|mbarrier)\.\S+)(?:[^\[;]*\[([^\]]*))?"
)
#: What only a check of the bytes reads.
_DUMP = re.compile(r"@!dumping bra\S* (\w+);.*?\b\1:")
_LINES = 10
_PLACES = {GLOBAL: "global", SHARED: "own shared", CLUSTER: "shared in the cluster"}
#: Quantities of the legality rules in the words of a table; of alignments the least multiple.
_SAID = {
    "base_alignment_bytes": "address",
    "pipeline.shared_alignment_bytes": "address in shared memory",
    "inner_row_bytes": "row bytes",
    "strides_bytes[0]": "pitch",
    "bytes from tile to tile": "tile pitch",
    "tile_bytes": "tile bytes",
    "tile[0]": "elements along a side of a box",
    "pipeline.copy_bytes": "bytes per thread",
    "pipeline.cluster": "CTAs in the cluster",
    "element_bytes": "element bytes",
}


def example(mechanism: str) -> KernelSpec | None:
    """The kernel of a mechanism that shows it best; None where the registry has none."""
    found = {spec.protocol: spec for spec in reversed(kernels()) if spec.mechanism == mechanism}
    return next((found[name] for name in (*_FIRST, *found) if name in found), None)


def excerpt(spec: KernelSpec) -> str:
    """The first ten different instructions of a kernel that move a tile or order it with others, as assembled.

    Lines that continue an instruction are joined to it. An instruction that only differs in its offset, as in an
    unrolled loop, stands once; so does the second poll of a barrier.
    """
    text = re.sub(r"//.*|/\*.*?\*/", "", render(spec, "sm_90a"))
    body = _DUMP.sub("", " ".join(text.partition("\n{\n")[2].split()))
    body = re.sub(r"\{([\w, ]+)\}", "\x01\\1\x02", body)  # braces of operand lists, which end no statement
    seen, lines = set(), []
    for statement in map(str.strip, re.split(r"[;{}]\s|\b\w+:\s", body)):
        if match := _MOVES.match(statement):
            opcode, operand = match.groups()
            key = opcode, operand if opcode.startswith("mbarrier") else re.sub(r" \+ \d+", "", operand or "")
            if key not in seen:
                seen.add(key)
                lines.append(statement.replace("\x01", "{").replace("\x02", "}") + ";")
    pattern = _pattern(spec.traits)
    at = next(number for number, line in enumerate(lines) if pattern.search(line))
    first = max(0, min(at - _LINES // 2, len(lines) - _LINES))
    return "\n".join(lines[first : first + _LINES])


def _pattern(one: Mechanism) -> re.Pattern:
    """Finds a mechanism's instruction with all its modifiers; of plain loads and stores those of its memory."""
    name = re.escape(one.ptx).replace(r"\.multicast", r"\S*\.multicast")
    if "." not in one.ptx:
        place = one.source if one.ptx == "ld" else one.destination
        name += r"\.shared::cluster" if place == CLUSTER else rf"\.{place}"
    return re.compile(rf"\b{name}(?!\.mbarrier\.|\.commit|\.wait)\S*(?= )")


def instruction(mechanism: str) -> str:
    """The PTX instruction with all its modifiers, out of the kernel that shows it; its bare name where none does."""
    spec, one = example(mechanism), MECHANISMS[mechanism]
    return _pattern(one).search(excerpt(spec))[0] if spec else one.ptx


def completion(one: Mechanism) -> str:
    """How those who wait learn that the bytes are there, or that their source is free."""
    if one.counts_bytes:
        where = "each receiver's full barrier" if one.destination == CLUSTER else "the full barrier"
        return f"{where} counts the bytes (complete_tx)"
    if not one.by_threads:
        return "cp.async.bulk.wait_group: the stage was read, or all is written"
    if not one.through_registers:
        return "cp.async.wait_group, or an arrival at the full barrier (cp.async.mbarrier.arrive)"
    if one.destination == GLOBAL:
        return "in program order"
    return "the register is there; other threads after a barrier"


def limits(mechanism: str) -> str:
    """What the mechanism asks of an operand beyond what all do, out of the table of legality rules."""
    operand = Question().operand()
    found: dict[str, dict[str, None]] = {}
    for rule in RULES:
        if mechanism in rule.mechanisms and rule.mechanisms != ALL:
            for check in rule.checks(operand):
                text = re.sub(r"\d{5,}", lambda number: f"{int(number[0]):,}", check.limit.text)
                if "alignment" in check.quantity:
                    text = text.replace("at least", "a multiple of")
                if check.quantity in _SAID:
                    found.setdefault(text, {})[_SAID[check.quantity]] = None
    return "; ".join(f"{text}: {', '.join(names)}" for text, names in found.items())


def loads() -> Table:
    """Every mechanism: its names in PTX, SASS, CuTe and Triton, who issues it, how it completes, its limits."""
    rows = [
        {
            "name": one.name,
            "moves": f"{_PLACES[one.source]} → {_PLACES[one.destination]}",
            "PTX": instruction(one.name),
            "SASS": ", ".join(one.opcodes or (one.generic,)),
            "CuTe, CUTLASS": one.cute,
            "Triton": one.triton,
            "issued by": "every thread, its own bytes"
            if one.by_threads
            else "one elected thread, a whole tile",
            "completes": completion(one),
            "limits": limits(one.name),
        }
        for one in MECHANISMS.values()
    ]
    return Table(pd.DataFrame(rows), description="The mechanisms, their names and what they ask for")


@dataclass(frozen=True)
class Law:
    """Little's law on stored rows: what latency alone would need in flight, and what is needed.

    Attributes:
        round_trip_cycles: of a stage, from one issue into it to the next, without its bytes.
        clock_mhz: of the SMs.
        share: bytes per cycle that memory delivers to one SM.
        sms: that read.
        gbps: best rate of the rows.
        at_need: share of it that was measured with at most the needed bytes.
        enough_kib: least KiB per SM that reach 95% of it.
    """

    round_trip_cycles: float
    clock_mhz: float
    share: float
    sms: int
    gbps: float
    at_need: float
    enough_kib: float

    @property
    def need_kib(self) -> float:
        """KiB per SM that would do if requests never queued."""
        return self.round_trip_cycles * self.share / KIB

    def said(self) -> dict[str, str]:
        """Its numbers for the text."""
        return {
            "sms": f"{self.sms}",
            "round_trip": f"{self.round_trip_cycles:,.0f}",
            "clock": f"{self.clock_mhz:,.0f}",
            "round_trip_ns": f"{self.round_trip_cycles / self.clock_mhz * 1e3:.0f}",
            "share": f"{self.share:.1f}",
            "need": f"{self.need_kib:.0f}",
            "at_need": f"{100 * self.at_need:.0f}",
            "enough": f"{self.enough_kib:.0f}",
        }


def littles_law(rows: pd.DataFrame, gpu: str) -> Law:
    """The law on TMA's rows from HBM.

    Args:
        rows: of `prices.frontier` by bytes in flight, one mechanism.
        gpu: whose constants give round trip, clock and memory rate.
    """
    of, best = constants(gpu), rows["median"].max()
    round_trip = of["gpu", "latency_hbm_cycles"] + of["tma", "overhead_cycles"]
    sms = int(of["gpu", "sms_at_fan_out_1"])
    share = of["gpu", "hbm_bytes_per_cycle"] / sms
    within = rows.loc[rows[IN_FLIGHT].le(round_trip * share), "median"].max()
    enough = rows.loc[rows["median"].ge(0.95 * best), IN_FLIGHT].min()
    return Law(round_trip, of["gpu", "sm_clock_mhz"], share, sms, best, within / best, enough / KIB)


def latency_bound(law: Law) -> alt.Chart:
    """GB/s of all SMs if nothing but the round trip bound them: bytes in flight over it."""
    points = [2 * KIB, law.need_kib * KIB]
    rate = law.sms * law.clock_mhz / law.round_trip_cycles / 1e3
    table = pd.DataFrame({IN_FLIGHT: points, "median": [rate * count for count in points]})
    return (
        alt.Chart(table)
        .mark_line(strokeDash=[3, 3], color="currentColor", strokeWidth=1)
        .encode(x=alt.X(f"{IN_FLIGHT}:Q"), y=alt.Y("median:Q"))
    )
