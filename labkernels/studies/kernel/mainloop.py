"""How fast do tensor cores, or FFMA, go beside each way to bring their tiles?"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from labkernels.device import Gpu
from labkernels.kernels.registry import KernelSpec, kernels
from labkernels.legality import SHARED_BYTES_PER_CTA
from labkernels.operand import KIB
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.mainloop import (
    LAP,
    STEP_BYTES,
    USUAL_BYTES,
    MainLoop,
    MainLoopConfiguration,
    Operands,
)
from labkernels.protocols.rounds import timed_rounds


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        tiles: rows of A and of B that a CTA multiplies.
        stages: of the pipeline, where shared memory holds them.
        sources: of the tiles.
        laps: products of a timed launch, each of `LAP` steps along K.
        rounds: timed launches of each.
    """

    tiles: tuple[tuple[int, int], ...] = ((128, 128), (128, 256), (256, 128))
    stages: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    sources: tuple[str, ...] = ("l2", "hbm")
    laps: int = 64
    rounds: int = 9


PRESETS = {
    "quick": Parameters(tiles=((128, 128),), stages=(4, 6), sources=("l2",), rounds=5),
    "full": Parameters(),
}


def fits(configuration: MainLoopConfiguration) -> bool:
    """Whether a CTA's shared memory holds the stages, and the kernel's producers can take turns over them."""
    stages = configuration.stages
    held = stages * configuration.stage_bytes + 3 * KIB <= SHARED_BYTES_PER_CTA
    return held and stages >= configuration.least_stages and stages % configuration.turns == 0


def is_plain(spec: KernelSpec) -> bool:
    """Whether it is of those that are measured at every depth: tensor cores, 128-byte swizzle, registers moved."""
    of = dict(spec.constants)
    usual = {"compute": "wgmma", "work": 0, "span": 128}.items() <= of.items()
    return usual and spec.moves_registers and of.get("pitch_bytes", 4096) == 4096


#: Best form of each way to bring tiles, and of none.
FORMS = (
    ("tma_tile", {"copies": "first"}),
    ("tma_tile", {"copies": "all"}),
    ("tma_multicast", {}),
    ("cp_async", {"producers": 4, "handover": "mbarrier", "pitch_bytes": 4096}),
    ("ldg", {}),
)


def is_contestant(spec: KernelSpec, tile: tuple[int, int]) -> bool:
    """Whether a kernel is of the best form of its mechanism, with any consumer but FFMA.

    Plain loads take as many warps as the registers of the tile leave, in turns where they do.
    """
    of, (m, n) = dict(spec.constants), tile
    plain = {"m": m, "n": n, "span": 128}
    loads = {"producers": 4 if n > m else 8, "turns": 2 if m == n else 1}
    return spec.moves_registers and any(
        spec.mechanism == mechanism
        and (plain | form | (loads if mechanism == "ldg" else {})).items() <= of.items()
        for mechanism, form in FORMS
    )


def contest(tile: tuple[int, int], data: str = "random") -> Iterator[MainLoopConfiguration]:
    """Each way to bring tiles to tensor cores in its best form, and none, with the same stages."""
    stages = USUAL_BYTES // (sum(tile) * STEP_BYTES)
    for mechanism, form in FORMS:
        for spec in kernels(mechanism, "mainloop"):
            of = dict(spec.constants)
            usual = is_contestant(spec, tile) and (of["compute"], of["work"]) == ("wgmma", 0)
            if usual and form.items() <= of.items():
                yield MainLoopConfiguration(spec, stages, data=data)


def configurations(parameters: Parameters) -> Iterator[MainLoopConfiguration]:
    """Every kernel in a pipeline of 192 KiB; plain ones at every depth, from both sources; some with one change."""
    for spec in kernels(protocol="mainloop"):
        of = dict(spec.constants)
        if (of["m"], of["n"]) not in parameters.tiles:
            continue
        for stages in parameters.stages:
            one = MainLoopConfiguration(spec, stages)
            if not fits(one) or not (is_plain(spec) or one.is_usual):
                continue
            yield one
            if is_plain(spec) and not one.is_alone and "hbm" in parameters.sources:
                yield replace(one, source="hbm")
    for one in contest((128, 128)):
        yield replace(one, data="zeros")
    for spec in kernels(protocol="mainloop"):
        if is_contestant(spec, (128, 128)) and not spec.traits.crosses_ctas:
            yield replace(MainLoopConfiguration(spec, USUAL_BYTES // (256 * STEP_BYTES)), is_one_tile=True)


def in_rounds(
    gpu: Gpu,
    chosen: Iterable[MainLoopConfiguration],
    once: Callable[[MainLoop], dict[str, Any]],
    rounds: int,
    table: str,
    progress: Progress,
) -> Result:
    """All are checked; then each gives a row of the table in every round."""
    chosen = list(chosen)
    memory = Operands(chosen, gpu.facts.sm_count)
    ready = [MainLoop(gpu, one, memory) for one in chosen]
    for one in progress(ready, "check"):
        one.check()
    rows = timed_rounds(ready, once, rounds, progress)
    for one in ready:
        one.require_arrived()
        one.close()
    memory.close()
    return Result({table: rows}, [one.kernel for one in ready])


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Time every configuration; see `Parameters`."""

    def once(one: MainLoop) -> dict[str, Any]:
        one.launch(2 * LAP)  # what is to be in L2 is
        return one.timed(parameters.laps * LAP)

    return in_rounds(gpu, configurations(parameters), once, parameters.rounds, "mainloop", progress)


EXPERIMENT = Experiment(
    "mainloop",
    "How fast do tensor cores, or FFMA, go beside each way to bring their tiles?",
    ("mainloop",),
    PRESETS,
    measure,
    needs(Gpu),
)
