"""Fits the model's constants to the microbenchmarks of one GPU, and stores them with what they are from."""

import hashlib
from collections.abc import Iterable

import numpy as np
import pandas as pd

from labkernels.mechanisms import names
from labkernels.model.closed_form import (
    CROSSING,
    DSM,
    PREFERENCE,
    SHARES,
    Load,
    constants,
    predict,
    way_of,
)
from labkernels.operand import LONGEST_ROW_BYTES
from labkernels.store import RUNS, Store
from labkernels.studies import select
from labkernels.studies.cluster_rows import PLAIN, RATE
from labkernels.studies.latency.findings import issue_slope_cycles
from labkernels.studies.stats import spread

TRAINS = (32, 64)  # lengths: one and two batches of the 32 indices that a warp looks up at once
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

#: Constants: unit and meaning. Those of a way of copying first, then those that all share.
OF_WAY = {
    "latency_hbm_cycles": ("cycles", "time of a turn without the tile's bytes, data in HBM"),
    "latency_l2_cycles": ("cycles", "the same, data in L2"),
    "port_bytes_per_cycle": (
        "bytes per cycle",
        "rate at which a tile's bytes follow the first, from L2 in step",
    ),
    "handshake_cycles": ("cycles", "least time from one tile to the next in one ring"),
    "warp_cycles": ("cycles", "further handshake for each copying warp on the SM"),
    "lookup_cycles": (
        "cycles",
        "a copy's look-up: an index read a batch ahead, handed to the thread that copies",
    ),
    "merged_requests": ("count", "requests of CTAs in step that L2 answers with one read"),
    "peer_cycles": (
        "cycles",
        "further handshake for each other CTA: a command to it, or the wait for its bytes",
    ),
    "turn_bytes_per_cycle": ("bytes per cycle", "rate at which bytes lengthen the turn"),
    "make_bytes_per_cycle": ("bytes per cycle", "rate at which a CTA makes its part of a tile"),
    "crossing_bytes_per_cycle": ("bytes per cycle", "what one SM passes on while the others do too"),
    "store_bytes_per_cycle": ("bytes per cycle", "what all SMs store to L2 and read again"),
}
LATENCY = ("latency_hbm_cycles", "latency_l2_cycles")
WAYS = {
    "ldg": LATENCY,
    "cp_async": (*LATENCY, "handshake_cycles", "warp_cycles"),
    "tma": (*LATENCY, "handshake_cycles"),
    "tma in a cluster": (*LATENCY, "port_bytes_per_cycle", "handshake_cycles", "merged_requests"),
    "tma_multicast": (*LATENCY, "port_bytes_per_cycle", "handshake_cycles"),
}
PASSED = ("handshake_cycles", "peer_cycles", "latency_l2_cycles", "turn_bytes_per_cycle")
HANDED_OVER = {
    "dsm_bulk": (*PASSED, "crossing_bytes_per_cycle", "make_bytes_per_cycle"),
    "dsm_load": (*PASSED, "crossing_bytes_per_cycle"),
    "round trip": (*PASSED, "store_bytes_per_cycle", "make_bytes_per_cycle"),
}
SHARED = {
    ("gpu", "sharpness"): ("exponent", "of the sum over terms: large is their maximum"),
    ("gpu", "hbm_queue_sharpness"): (
        "exponent",
        "of turn, memory and rows alone, data in HBM: requests queue",
    ),
    ("gpu", "l2_queue_sharpness"): ("exponent", "of turn and memory alone, data in L2"),
    ("gpu", "hbm_bytes_per_cycle"): ("bytes per cycle", "what HBM delivers to all SMs"),
    ("gpu", "l2_bytes_per_cycle"): ("bytes per cycle", "what L2 delivers to all SMs"),
    ("gpu", "port_bytes_per_cycle"): ("bytes per cycle", "rate at which a tile's bytes follow the first"),
    ("gpu", "ingest_bytes_per_cycle"): ("bytes per cycle", "most that one SM takes in"),
    ("gpu", "sm_clock_mhz"): ("MHz", "SM clock of the runs"),
    ("tma", "row_cycles"): ("cycles", "one row of a box"),
    ("tma", "copy_cycles"): ("cycles", "one more copy of a train by one thread"),
    ("threads", "piece_cycles"): ("cycles", "one more 16-byte cp.async of a thread, in a train"),
    ("threads", "short_row_share_at_16"): (
        "ratio",
        "HBM rate of rows of 16 bytes far apart, over the full rate",
    ),
    ("threads", "short_row_exponent"): ("exponent", "how that share grows with the row"),
    ("gpu", "l2_bytes"): ("bytes", "size of L2"),
    ("dsm", "outbox_bytes_per_cycle"): ("bytes per cycle", "most that one SM passes on to others"),
}
START = {
    "latency_hbm_cycles": 900.0, "latency_l2_cycles": 480.0, "port_bytes_per_cycle": 64.0, "handshake_cycles": 250.0,
    "ingest_bytes_per_cycle": 80.0, "warp_cycles": 5.0, "merged_requests": 1.8, "sharpness": 5.0,
    "hbm_queue_sharpness": 2.5, "l2_queue_sharpness": 5.0, "hbm_bytes_per_cycle": 2300.0, "l2_bytes_per_cycle": 4400.0,
    "row_cycles": 1.7, "short_row_share_at_16": 0.46, "short_row_exponent": 0.2,
    "peer_cycles": 40.0, "turn_bytes_per_cycle": 30.0, "make_bytes_per_cycle": 40.0, "crossing_bytes_per_cycle": 15.0,
    "outbox_bytes_per_cycle": 21.0, "store_bytes_per_cycle": 1700.0,
}  # fmt: skip


def streams(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of `throughput` as configurations: columns `TABLE`."""
    # cp.async by groups, plain ld with several pieces a thread: the forms the rules speak of.
    frame = frame[~frame["variant"].isin(["mbarrier", "cg", "L1::no_allocate"])]
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


def _rows(store: Store, gpu: str) -> pd.DataFrame:
    frame = select.latest_rows(store, "row_shape", gpu)
    # As the advisor has it: short rows are promoted to 128 bytes.
    promoted = frame["inner_bytes"].lt(128) * 128
    tma = frame["mechanism"].eq("tma_tile")
    frame = frame[frame["swizzle"].eq("none") & (~tma | frame["l2_promotion_bytes"].eq(promoted))]
    by = ["mechanism", "variant", "source", "inner_bytes", "pitch_bytes", "tile_bytes", "ctas_per_sm", "threads",
          "bytes_in_flight_per_sm"]  # fmt: skip
    table = spread(frame, ["run_id", *by], "gbps").assign(experiment="row_shape")
    flight = table["bytes_in_flight_per_sm"] // table["tile_bytes"] // table["ctas_per_sm"]
    dense = table["inner_bytes"].eq(table["pitch_bytes"])
    return table.assign(row_bytes=table["inner_bytes"], is_dense=dense, tiles_in_flight=flight, fan_out=1)


def ring_configurations(store: Store, gpu: str, experiment: str) -> pd.DataFrame:
    """Rings of clusters as the advisor would run them, of the experiments `multicast`, `broadcast` or `handover`.

    Multicast and DSM by slices or by one CTA, whichever was faster; unicast by the CTAs of a cluster. Rates are from
    the blocks' own clocks: a launch takes some microseconds more, and is short in `broadcast`.
    """
    table = _rings(store, gpu, experiment)
    ring = ["mechanism", "source", "tile_bytes", "tiles_in_flight", "fan_out", "ctas"]
    return table.loc[table.groupby(ring)["median"].idxmax()] if len(table) else table


def _rings(store: Store, gpu: str, experiment: str) -> pd.DataFrame:
    """As `ring_configurations`, every share: `variant`."""
    frame = select.latest_rows(store, experiment, gpu)
    if frame.empty:
        return pd.DataFrame(columns=[*TABLE, "ctas"])
    for name, value in PLAIN.items():
        frame = frame[frame[name].eq(value)]
    wanted = (frame["mechanism"].isin(CROSSING) & frame["share"].isin(SHARES)) | (
        frame["mechanism"].eq("tma_tile") & frame["share"].eq("everyone")
    )
    frame = frame[wanted & frame["fan_out"].gt(1)]
    frame = frame.assign(gbps=frame[RATE] * frame["ctas"] * frame["sm_clock_mhz_median"] / 1e3)
    ring = ["mechanism", "source", "tile_bytes", "stages", "fan_out", "ctas"]
    table = spread(frame, ["run_id", *ring, "share"], "gbps").assign(experiment=experiment)
    table = table.rename(columns={"stages": "tiles_in_flight", "share": "variant"})
    rows = table["tile_bytes"].clip(upper=LONGEST_ROW_BYTES)
    return table.assign(row_bytes=rows, is_dense=True, ctas_per_sm=1, threads=32)


def configurations(store: Store, gpu: str) -> pd.DataFrame:
    """The microbenchmarks' configurations of loads from global memory: columns `TABLE`, `held_out`."""
    parts = [
        streams(select.latest_rows(store, "throughput", gpu)),
        _rows(store, gpu),
        ring_configurations(store, gpu, "multicast"),
    ]
    table = pd.concat([part[TABLE] for part in parts if len(part)], ignore_index=True)
    return _divided(table)


def handovers(store: Store, gpu: str) -> pd.DataFrame:
    """The rings of `handover`, each share by itself: tiles through DSM, and computed; as `configurations`."""
    return _divided(_rings(store, gpu, "handover")[TABLE].reset_index(drop=True))


def _divided(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(held_out=[held_out(cell) for cell in table[CELL].itertuples(index=False)])


def held_out(cell: Iterable[object]) -> bool:
    """Whether a cell is for testing: what all mechanisms share goes the same way, whatever its numbers."""
    text = "/".join(str(value) for value in cell)
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % HELD_OUT_OF == 0


def load_of(row: object) -> Load:
    """The model's view of one configuration (a named tuple with the columns `LOAD`)."""
    return Load(**{name: getattr(row, name) for name in LOAD})


def predicted(table: pd.DataFrame, of: dict[tuple[str, str], float]) -> pd.DataFrame:
    """Configurations with `predicted_gbps`, `binding`, and `ratio`: measured cycles over predicted."""
    found = [predict(row.mechanism, load_of(row), of) for row in table.itertuples(index=False)]
    return table.assign(
        predicted_gbps=[one.gbps for one in found],
        binding=[one.binding for one in found],
        instructions=[one.instructions for one in found],
        ratio=[one.gbps for one in found] / table["median"],
    )


NAMES = [key for key in SHARED if key[1] in START and key[0] != "dsm"] + [
    (way, name) for way, own in WAYS.items() for name in own
]
HANDED_OVER_NAMES = [("dsm", "outbox_bytes_per_cycle")] + [
    (way, name) for way, own in HANDED_OVER.items() for name in own
]


def _measured(store: Store, gpu: str) -> dict[tuple[str, str], float]:
    """Constants that are read off a table rather than fitted."""
    runs = store.read(RUNS)
    run = runs[runs["run_id"].eq(select.latest_run(store, "throughput", gpu))].iloc[0]
    known = {
        ("gpu", "sm_clock_mhz"): float(run["sm_clock_mhz_median"]),
        ("gpu", "sms_at_fan_out_1"): float(run["sm_count"]),
        ("gpu", "l2_bytes"): float(run["l2_bytes"]),
    }
    rings = select.latest_rows(store, "multicast", gpu)
    rings = rings[rings["mechanism"].eq("tma_multicast") & rings["fan_out"].gt(1)]
    for fan_out, ctas in rings.groupby("fan_out")["ctas"].max().items():
        known["gpu", f"sms_at_fan_out_{fan_out}"] = float(ctas)
    return known | _from_trains(select.latest_rows(store, "issue", gpu))


def _from_trains(issue: pd.DataFrame) -> dict[tuple[str, str], float]:
    """What one more copy, piece or look-up takes, between trains so long that what comes first is in both."""

    def step(mechanism: str, transfer_bytes: int, per_copy: str = "copy") -> float:
        short, long = TRAINS
        return issue_slope_cycles(issue, mechanism, transfer_bytes, long, per_copy, short)

    found = {
        ("tma", "copy_cycles"): step("tma_tile", 1024),
        ("threads", "piece_cycles"): step("cp_async", 512),
    }
    for name in (name for name in PREFERENCE if way_of(name, fan_out=1) == "tma"):
        found[name, "lookup_cycles"] = step(name, 1024, "lookup") - step(name, 1024)
    return found


def fit(store: Store, gpu: str) -> tuple[dict[tuple[str, str], float], pd.DataFrame]:
    """Least squares on the logarithm of measured over predicted time, over what is not held out.

    Returns:
        The constants by way and name, and all `configurations` with their predictions.

    Raises:
        LookupError: this GPU lacks rows of throughput, row_shape, multicast, issue or handover.
    """
    for experiment in ("throughput", "row_shape", "multicast", "issue", "handover"):
        if select.latest_run(store, experiment, gpu) is None:
            raise LookupError(
                f"no rows of {experiment} on {gpu}: run python -m labkernels measure {experiment}"
            )
    table = configurations(store, gpu)
    fitted = table[~table["held_out"]]
    known = _measured(store, gpu)
    neutral = {(way, f"ratio_{q}"): 1.0 for way in (*WAYS, *HANDED_OVER) for q in ("p05", "p95")}
    of = _least_squares(fitted.assign(variant=""), NAMES, known | neutral)
    passed = handovers(store, gpu)
    of = _with_hbm(_least_squares(passed[~passed["held_out"]], HANDED_OVER_NAMES, of))
    table = predicted(table, of)
    for name in ("tile_bytes", "row_bytes", "tiles_in_flight", "ctas_per_sm", "threads"):
        copying = table[table["mechanism"].isin(names(by_threads=True))] if name == "threads" else table
        of["range", f"{name}_least"], of["range", f"{name}_most"] = (
            float(edge) for edge in (copying[name].min(), copying[name].max())
        )
    best = passed.loc[passed.groupby(["mechanism", *LOAD])["median"].idxmax()]
    tested = pd.concat([part[part["held_out"]] for part in (table, predicted(best, of))], ignore_index=True)
    ways = [
        way_of(*key) for key in zip(tested["mechanism"], tested["fan_out"], tested["source"], strict=True)
    ]
    for name, group in tested.groupby(pd.Series(ways, index=tested.index)):
        of[name, "ratio_p05"], of[name, "ratio_p95"] = (
            float(q) for q in group["ratio"].quantile([0.05, 0.95])
        )
    return of, table


def _least_squares(
    table: pd.DataFrame, names: list[tuple[str, str]], known: dict[tuple[str, str], float]
) -> dict[tuple[str, str], float]:
    """What is known and `names`, fitted to configurations; `variant` is the share, or empty."""
    from scipy.optimize import least_squares

    rows = [
        (row.mechanism, load_of(row), row.variant, np.log(row.median))
        for row in table.itertuples(index=False)
    ]

    def errors(logs: np.ndarray) -> list[float]:
        of = known | dict(zip(names, np.exp(logs), strict=True))
        return [
            np.log(predict(name, load, of, share).gbps) - measured for name, load, share, measured in rows
        ]

    start = np.log([START[name] for _, name in names])
    found = least_squares(errors, start, bounds=(start - 3, start + 3), loss="soft_l1", f_scale=0.05)
    return known | dict(zip(names, np.exp(found.x).tolist(), strict=True))


def _with_hbm(of: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """With DSM's latency from HBM, of which `handover` has no rows: that from L2, and what TMA's has more."""
    more = of["tma", "latency_hbm_cycles"] - of["tma", "latency_l2_cycles"]
    return of | {(way, "latency_hbm_cycles"): of[way, "latency_l2_cycles"] + more for way in DSM}


def _about(way: str, name: str) -> tuple[str, str]:
    """Unit and meaning of a constant."""
    if way == "range":
        return "bytes" if "bytes" in name else "count", "edge of the measured range"
    if name.startswith("sms_at"):
        return "SMs", "SMs that clusters of this size keep busy"
    if name.startswith("ratio_"):
        return "ratio", "measured over predicted cycles, quantile over configurations that were held out"
    return SHARED.get((way, name)) or OF_WAY[name]


def save(store: Store, gpu: str) -> None:
    """Fit one GPU, and replace its rows of constants and of the rules' verdicts.

    Raises:
        LookupError: see `fit`.
    """
    from labkernels.studies.rules import judge

    of, table = fit(store, gpu)
    others = {str(select.latest_run(store, name, gpu)) for name in ("issue", "handover")}
    runs = ";".join(sorted({*table["run_id"], *others}))
    rows = [
        {"gpu": gpu, "way": way, "constant": name, "value": _text(value), "unit": unit, "meaning": meaning,
         "run_ids": runs}
        for (way, name), value in of.items()
        for unit, meaning in [_about(way, name)]
    ]  # fmt: skip
    verdicts = [
        {"gpu": gpu, "rule": v.rule.id, "chapter": v.rule.chapter, "statement": v.rule.statement, "outcome": v.outcome,
         "evidence": v.sentence, "run_id": ";".join(v.run_ids), "applies_to": v.rule.applies_to}
        for v in judge(store, gpu)
    ]  # fmt: skip
    store.write("constants", rows, replacing={"gpu": gpu})
    store.write("verdicts", verdicts, replacing={"gpu": gpu})
    constants.cache_clear()


def _text(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else f"{value:.6g}"
