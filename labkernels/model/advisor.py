"""From an operand to a mechanism: predicted times, what binds, what is excluded and why, what to change."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd, prod
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path

from labkernels import forms
from labkernels.errors import BadArgument
from labkernels.forms import entry
from labkernels.legality import BULK_COPY, Violation, violations
from labkernels.mechanisms import MECHANISMS
from labkernels.model import beside, other_gpus
from labkernels.model.closed_form import (
    ALONE,
    IN_CLUSTERS,
    MULTISTAGE,
    PREFERENCE,
    SPECIALIZED,
    TERMS,
    VECTOR_BYTES,
    Constants,
    Load,
    Prediction,
    constants,
    forms_of,
    predict,
    start_us,
    time_us,
)
from labkernels.operand import ELEMENT_BYTES, MIB, Operand, Pipeline, round_up
from labkernels.paths import DATA
from labkernels.store import Store

NO_DIFFERENCE = 1.015  # predictions nearer to each other are no difference: half the mean error of a time
SAME_FORM = 1.005  # of one mechanism, more warps have to bring more than this
ALLOCATED = 256  # bytes on whose multiples cuMemAlloc puts tensors
SECTOR_BYTES = 32  # the least that is read from memory
SETS = 3  # of registers that plain loads had under way at once, where the data stay there
MOST_REGISTERS = 200  # of a thread's 255, for a tile under way
WORTHWHILE = 1.05  # a change of the operand is worth a line from here on
#: How a page groups the fields of a question.
OPERAND, PIPELINE, SHARING, AROUND = "Operand", "Pipeline", "Sharing", "Kernel around it"
NOBODY = "one CTA needs the tile: there is nobody to share it with"

#: Which answer of the form decides a quantity of the operand.
DECIDES = {
    "pipeline.copy_bytes": "`alignment_bytes`",
    "base_alignment_bytes": "`alignment_bytes`",
    "inner_row_bytes": "`row_bytes`",
    "strides_bytes[0]": "the pitch",
    "tile[1]": "`rows`",
}


@dataclass(frozen=True)
class Candidate:
    """A legal mechanism with its predicted time.

    Attributes:
        mechanism: its name.
        time_us: to bring the whole tensor to every CTA that needs it, all SMs at work, start of the launch included.
        low_us: the interval of `time_us`: 5% to 95% of the model's errors on configurations it was not fitted to.
        high_us: its other end.
        gbps: bytes delivered to shared memory over time, the start of the launch left out.
        cycles_per_tile: period of one CTA's pipeline.
        binding: the largest term.
        terms: cycles of each term.
        share: of multicast, DSM and computed tiles, whether each CTA brings or makes its part (`slices`) or one all
            (`leader`); where several CTAs load the same tile for themselves, whether as a cluster (`everyone`) or as
            neighbors without one (`alone`), whichever is faster.
        form: the pipeline, in words: the fastest that the stages allow, more warps only where they bring something.
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
    form: str


@dataclass(frozen=True)
class CitedRule:
    """A rule of thumb that applies to the operand, with its verdict on the GPU and the run behind it."""

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
        in_cluster: whether to form a cluster for it; None where one CTA alone needs the tile.
        ranked: legal mechanisms, fastest first.
        no_difference: mechanisms within 1.5% of the fastest, by rate, or by time where a launch takes longer to start
            than for its bytes; the choice is the one with the fewest instructions.
        excluded: reasons by mechanism.
        change: what to change in the operand to gain most, in words.
        change_gain: time now over time then; 1 where no single change helps.
        rules: rules of thumb that apply to it.
        run_ids: runs that the constants were fitted to.
        outside: where the operand lies outside the measured range; empty if it does not.
    """

    gpu: str
    choice: str
    in_cluster: bool | None
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

    Raises:
        BadArgument: a number that cannot be, or two that contradict each other.
    """

    row_bytes: int = entry(
        128,
        help="contiguous bytes of one row",
        least=1,
        most=MIB,
        label="Row of a tile",
        unit="bytes",
        group=OPERAND,
    )
    rows: int = entry(128, help="rows of a tile", least=1, most=MIB, label="Rows per tile", group=OPERAND)
    pitch_bytes: int = entry(
        0,
        help="from the start of a row to the next; 0: rows follow each other without a gap",
        least=0,
        most=2**40 - 1,
        label="Row pitch",
        unit="bytes",
        group=OPERAND,
    )
    element_bytes: int = entry(
        2, help="size of an element", choices=ELEMENT_BYTES, label="Element", unit="bytes", group=OPERAND
    )
    alignment_bytes: int = entry(
        0,
        help="largest power of two that divides the tensor's address; 0: 256, as allocated",
        least=0,
        most=MIB,
        power_of_two=True,
        label="Alignment",
        unit="bytes",
        group=OPERAND,
    )
    tensor_mib: int = entry(
        256, help="size of the whole tensor", least=1, most=MIB, label="Tensor", unit="MiB", group=OPERAND
    )
    source: str = entry(
        "hbm",
        help="where the data is: in `hbm`, in `l2`, or `computed` by the cluster in shared memory",
        choices=("hbm", "l2", "computed"),
        label="Source",
        group=OPERAND,
    )
    index_rows: int = entry(
        0,
        help="rows that one index covers, as of a KV page; 0: no index",
        least=0,
        most=MIB,
        label="Rows per index",
        group=OPERAND,
    )
    stages: int = entry(
        4, help="tiles that a CTA's shared memory holds", least=1, most=1024, label="Stages", group=PIPELINE
    )
    pipeline: str = entry(
        "any",
        help="`specialized`: some warps copy, others consume; `multistage`: every thread does both",
        choices=("any", SPECIALIZED, MULTISTAGE),
        label="Pipeline style",
        group=PIPELINE,
    )
    ctas_per_sm: int = entry(
        1, help="CTAs resident on one SM", least=1, most=32, label="CTAs per SM", group=PIPELINE
    )
    threads: int = entry(
        128,
        help="threads of a CTA that copy a tile together, where threads copy",
        least=1,
        most=1024,
        label="Copying threads",
        group=PIPELINE,
    )
    swizzle: str = entry(
        "none",
        help="of shared memory; a TMA box is no wider than its span",
        choices=("none", "32B", "64B", "128B"),
        label="Swizzle",
        group=PIPELINE,
    )
    issuers: int = entry(
        1,
        help="producer warps that share the TMA copies of a paged tile",
        least=1,
        most=32,
        label="Producer warps, paged",
        group=PIPELINE,
    )
    cluster: int = entry(
        1, help="CTAs that need the same tile", least=1, most=16, label="Fan-out", unit="CTAs", group=SHARING
    )
    pace: str = entry(
        "together",
        help="whether these CTAs ask for a tile `together`, or `apart` by 1,000 cycles and more",
        choices=("together", "apart"),
        label="They ask",
        group=SHARING,
    )
    compute_cycles: float = entry(
        0.0,
        help="work on one tile that can hide its copy; 0: none",
        least=0,
        most=10**9,
        label="Compute per tile",
        unit="SM cycles",
        group=AROUND,
    )
    consumer: str = entry(
        "shared",
        help="where the kernel needs the data: in `shared` memory or in `registers`",
        choices=("shared", "registers"),
        label="Needed in",
        group=AROUND,
    )
    product_rows: int = entry(
        0,
        help="rows of A that a CTA's tensor cores multiply, the tile being a step of A or B; 0: no tensor cores",
        choices=(0, 64, 128, 192, 256),
        label="Product's rows",
        unit="of A",
        group=AROUND,
    )
    product_columns: int = entry(
        0,
        help="its columns, rows of B; 0: no tensor cores",
        choices=(0, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256),
        label="Product's columns",
        unit="of B",
        group=AROUND,
    )

    def __post_init__(self) -> None:
        forms.require(self)
        if self.row_bytes % self.element_bytes:
            raise BadArgument(
                f"`row_bytes` is {self.row_bytes}, no whole number of elements of {self.element_bytes} bytes: "
                f"give {round_up(self.row_bytes, self.element_bytes)}"
            )
        if self.pitch < self.row_bytes or self.pitch % self.element_bytes:
            raise BadArgument(
                f"`pitch_bytes` is {self.pitch}, rows have {self.row_bytes}: give a multiple of "
                f"{self.element_bytes} that holds a row, or 0 for a dense tensor"
            )
        span = (self.rows - 1) * self.pitch + self.row_bytes
        if span > self.tensor_mib * MIB:
            raise BadArgument(
                f"`tensor_mib` is {self.tensor_mib}, one tile reaches over {span} bytes: give "
                f"{-(-span // MIB)} or more, or a smaller tile"
            )
        if self.source == "computed" and self.cluster == 1:
            raise BadArgument(
                "`source` is computed and `cluster` 1, so there is nobody to share with: give 2 or more"
            )
        if bool(self.product_rows) != bool(self.product_columns):
            raise BadArgument(
                f"`product_rows` is {self.product_rows} and `product_columns` {self.product_columns}: give both, or 0 "
                "for both"
            )

    @property
    def pitch(self) -> int:
        """Bytes from a row to the next."""
        return self.pitch_bytes or self.row_bytes

    @property
    def copy_bytes(self) -> int:
        """The most that a thread's instruction can move: address, pitch and row are multiples of it."""
        pitch, row = (number & -number for number in (self.pitch, self.row_bytes))
        return min(16, self.alignment_bytes or ALLOCATED, pitch, row)

    @property
    def is_dense(self) -> bool:
        """Whether a tile is one run of bytes."""
        return self.rows == 1 or self.pitch == self.row_bytes

    def boxes(self) -> int:
        """TMA boxes of a tile's piece under one index, of 256 elements a side at most; 0 if there is no such cut."""
        widest = min(256, int(self.swizzle[:-1]) // self.element_bytes if self.swizzle != "none" else 256)
        columns, rows = self.row_bytes // self.element_bytes, min(self.index_rows or self.rows, self.rows)
        across = next(
            (
                n
                for n in range(-(-columns // widest), columns + 1)
                if columns % n == 0 and self.row_bytes // n % 16 == 0
            ),
            0,
        )
        return across * next(n for n in range(-(-rows // 256), rows + 1) if rows % n == 0)

    def operand(self) -> Operand:
        """The operand these numbers describe."""
        rows = max(1, int(self.tensor_mib * MIB / self.pitch / self.rows + 0.5)) * self.rows
        columns = self.row_bytes // self.element_bytes
        whole = self.pitch // self.row_bytes * columns
        pipeline = Pipeline(self.stages, self.ctas_per_sm, self.threads, self.cluster, self.copy_bytes, 128)
        return Operand(
            self.element_bytes,
            (whole, rows),
            (columns, self.rows),
            (self.pitch,),
            self.alignment_bytes or ALLOCATED,
            pipeline=pipeline,
        )

    def load(self, mechanism: str, of: Constants) -> Load:
        """What the model knows of it: a tile takes a copy for each box, or for each run of bytes, under each index."""
        moves = MECHANISMS[mechanism]
        pieces = -(-self.rows // self.index_rows) if self.index_rows else 1
        if moves.takes_tensor_map or moves.carriers:
            copies = pieces * self.boxes()
        else:
            copies = pieces if moves.by_threads or self.is_dense else self.rows
        used = (
            self.pitch // self.row_bytes * self.row_bytes
        )  # the rest of a pitch is read where sectors reach into it
        starts = range(0, SECTOR_BYTES, gcd(self.pitch, SECTOR_BYTES))
        sectors = sum(round_up(start + used, SECTOR_BYTES) for start in starts) / len(starts)
        read = min(self.pitch, sectors)
        return Load(
            tile_bytes=self.rows * self.row_bytes,
            row_bytes=self.row_bytes,
            is_dense=self.is_dense,
            tiles_in_flight=self.stages,
            ctas_per_sm=self.ctas_per_sm,
            threads=self.threads,
            source=self.source,
            fan_out=self.cluster,
            pace=self.pace,
            copies=copies,
            lookups=pieces if self.index_rows else 0,
            issuers=self.issuers,
            compute_cycles=self.compute_cycles,
            copy_bytes=self.copy_bytes,
            used_share=used / read,
            l2_share=l2_share(self.tensor_mib, of) if self.source == "l2" else 1.0,
        )


def l2_share(tensor_mib: float, of: Constants) -> float:
    """What L2 gives a tensor of its full rate: as measured, in between a straight line."""
    points = sorted(
        (int(name.split("_")[2]), value) for (way, name), value in of.items() if way == "L2 footprint"
    )
    before = [point for point in points if point[0] <= tensor_mib]
    after = [point for point in points if point[0] > tensor_mib]
    if not before or not after:
        return (before[-1:] or after[:1])[0][1]
    (left, low), (right, high) = before[-1], after[0]
    return low + (high - low) * (tensor_mib - left) / (right - left)


def advise(question: Question, gpu: str | None = None, root: Path = DATA) -> Advice:
    """Rank the mechanisms that may load an operand. Needs no GPU.

    Args:
        question: the operand.
        gpu: a GPU with fitted constants, by default the first; or one that they can be projected to (`other_gpus`).
        root: folder of the tables, with the fitted constants.

    Raises:
        BadArgument: no mechanism can take the operand (a line for each reason), or the cluster was not measured.
        NotMeasured: a GPU without constants that nothing is known of, or that lacks the instructions.
    """
    base = next(iter(gpus(root)), "")
    gpu = gpu or base
    is_projected = bool(base) and gpu not in gpus(root)
    of = other_gpus.projected(gpu, base, root) if is_projected else constants(gpu, root)
    operand = question.operand()
    delivered = prod(operand.shape) * operand.element_bytes * question.cluster
    _require_measured(question, operand, of)
    excluded = exclusions(question, operand, of)
    forms = {name: forms_in(question, name, of) for name in PREFERENCE if name not in excluded}
    if not forms:
        raise BadArgument(_nothing_left(excluded))
    found = {name: _fastest(question, name, its, of) for name, its in forms.items()}
    rates = sorted(found.values(), key=lambda one: -one.gbps)
    if delivered / rates[0].gbps / 1e3 < start_us(rates[0].mechanism, question.source, of):
        # a launch is mostly its start
        whole = {
            one.mechanism: delivered / time_us(one, delivered, question.source, of) / 1e3 for one in rates
        }
        rates = sorted((replace(one, gbps=whole[one.mechanism]) for one in rates), key=lambda one: -one.gbps)
    choice, tied = choose(rates)
    if (
        question.consumer == "registers"
    ):  # what goes through shared memory is read once more, which no time contains
        fastest = found[rates[0].mechanism]
        direct = (one for one in found.values() if _in_registers(one.mechanism))
        choice = next(
            (one.mechanism for one in direct if one.gbps / one.low >= fastest.gbps / fastest.high), choice
        )
    ranked = [found[one.mechanism] for one in rates]
    in_cluster = found[choice].share != ALONE if question.cluster > 1 else None
    change, gain = best_gain(question, found[choice], of)
    return Advice(
        gpu,
        choice,
        in_cluster,
        tuple(_candidate(one, delivered, question.source, of) for one in ranked),
        tied,
        {name: tuple(reason.replace("`", "") for reason in reasons) for name, reasons in excluded.items()},
        change,
        gain,
        tuple(_cited(base if is_projected else gpu, question, root)),
        run_ids(base if is_projected else gpu, root),
        ((other_gpus.said(gpu, base),) if is_projected else ()) + tuple(_outside(question, found, of)),
    )


def _fastest(question: Question, mechanism: str, its: list[Load], of: Constants) -> Prediction:
    """A mechanism in its fastest form, no faster than tensor cores that work beside it."""
    one = fastest_form([predict(mechanism, form, of) for form in its])
    if not question.product_rows:
        return one
    step = beside.Product(
        question.product_rows,
        question.product_columns,
        question.row_bytes,
        question.row_bytes,
        question.element_bytes,
    )
    cycles = beside.drawn_cycles(mechanism, step, of) * question.ctas_per_sm
    period = max(cycles, one.cycles_per_tile)
    return replace(
        one,
        terms=one.terms | {"tensor cores": cycles},
        cycles_per_tile=period,
        gbps=one.gbps * one.cycles_per_tile / period,
    )


def _nothing_left(excluded: dict[str, tuple[str, ...]]) -> str:
    """Each reason once, with the mechanisms that it excludes; those that one CTA has no use for are left out."""
    by_reason: dict[str, list[str]] = {}
    excluded = {name: reasons for name, reasons in excluded.items() if NOBODY not in reasons}
    for name, reasons in excluded.items():
        for reason in reasons:
            by_reason.setdefault(reason, []).append(name)
    lines = [
        f"{'all' if len(names) == len(excluded) else ', '.join(names)}: {reason}"
        for reason, names in sorted(by_reason.items(), key=lambda item: -len(item[1]))
    ]
    return "\n".join(["no mechanism can take this operand", *lines])


def choose(ranked: list[Prediction]) -> tuple[str, tuple[str, ...]]:
    """The mechanism to take and those that do not differ from the fastest, from predictions, fastest first."""
    bound = ranked[0].gbps / NO_DIFFERENCE
    tied = tuple(one.mechanism for one in ranked if one.gbps >= bound)
    fewest = min((one for one in ranked if one.mechanism in tied), key=_effort)
    return fewest.mechanism, tied


def forms_in(question: Question, mechanism: str, of: Constants) -> list[Load]:
    """The pipelines that a mechanism may have in the stages of a question, of the kind it asks for."""
    load = question.load(mechanism, of)
    if _in_registers(mechanism) and question.consumer == "registers":
        sets = min(question.stages, SETS, MOST_REGISTERS // max(1, load.tile_bytes // load.threads // 4))
        return [replace(load, pipeline=MULTISTAGE, tiles_in_flight=max(1, sets))]
    found = forms_of(mechanism, load, question.stages)
    return [one for one in found if question.pipeline in ("any", one.pipeline)]


def _in_registers(mechanism: str) -> bool:
    """Whether data from global memory come by a thread's registers, and may stay there."""
    return MECHANISMS[mechanism].through_registers and MECHANISMS[mechanism].touches_global


def fastest_form(found: list[Prediction]) -> Prediction:
    """Of one mechanism's pipelines, those with the fewest warps first: the first that is nearly as fast as any."""
    fastest = max(one.gbps for one in found)
    return max(
        (one for one in found if one.gbps * SAME_FORM >= fastest), key=lambda one: (-one.warps, one.gbps)
    )


def best_gain(question: Question, now: Prediction, of: Constants) -> tuple[str, float]:
    """The one legal change to an operand that brings its bytes fastest by the chosen mechanism.

    Returns:
        What to change, and time now over time then; ("", 1) where nothing helps, as where the work on a tile binds.
    """
    if now.binding in ("compute", "tensor cores"):
        return "", 1.0
    rows, stages, ctas, work = (
        question.rows,
        question.stages,
        question.ctas_per_sm,
        2 * question.compute_cycles,
    )
    changes: dict[str, dict[str, float]] = {
        f"keep {2 * stages} stages instead of {stages}": {"stages": 2 * stages},
        f"make tiles of {2 * rows} rows instead of {rows}": {"rows": 2 * rows, "compute_cycles": work},
        f"run {2 * ctas} CTAs on an SM instead of {ctas}": {"ctas_per_sm": 2 * ctas, "compute_cycles": work},
        "let 4 warps share the copies": {"issuers": max(4, question.issuers)},
    }
    whole = VECTOR_BYTES * question.cluster // gcd(question.row_bytes, VECTOR_BYTES * question.cluster)
    if question.cluster > 1 and rows % whole:
        changes[f"pad tiles to {round_up(rows, whole)} rows"] = {"rows": round_up(rows, whole)}
    if question.row_bytes < 128 and question.is_dense:
        wide = {"row_bytes": 128, "pitch_bytes": 0, "rows": max(1, rows * question.row_bytes // 128)}
        changes["make rows of 128 bytes"] = wide
    best, most = "", 1.0
    for what, changed in changes.items():
        rate = _rate(question, changed, now.mechanism, of)
        useful = rows / changed["rows"] if what.startswith("pad") else 1.0
        if rate * useful / now.gbps > most:
            best, most = what, rate * useful / now.gbps
    return best, most


def _rate(question: Question, changed: Mapping[str, float], mechanism: str, of: Constants) -> float:
    """Rate of a changed operand by one mechanism; 0 where it cannot be."""
    try:
        asked = replace(question, **changed)
    except BadArgument:
        return 0.0
    if mechanism in exclusions(asked, asked.operand(), of):
        return 0.0
    return _fastest(asked, mechanism, forms_in(asked, mechanism, of), of).gbps


def _effort(one: Prediction) -> tuple[float, int]:
    return one.instructions, PREFERENCE.index(one.mechanism)


def exclusions(question: Question, operand: Operand, of: Constants) -> dict[str, tuple[str, ...]]:
    """Why mechanisms cannot be taken, by mechanism; those that can are left out."""
    found = {}
    for name in PREFERENCE:
        moves = MECHANISMS[name]
        in_registers = _in_registers(name)
        reasons = [_reason(broken) for broken in _illegal(question, operand, name)]
        held = question.rows * question.row_bytes // question.threads // 4
        if in_registers and held > MOST_REGISTERS:
            reasons.append(
                f"a thread would hold {held} registers of a tile, of 255: give more `threads` or less `rows`"
            )
        if in_registers and question.consumer == "shared" and question.stages == 1:
            reasons.append("was measured with a tile in registers and two stages: give 2 `stages`")
        if moves.crosses_ctas and question.cluster == 1:
            reasons.append(NOBODY)
        if (
            question.index_rows
            and not moves.by_threads
            and not moves.crosses_ctas
            and (name, "lookup_cycles") not in of
        ):
            reasons.append("page-table loads were not measured")
        if question.index_rows and moves.crosses_ctas:
            what = "multicast of" if moves.touches_global else "forwarding"
            reasons.append(f"{what} indexed tiles was not measured")
        if question.source == "computed" and not moves.crosses_ctas:
            reasons.append("the tile is computed in shared memory: there is nothing to load")
        elif question.cluster > 1 and name not in IN_CLUSTERS:
            reasons.append("was not measured with CTAs that need the same tile")
        if question.product_rows and not beside.knows(name, of):
            reasons.append("was not measured beside tensor cores")
        if not reasons and not forms_in(question, name, of):
            reasons.append(f"has no {question.pipeline} pipeline")
        if reasons:
            found[name] = tuple(reasons)
    return found


def _reason(broken: Violation) -> str:
    """A broken rule in the words of the form, without the mechanism: who reads it knows which."""
    said = replace(broken, quantity=DECIDES.get(broken.quantity, broken.quantity))
    return str(said).removeprefix(f"{broken.mechanism}: ")


def _illegal(question: Question, operand: Operand, name: str) -> list[Violation]:
    """Broken rules; before a tile from global memory is forwarded, TMA brings it to the first CTA.

    A tile may be several boxes, or for bulk copies several rows; data that stay in registers need no shared memory.
    """
    moves, source = MECHANISMS[name], question.source
    nothing_to_load = source == "computed" and not moves.crosses_ctas
    nobody_to_serve = not moves.touches_global and operand.pipeline.cluster == 1
    if nothing_to_load or nobody_to_serve:
        return []
    carriers = moves.carriers if source != "computed" else ()
    found = [broken for each in (name, *carriers) for broken in violations(operand, each)]
    waived = {"contiguous_bytes"}
    if question.boxes():
        waived |= {"tile[0]", "tile[1]"}
    if _in_registers(name) and question.consumer == "registers":
        waived |= {"shared_bytes", "shared bytes per SM"}
    found = [broken for broken in found if broken.quantity not in waived]
    by_run = not (moves.by_threads or moves.takes_tensor_map or moves.crosses_ctas)
    if by_run and not question.is_dense and (question.row_bytes % 16 or question.pitch % 16):
        fix = f"pad rows to {round_up(question.row_bytes, 16)} bytes, the pitch to {round_up(question.pitch, 16)}"
        found.append(
            Violation(name, "inner_row_bytes", question.row_bytes, "a multiple of 16", fix, BULK_COPY)
        )
    return list({(broken.quantity, broken.limit): broken for broken in reversed(found)}.values())[::-1]


def gpus(root: Path = DATA) -> list[str]:
    """GPUs with fitted constants; none where nothing was fitted."""
    return list(dict.fromkeys(row["gpu"] for row in Store(root).records("constants")))


def run_ids(gpu: str, root: Path = DATA) -> tuple[str, ...]:
    """Runs that a GPU's constants were fitted to."""
    rows = [row for row in Store(root).records("constants") if row["gpu"] == gpu]
    return tuple(sorted({run for row in rows for run in row["run_ids"].split(";")}))


def _candidate(one: Prediction, delivered: int, source: str, of: Constants) -> Candidate:
    return Candidate(
        one.mechanism,
        *(time_us(one, delivered, source, of, times) for times in (1.0, one.low, one.high)),
        one.gbps,
        one.cycles_per_tile,
        one.binding,
        one.terms,
        one.share,
        one.form,
    )


def _require_measured(question: Question, operand: Operand, of: Constants) -> None:
    tensor, l2 = prod(operand.shape) * operand.element_bytes, int(of["gpu", "l2_bytes"])
    if question.source == "l2" and not l2:
        raise BadArgument("`source` is l2, and no source says how large L2 is on this GPU: give `source` hbm")
    if question.source == "l2" and tensor > l2:
        raise BadArgument(
            f"`source` is l2, the tensor has {tensor} bytes and L2 {l2}: give `source` hbm, or as `tensor_mib` the "
            "part that is read again and again"
        )
    measured = sorted(int(name.rsplit("_", 1)[1]) for way, name in of if name.startswith("sms_at_fan_out_"))
    if question.cluster not in measured:
        raise BadArgument(
            f"`cluster` is {question.cluster}, measured were {', '.join(map(str, measured))}: give one of them"
        )


def _outside(question: Question, found: Mapping[str, Prediction], of: Constants) -> list[str]:
    quantities = {
        "tile_bytes": question.rows * question.row_bytes,
        "row_bytes": question.row_bytes,
        "stages": question.stages,
        "ctas_per_sm": question.ctas_per_sm,
        "threads": question.threads,
    }
    loads = {name: question.load(name, of) for name in found}
    outside = []
    for name, value in quantities.items():
        least, most = (int(of["range", f"{name}_{end}"]) for end in ("least", "most"))
        if not least <= value <= most:
            outside.append(f"{name} is {value}; measured were {least} to {most}")
    if question.copy_bytes < 16 and any(MECHANISMS[name].by_threads for name in loads):
        outside.append(f"threads copy {question.copy_bytes} bytes at a time; measured were 16")
    if question.swizzle == "none" and any(one.copies > max(1, one.lookups) for one in loads.values()):
        outside.append("a tile is several copies; measured was one, or one under each index")
    if next(iter(loads.values())).used_share < 1 and question.source == "hbm":
        outside.append("rows with gaps: the share of HBM's rate that they waste is computed")
    if question.consumer == "registers" and not all(MECHANISMS[name].through_registers for name in found):
        outside.append("consumer is registers: reading them from shared memory is not in the times")
    if question.compute_cycles:
        outside.append("compute_cycles: the constants are of pipelines that only copy")
    return outside


_COMPARISONS = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def applies(conditions: str, quantities: Mapping[str, float | str]) -> bool:
    """Whether a rule applies to an operand.

    Args:
        conditions: of the rule (`studies.rule.Rule.applies_to`), as in `source == 'l2' and fan_out >= 4`; empty: never.
        quantities: of the operand, by name.
    """
    parts = [part.split(" ", 2) for part in conditions.split(" and ") if part]
    return bool(parts) and all(
        _COMPARISONS[comparison](quantities[name], literal_eval(value)) for name, comparison, value in parts
    )


def quantities(question: Question) -> dict[str, float | str]:
    """What the conditions of rules name: the fields of a load, what follows from them, and two of the question."""
    tile_bytes = question.rows * question.row_bytes
    return vars(question) | {
        "tile_bytes": tile_bytes,
        "fan_out": question.cluster,
        "is_dense": question.is_dense,
        "bytes_in_flight_per_sm": tile_bytes * question.stages * question.ctas_per_sm,
        "slice_bytes": tile_bytes / question.cluster,
        "index_rows": question.index_rows,
        "consumer": question.consumer,
    }


def _cited(gpu: str, question: Question, root: Path) -> list[CitedRule]:
    rows = [row for row in Store(root).records("verdicts") if row["gpu"] == gpu]
    said = quantities(question)
    return [
        CitedRule(row["rule"], row["statement"], row["outcome"], row["evidence"] or "", row["run_id"] or "")
        for row in rows
        if applies(row["applies_to"] or "", said)
        and (question.index_rows == 0 or "index_rows" in row["applies_to"])
        and (question.copy_bytes == 16 or "fan_out" in row["applies_to"])
    ]


def how_excluded(reason: str) -> str:
    """Whether a mechanism cannot take an operand, or nobody measured how it does."""
    return "not measured" if "measured" in reason else "impossible"


def describe(advice: Advice) -> str:
    """The advice as a text of a few lines."""
    form = {None: "", True: ", in a cluster", False: ", without a cluster: neighboring CTAs"}[
        advice.in_cluster
    ]
    lines = [f"{advice.choice}{form}  ({advice.gpu})"]
    if len(advice.no_difference) > 1:
        lines.append(f"no difference within 1.5%: {', '.join(advice.no_difference)}")
    for one in advice.ranked:
        lines.append(
            f"  {one.mechanism:14} {one.share:8} {one.form:24} {one.time_us:12,.1f} us  "
            f"[{one.low_us:,.1f}, {one.high_us:,.1f}]  {one.gbps:9,.0f} GB/s  {one.binding}: {TERMS[one.binding]}"
        )
    lines += [
        f"  {name:14} {how_excluded(reason)}: {reason}"
        for name, why in advice.excluded.items()
        for reason in why
    ]
    if advice.change_gain >= WORTHWHILE:
        lines.append(f"to gain most: {advice.change}, {advice.change_gain:.2f} times as fast")
    lines += [f"rule {rule.id} ({rule.outcome}): {rule.statement}" for rule in advice.rules]
    lines += [f"outside the measured range: {what}" for what in advice.outside]
    lines.append(f"fitted to {', '.join(advice.run_ids)}")
    return "\n".join(lines)
