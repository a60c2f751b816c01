"""Fits the model's constants to the microbenchmarks of one GPU, and stores them with what they are from."""

import numpy as np
import pandas as pd

from labkernels import mechanisms
from labkernels.model.closed_form import (
    DSM,
    PREFERENCE,
    UNICAST,
    Constants,
    constants,
    predict,
    way_of,
)
from labkernels.model.configurations import (
    LOAD,
    Frames,
    configurations,
    forwarding,
    frames,
    left_out,
    load_of,
    predicted,
)
from labkernels.protocols.experiment import Progress, silent
from labkernels.store import Store
from labkernels.studies.latency.findings import issue_slope_cycles
from labkernels.studies.rules import judge

BURSTS = (32, 64)  # lengths: one and two batches of the 32 indices that a warp loads at once
#: Constants: unit and meaning. Those of a way of copying first, then those that all share.
OF_WAY = {
    "latency_hbm_cycles": ("cycles", "round trip of a stage without the tile's bytes, data in HBM"),
    "latency_l2_cycles": ("cycles", "the same, data in L2"),
    "port_bytes_per_cycle": (
        "bytes per cycle",
        "rate at which a tile's bytes follow the first, from L2 in step",
    ),
    "handshake_cycles": ("cycles", "least time from one tile to the next in one pipeline"),
    "warp_cycles": ("cycles", "further synchronization for each copying warp on the SM"),
    "lookup_cycles": (
        "cycles",
        "a copy's page-table load: an index read a batch ahead, passed to the thread that copies",
    ),
    "merged_per_64_kib": (
        "count",
        "further requests of CTAs in step that L2 answers with one read, for each 64 KiB that a CTA has in flight",
    ),
    "peer_cycles": (
        "cycles",
        "further synchronization for each other CTA: a copy to it, or the wait for its bytes",
    ),
    "turn_bytes_per_cycle": ("bytes per cycle", "rate at which bytes lengthen the round trip"),
    "make_bytes_per_cycle": ("bytes per cycle", "rate at which a CTA computes its part of a tile"),
    "crossing_bytes_per_cycle": ("bytes per cycle", "what one SM forwards while the others do too"),
    "store_bytes_per_cycle": ("bytes per cycle", "what all SMs store to L2 and read again"),
}
LATENCY = ("latency_hbm_cycles", "latency_l2_cycles")
WAYS = {
    "ldg": LATENCY,
    "cp_async": (*LATENCY, "handshake_cycles", "warp_cycles"),
    "tma": (*LATENCY, "handshake_cycles"),
    "tma in a cluster": (*LATENCY, "port_bytes_per_cycle", "handshake_cycles", "merged_per_64_kib"),
    "tma by neighbours": (*LATENCY, "port_bytes_per_cycle", "handshake_cycles", "merged_per_64_kib"),
    "tma_multicast": (*LATENCY, "port_bytes_per_cycle", "handshake_cycles"),
}
FORWARDING = ("handshake_cycles", "peer_cycles", "latency_l2_cycles", "turn_bytes_per_cycle")
FORWARDED = {
    "dsm_bulk": (*FORWARDING, "crossing_bytes_per_cycle", "make_bytes_per_cycle"),
    "dsm_load": (*FORWARDING, "crossing_bytes_per_cycle"),
    "round trip": (*FORWARDING, "store_bytes_per_cycle", "make_bytes_per_cycle"),
}
SHARED = {
    ("gpu", "sharpness"): ("exponent", "of the sum over terms: large is their maximum"),
    ("gpu", "hbm_queue_sharpness"): (
        "exponent",
        "of latency, bandwidth and box rows alone, data in HBM: requests queue",
    ),
    ("gpu", "l2_queue_sharpness"): ("exponent", "of latency and bandwidth alone, data in L2"),
    ("gpu", "hbm_bytes_per_cycle"): ("bytes per cycle", "what HBM delivers to all SMs"),
    ("gpu", "l2_bytes_per_cycle"): ("bytes per cycle", "what L2 delivers to all SMs"),
    ("gpu", "port_bytes_per_cycle"): ("bytes per cycle", "rate at which a tile's bytes follow the first"),
    ("gpu", "ingest_bytes_per_cycle"): ("bytes per cycle", "most that one SM takes in"),
    ("gpu", "sm_clock_mhz"): ("MHz", "SM clock of the runs"),
    ("tma", "row_cycles"): ("cycles", "one row of a box"),
    ("tma", "copy_cycles"): ("cycles", "one more copy of a burst by one thread"),
    ("threads", "piece_cycles"): ("cycles", "one more 16-byte cp.async of a thread, in a burst"),
    ("threads", "short_row_share_at_16"): (
        "ratio",
        "HBM rate of rows of 16 bytes far apart, over the full rate",
    ),
    ("threads", "short_row_exponent"): ("exponent", "how that share grows with the row"),
    ("gpu", "l2_bytes"): ("bytes", "size of L2"),
    ("dsm", "outbox_bytes_per_cycle"): ("bytes per cycle", "most that one SM forwards to others"),
}
START = {
    "latency_hbm_cycles": 900.0, "latency_l2_cycles": 480.0, "port_bytes_per_cycle": 64.0, "handshake_cycles": 250.0,
    "ingest_bytes_per_cycle": 80.0, "warp_cycles": 5.0, "merged_per_64_kib": 0.4, "sharpness": 5.0,
    "hbm_queue_sharpness": 2.5, "l2_queue_sharpness": 5.0, "hbm_bytes_per_cycle": 2300.0, "l2_bytes_per_cycle": 4400.0,
    "row_cycles": 1.7, "short_row_share_at_16": 0.46, "short_row_exponent": 0.2,
    "peer_cycles": 40.0, "turn_bytes_per_cycle": 30.0, "make_bytes_per_cycle": 40.0, "crossing_bytes_per_cycle": 15.0,
    "outbox_bytes_per_cycle": 21.0, "store_bytes_per_cycle": 1700.0,
}  # fmt: skip


NAMES = [key for key in SHARED if key[1] in START and key[0] != "dsm"] + [
    (way, name) for way, own in WAYS.items() for name in own
]
FORWARDED_NAMES = [("dsm", "outbox_bytes_per_cycle")] + [
    (way, name) for way, own in FORWARDED.items() for name in own
]


def _measured(rows: Frames) -> Constants:
    """Constants that are read off a table rather than fitted."""
    run = rows["throughput"].iloc[0]
    known = {
        ("gpu", "sm_clock_mhz"): float(run["sm_clock_mhz_median"]),
        ("gpu", "sms_at_fan_out_1"): float(run["sm_count"]),
        ("gpu", "l2_bytes"): float(run["l2_bytes"]),
    }
    multicast = rows["multicast_fair"]
    multicast = multicast[multicast["mechanism"].eq("tma_multicast") & multicast["fan_out"].gt(1)]
    for fan_out, ctas in multicast.groupby("fan_out")["ctas"].max().items():
        known["gpu", f"sms_at_fan_out_{fan_out}"] = float(ctas)
    return known | _from_bursts(rows["issue"])


def _from_bursts(issue: pd.DataFrame) -> Constants:
    """What one more copy, vector or page-table load takes, between bursts so long that what comes first is in both."""

    def step(mechanism: str, transfer_bytes: int, per_copy: str = "copy") -> float:
        short, long = BURSTS
        return issue_slope_cycles(issue, mechanism, transfer_bytes, long, per_copy, short)

    found = {
        ("tma", "copy_cycles"): step("tma_tile", 1024),
        ("threads", "piece_cycles"): step("cp_async", 512),
    }
    for name in sorted(name for name in PREFERENCE if way_of(name, fan_out=1) == "tma"):
        found[name, "lookup_cycles"] = step(name, 1024, "lookup") - step(name, 1024)
    return found


def fit(rows: Frames, progress: Progress = silent) -> tuple[Constants, pd.DataFrame]:
    """Least squares on the logarithm of measured over predicted time, over what is not held out.

    Args:
        rows: of `frames`.
        progress: shows how far it is.

    Returns:
        The constants by way and name, and all `configurations` with their predictions.

    Raises:
        NotMeasured: the rows lack a point that a constant is read off.
    """
    table, passed = configurations(rows), forwarding(rows["handover"])
    neutral = {(way, f"ratio_{q}"): 1.0 for way in (*WAYS, *FORWARDED) for q in ("p05", "p95")}
    of = _measured(rows) | neutral
    loads = table[~table["held_out"]]
    loads = loads.assign(variant=loads["variant"].where(loads["variant"].isin(UNICAST), ""))
    for part, names in progress(
        [(loads, NAMES), (passed[~passed["held_out"]], FORWARDED_NAMES)], "least squares"
    ):
        of = _least_squares(part, names, of)
    of = _with_hbm(of)
    table = predicted(table, of)
    for name in ("tile_bytes", "row_bytes", "tiles_in_flight", "ctas_per_sm", "threads"):
        copying = (
            table[table["mechanism"].isin(mechanisms.names(by_threads=True))] if name == "threads" else table
        )
        of["range", f"{name}_least"], of["range", f"{name}_most"] = (
            float(edge) for edge in (copying[name].min(), copying[name].max())
        )
    best = passed.loc[passed.groupby(["mechanism", *LOAD])["median"].idxmax()]
    tested = pd.concat([part[part["held_out"]] for part in (table, predicted(best, of))], ignore_index=True)
    keys = (tested[name] for name in ("mechanism", "fan_out", "source", "variant"))
    ways = [way_of(*key) for key in zip(*keys, strict=True)]
    for name, group in tested.groupby(pd.Series(ways, index=tested.index)):
        of[name, "ratio_p05"], of[name, "ratio_p95"] = (
            float(q) for q in group["ratio"].quantile([0.05, 0.95])
        )
    return of, table


def _least_squares(table: pd.DataFrame, names: list[tuple[str, str]], known: Constants) -> Constants:
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


def _with_hbm(of: Constants) -> Constants:
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


def save(store: Store, gpu: str, progress: Progress = silent) -> list[str]:
    """Fit one GPU, and replace its rows of constants and of the rules' verdicts.

    Args:
        store: the rows, and where the tables go.
        gpu: whose.
        progress: shows how far it is.

    Returns:
        What was measured and is not in the model: of `left_out`.

    Raises:
        NotMeasured: see `frames` and `fit`.
    """
    measured = frames(store, gpu)
    of, _ = fit(measured, progress)
    runs = ";".join(sorted({str(frame["run_id"].iloc[0]) for frame in measured.values()}))
    rows = [
        {"gpu": gpu, "way": way, "constant": name, "value": _text(value), "unit": unit, "meaning": meaning,
         "run_ids": runs}
        for (way, name), value in of.items()
        for unit, meaning in [_about(way, name)]
    ]  # fmt: skip
    verdicts = [
        {"gpu": gpu, "rule": v.rule.id, "chapter": v.rule.chapter, "statement": v.rule.statement, "outcome": v.outcome,
         "evidence": v.sentence, "run_id": ";".join(v.run_ids), "applies_to": v.rule.applies_to}
        for v in judge(store, gpu, progress=progress)
    ]  # fmt: skip
    store.write("constants", rows, replacing={"gpu": gpu})
    store.write("verdicts", verdicts, replacing={"gpu": gpu})
    constants.cache_clear()
    return left_out(measured)


def _text(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else f"{value:.6g}"
