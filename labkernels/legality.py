"""What each mechanism asks of an operand on sm_90a and sm_100a, as a table of rules."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from labkernels.errors import BadArgument, LabError
from labkernels.mechanisms import ARCHITECTURES, MECHANISMS, names
from labkernels.operand import BARRIER_BYTES_PER_STAGE, KIB, Operand, round_up

# One set of limits serves both architectures: the Hopper and Blackwell tuning guides give the same figures.
SHARED_BYTES_PER_CTA = 227 * KIB
SHARED_BYTES_PER_SM = 228 * KIB
SHARED_BYTES_RESERVED = KIB  # by the driver, for every CTA
SHARED_GRANULE_BYTES = 128  # cuda_occupancy.h, cudaOccSMemAllocationGranularity


@dataclass(frozen=True)
class Violation:
    """One rule an operand breaks: `quantity` has `value`, must be `limit`, and `fix` says what to do."""

    mechanism: str
    quantity: str
    value: int
    limit: str
    fix: str
    source: str

    def __str__(self) -> str:
        broken = f"{self.mechanism}: {self.quantity} is {self.value}, must be {self.limit}"
        return f"{broken}. Fix: {self.fix}. [{self.source}]"


class IllegalOperand(LabError, ValueError):
    """An operand that a mechanism cannot take; `violations` holds every broken rule."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__("\n".join(map(str, violations)))
        self.violations = violations


class Limit(NamedTuple):
    """A bound in words and as a test."""

    text: str
    holds: Callable[[int], bool]


def at_most(bound: int) -> Limit:
    """Upper bound, inclusive."""
    return Limit(f"at most {bound}", lambda value: value <= bound)


def at_least(bound: int) -> Limit:
    """Lower bound, inclusive."""
    return Limit(f"at least {bound}", lambda value: value >= bound)


def multiple_of(unit: int) -> Limit:
    """Divisible by `unit`."""
    return Limit(f"a multiple of {unit}", lambda value: value % unit == 0)


def one_of(*allowed: int) -> Limit:
    """One of a few values."""
    return Limit(f"one of {', '.join(map(str, allowed))}", lambda value: value in allowed)


class Check(NamedTuple):
    """One quantity of one operand against its limit."""

    quantity: str
    value: int
    limit: Limit
    fix: str


class Rule(NamedTuple):
    """A requirement: who makes it, where it is written, and what it checks."""

    mechanisms: frozenset[str]
    source: str
    checks: Callable[[Operand], Iterable[Check]]


ALL = frozenset(MECHANISMS)
TENSOR_MAP = frozenset(names(takes_tensor_map=True))
THREADS = frozenset(names(by_threads=True))
BULK = ALL - THREADS - TENSOR_MAP
DSM = frozenset(names(touches_global=False))
REDUCE = frozenset(names(reduces=True))
COUNTS_BYTES = frozenset(names(counts_bytes=True))

WHOLE = "this project's pipelines copy whole tiles"
PLAIN = "this project's pipelines hold plain tiles unless a tensor map swizzles them"
OCCUPANCY = "Hopper and Blackwell tuning guides, occupancy"
CLUSTERS = "Hopper and Blackwell tuning guides, thread block clusters"
ACCESS = "PTX ISA, addresses as operands: aligned to the access size"
BULK_COPY = "PTX ISA, cp.async.bulk"
ENCODE = "CUDA driver API, cuTensorMapEncodeTiled"
SWIZZLE = "CUDA programming guide, TMA swizzle"


def _threads(o: Operand) -> Iterable[Check]:
    threads = o.pipeline.threads
    yield Check("pipeline.threads", threads, at_most(1024), "use 1024 threads or fewer")
    resident = round_up(threads, 32) * o.pipeline.ctas_per_sm
    yield Check("threads per SM", resident, at_most(2048), "use fewer CTAs per SM or fewer threads")


def _shared(o: Operand) -> Iterable[Check]:
    fit = SHARED_BYTES_PER_CTA // (o.stage_bytes + BARRIER_BYTES_PER_STAGE)
    fix = f"use a smaller tile or fewer stages; {fit} stages of this tile fit"
    yield Check("shared_bytes", o.shared_bytes, at_most(SHARED_BYTES_PER_CTA), fix)
    cta_bytes = round_up(o.shared_bytes + SHARED_BYTES_RESERVED, SHARED_GRANULE_BYTES)
    fix = f"use a smaller pipeline or fewer CTAs per SM; {SHARED_BYTES_PER_SM // cta_bytes} fit"
    yield Check("shared bytes per SM", cta_bytes * o.pipeline.ctas_per_sm, at_most(SHARED_BYTES_PER_SM), fix)


def _whole_tiles(o: Operand) -> Iterable[Check]:
    for dim, (extent, side) in enumerate(zip(o.shape, o.tile, strict=True)):
        fix = f"pad dimension {dim} to {round_up(extent, side)} elements, or use a tile side that divides it"
        yield Check(f"shape[{dim}]", extent, multiple_of(side), fix)


def _base(o: Operand, unit: int) -> Iterable[Check]:
    fix = f"start the tensor on a multiple of {unit} bytes"
    yield Check("base_alignment_bytes", o.base_alignment_bytes, at_least(unit), fix)


def _stages(o: Operand, unit: int) -> Iterable[Check]:
    fix = f"align the pipeline and its stages to {unit} bytes"
    yield Check("pipeline.shared_alignment_bytes", o.pipeline.shared_alignment_bytes, at_least(unit), fix)


def _rows(o: Operand, unit: int) -> Iterable[Check]:
    row = o.inner_row_bytes
    fix = f"make tile[0] {round_up(row, unit) // o.element_bytes} elements"
    yield Check("inner_row_bytes", row, multiple_of(unit), fix)
    for index, stride in enumerate(o.strides_bytes):
        fix = f"pad dimension {index} until the stride is {round_up(stride, unit)} bytes"
        yield Check(f"strides_bytes[{index}]", stride, multiple_of(unit), fix)


def _copy_bytes(sizes: tuple[int, ...], o: Operand) -> Iterable[Check]:
    yield Check("pipeline.copy_bytes", o.pipeline.copy_bytes, one_of(*sizes), "move 16 bytes per instruction")


def _tile_starts(o: Operand) -> Iterable[Check]:
    for step in o.tile_steps_bytes:
        fix = f"pad rows until tiles are {round_up(step, 16)} bytes apart"
        yield Check("bytes from tile to tile", step, multiple_of(16), fix)


def _tensor_map(o: Operand) -> Iterable[Check]:
    yield Check("rank", o.rank, at_most(5), "merge dimensions that are dense in one another")
    yield Check(
        "tensor_map_alignment_bytes", o.tensor_map_alignment_bytes, at_least(64), "align the map to 64 bytes"
    )
    for dim, extent in enumerate(o.shape):
        yield Check(f"shape[{dim}]", extent, at_most(2**32), "split the tensor along this dimension")
    for index, stride in enumerate(o.strides_bytes):
        yield Check(
            f"strides_bytes[{index}]", stride, at_most(2**40 - 1), "split the tensor into nearer parts"
        )
    for dim, side in enumerate(o.tile):
        yield Check(f"tile[{dim}]", side, at_most(256), "use a box side of 256 elements or fewer")


def _swizzle_span(o: Operand) -> Iterable[Check]:
    if span := o.swizzle.span_bytes:
        fix = f"make tile[0] {span // o.element_bytes} elements, or use a wider swizzle or none"
        yield Check("inner_row_bytes", o.inner_row_bytes, at_most(span), fix)


RULES = (
    Rule(ALL, OCCUPANCY, _threads),
    Rule(ALL, OCCUPANCY, _shared),
    Rule(ALL, OCCUPANCY, lambda o: [
        Check("pipeline.ctas_per_sm", o.pipeline.ctas_per_sm, at_most(32), "use 32 CTAs per SM or fewer")]),
    Rule(ALL, CLUSTERS, lambda o: [
        Check("pipeline.cluster", o.pipeline.cluster, at_most(16), "use a cluster of 16 CTAs or fewer")]),
    Rule(DSM, "PTX ISA, mapa", lambda o: [
        Check("pipeline.cluster", o.pipeline.cluster, at_least(2), "launch clusters of 2 CTAs or more")]),
    Rule(ALL, WHOLE, _whole_tiles),
    Rule(ALL - TENSOR_MAP, PLAIN, lambda o: [
        Check("swizzle span bytes", o.swizzle.span_bytes, at_most(0), "use Swizzle.NONE or a tensor map")]),

    *(Rule(frozenset({one.name}), f"PTX ISA, {one.ptx}", partial(_copy_bytes, one.access_bytes))
      for one in MECHANISMS.values() if one.access_bytes),
    Rule(THREADS - DSM, ACCESS, lambda o: _base(o, o.pipeline.copy_bytes)),
    Rule(THREADS - DSM, ACCESS, lambda o: _rows(o, o.pipeline.copy_bytes)),
    Rule(THREADS, ACCESS, lambda o: _stages(o, o.pipeline.copy_bytes)),
    Rule(THREADS & DSM, ACCESS, lambda o: [
        Check("tile_bytes", o.tile_bytes, multiple_of(o.pipeline.copy_bytes),
              f"make a tile of {round_up(o.tile_bytes, o.pipeline.copy_bytes)} bytes")]),

    Rule(BULK, BULK_COPY, lambda o: _stages(o, 16)),
    Rule(BULK, BULK_COPY, lambda o: [
        Check("tile_bytes", o.tile_bytes, multiple_of(16),
              f"make a tile of {round_up(o.tile_bytes, 16)} bytes")]),
    Rule(BULK - DSM, BULK_COPY, lambda o: _base(o, 16)),
    Rule(BULK - DSM, BULK_COPY, _tile_starts),
    Rule(BULK - DSM, BULK_COPY, lambda o: [
        Check("contiguous_bytes", o.contiguous_bytes, at_least(o.tile_bytes),
              "make each row a tile of its own (one bulk copy per row), or use a tensor map")]),

    Rule(TENSOR_MAP, ENCODE, _tensor_map),
    Rule(TENSOR_MAP, ENCODE, lambda o: _base(o, 16)),
    Rule(TENSOR_MAP, ENCODE, lambda o: _rows(o, 16)),
    Rule(TENSOR_MAP, ENCODE, _swizzle_span),
    # 128 B is enough for the hardware, but then the swizzle pattern starts part-way.
    Rule(TENSOR_MAP, SWIZZLE, lambda o: _stages(o, max(128, o.swizzle.repeat_bytes))),

    Rule(COUNTS_BYTES, "PTX ISA, mbarrier contents: tx-count", lambda o: [
        Check("tile_bytes", o.tile_bytes, at_most(2**20 - 1), "spread the tile over more barrier phases")]),
    Rule(REDUCE, "PTX ISA, cp.reduce.async.bulk: types", lambda o: [
        Check("element_bytes", o.element_bytes, one_of(2, 4, 8), "reduce elements of 2, 4 or 8 bytes")]),
)  # fmt: skip


def violations(operand: Operand, mechanism: str, arch: str = "sm_90a") -> tuple[Violation, ...]:
    """Every rule that `operand` breaks under `mechanism`; empty if it is legal.

    Whether the GPU at hand can schedule such a cluster is asked of the driver at launch.

    Args:
        operand: the operand and its pipeline.
        mechanism: a name from `MECHANISMS`.
        arch: a name from `ARCHITECTURES`.

    Raises:
        BadArgument: an unknown mechanism or architecture.
    """
    for kind, name, known in (("mechanism", mechanism, MECHANISMS), ("architecture", arch, ARCHITECTURES)):
        if name not in known:
            raise BadArgument(f"unknown {kind} {name!r}: use one of {', '.join(known)}")
    return tuple(
        Violation(mechanism, check.quantity, check.value, check.limit.text, check.fix, rule.source)
        for rule in RULES
        if mechanism in rule.mechanisms
        for check in rule.checks(operand)
        if not check.limit.holds(check.value)
    )


def require_legal(operand: Operand, mechanism: str, arch: str = "sm_90a") -> None:
    """Refuse an operand that `mechanism` cannot take.

    Raises:
        IllegalOperand: at least one rule is broken; the message has a line for each.
        BadArgument: an unknown mechanism or architecture.
    """
    if broken := violations(operand, mechanism, arch):
        raise IllegalOperand(broken)
