"""What the stored rows of the GEMM study say: best kernels, the parts of a cluster's gain, the rule's regret."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from math import ceil, log
from typing import NamedTuple

import numpy as np
import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.operand import GIB
from labkernels.studies.gemm.bench import LIBRARY
from labkernels.studies.gemm.family import ARCHES, CLUSTERS, GemmKernel, family
from labkernels.studies.gemm.heuristic import OTHERS, Choice, choose, scheduled_tiles, waves
from labkernels.studies.gemm.shapes import SHAPES
from labkernels.studies.stats import Measured, Ratio, bootstrap_ratio, having, measured, where

Mnk = tuple[int, int, int]
SHAPE = ["m", "n", "k"]
CANDIDATE = ["dtype", *SHAPE, "kernel", "swizzle", "ctas"]
PARTS = (
    "cluster occupancy",
    "quantization",
    "launch and order",
    "cluster-wide release",
    "multicast",
    "clock",
)
"""Where a cluster's gain or loss comes from, in the order in which the parts are taken out."""


def with_kernels(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of table `gemm` or `gemm_sustained` with what their kernels' names say, and the cycles of a launch.

    Args:
        frame: Rows of the table, of one architecture.

    Returns:
        The rows with `tile` and `cluster` (as in `128×256`), `cluster_size`, `transport`, `schedule`, `held_out`,
        `group`, `shape` and, where there is a duration, `cycles`.
    """
    kernels = {LIBRARY: ("", "", 0, LIBRARY, "")} | {
        name: (_times(one.tile), _times(one.cluster), one.cluster_size, _transport(one), one.schedule)
        for name, one in _kernels(set(frame["kernel"]) - {LIBRARY}).items()
    }
    shapes = {mnk: ("", False, label(mnk)) for mnk in frame[SHAPE].itertuples(index=False, name=None)} | {
        shape.mnk: (shape.group, shape.held_out, label(shape.mnk)) for shape in SHAPES
    }
    of_kernel = ["tile", "cluster", "cluster_size", "transport", "schedule"]
    rows = frame.join(pd.DataFrame(kernels, index=of_kernel).T, on="kernel")
    rows = rows.join(pd.DataFrame(shapes, index=["group", "held_out", "shape"]).T, on=SHAPE)
    rows = rows.astype({"cluster_size": int, "held_out": bool})
    return rows.assign(cycles=rows["duration_us"] * rows["sm_clock_mhz"]) if "duration_us" in rows else rows


def _kernels(names: set[str]) -> dict[str, GemmKernel]:
    """The kernels of the first architecture that has all these names."""
    for arch in ARCHES:
        known = {kernel.name: kernel for kernel in family(arch)}
        if names <= known.keys():
            return {name: known[name] for name in names}
    raise ValueError(f"no architecture has the GEMM kernels {', '.join(sorted(names))}")


def label(mnk: Mnk) -> str:
    """`2048 × 2048 × 8192`, or `8192³`."""
    return f"{mnk[0]}³" if len(set(mnk)) == 1 else " × ".join(map(str, mnk))


def _times(pair: tuple[int, int]) -> str:
    return f"{pair[0]}×{pair[1]}"


def _transport(kernel: GemmKernel) -> str:
    return kernel.transport if kernel.cluster_size > 1 else "alone"


def resident(frame: pd.DataFrame) -> dict[int, int]:
    """SMs that clusters of each size kept, as in {1: 132, 2: 132, 4: 120}, from rows of `with_kernels`."""
    rows = frame[frame["kernel"].ne(LIBRARY)]
    return {int(size): int(count) for size, count in rows.groupby("cluster_size")["ctas"].max().items()}


class Rounds:
    """Rows of one run of table `gemm`, found by candidate.

    Args:
        frame: From `with_kernels`.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        self.resident = resident(frame)
        self._ordered = ordered = frame.sort_values("round")
        by = ["dtype", *SHAPE, "kernel", ordered["swizzle"].fillna(0), ordered["ctas"].fillna(0)]
        self._at = ordered.groupby(by).indices

    def of(
        self, mnk: Mnk, kernel: str, column: str, swizzle: int = 0, ctas: int = 0, dtype: str = "bf16"
    ) -> np.ndarray:
        """A column of one candidate's rounds, in their order; the library has neither swizzle nor CTAs.

        Raises:
            NotMeasured: There are none.
        """
        if (key := (dtype, *mnk, kernel, swizzle, ctas)) not in self._at:
            raise NotMeasured(f"no rows of {kernel} with swizzle {swizzle} on {ctas} SMs at {label(mnk)}")
        return self._ordered[column].to_numpy()[self._at[key]]

    def sms(self, cluster_size: int) -> int:
        """SMs that clusters of a size kept.

        Raises:
            NotMeasured: There are no clusters of that size.
        """
        if cluster_size not in self.resident:
            raise NotMeasured(f"no rows of clusters of {cluster_size}")
        return self.resident[cluster_size]


def medians(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per candidate: medians of duration, cycles, clock, rate and error.

    Args:
        frame: From `with_kernels`.
    """
    by = [
        *CANDIDATE,
        "tile",
        "cluster",
        "transport",
        "schedule",
        "group",
        "held_out",
        "shape",
        "gpu",
        "run_id",
    ]
    groups = frame.groupby(by, dropna=False, sort=False)
    columns = ["duration_us", "cycles", "sm_clock_mhz", "tflops", "relative_error"]
    return groups[columns].median().reset_index()


def own(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of kernels that CUTLASS offers, on all SMs that hold them: neither library nor controls."""
    whole = table["ctas"].eq(table.groupby(["kernel"])["ctas"].transform("max"))
    return table[table["transport"].isin(["multicast", "alone"]) & whole]


def over_library(rounds: Rounds, dtype: str = "bf16") -> pd.DataFrame:
    """The quickest kernel of each shape against the library: time of the library over time of the kernel.

    Args:
        rounds: Of one run.
        dtype: Of the operands.

    Returns:
        One row per shape: `ratio`, `low`, `high` (95% of paired rounds), the kernel and its rate.
    """
    table = own(medians(where(rounds.frame, dtype=dtype)))
    best = table.loc[table.groupby(SHAPE, sort=False)["duration_us"].idxmin()].reset_index(drop=True)
    ratios = []
    for one in best.itertuples():
        mnk = (one.m, one.n, one.k)
        mine = rounds.of(mnk, one.kernel, "duration_us", one.swizzle, one.ctas, dtype)
        theirs = rounds.of(mnk, LIBRARY, "duration_us", dtype=dtype)
        ratios.append(bootstrap_ratio(theirs, mine)._asdict())
    return pd.concat([best, pd.DataFrame(ratios)], axis=1)


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
        """Whether the parts give the measured difference within 20%, or within its own interval."""
        noise = (log(self.total.high) - log(self.total.low)) / 2
        return abs(self.unexplained) <= max(0.2 * abs(log(self.total.ratio)), noise)


def decompose(
    rounds: Rounds, mnk: Mnk, tile: tuple[int, int], cluster: tuple[int, int], swizzle: int
) -> Decomposition:
    """Take a cluster's effect apart, one variable at a time.

    Cluster occupancy is what the SMs that clusters cannot fill would have done; quantization, what whole waves over
    padded tiles add to that: both are counted, not fitted. Launch and order is the rest of the difference to the same
    cluster launch in which every CTA loads its own tiles (unicast). Cluster-wide release makes a stage wait for the
    consumers of all CTAs that would share its load. Multicast shares the load. Clock is the SM clock, all else being
    in cycles.

    Args:
        rounds: Of one run, with the controls of the shape.
        mnk: The shape.
        tile: Output rows and columns of a CTA.
        cluster: CTAs along M and N.
        swizzle: As in the rows.

    Raises:
        NotMeasured: A control is missing.
    """
    base = f"bf16_{tile[0]}x{tile[1]}"
    name = f"{base}_{cluster[0]}x{cluster[1]}"
    size = cluster[0] * cluster[1]

    def of(kernel: str, column: str) -> np.ndarray:
        return rounds.of(mnk, kernel, column, swizzle, rounds.sms(size if kernel != alone else 1))

    alone, independent = f"{base}_1x1", f"{name}_independent"
    one, many = Choice((1, 1), swizzle), Choice(cluster, swizzle)
    occupancy = rounds.sms(1) / rounds.sms(size)
    counted = waves(mnk, tile, many, rounds.resident) / waves(mnk, tile, one, rounds.resident)
    quantization = counted / occupancy
    launch = bootstrap_ratio(of(independent, "cycles"), of(alone, "cycles"))
    release = bootstrap_ratio(of(f"{name}_handshake", "cycles"), of(independent, "cycles"))
    multicast = bootstrap_ratio(of(name, "cycles"), of(f"{name}_handshake", "cycles"))
    clock = bootstrap_ratio(of(alone, "sm_clock_mhz"), of(name, "sm_clock_mhz"))
    ratios = (
        (occupancy, occupancy, occupancy),
        (quantization, quantization, quantization),
        tuple(value / counted for value in launch),
        release,
        multicast,
        clock,
    )
    parts = tuple(Part(part, *ratio) for part, ratio in zip(PARTS, ratios, strict=True))
    return Decomposition(parts, bootstrap_ratio(of(name, "duration_us"), of(alone, "duration_us")))


Chooser = Callable[[Mnk, tuple[int, int], Mapping[int, int]], Choice]


def regrets(
    table: pd.DataFrame, choose: Chooser, sms: Mapping[int, int], *, by: str = "duration_us"
) -> pd.DataFrame:
    """How much longer the chosen cluster and swizzle take than the best ones at the same shape and tile.

    Args:
        table: From `medians`; of held-out shapes, for a fair judgement.
        choose: A rule.
        sms: From `resident`.
        by: `duration_us`, or `cycles` for the same at equal clocks.

    Returns:
        One row per shape and tile that has all clusters: the choice, the best, and `regret`, 1 at best.
    """
    candidates = own(table[table["dtype"].eq("bf16")])
    rows = []
    for (m, n, k, tile), group in candidates.groupby([*SHAPE, "tile"], sort=False):
        if not {_times(cluster) for cluster in CLUSTERS} <= set(group["cluster"]):
            continue
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
    candidates = own(table[table["dtype"].eq("bf16")])
    rows = []
    for one in predicted[predicted["rank"].eq(1)].itertuples():
        group = candidates[np.logical_and.reduce([candidates[key].eq(getattr(one, key)) for key in SHAPE])]
        group = group[group["tile"].eq(_times((one.tile_m, one.tile_n)))]
        taken = group[group["cluster"].eq(_times((one.cluster_m, one.cluster_n)))]
        if one.split_k == 1 and len(taken):
            chosen, regret = taken["cluster"].iloc[0], taken["duration_us"].min() / group["duration_us"].min()
            rows.append({"shape": taken["shape"].iloc[0], "chosen": chosen, "regret": float(regret)})
    return pd.DataFrame(rows)


def fastest_bf16(table: pd.DataFrame) -> pd.Series:
    """The kernel and shape with the highest rate of all bf16 kernels of the study.

    Args:
        table: From `medians`.

    Raises:
        NotMeasured: It has no bf16 kernel.
    """
    table = own(where(table, dtype="bf16"))
    return table.loc[table["tflops"].idxmax()]


def wgmma_bf16_tflops(frame: pd.DataFrame) -> Measured:
    """The rate of `fastest_bf16` in 10^12 floating-point operations a second.

    Args:
        frame: Rows of table `gemm`, of one run.
    """
    rounds = Rounds(with_kernels(frame))
    one = fastest_bf16(medians(rounds.frame))
    return measured(rounds.of(tuple(one[SHAPE]), one["kernel"], "tflops", one["swizzle"], one["ctas"]))


def gemm_best_over_library(frame: pd.DataFrame, least: int = 2048) -> Measured:
    """Median over the large bf16 shapes of the library's time over the best kernel's; above 1 the kernel is quicker.

    Args:
        frame: Rows of table `gemm`, of one run.
        least: Extent that M, N and K all reach.

    Raises:
        NotMeasured: It has no such shape.
    """
    ratios = large(over_library(Rounds(with_kernels(frame))), least)
    if ratios.empty:
        raise NotMeasured(f"no bf16 shape of at least {least} in all dimensions")
    return Measured(*(float(ratios[column].median()) for column in ("ratio", "low", "high")))


def large(table: pd.DataFrame, least: int = 2048) -> pd.DataFrame:
    """Rows of shapes that are at least so large in all dimensions."""
    return table[table[SHAPE].min(axis=1).ge(least)]


def decompositions(
    rounds: Rounds,
    shapes: Iterable[Mnk],
    tile: tuple[int, int],
    clusters: Iterable[tuple[int, int]],
    swizzle: int,
) -> pd.DataFrame:
    """`decompose` over shapes and clusters: one row for each part, changes in percent of the time without cluster."""
    rows = []
    for mnk in shapes:
        for cluster in clusters:
            found = decompose(rounds, mnk, tile, cluster, swizzle)
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


CONTROLLED_TILES = ((128, 128), (128, 256))


def multicast_shares(rounds: Rounds) -> pd.DataFrame:
    """What multicast alone changes, wherever it was switched off and the scheduler padded nothing.

    Args:
        rounds: Of one run.

    Returns:
        One row per shape, tile, cluster and swizzle: factor `ratio` on the cycles with its interval, the factor of the
        whole cluster on time (`total`), whether the parts add up to it, and `least`, the smallest extent.

    Raises:
        NotMeasured: It was not switched off at all, or a control is missing.
    """
    frame = rounds.frame
    controlled = frame[frame["transport"].eq("independent")]
    shapes = list(dict.fromkeys(controlled[SHAPE].itertuples(index=False, name=None)))
    rows = []
    for mnk, tile, cluster, swizzle in product(
        shapes, CONTROLLED_TILES, CLUSTERS[1:], sorted(controlled["swizzle"].unique())
    ):
        if scheduled_tiles(mnk, tile, cluster, swizzle) > ceil(mnk[0] / tile[0]) * ceil(mnk[1] / tile[1]):
            continue
        found = decompose(rounds, mnk, tile, cluster, swizzle)
        case = {
            "shape": label(mnk),
            "tile": _times(tile),
            "cluster": _times(cluster),
            "swizzle": int(swizzle),
        }
        share = found.parts[PARTS.index("multicast")]._asdict()
        rows.append(
            {**case, **share, "total": found.total.ratio, "adds_up": found.adds_up, "least": min(mnk)}
            | {"mnk": mnk, "run_id": frame["run_id"].iloc[0]}
        )
    if not rows:
        raise NotMeasured("multicast was not switched off at any shape")
    return pd.DataFrame(rows).drop(columns="name").sort_values("least", ascending=False, kind="stable")


def cluster_effect(table: pd.DataFrame, tile: tuple[int, int]) -> pd.DataFrame:
    """Cycles of CUTLASS's kernels of one tile over those of no cluster at the default order, by cluster and swizzle.

    Args:
        table: From `medians`.
        tile: Output rows and columns of a CTA.
    """
    rows = own(table[table["tile"].eq(_times(tile)) & table["dtype"].eq("bf16")])
    alone = rows[rows["transport"].eq("alone") & rows["swizzle"].eq(1)].set_index("shape")["cycles"]
    return rows.assign(ratio=rows["cycles"] / rows["shape"].map(alone))


def settled(table: pd.DataFrame, clock: str = "sm_clock_mhz") -> pd.DataFrame:
    """Medians of `gemm_sustained` by kernel: cycles of a product, clock with its range, power, rate.

    Args:
        table: From `with_kernels`.
        clock: Column of the clock.
    """
    rows = table.assign(megacycles=table["seconds"] / table["launches"] * table[clock])
    groups = rows.groupby(["kernel", "transport", "shape", "gpu", "run_id"], sort=False)
    found = groups[["megacycles", clock, "power_w", "tflops"]].median()
    return (
        found.assign(clock_low=groups[clock].min(), clock_high=groups[clock].max())
        .reset_index()
        .sort_values("kernel")
    )


COUNTERS = {
    "sm_read_bytes": "into the SMs",
    "l2_read_bytes": "read in L2",
    "dram_read_bytes": "read from memory",
}


def traffic(counters: pd.DataFrame) -> pd.DataFrame:
    """Bytes of one product by counter, for no cluster and the two pairs of the 128 × 128 tile.

    Args:
        counters: Rows of one run of `gemm_traffic`, from `with_kernels`.

    Returns:
        A row per kernel, order and counter: `counter`, `what` it counts, `bytes`, `gib` and `order`.
    """
    rows = counters[counters["tile"].eq("128×128") & counters["cluster"].isin(["1×1", "2×1", "1×2"])]
    table = rows.melt(
        ["tile", "cluster", "transport", "swizzle", "run_id"],
        list(COUNTERS),
        var_name="counter",
        value_name="bytes",
    )
    order = table["swizzle"].map({1: "default order", 8: "swizzle 8"})
    return table.assign(what=table["counter"].map(COUNTERS), gib=table["bytes"] / GIB, order=order)


def rows_inside_a_tile(table: pd.DataFrame, resident: Mapping[int, int]) -> pd.DataFrame:
    """Decode products of the widest B by rows of A inside a 128 × 128 tile: no cluster, 1×4, and the library.

    Args:
        table: From `medians`.
        resident: SMs that clusters of a size keep.
    """
    scan = having(table, n=28672, k=8192, dtype="bf16")
    scan = scan[scan["m"].le(128)]
    ours = having(scan, tile="128×128", swizzle=1)
    ours = ours[ours["ctas"].eq(ours["cluster"].map({"1×1": resident[1], "1×4": resident[4]}))]
    return pd.concat([ours, having(scan, transport="library")])


THIS_RULE = "this rule"


def regret_by_rule(held: pd.DataFrame, resident: Mapping[int, int]) -> pd.DataFrame:
    """Regrets of our rule and of others, ascending for each, with the `share` of cases that are no worse.

    Args:
        held: From `medians`, shapes that the rule was made without.
        resident: SMs that clusters of a size keep.
    """
    parts = []
    for name, choose_cluster in ({THIS_RULE: choose} | OTHERS).items():
        part = regrets(held, choose_cluster, resident).assign(rule=name).sort_values("regret")
        parts.append(part.assign(share=np.arange(1, len(part) + 1) / len(part)))
    return pd.concat(parts)
