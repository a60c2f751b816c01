"""From an operand to a mechanism: predicted times, what binds, what is excluded and why, what to change."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from operator import eq, ge, gt, le, lt, ne

from labkernels.errors import LabError
from labkernels.legality import IllegalOperand, Violation, violations
from labkernels.mechanisms import MECHANISMS
from labkernels.model.closed_form import (
    IN_CLUSTERS,
    PREFERENCE,
    TERMS,
    Constants,
    Load,
    Prediction,
    best_gain,
    constants,
    predict,
)
from labkernels.operand import Operand, Ring, round_up
from labkernels.store import Store

NO_DIFFERENCE = 1.02  # predictions nearer to each other than this are no difference: rounds vary as much
SOURCES = ("hbm", "l2", "computed")
CONSUMERS = ("shared", "registers")


class ContradictoryOperand(LabError, ValueError):
    """Two things said of an operand that cannot both be true; the message names both and a way out."""


class UnmeasuredOperand(LabError, ValueError):
    """An operand the model has no constants for; the message names what was measured."""


@dataclass(frozen=True)
class Candidate:
    """A legal mechanism with its predicted time.

    Attributes:
        mechanism: its name.
        time_us: to bring the whole tensor to every CTA that needs it, all SMs at work.
        low_us: the interval of `time_us`: 5 % to 95 % of the model's errors on configurations it was not fitted to.
        high_us: its other end.
        gbps: bytes delivered to shared memory over time.
        cycles_per_tile: period of one CTA's ring.
        binding: the largest term.
        terms: cycles of each term.
        share: of DSM and of computed tiles, whether each CTA brings or makes its part (`slices`) or one all (`leader`).
    """

    mechanism: str
    time_us: float
    low_us: float
    high_us: float
    gbps: float
    cycles_per_tile: float
    binding: str
    terms: dict[str, float]
    share: str


@dataclass(frozen=True)
class CitedRule:
    """A rule of thumb that speaks of the operand, with its verdict on the GPU and the run behind it."""

    id: str
    statement: str
    outcome: str
    evidence: str
    run_id: str


@dataclass(frozen=True)
class Advice:
    """What to do with an operand.

    Attributes:
        gpu: whose constants.
        choice: the mechanism to take.
        ranked: legal mechanisms, fastest first.
        no_difference: mechanisms within 2 % of the fastest; the choice is the one with the fewest instructions.
        excluded: reasons by mechanism.
        change: what to change in the operand to gain most, in words.
        change_gain: time now over time then; 1 where no single change helps.
        rules: rules of thumb that speak of it.
        run_ids: runs that the constants were fitted to.
        outside: where the operand lies outside the measured range; empty if it does not.
    """

    gpu: str
    choice: str
    ranked: tuple[Candidate, ...]
    no_difference: tuple[str, ...]
    excluded: dict[str, tuple[str, ...]]
    change: str
    change_gain: float
    rules: tuple[CitedRule, ...]
    run_ids: tuple[str, ...]
    outside: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """A two-dimensional operand in the numbers a form or a command line asks for.

    Attributes:
        row_bytes: bytes of a tile's row.
        rows: rows of a tile.
        pitch_bytes: from a row to the next; 0 for rows that follow each other at once.
        element_bytes: bytes of an element: 1, 2, 4 or 8.
        alignment_bytes: largest power of two that divides the tensor's address and its pitch.
        stages: tiles in flight of one CTA.
        ctas_per_sm: CTAs on an SM.
        threads: threads of a CTA that copy, where threads copy.
        cluster: CTAs that need the same tile at the same time.
        tensor_mib: size of the tensor, MiB.
        source: where the data lie: `hbm` or `l2`; `computed` where the cluster makes them in shared memory.
        index_rows: rows that one index covers (of a page, say); 0 for a regular tile.
        issuers: warps that share the TMA copies of an indexed tile.
        compute_cycles: work on a tile behind which the copies hide.
        consumer: where the data are needed: `shared` or `registers`.
    """

    row_bytes: int = 128
    rows: int = 128
    pitch_bytes: int = 0
    element_bytes: int = 2
    alignment_bytes: int = 16
    stages: int = 4
    ctas_per_sm: int = 1
    threads: int = 128
    cluster: int = 1
    tensor_mib: int = 256
    source: str = "hbm"
    index_rows: int = 0
    issuers: int = 1
    compute_cycles: float = 0.0
    consumer: str = "shared"

    def operand(self) -> Operand:
        """The operand these numbers describe.

        Raises:
            ContradictoryOperand: rows that are no whole elements, or a pitch below the row.
        """
        if self.row_bytes % self.element_bytes:
            raise ContradictoryOperand(
                f"row_bytes is {self.row_bytes}, no whole number of elements of {self.element_bytes} bytes: give "
                f"{round_up(self.row_bytes, self.element_bytes)}"
            )
        pitch = self.pitch_bytes or self.row_bytes
        if pitch < self.row_bytes or pitch % self.element_bytes:
            raise ContradictoryOperand(
                f"pitch_bytes is {pitch}, rows have {self.row_bytes}: give a multiple of {self.element_bytes} that "
                "holds a row, or 0 for a dense tensor"
            )
        rows = max(1, int((self.tensor_mib << 20) / pitch / self.rows + 0.5)) * self.rows
        columns = self.row_bytes // self.element_bytes
        whole = pitch // self.row_bytes * columns
        ring = Ring(
            self.stages, self.ctas_per_sm, self.threads, self.cluster, min(16, self.alignment_bytes), 128
        )
        return Operand(
            self.element_bytes, (whole, rows), (columns, self.rows), (pitch,), self.alignment_bytes, ring=ring
        )

    def advise(self, gpu: str | None = None) -> Advice:
        """See `advise`."""
        return advise(
            self.operand(),
            gpu,
            source=self.source,
            index_rows=self.index_rows,
            issuers=self.issuers,
            compute_cycles=self.compute_cycles,
            consumer=self.consumer,
        )


def advise(
    operand: Operand,
    gpu: str | None = None,
    *,
    source: str = "hbm",
    index_rows: int = 0,
    issuers: int = 1,
    compute_cycles: float = 0.0,
    consumer: str = "shared",
) -> Advice:
    """Rank the mechanisms that may load an operand. Needs no GPU.

    Args:
        operand: tensor, tile and ring; `ring.cluster` CTAs need the same tile, `ring.stages` tiles are in flight.
        gpu: a GPU with fitted constants; by default the only one, or the first.
        source: `hbm` or `l2`: where the data lie; `computed`: the cluster makes them in shared memory.
        index_rows: rows of the tile that one index covers; 0 for a regular tile.
        issuers: warps that share the TMA copies of an indexed tile.
        compute_cycles: work on a tile behind which the copies hide.
        consumer: `shared` or `registers`: where the data are needed.

    Raises:
        ContradictoryOperand: what is said of the operand cannot all be true.
        IllegalOperand: no mechanism can take it; the message has a line for each broken rule.
        UnmeasuredOperand: a fan-out that was not measured.
        LookupError: a GPU without constants.
    """
    gpu = gpu or gpus()[0]
    of = constants(gpu)
    _require_consistent(operand, of, source, index_rows, issuers, compute_cycles, consumer)
    load = load_of(operand, source, index_rows, issuers, compute_cycles)
    delivered = prod(operand.shape) * operand.element_bytes * load.fan_out
    excluded = exclusions(operand, load, index_rows, consumer, of)
    found = {name: predict(name, load, of) for name in PREFERENCE if name not in excluded}
    if not found:
        broken = [one for name in PREFERENCE for one in _illegal(operand, name, source)]
        raise (
            IllegalOperand(tuple(dict.fromkeys(broken)))
            if broken
            else ContradictoryOperand(
                "; ".join(f"{name}: {reason}" for name, reasons in excluded.items() for reason in reasons)
            )
        )
    ranked = sorted(found.values(), key=lambda one: one.cycles_per_tile)
    choice, tied = choose(ranked)
    change, gain = best_gain(choice, load, of)
    return Advice(
        gpu,
        choice,
        tuple(_candidate(one, delivered) for one in ranked),
        tied,
        excluded,
        change,
        gain,
        tuple(_cited(gpu, load, index_rows, consumer)),
        run_ids(gpu),
        tuple(_outside(load, of)),
    )


def load_of(operand: Operand, source: str, index_rows: int, issuers: int, compute_cycles: float) -> Load:
    """What the model knows of an operand; arguments as `advise`."""
    rows = operand.tile_bytes // operand.inner_row_bytes
    return Load(
        tile_bytes=operand.tile_bytes,
        row_bytes=operand.inner_row_bytes,
        is_dense=operand.contiguous_bytes == operand.tile_bytes,
        tiles_in_flight=operand.ring.stages,
        ctas_per_sm=operand.ring.ctas_per_sm,
        threads=operand.ring.threads,
        source=source,
        fan_out=operand.ring.cluster,
        copies=-(-rows // index_rows) if index_rows else 1,
        lookups=-(-rows // index_rows) if index_rows else 0,
        issuers=issuers,
        compute_cycles=compute_cycles,
    )


def choose(ranked: list[Prediction]) -> tuple[str, tuple[str, ...]]:
    """The mechanism to take and those that do not differ from the fastest, from predictions, fastest first."""
    bound = ranked[0].cycles_per_tile * NO_DIFFERENCE
    tied = tuple(one.mechanism for one in ranked if one.cycles_per_tile <= bound)
    fewest = min((one for one in ranked if one.mechanism in tied), key=_effort)
    return fewest.mechanism, tied


def _effort(one: Prediction) -> tuple[float, int]:
    return one.instructions, PREFERENCE.index(one.mechanism)


def exclusions(
    operand: Operand, load: Load, index_rows: int, consumer: str, of: Constants
) -> dict[str, tuple[str, ...]]:
    """Why mechanisms cannot be taken, by mechanism; those that can are left out."""
    found = {}
    for name in PREFERENCE:
        moves = MECHANISMS[name]
        in_registers = moves.through_registers and moves.touches_global
        reasons = [str(broken) for broken in _illegal(operand, name, load.source)]
        if consumer == "registers" and not in_registers:
            reasons.append("delivers to shared memory, the data are needed in registers")
        if in_registers and consumer == "shared" and load.tiles_in_flight == 1:
            reasons.append("was measured with a tile in registers and two slots: give 2 stages")
        if moves.crosses_ctas and load.fan_out == 1:
            reasons.append("one CTA needs the tile: there is nobody to share it with")
        if (
            index_rows
            and not moves.by_threads
            and not moves.crosses_ctas
            and (name, "lookup_cycles") not in of
        ):
            reasons.append("look-ups of indices were not measured")
        if index_rows and moves.crosses_ctas:
            what = "multicast of" if moves.touches_global else "passing on"
            reasons.append(f"{what} indexed tiles was not measured")
        if load.source == "computed" and not moves.crosses_ctas:
            reasons.append("the tile is made in shared memory: there is nothing to load")
        elif load.fan_out > 1 and name not in IN_CLUSTERS:
            reasons.append("was not measured with CTAs that need the same tile")
        if reasons:
            found[name] = tuple(reasons)
    return found


def _illegal(operand: Operand, name: str, source: str) -> list[Violation]:
    """Broken rules; before a tile from global memory is passed on, TMA brings it to the first CTA."""
    moves = MECHANISMS[name]
    nothing_to_load = source == "computed" and not moves.crosses_ctas
    nobody_to_serve = not moves.touches_global and operand.ring.cluster == 1
    if nothing_to_load or nobody_to_serve:
        return []
    carriers = moves.carriers if source != "computed" else ()
    return [broken for each in (name, *carriers) for broken in violations(operand, each)]


def gpus() -> list[str]:
    """GPUs with fitted constants."""
    return list(dict.fromkeys(row["gpu"] for row in Store().records("constants")))


def run_ids(gpu: str) -> tuple[str, ...]:
    """Runs that a GPU's constants were fitted to."""
    rows = [row for row in Store().records("constants") if row["gpu"] == gpu]
    return tuple(sorted({run for row in rows for run in row["run_ids"].split(";")}))


def _candidate(one: Prediction, delivered: int) -> Candidate:
    time_us = delivered / one.gbps / 1e3
    return Candidate(
        one.mechanism,
        time_us,
        time_us * one.low,
        time_us * one.high,
        one.gbps,
        one.cycles_per_tile,
        one.binding,
        one.terms,
        one.share,
    )


def _require_consistent(
    operand: Operand,
    of: Constants,
    source: str,
    index_rows: int,
    issuers: int,
    compute_cycles: float,
    consumer: str,
) -> None:
    for name, value, known in (("source", source, SOURCES), ("consumer", consumer, CONSUMERS)):
        if value not in known:
            raise ContradictoryOperand(f"{name} is {value!r}: give one of {', '.join(known)}")
    for name, value, least in (("index_rows", index_rows, 0), ("issuers", issuers, 1)):
        if value < least:
            raise ContradictoryOperand(f"{name} is {value}, below the limit of {least}: give {least} or more")
    if compute_cycles < 0:
        raise ContradictoryOperand(
            f"compute_cycles is {compute_cycles}, below the limit of 0: give 0 or more"
        )
    tensor, l2 = prod(operand.shape) * operand.element_bytes, int(of["gpu", "l2_bytes"])
    if source == "l2" and tensor > l2:
        raise ContradictoryOperand(
            f"source is l2, the tensor has {tensor} bytes and L2 {l2}: give source hbm, or the part that is read "
            "again and again"
        )
    if operand.tile_bytes > tensor:
        raise ContradictoryOperand(
            f"a tile has {operand.tile_bytes} bytes, the tensor {tensor}: give a smaller tile"
        )
    measured = sorted(int(name.rsplit("_", 1)[1]) for way, name in of if name.startswith("sms_at_fan_out_"))
    if operand.ring.cluster not in measured:
        raise UnmeasuredOperand(
            f"ring.cluster is {operand.ring.cluster}: measured are {', '.join(map(str, measured))}; give one of them"
        )


def _outside(load: Load, of: Constants) -> list[str]:
    quantities = {
        "tile_bytes": load.tile_bytes,
        "row_bytes": load.row_bytes,
        "tiles_in_flight": load.tiles_in_flight,
        "ctas_per_sm": load.ctas_per_sm,
        "threads": load.threads,
    }
    found = []
    for name, value in quantities.items():
        least, most = (int(of["range", f"{name}_{end}"]) for end in ("least", "most"))
        if not least <= value <= most:
            found.append(f"{name} is {value}; measured were {least} to {most}")
    if load.compute_cycles:
        found.append("compute_cycles: the constants are of rings that only copy")
    return found


_COMPARISONS = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def applies(conditions: str, quantities: Mapping[str, float | str]) -> bool:
    """Whether a rule speaks of an operand.

    Args:
        conditions: of the rule (`studies.rule.Rule.applies_to`), as in `source == 'l2' and fan_out >= 4`; empty: never.
        quantities: of the operand, by name.
    """
    parts = [part.split(" ", 2) for part in conditions.split(" and ") if part]
    return bool(parts) and all(
        _COMPARISONS[comparison](quantities[name], literal_eval(value)) for name, comparison, value in parts
    )


def quantities(load: Load, index_rows: int, consumer: str) -> dict[str, float | str]:
    """What the conditions of rules name: the fields of a load, and what follows from them."""
    return vars(load) | {
        "bytes_in_flight_per_sm": load.bytes_in_flight_per_sm,
        "slice_bytes": load.tile_bytes / load.fan_out,
        "index_rows": index_rows,
        "consumer": consumer,
    }


def _cited(gpu: str, load: Load, index_rows: int, consumer: str) -> list[CitedRule]:
    rows = [row for row in Store().records("verdicts") if row["gpu"] == gpu]
    said = quantities(load, index_rows, consumer)
    return [
        CitedRule(row["rule"], row["statement"], row["outcome"], row["evidence"] or "", row["run_id"] or "")
        for row in rows
        if applies(row["applies_to"] or "", said)
    ]


def options() -> list[tuple[str, int | float | str, str]]:
    """Name, default and meaning of each number of a `Question`, for a command line or a form."""
    lines = (Question.__doc__ or "").partition("Attributes:")[2].splitlines()
    told = dict(line.strip().split(": ", 1) for line in lines if ": " in line)
    return [(field.name, field.default, told[field.name].rstrip(".")) for field in fields(Question)]


def describe(advice: Advice) -> str:
    """The advice as a text of a few lines."""
    lines = [f"{advice.choice}  ({advice.gpu})"]
    if len(advice.no_difference) > 1:
        lines.append(f"no difference within 2 %: {', '.join(advice.no_difference)}")
    for one in advice.ranked:
        lines.append(
            f"  {one.mechanism:14} {one.share:6} {one.time_us:12,.1f} us  [{one.low_us:,.1f}, {one.high_us:,.1f}]  "
            f"{one.gbps:9,.0f} GB/s  {one.binding}: {TERMS[one.binding]}"
        )
    lines += [f"  {name:14} excluded: {reason}" for name, why in advice.excluded.items() for reason in why]
    if advice.change_gain > NO_DIFFERENCE:
        lines.append(f"to gain most: {advice.change}, {advice.change_gain:.2f} times as fast")
    lines += [f"rule {rule.id} ({rule.outcome}): {rule.statement}" for rule in advice.rules]
    lines += [f"outside the measured range: {what}" for what in advice.outside]
    lines.append(f"fitted to {', '.join(advice.run_ids)}")
    return "\n".join(lines)
