"""What was measured, as the model sees it: pipelines of one CTA and of clusters, each with its form and its slots."""

from collections.abc import Iterable, Mapping
from itertools import product

import pandas as pd

from labkernels.model.closed_form import (
    CROSSING,
    MULTISTAGE,
    SHARES,
    SPECIALIZED,
    UNICAST,
    WARPS,
    Constants,
    Load,
    gbps,
)
from labkernels.operand import LONGEST_ROW_BYTES
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.cluster_rows import IN_STEP, PLAIN, RATE
from labkernels.studies.crossover.plain_loads import PAST_L1
from labkernels.studies.stats import having, spread

#: What tells the formulas of two configurations apart, and their numbers.
KIND = ["mechanism", "variant", "pipeline", "source", "fan_out", "is_dense"]
NUMBERS = ["tile_bytes", "row_bytes", "tiles_in_flight", "ctas_per_sm", "threads", "warps", "barriers"]
LOAD = [*NUMBERS, "pipeline", "source", "fan_out", "is_dense"]
#: What rivals for one place have in common: shared memory, CTAs and the operand.
CELL = ["experiment", "source", "tile_bytes", "row_bytes", "is_dense", "slots", "ctas_per_sm", "fan_out"]
TABLE = ["experiment", "run_id", "mechanism", "variant", *LOAD, "slots", "p05", "median", "p95"]

#: Experiments that constants are fitted to or read off.
EXPERIMENTS = (
    "pipelines", "plain_loads", "row_shape", "multicast_fair", "short_kernels", "issue", "issue_inline", "handover",
    "l2_footprint",
)  # fmt: skip
#: Those of them with loads side by side.
LOADS = ("pipelines", "plain_loads", "row_shape", "multicast_fair")

#: Streams of `row_shape`, by mechanism and variant.
STREAMS = (("cp_async", "group"), ("tma_tile", "2d"), ("tma_tile", "3d"))
#: And pipelines of clusters, by mechanism and share.
PIPELINES = (*product(["tma_tile"], UNICAST), *product(CROSSING, SHARES))

Frames = Mapping[str, pd.DataFrame]


def frames(store: Store, gpu: str, experiments: Iterable[str] = EXPERIMENTS) -> dict[str, pd.DataFrame]:
    """Rows of the newest run of each experiment on a GPU.

    Raises:
        NotMeasured: there are none of one of them; the message says how to measure.
    """
    return {name: select.require_rows(store, name, gpu) for name in experiments}


def _among(frame: pd.DataFrame, kind: str, chosen: Iterable[tuple[str, str]]) -> pd.Series:
    """Which rows are of one of the chosen pairs of mechanism and `kind` (variant or share)."""
    return pd.MultiIndex.from_frame(frame[["mechanism", kind]]).isin(list(chosen))


def left_out(rows: Frames) -> list[str]:
    """Mechanisms that were measured side by side with the model's, and that it is not of."""
    known = {name for name, _ in (*STREAMS, *PIPELINES)} | {"tma_bulk", "ldg"}
    return sorted(
        {name for key in {*LOADS, "handover"} & set(rows) for name in set(rows[key]["mechanism"])} - known
    )


def contiguous(frame: pd.DataFrame, experiment: str, start_us: Mapping[str, float]) -> pd.DataFrame:
    """Rows of `pipelines`, `plain_loads` or `short_kernels` as configurations: columns `TABLE`.

    Of cp.async those that prefetch 128 bytes, of plain loads those past L1 with one set of registers, as best forms
    are; from L2 those of which every block has tiles of its own.

    Args:
        frame: the rows.
        experiment: whose.
        start_us: what a launch takes besides, by source: not a matter of the rate.
    """
    best = frame["prefetch"].eq("none") == ~frame["mechanism"].eq("cp_async")
    if "policy" in frame:
        best &= frame["policy"].eq(PAST_L1) & frame["sets"].eq(1)
    own = frame["order"].eq("own") | frame["source"].eq("hbm")
    frame = frame[best & own & frame["destination"].eq("shared")]
    steady = frame["duration_us"] - frame["source"].map(start_us)
    rate = frame["bytes_moved"] / steady / 1e3
    together = frame["share"].eq("together")
    staged = frame["pipeline"].eq(MULTISTAGE)
    flight = frame["bytes_in_flight_per_sm"] // frame["tile_bytes"] // frame["ctas_per_sm"]
    frame = frame.assign(
        gbps=rate,
        slots=frame["stages"],
        tiles_in_flight=flight,
        barriers=1 + (staged & frame["stages"].eq(flight)),
        warps=frame["consumer_warps"].where(~staged, 1),
        threads=32 * frame["producer_warps"].where(together, 1),
        pipeline=frame["pipeline"].where(staged, SPECIALIZED),
        variant="",
        row_bytes=frame["tile_bytes"].clip(upper=LONGEST_ROW_BYTES),
        is_dense=True,
        fan_out=1,
    )
    frame = frame[
        staged | ~together
    ]  # several warps for one tile: no faster than in turns, and no form of their own
    by = ["run_id", "mechanism", "variant", *LOAD, "slots"]
    return spread(frame, by, "gbps").assign(experiment=experiment)[TABLE]


def shapes(frame: pd.DataFrame, start_us: Mapping[str, float]) -> pd.DataFrame:
    """Rows of `row_shape` as configurations, as the advisor has them: short rows are promoted to 128 bytes."""
    frame = frame[_among(frame, "variant", STREAMS) & frame["swizzle"].eq("none")]
    promoted = frame["inner_bytes"].lt(128) * 128
    frame = frame[frame["mechanism"].ne("tma_tile") | frame["l2_promotion_bytes"].eq(promoted)]
    staged = frame["mechanism"].eq("cp_async")
    frame = frame.assign(
        gbps=frame["bytes_moved"] / (frame["duration_us"] - frame["source"].map(start_us)) / 1e3,
        tiles_in_flight=frame["bytes_in_flight_per_sm"] // frame["tile_bytes"] // frame["ctas_per_sm"],
        slots=frame["stages"].where(
            ~staged, frame["stages"] - 1
        ),  # one more slot was no matter of the question
        pipeline=staged.map({True: MULTISTAGE, False: SPECIALIZED}),
        warps=1,
        barriers=1,
        variant="",
        row_bytes=frame["inner_bytes"],
        is_dense=frame["inner_bytes"].eq(frame["pitch_bytes"]),
        fan_out=1,
    )
    by = ["run_id", "mechanism", "variant", *LOAD, "slots"]
    return spread(frame, by, "gbps").assign(experiment="row_shape")[TABLE]


def pipelines(frame: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Pipelines of clusters, every share by itself (`variant`), of `multicast_fair`, `broadcast` or `handover`.

    Rates are from the blocks' own clocks: a launch takes some microseconds more, and is short in `broadcast`.
    """
    in_step = having(frame, **{name: PLAIN[name] for name in ("scope", "arrivers", *IN_STEP)})
    frame = in_step[
        _among(in_step, "share", PIPELINES)
        & in_step["fan_out"].gt(1)
        & in_step["producers"].eq(in_step["consumers"])
        & in_step["producers"].isin(WARPS)
        & (
            in_step["producers"].eq(1)
            | ~(in_step["mechanism"].isin(CROSSING) & in_step["share"].eq(SHARES[0]))
        )
    ]
    frame = frame.assign(
        gbps=frame[RATE] * frame["ctas"] * frame["sm_clock_mhz_median"] / 1e3,
        variant=frame["share"],
        warps=frame["producers"],
        tiles_in_flight=frame["stages"],
        slots=frame["stages"],
        row_bytes=frame["tile_bytes"].clip(upper=LONGEST_ROW_BYTES),
        is_dense=True,
        ctas_per_sm=1,
        threads=32,
        pipeline=SPECIALIZED,
        barriers=1,
    )
    by = ["run_id", "mechanism", "variant", *LOAD, "slots"]
    return spread(frame, by, "gbps").assign(experiment=experiment)[TABLE]


def configurations(rows: Frames, start_us: Mapping[str, float]) -> pd.DataFrame:
    """The microbenchmarks' configurations of loads from global memory: columns `TABLE`.

    Args:
        rows: of `frames`, of `LOADS` at least.
        start_us: see `contiguous`.
    """
    parts = [
        contiguous(rows["pipelines"], "pipelines", start_us),
        contiguous(rows["plain_loads"], "plain_loads", start_us),
        shapes(rows["row_shape"], start_us),
        pipelines(rows["multicast_fair"], "multicast_fair"),
    ]
    return pd.concat(parts, ignore_index=True)


def load_of(row: object) -> Load:
    """The model's view of one configuration (a named tuple with the columns `LOAD`)."""
    return Load(**{name: getattr(row, name) for name in LOAD})


def groups(table: pd.DataFrame) -> Iterable[tuple[str, Load, str, pd.Index]]:
    """Configurations whose formulas are the same: mechanism, an operand of arrays, share, and the rows' index."""
    for kind, rows in table.groupby(KIND, sort=False):
        said = dict(zip(KIND, kind, strict=True))
        numbers = {name: rows[name].to_numpy(float) for name in NUMBERS}
        same = {name: said[name] for name in ("pipeline", "source", "fan_out", "is_dense")}
        yield said["mechanism"], Load(**numbers, **same), said["variant"], rows.index


def predicted(table: pd.DataFrame, of: Constants) -> pd.DataFrame:
    """Configurations with `predicted_gbps`, and `ratio`: measured cycles over predicted."""
    rate = pd.Series(0.0, index=table.index)
    for mechanism, load, share, index in groups(table):
        rate[index] = gbps(mechanism, load, of, share)
    return table.assign(predicted_gbps=rate, ratio=rate / table["median"])
