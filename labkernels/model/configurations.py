"""What was measured, as the model sees it: configurations of streams and pipelines, fitted ones and those held out."""

import hashlib
from collections.abc import Iterable, Mapping
from itertools import product

import pandas as pd

from labkernels.model.closed_form import ALONE, CROSSING, SHARES, UNICAST, Constants, Load, predict
from labkernels.operand import LONGEST_ROW_BYTES
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.cluster_rows import PLAIN, RATE
from labkernels.studies.stats import having, spread

HELD_OUT_OF = 3  # every third cell, by its hash
LOAD = [
    "tile_bytes",
    "row_bytes",
    "is_dense",
    "tiles_in_flight",
    "ctas_per_sm",
    "threads",
    "source",
    "fan_out",
]
CELL = ["source", "tile_bytes", "row_bytes", "is_dense", "tiles_in_flight", "ctas_per_sm", "fan_out"]
TABLE = [
    "experiment",
    "run_id",
    "mechanism",
    "variant",
    *LOAD,
    "p05",
    "median",
    "p95",
]

#: Experiments that constants are fitted to or read off.
EXPERIMENTS = ("throughput", "row_shape", "multicast_fair", "issue", "handover")

#: What the model is of among streams, by mechanism and variant: cp.async by groups and plain loads, as in the rules.
STREAMS = (("ldg", "nc"), ("cp_async", "group"), ("tma_bulk", ""), ("tma_tile", "2d"), ("tma_tile", "3d"))
#: And of pipelines of clusters, by mechanism and share.
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
    """What was measured as streams or by pipelines and the model is not of: mechanisms, and variants of the others."""
    found = set()
    for name in {"throughput", "row_shape"} & set(rows):
        others = rows[name][~_among(rows[name], "variant", STREAMS)]
        found |= set((others["mechanism"] + " " + others["variant"]).str.strip())
    for name in {"multicast_fair", "handover"} & set(rows):
        found |= set(rows[name]["mechanism"]) - {mechanism for mechanism, _ in PIPELINES}
    return sorted(found)


def streams(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of `throughput` as configurations: columns `TABLE`."""
    frame = frame[_among(frame, "variant", STREAMS)]
    frame = frame[frame["mechanism"].ne("ldg") | frame["tile_bytes"].gt(16 * frame["threads"])]
    by = ["mechanism", "variant", "source", "tile_bytes", "ctas_per_sm", "threads", "bytes_in_flight_per_sm"]
    table = spread(frame, ["run_id", *by], "gbps").assign(experiment="throughput")
    flight = table["bytes_in_flight_per_sm"] // table["tile_bytes"] // table["ctas_per_sm"]
    return table.assign(
        row_bytes=table["tile_bytes"].clip(upper=LONGEST_ROW_BYTES),
        is_dense=True,
        tiles_in_flight=flight,
        fan_out=1,
    )


def shapes(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of `row_shape` as configurations, as the advisor has them: short rows are promoted to 128 bytes."""
    frame = frame[_among(frame, "variant", STREAMS) & frame["swizzle"].eq("none")]
    promoted = frame["inner_bytes"].lt(128) * 128
    frame = frame[frame["mechanism"].ne("tma_tile") | frame["l2_promotion_bytes"].eq(promoted)]
    by = ["mechanism", "variant", "source", "inner_bytes", "pitch_bytes", "tile_bytes", "ctas_per_sm", "threads",
          "bytes_in_flight_per_sm"]  # fmt: skip
    table = spread(frame, ["run_id", *by], "gbps").assign(experiment="row_shape")
    flight = table["bytes_in_flight_per_sm"] // table["tile_bytes"] // table["ctas_per_sm"]
    dense = table["inner_bytes"].eq(table["pitch_bytes"])
    return table.assign(row_bytes=table["inner_bytes"], is_dense=dense, tiles_in_flight=flight, fan_out=1)


def pipelines(frame: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Pipelines of clusters, every share by itself (`variant`), of `multicast_fair`, `broadcast` or `handover`.

    Rates are from the blocks' own clocks: a launch takes some microseconds more, and is short in `broadcast`.
    """
    frame = having(frame[_among(frame, "share", PIPELINES) & frame["fan_out"].gt(1)], **PLAIN)
    frame = frame.assign(gbps=frame[RATE] * frame["ctas"] * frame["sm_clock_mhz_median"] / 1e3)
    pipeline = ["mechanism", "source", "tile_bytes", "stages", "fan_out", "ctas"]
    table = spread(frame, ["run_id", *pipeline, "share"], "gbps").assign(experiment=experiment)
    table = table.rename(columns={"stages": "tiles_in_flight", "share": "variant"})
    rows = table["tile_bytes"].clip(upper=LONGEST_ROW_BYTES)
    return table.assign(row_bytes=rows, is_dense=True, ctas_per_sm=1, threads=32)


def fastest_pipelines(frame: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Pipelines as the advisor would run them: by slices or by one CTA, whichever was faster; neighbours apart."""
    table = pipelines(frame, experiment)
    pipeline = ["mechanism", "source", "tile_bytes", "tiles_in_flight", "fan_out", "ctas"]
    alone = table["variant"].eq(ALONE)
    return table.loc[table.groupby([*pipeline, alone.rename("alone")])["median"].idxmax()]


def configurations(rows: Frames) -> pd.DataFrame:
    """The microbenchmarks' configurations of loads from global memory: columns `TABLE`, `held_out`."""
    parts = [
        streams(rows["throughput"]),
        shapes(rows["row_shape"]),
        fastest_pipelines(rows["multicast_fair"], "multicast_fair"),
    ]
    return divided(pd.concat([part[TABLE] for part in parts if len(part)], ignore_index=True))


def forwarding(frame: pd.DataFrame) -> pd.DataFrame:
    """The pipelines of `handover`, each share by itself: tiles through DSM, and computed; as `configurations`."""
    return divided(pipelines(frame, "handover")[TABLE].reset_index(drop=True))


def divided(table: pd.DataFrame) -> pd.DataFrame:
    """Configurations with `held_out`."""
    return table.assign(held_out=[held_out(cell) for cell in table[CELL].itertuples(index=False)])


def held_out(cell: Iterable[object]) -> bool:
    """Whether a cell is for testing: what all mechanisms share goes the same way, whatever its numbers."""
    text = "/".join(str(value) for value in cell)
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % HELD_OUT_OF == 0


def load_of(row: object) -> Load:
    """The model's view of one configuration (a named tuple with the columns `LOAD`)."""
    return Load(**{name: getattr(row, name) for name in LOAD})


def predicted(table: pd.DataFrame, of: Constants) -> pd.DataFrame:
    """Configurations with `predicted_gbps`, `binding`, and `ratio`: measured cycles over predicted."""
    found = [
        predict(row.mechanism, load_of(row), of, row.variant if row.variant in UNICAST else "")
        for row in table.itertuples(index=False)
    ]
    return table.assign(
        predicted_gbps=[one.gbps for one in found],
        binding=[one.binding for one in found],
        instructions=[one.instructions for one in found],
        ratio=[one.gbps for one in found] / table["median"],
    )
