"""What the stored rows of the GEMM study say: best kernels, the parts of a cluster's gain, the rule's regret."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import numpy as np
import pandas as pd

from labkernels.gemm.bench import LIBRARY
from labkernels.gemm.family import GemmKernel, find
from labkernels.gemm.rule import Choice, waves
from labkernels.gemm.shapes import SHAPES
from labkernels.stats import Ratio, bootstrap_ratio

Mnk = tuple[int, int, int]
SHAPE = ["m", "n", "k"]
CANDIDATE = ["dtype", *SHAPE, "kernel", "swizzle", "ctas"]
PARTS = ("residency", "quantization", "launch and order", "handshake", "multicast", "clock")
"""Where a cluster's gain or loss comes from, in the order in which the parts are taken out."""


class NotMeasured(LookupError):
    """The rows lack what is asked for; the message names it."""


def with_kernels(frame: pd.DataFrame, arch: str = "sm_90a") -> pd.DataFrame:
    """Rows of table `gemm` or `gemm_sustained` with what their kernels' names say, and the cycles of a launch.

    Args:
        frame: Rows of the table.
        arch: That the kernels were built for.

    Returns:
        The rows with `tile` and `cluster` (as in `128×256`), `transport`, `schedule`, `held_out`, `group`, `shape`
        and, where there is a duration, `cycles`.
    """
    known = {name: find(arch, name) for name in frame["kernel"].unique() if name != LIBRARY}
    shapes = {shape.mnk: shape for shape in SHAPES}
    of_row = [shapes.get(mnk) for mnk in zip(*(frame[c] for c in SHAPE), strict=True)]
    columns = {
        "tile": frame["kernel"].map(lambda name: _times(known[name].tile) if name in known else ""),
        "cluster": frame["kernel"].map(lambda name: _times(known[name].cluster) if name in known else ""),
        "transport": frame["kernel"].map(lambda name: _transport(known.get(name))),
        "schedule": frame["kernel"].map(lambda name: known[name].schedule if name in known else ""),
        "group": [shape.group if shape else "" for shape in of_row],
        "held_out": [bool(shape and shape.held_out) for shape in of_row],
        "shape": [label(mnk) for mnk in zip(*(frame[c] for c in SHAPE), strict=True)],
    }
    if "duration_us" in frame:
        columns["cycles"] = frame["duration_us"] * frame["sm_clock_mhz"]
    return frame.assign(**columns)


def label(mnk: Mnk) -> str:
    """`2048 × 2048 × 8192`, or `8192³`."""
    return f"{mnk[0]}³" if len(set(mnk)) == 1 else " × ".join(map(str, mnk))


def _times(pair: tuple[int, int]) -> str:
    return f"{pair[0]}×{pair[1]}"


def _transport(kernel: GemmKernel | None) -> str:
    if kernel is None:
        return LIBRARY
    return kernel.transport if kernel.cluster_size > 1 else "alone"


def resident(frame: pd.DataFrame) -> dict[int, int]:
    """SMs that clusters of each size kept on the GPU of some rows, as in {1: 132, 2: 132, 4: 120}."""
    rows = with_kernels(frame[frame["kernel"].ne(LIBRARY)])
    sizes = rows["cluster"].map(lambda text: int(np.prod([int(part) for part in text.split("×")])))
    return {int(size): int(count) for size, count in rows.groupby(sizes)["ctas"].max().items()}


def medians(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per candidate: medians of duration, cycles, clock, rate; the interval of cycles from p05 to p95.

    Args:
        frame: From `with_kernels`.
    """
    keep = ["tile", "cluster", "transport", "schedule", "group", "held_out", "shape", "gpu", "run_id"]
    groups = frame.groupby([*CANDIDATE, *keep], dropna=False, sort=False)
    table = groups[["duration_us", "cycles", "sm_clock_mhz", "tflops", "relative_error"]].median()
    spread = groups["cycles"].quantile([0.05, 0.95]).unstack()
    return table.assign(cycles_p05=spread[0.05], cycles_p95=spread[0.95], rounds=groups.size()).reset_index()


def own(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of kernels that CUTLASS offers, on all SMs that hold them: neither library nor controls."""
    whole = table["ctas"].eq(table.groupby(["kernel"])["ctas"].transform("max"))
    return table[table["transport"].isin(["multicast", "alone"]) & whole]


def over_library(frame: pd.DataFrame, dtype: str = "bf16") -> pd.DataFrame:
    """The quickest kernel of each shape against the library: time of the library over time of the kernel.

    Args:
        frame: From `with_kernels`.
        dtype: Of the operands.

    Returns:
        One row per shape: `ratio`, `low`, `high` (95 % of paired rounds), the kernel and its rate.
    """
    frame = frame[frame["dtype"].eq(dtype)]
    table = own(medians(frame))
    best = table.loc[table.groupby(SHAPE, sort=False)["duration_us"].idxmin()]
    rows = []
    for one in best.itertuples():
        library = _rounds(frame, (one.m, one.n, one.k), "duration_us", kernel=LIBRARY)
        mine = _rounds(
            frame, (one.m, one.n, one.k), "duration_us", kernel=one.kernel, swizzle=one.swizzle, ctas=one.ctas
        )
        rows.append(bootstrap_ratio(library, mine)._asdict())
    return pd.concat([best.reset_index(drop=True), pd.DataFrame(rows)], axis=1)


def _rounds(frame: pd.DataFrame, mnk: Mnk, column: str, **wanted: object) -> np.ndarray:
    """A column of one candidate's rounds, in their order."""
    same = np.logical_and.reduce(
        [frame[key].eq(value) for key, value in {**dict(zip(SHAPE, mnk, strict=True)), **wanted}.items()]
    )
    if not same.any():
        raise NotMeasured(f"no rows of {wanted} at {label(mnk)}")
    return frame[same].sort_values("round")[column].to_numpy()


class Part(NamedTuple):
    """One part of a cluster's effect: the factor by which it changes time, with its interval."""

    name: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Decomposition:
    """A cluster's effect against no cluster, same shape, tile, stages and swizzle.

    Attributes:
        parts: One for each name of PARTS; their product is the whole, up to the noise of medians.
        total: Time with the cluster over time without, from paired rounds.
    """

    parts: tuple[Part, ...]
    total: Ratio

    @property
    def unexplained(self) -> float:
        """Logarithm of the total that the parts leave out."""
        return log(self.total.ratio) - sum(log(part.ratio) for part in self.parts)

    @property
    def adds_up(self) -> bool:
        """Whether the parts give the measured difference within 20 %, or within its own interval."""
        noise = (log(self.total.high) - log(self.total.low)) / 2
        return abs(self.unexplained) <= max(0.2 * abs(log(self.total.ratio)), noise)


def decompose(
    frame: pd.DataFrame, mnk: Mnk, tile: tuple[int, int], cluster: tuple[int, int], swizzle: int
) -> Decomposition:
    """Take a cluster's effect apart, one variable at a time.

    Residency is what the SMs that clusters cannot fill would have done; quantization, what whole waves over padded
    tiles add to that: both are counted, not fitted. Launch and order is the rest of the way to the same cluster
    launch in which every CTA loads for itself. Handshake lets the CTAs that would share a load release slots
    together. Multicast shares the load. Clock is the SM clock, all else being in cycles.

    Args:
        frame: From `with_kernels`, with the controls of the shape.
        mnk: The shape.
        tile: Output rows and columns of a CTA.
        cluster: CTAs along M and N.
        swizzle: As in the rows.

    Raises:
        NotMeasured: A control is missing.
    """
    base = f"bf16_{tile[0]}x{tile[1]}"
    name = f"{base}_{cluster[0]}x{cluster[1]}"
    sms = resident(frame)

    def rounds(kernel: str, column: str) -> np.ndarray:
        size = cluster[0] * cluster[1] if kernel != f"{base}_1x1" else 1
        return _rounds(frame, mnk, column, kernel=kernel, swizzle=swizzle, ctas=sms[size])

    alone, independent = f"{base}_1x1", f"{name}_independent"
    one, many = Choice((1, 1), swizzle), Choice(cluster, swizzle)
    residency = sms[1] / sms[cluster[0] * cluster[1]]
    counted = waves(mnk, tile, many, sms) / waves(mnk, tile, one, sms)
    quantization = counted / residency
    launch = bootstrap_ratio(rounds(independent, "cycles"), rounds(alone, "cycles"))
    handshake = bootstrap_ratio(rounds(f"{name}_handshake", "cycles"), rounds(independent, "cycles"))
    multicast = bootstrap_ratio(rounds(name, "cycles"), rounds(f"{name}_handshake", "cycles"))
    clock = bootstrap_ratio(rounds(alone, "sm_clock_mhz"), rounds(name, "sm_clock_mhz"))
    parts = (
        Part("residency", residency, residency, residency),
        Part("quantization", quantization, quantization, quantization),
        Part("launch and order", *(value / counted for value in launch)),
        Part("handshake", *handshake),
        Part("multicast", *multicast),
        Part("clock", *clock),
    )
    return Decomposition(parts, bootstrap_ratio(rounds(name, "duration_us"), rounds(alone, "duration_us")))


Chooser = Callable[[Mnk, tuple[int, int], Mapping[int, int]], Choice]


def regrets(
    table: pd.DataFrame,
    choose: Chooser,
    sms: Mapping[int, int],
    *,
    by: str = "duration_us",
    held_out: bool = True,
) -> pd.DataFrame:
    """How much longer the chosen cluster and swizzle take than the best ones at the same shape and tile.

    Args:
        table: From `medians`.
        choose: A rule.
        sms: From `resident`.
        by: `duration_us`, or `cycles` for the same at equal clocks.
        held_out: Shapes that the rule was made without, or those it was made from.

    Returns:
        One row per shape and tile: the choice, the best, and `regret`, 1 at best.
    """
    candidates = own(
        table[table["dtype"].eq("bf16") & table["held_out"].eq(held_out) & table["group"].ne("ragged")]
    )
    rows = []
    for (m, n, k, tile), group in candidates.groupby([*SHAPE, "tile"], sort=False):
        choice = choose((m, n, k), tuple(int(part) for part in tile.split("×")), sms)
        taken = group[group["cluster"].eq(_times(choice.cluster)) & group["swizzle"].eq(choice.swizzle)]
        best = group.loc[group[by].idxmin()]
        rows.append(
            {
                "shape": best["shape"],
                "tile": tile,
                "chosen": f"{_times(choice.cluster)}, {choice.swizzle}",
                "best": f"{best['cluster']}, {best['swizzle']}",
                "regret": float(taken[by].iloc[0] / best[by]),
            }
        )
    return pd.DataFrame(rows)


def predicted_regrets(table: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """The same for nvidia-matmul-heuristics' first choice, at the better of our swizzles, where we have its kernel.

    Args:
        table: From `medians`.
        predicted: Table `gemm_predicted`.
    """
    candidates = own(table[table["dtype"].eq("bf16") & table["held_out"]])
    rows = []
    for one in predicted[predicted["rank"].eq(1)].itertuples():
        group = candidates[np.logical_and.reduce([candidates[key].eq(getattr(one, key)) for key in SHAPE])]
        group = group[group["tile"].eq(_times((one.tile_m, one.tile_n)))]
        taken = group[group["cluster"].eq(_times((one.cluster_m, one.cluster_n)))]
        if one.split_k == 1 and len(taken):
            chosen, regret = taken["cluster"].iloc[0], taken["duration_us"].min() / group["duration_us"].min()
            rows.append({"shape": taken["shape"].iloc[0], "chosen": chosen, "regret": float(regret)})
    return pd.DataFrame(rows)


class Best(NamedTuple):
    """A headline figure with its interval, the run it is from and what was measured."""

    value: float
    low: float
    high: float
    run_id: str
    what: str


def wgmma_bf16_tflops(frame: pd.DataFrame) -> Best:
    """The highest rate of any bf16 kernel of the study, in 10^12 floating-point operations a second.

    Args:
        frame: Rows of table `gemm`, of one run.
    """
    frame = with_kernels(frame[frame["dtype"].eq("bf16")])
    table = own(medians(frame))
    one = table.loc[table["tflops"].idxmax()]
    rounds = _rounds(
        frame, tuple(one[SHAPE]), "tflops", kernel=one["kernel"], swizzle=one["swizzle"], ctas=one["ctas"]
    )
    interval = bootstrap_ratio(rounds, np.full_like(rounds, one["tflops"]))
    return Best(
        float(one["tflops"]),
        interval.low * float(one["tflops"]),
        interval.high * float(one["tflops"]),
        str(one["run_id"]),
        f"{one['kernel']} at {one['shape']}",
    )


def gemm_best_over_library(frame: pd.DataFrame, least: int = 2048) -> Best:
    """Median over the large bf16 shapes of the library's time over the best kernel's; above 1 the kernel is quicker.

    Args:
        frame: Rows of table `gemm`, of one run.
        least: Extent that M, N and K all reach.
    """
    ratios = large(over_library(with_kernels(frame)), least)
    return Best(
        *(float(ratios[column].median()) for column in ("ratio", "low", "high")),
        str(ratios["run_id"].iloc[0]),
        f"{len(ratios)} shapes of at least {least} in all dimensions",
    )


def large(table: pd.DataFrame, least: int = 2048) -> pd.DataFrame:
    """Rows of shapes that are at least so large in all dimensions."""
    return table[table[SHAPE].min(axis=1).ge(least)]


def decompositions(
    frame: pd.DataFrame,
    shapes: Iterable[Mnk],
    tile: tuple[int, int],
    clusters: Iterable[tuple[int, int]],
    swizzle: int,
) -> pd.DataFrame:
    """`decompose` over shapes and clusters: one row for each part, changes in percent of the time without cluster."""
    rows = []
    for mnk in shapes:
        for cluster in clusters:
            found = decompose(frame, mnk, tile, cluster, swizzle)
            common = {
                "shape": label(mnk),
                "tile": _times(tile),
                "cluster": _times(cluster),
                "swizzle": swizzle,
                "total": found.total.ratio,
                "total_low": found.total.low,
                "total_high": found.total.high,
                "adds_up": found.adds_up,
            }
            rows += [
                {**common, **part._asdict(), "log_percent": 100 * log(part.ratio)} for part in found.parts
            ]
    return pd.DataFrame(rows).rename(columns={"name": "part"})
