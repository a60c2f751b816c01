"""From machine code to advice: what a compiled kernel loads and how, what to try first, and the rule behind it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from labkernels.errors import LabError
from labkernels.mechanisms import GLOBAL, MECHANISMS, names
from labkernels.model.advisor import Advice, CitedRule, Question, advise, gpus
from labkernels.paths import DATA
from labkernels.production.mainloop import Mainloop
from labkernels.store import Store

_REGISTERS, _THREADS, _SHARED_BYTES = 1 << 16, 2048, 227 << 10  # of an SM
_ENOUGH_BYTES = 64 << 10  # in flight per SM: rule enough_in_flight
_STAGES = 3  # for tensor cores: rule three_stages_for_tensor_cores
_COPIED = names(source=GLOBAL, by_threads=False)
_BY_THREADS = names(source=GLOBAL, by_threads=True)

#: What no instruction says, and the option that gives it.
_NOT_IN_CODE = {
    "row_bytes": "the rows of a tile (the box, where a tensor map has it)",
    "pitch_bytes": "the pitch, and with it whether TMA may load it at all (a multiple of 16)",
    "source": "where the data lie",
}


@dataclass(frozen=True)
class CodeAdvice:
    """What to do about a kernel's loads.

    Attributes:
        loads: In words.
        pipeline: In words.
        not_in_code: What the code does not show, with the option that says it.
        bytes_in_flight: Per SM; None where the code does not show them.
        first: What to try first.
        gains: 1 if it is expected to be faster, 0 if nothing is.
        rules: Behind it, each with what was measured.
        operand: The advice for the operand, where its rows are given.
        refused: Why there is none although they are.
    """

    loads: str
    pipeline: str
    not_in_code: tuple[str, ...]
    bytes_in_flight: int | None
    first: str
    gains: int
    rules: tuple[CitedRule, ...]
    operand: Advice | None
    refused: str


def from_code(
    loop: Mainloop,
    registers: int,
    given: Mapping[str, object],
    gpu: str | None = None,
    root: Path = DATA,
) -> CodeAdvice:
    """Advise on a kernel. Needs no GPU.

    Args:
        loop: What its code shows.
        registers: Of a thread.
        given: Fields of a `Question` that are known.
        gpu: One with fitted constants; by default the first.
        root: Folder of the tables.
    """
    ctas = int(given.get("ctas_per_sm") or _ctas(loop, registers))
    in_flight = _in_flight(loop)
    in_flight = in_flight * ctas if in_flight else None
    first, gains, ids = _first(loop, in_flight)
    operand, refused = _of_operand(loop, ctas, given, gpu, root)
    return CodeAdvice(
        loads=_loads(loop),
        pipeline=_pipeline(loop, ctas, "ctas_per_sm" in given),
        not_in_code=tuple(
            f"{what}: --{name.replace('_', '-')}" for name, what in _NOT_IN_CODE.items() if name not in given
        ),
        bytes_in_flight=in_flight,
        first=first,
        gains=gains,
        rules=tuple(_cited(ids, gpu or next(iter(gpus(root)), ""), root)),
        operand=operand,
        refused=refused,
    )


def _main(loop: Mainloop) -> str | None:
    """The mechanism that brings most of a kernel's tiles: the copy engine's, then cp.async, then plain loads."""
    preferred = (*_COPIED, "tma_gather", *reversed(_BY_THREADS))
    return next((name for name in preferred if name in dict(loop.loads)), None)


def _ctas(loop: Mainloop, registers: int) -> int:
    """CTAs on an SM at most, as registers, threads and the stages that the code shows allow."""
    threads = loop.threads or 128
    limits = [_THREADS // threads, _REGISTERS // max(1, registers * threads)]
    if loop.stages and loop.stage_bytes:
        limits.append(_SHARED_BYTES // (loop.stages * loop.stage_bytes))
    return max(1, min(limits))


def _in_flight(loop: Mainloop) -> int | None:
    """Bytes of one CTA under way."""
    if loop.stages and loop.stage_bytes:
        return loop.stages * loop.stage_bytes
    if _main(loop) == "ldg" and loop.threads and loop.copy_bytes:
        return dict(loop.loads)["ldg"] * max(loop.copy_bytes) * loop.threads
    return None


def _first(loop: Mainloop, in_flight: int | None) -> tuple[str, int, tuple[str, ...]]:
    """What to try first, whether it is expected to gain, and the rules that say so."""
    main = _main(loop)
    if main is None:
        return "nothing: no loads from global memory are seen", 0, ()
    by_engine = main in _COPIED or main == "tma_gather"
    if loop.tensor_cores:
        if not by_engine:
            beside = (
                "cp_async_beside_tensor_cores" if main == "cp_async" else "plain_loads_beside_tensor_cores"
            )
            return (
                "TMA, one thread that copies: tensor cores lose nothing beside it",
                1,
                (
                    "tma_beside_tensor_cores",
                    beside,
                ),
            )
        if loop.stages and loop.stages < _STAGES:
            return (
                f"{_STAGES} stages: tensor cores wait with {loop.stages}",
                1,
                ("three_stages_for_tensor_cores",),
            )
        return (
            "nothing on the loads: TMA beside tensor cores costs them nothing",
            0,
            ("tma_beside_tensor_cores",),
        )
    if in_flight is None:
        return (
            f"see that {_ENOUGH_BYTES >> 10} KiB are in flight per SM: the code does not show it",
            0,
            ("enough_in_flight",),
        )
    if in_flight < _ENOUGH_BYTES:
        ids = ("enough_in_flight", "cp_async_with_little_in_flight")
        return (
            (f"more in flight, by stages, larger tiles or CTAs: {in_flight >> 10} KiB per SM are too little"),
            1,
            ids,
        )
    return (
        "nothing on the loads: enough is in flight for any mechanism",
        0,
        (
            "no_difference_beyond_64_kib",
            "plain_loads_keep_up",
        ),
    )


def _cited(ids: tuple[str, ...], gpu: str, root: Path) -> Iterator[CitedRule]:
    for row in Store(root).records("verdicts"):
        if row["gpu"] == gpu and row["rule"] in ids:
            yield CitedRule(
                row["rule"], row["statement"], row["outcome"], row["evidence"] or "", row["run_id"] or ""
            )


def _loads(loop: Mainloop) -> str:
    titles = {name: MECHANISMS[name].title for name in MECHANISMS} | {"tma_gather": "TMA gather4"}
    widths = f" of {', '.join(map(str, loop.copy_bytes))} B" if loop.copy_bytes else ""
    found = ", ".join(
        f"{count} {titles[name]}{widths if name in _BY_THREADS else ''}" for name, count in loop.loads
    )
    where = "in loops" if loop.in_loop else "in no loop"
    beside = ", beside tensor cores" if loop.tensor_cores else ""
    spills = f"; {loop.spills} stores of spilled registers" if loop.spills else ""
    return f"{found} {where}{beside}{spills}" if found else "none from global memory"


def _pipeline(loop: Mainloop, ctas: int, is_given: bool) -> str:
    parts = [
        f"{loop.stages} stage{'s' * (loop.stages > 1)}" if loop.stages else "stages not in the code",
        f"{loop.stage_bytes:,} B each" if loop.stage_bytes else "bytes of a stage not in the code",
    ]
    if loop.copies:
        parts.append(f"{loop.copies} copies for each")
    parts.append(
        f"{ctas} CTAs per SM{'' if is_given else ' at most, by what the code takes (--ctas-per-sm)'}"
    )
    return ", ".join(parts)


def _of_operand(
    loop: Mainloop, ctas: int, given: Mapping[str, object], gpu: str | None, root: Path
) -> tuple[Advice | None, str]:
    """The advisor's answer, with stages, rows and threads from the code where they are not given; or why none."""
    known = {"ctas_per_sm": min(ctas, 32), "stages": loop.stages, "threads": loop.threads}
    if "row_bytes" not in given:
        return None, ""
    if loop.stage_bytes:
        known["rows"] = max(1, loop.stage_bytes // (loop.copies or 1) // int(given["row_bytes"]))
    known = {name: value for name, value in known.items() if value is not None}
    try:
        return advise(Question(**known | dict(given)), gpu, root), ""
    except LabError as error:
        return None, str(error)


def describe(advice: CodeAdvice) -> str:
    """The advice in a few lines."""
    lines = [f"loads: {advice.loads}", f"pipeline: {advice.pipeline}"]
    if advice.bytes_in_flight:
        lines.append(f"in flight: {advice.bytes_in_flight >> 10} KiB per SM at most")
    lines += [f"not in the code: {what}" for what in advice.not_in_code]
    lines.append(f"try first: {advice.first}")
    lines += [f"rule {rule.id} ({rule.outcome}): {rule.statement} {rule.evidence}" for rule in advice.rules]
    if advice.operand:
        best = advice.operand.ranked[0]
        lines.append(
            f"operand: {advice.operand.choice}; {best.mechanism} {best.time_us:,.1f} us "
            f"[{best.low_us:,.1f}, {best.high_us:,.1f}] ({advice.operand.gpu})"
        )
    if advice.refused:
        lines.append(f"operand: {advice.refused}")
    return "".join(f"  {line}\n" for line in lines)
