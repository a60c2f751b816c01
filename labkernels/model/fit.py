"""Fits the model's constants to the microbenchmarks of one GPU, and stores them with what they are from."""

from contextlib import suppress

import numpy as np
import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.model import beside, beside_fit
from labkernels.model.closed_form import (
    DSM,
    PREFERENCE,
    Constants,
    Load,
    constants,
    gbps,
    start_us,
    way_of,
)
from labkernels.model.configurations import (
    Frames,
    configurations,
    frames,
    groups,
    left_out,
    load_of,
    pipelines,
    predicted,
)
from labkernels.operand import MIB
from labkernels.protocols.experiment import Progress, silent
from labkernels.store import Store
from labkernels.studies import cards
from labkernels.studies.latency.findings import burst_cycles, issue_slope_cycles
from labkernels.studies.rules import judge

BURSTS = (32, 64)  # lengths: one and two batches of the 32 indices that a warp loads at once
#: Constants: unit and meaning. Those of a way of copying first, then those that all share.
OF_WAY = {
    "overhead_cycles": ("cycles", "round trip of a stage beyond that of a plain load"),
    "handshake_cycles": (
        "cycles",
        "least time from one tile to the next of one warp, or of a multistage pipeline",
    ),
    "serial_cycles": ("cycles", "of a tile, one after the other whichever warp copies it"),
    "port_bytes_per_cycle": (
        "bytes per cycle",
        "rate at which a tile's bytes follow the first, from L2 in step",
    ),
    "lookup_cycles": (
        "cycles",
        "a copy's page-table load: an index read a batch ahead, passed to the thread that copies",
    ),
    "merged_per_64_kib": (
        "count",
        "further requests of CTAs in step that L2 answers with one read, for each 64 KiB that a CTA has in flight",
    ),
    "start_hbm_us": ("us", "a launch that reads one tile, everything pushed out of L2 before"),
    "start_l2_us": ("us", "the same, the tile in L2"),
    "latency_l2_cycles": ("cycles", "round trip of a stage without the tile's bytes, data in L2"),
    "latency_hbm_cycles": ("cycles", "the same, data in HBM"),
    "peer_cycles": (
        "cycles",
        "further synchronization for each other CTA: a copy to it, or the wait for its bytes",
    ),
    "turn_bytes_per_cycle": ("bytes per cycle", "rate at which bytes lengthen the round trip"),
    "make_bytes_per_cycle": ("bytes per cycle", "rate at which a CTA computes its part of a tile"),
    "crossing_bytes_per_cycle": ("bytes per cycle", "what one SM forwards while the others do too"),
    "store_bytes_per_cycle": ("bytes per cycle", "what all SMs store to L2 and read again"),
}
STEP = ("overhead_cycles", "port_bytes_per_cycle", "handshake_cycles")
WAYS = {
    "cp_async multistage": ("overhead_cycles", "handshake_cycles"),
    "cp_async specialized": ("overhead_cycles", "handshake_cycles"),
    "tma": ("overhead_cycles", "handshake_cycles"),
    "tma in step": (*STEP, "merged_per_64_kib"),
    "tma_multicast slices": (*STEP, "peer_cycles"),
    "tma_multicast leader": (*STEP, "serial_cycles"),
}
FORWARDING = ("handshake_cycles", "peer_cycles", "latency_l2_cycles", "turn_bytes_per_cycle")
FORWARDED = {
    "dsm_bulk": (*FORWARDING, "crossing_bytes_per_cycle", "make_bytes_per_cycle"),
    "dsm_load": (*FORWARDING, "crossing_bytes_per_cycle"),
    "round trip": (*FORWARDING, "store_bytes_per_cycle", "make_bytes_per_cycle"),
}
SHARED = {
    ("gpu", "hbm_sharpness"): ("exponent", "of the sum over terms, data in HBM: large is their maximum"),
    ("gpu", "l2_sharpness"): ("exponent", "the same, data in L2"),
    ("gpu", "hbm_queue_sharpness"): (
        "exponent",
        "of latency, bandwidth and box rows alone, data in HBM: requests queue",
    ),
    ("gpu", "l2_queue_sharpness"): ("exponent", "of latency and bandwidth alone, data in L2"),
    ("gpu", "latency_hbm_cycles"): (
        "cycles",
        "round trip of a plain load's stage without its bytes, data in HBM",
    ),
    ("gpu", "latency_l2_cycles"): ("cycles", "the same, data in L2"),
    ("gpu", "hbm_bytes_per_cycle"): ("bytes per cycle", "what HBM delivers to all SMs"),
    ("gpu", "l2_bytes_per_cycle"): ("bytes per cycle", "what L2 delivers to all SMs"),
    ("gpu", "port_bytes_per_cycle"): ("bytes per cycle", "rate at which a tile's bytes follow the first"),
    ("gpu", "ingest_bytes_per_cycle"): ("bytes per cycle", "most that one SM takes in"),
    ("gpu", "sm_clock_mhz"): ("MHz", "SM clock of the runs"),
    ("tma", "row_cycles"): ("cycles", "one row of a box"),
    ("tma", "copy_cycles"): ("cycles", "one more copy of a burst by one thread"),
    ("threads", "piece_cycles"): (
        "cycles",
        "one more 16-byte cp.async of a thread, in a burst, with an address of its own",
    ),
    ("threads", "vector_cycles"): ("cycles", "the same, at a fixed distance from the one before"),
    ("threads", "slot_cycles"): (
        "cycles",
        "one more copy of a warp, of four that issue through one load unit",
    ),
    ("threads", "warp_cycles"): ("cycles", "one more warp at the barriers of a multistage pipeline"),
    ("threads", "barrier_cycles"): ("cycles", "the second barrier of a tile"),
    ("threads", "short_row_share_at_16"): (
        "ratio",
        "HBM rate of rows of 16 bytes far apart, over the full rate",
    ),
    ("threads", "short_row_exponent"): ("exponent", "how that share grows with the row"),
    ("gpu", "l2_bytes"): ("bytes", "size of L2"),
    ("dsm", "outbox_bytes_per_cycle"): ("bytes per cycle", "most that one SM forwards to others"),
}
START = {
    "latency_hbm_cycles": 800.0, "latency_l2_cycles": 350.0, "port_bytes_per_cycle": 64.0, "handshake_cycles": 200.0,
    "overhead_cycles": 60.0, "serial_cycles": 60.0, "ingest_bytes_per_cycle": 80.0, "warp_cycles": 5.0,
    "barrier_cycles": 50.0, "merged_per_64_kib": 0.4, "hbm_sharpness": 5.0, "l2_sharpness": 5.0,
    "hbm_queue_sharpness": 2.5, "l2_queue_sharpness": 5.0, "hbm_bytes_per_cycle": 2300.0, "l2_bytes_per_cycle": 4400.0,
    "row_cycles": 1.7, "short_row_share_at_16": 0.5, "short_row_exponent": 0.25,
    "peer_cycles": 20.0, "turn_bytes_per_cycle": 30.0, "make_bytes_per_cycle": 40.0, "crossing_bytes_per_cycle": 15.0,
    "outbox_bytes_per_cycle": 21.0, "store_bytes_per_cycle": 1700.0,
}  # fmt: skip


#: What the measured range is of, and how the form calls it.
RANGES = {"tile_bytes": "tile_bytes", "row_bytes": "row_bytes", "slots": "stages", "ctas_per_sm": "ctas_per_sm",
          "threads": "threads"}  # fmt: skip
L2_WHOLE_BYTES = 32 * MIB  # a footprint that L2 serves at its full rate
UNKNOWN = 0.01  # weight of `START`: a constant that no row tells stays there

NAMES = [key for key in SHARED if key[1] in START and key[0] != "dsm"] + [
    (way, name) for way, own in WAYS.items() for name in own
]
FORWARDED_NAMES = [("dsm", "outbox_bytes_per_cycle")] + [
    (way, name) for way, own in FORWARDED.items() for name in own
]
#: Whose launches have a start of their own: by the kernels of `short_kernels`.
STARTS = {"ldg": "ldg", "cp_async": "cp_async", "tma_tile": "tma"}


def known_before(rows: Frames) -> Constants:
    """Constants that are read off a table rather than fitted."""
    run = rows["pipelines"].iloc[0]
    known = {
        ("gpu", "sm_clock_mhz"): float(run["sm_clock_mhz_median"]),
        ("gpu", "sms_at_fan_out_1"): float(run["sm_count"]),
        ("gpu", "l2_bytes"): float(run["l2_bytes"]),
        ("ldg multistage", "overhead_cycles"): 0.0,
    }
    multicast = rows["multicast_fair"]
    multicast = multicast[multicast["mechanism"].eq("tma_multicast") & multicast["fan_out"].gt(1)]
    for fan_out, ctas in multicast.groupby("fan_out")["ctas"].max().items():
        known["gpu", f"sms_at_fan_out_{fan_out}"] = float(ctas)
    short = rows["short_kernels"]
    short = short[short["footprint_bytes"].eq(short["tile_bytes"])]
    for (mechanism, source), one in short.groupby(["mechanism", "source"]):
        if mechanism in STARTS:
            known[STARTS[mechanism], f"start_{source}_us"] = float(one["duration_us"].median())
    slope = [burst_cycles(rows["issue_inline"], "cp_async", length) for length in BURSTS]
    known["threads", "vector_cycles"] = (slope[1] - slope[0]) / (BURSTS[1] - BURSTS[0])
    four = [burst_cycles(rows["issue_inline"], "cp_async", length, warps=4) for length in BURSTS]
    known["threads", "slot_cycles"] = (four[1] - four[0]) / (BURSTS[1] - BURSTS[0]) / 4
    for mib, share in _l2_shares(rows["l2_footprint"]).items():
        known["L2 footprint", f"share_at_{mib}_mib"] = share
    return known | _from_bursts(rows["issue"])


def _l2_shares(frame: pd.DataFrame) -> dict[int, float]:
    """What L2 gives to TMA tiles of larger and larger footprints, over what it gives to the smallest."""
    tiles = frame[frame["mechanism"].eq("tma_tile")]
    rates = tiles.groupby(["footprint_bytes", "kernel", "tile_bytes", "stages", "ctas_per_sm"])[
        "gbps"
    ].median()
    best = rates.groupby("footprint_bytes").max()
    least = best.index[best.index >= L2_WHOLE_BYTES].min()
    return {
        int(size // MIB): min(1.0, float(rate / best[least]))
        for size, rate in best.items()
        if least <= size <= frame["l2_bytes"].iloc[0]
    }


def _from_bursts(issue: pd.DataFrame) -> Constants:
    """What one more copy, vector or page-table load takes, between bursts so long that what comes first is in both."""

    def step(mechanism: str, transfer_bytes: int, per_copy: str = "copy") -> float:
        short, long = BURSTS
        return issue_slope_cycles(issue, mechanism, transfer_bytes, long, per_copy, short)

    found = {
        ("tma", "copy_cycles"): step("tma_tile", 1024),
        ("threads", "piece_cycles"): step("cp_async", 512),
    }
    plain = Load(tile_bytes=1024, row_bytes=1024)
    for name in sorted(name for name in PREFERENCE if way_of(name, plain) == "tma"):
        found[name, "lookup_cycles"] = step(name, 1024, "lookup") - step(name, 1024)
    return found


def starts(of: Constants) -> dict[str, float]:
    """What a long launch takes beside its bytes, by source: that of TMA, of which others' differ by 0.7 us at most."""
    return {source: start_us("tma_tile", source, of) for source in ("hbm", "l2")}


def fit(rows: Frames, progress: Progress = silent) -> tuple[Constants, pd.DataFrame]:
    """Least squares on the logarithm of measured over predicted time.

    Args:
        rows: of `frames`.
        progress: shows how far it is.

    Returns:
        The constants by way and name, and all `configurations` with their predictions.

    Raises:
        NotMeasured: the rows lack a point that a constant is read off.
    """
    known = known_before(rows)
    loads = configurations(rows, starts(known))
    passed = pipelines(rows["handover"], "handover")
    of = fitted(loads, known)
    of = _with_hbm(_least_squares(passed, FORWARDED_NAMES, of))
    tiles = progress(sorted(loads["tile_bytes"].unique()), "without a tile size")
    told = [_without(loads, known, tile) for tile in tiles]
    tested = pd.concat([*told, predicted(passed, of)])
    keys = zip(
        tested["mechanism"], map(load_of, tested.itertuples(index=False)), tested["variant"], strict=True
    )
    for name, group in tested.groupby(pd.Series([way_of(*key) for key in keys], index=tested.index).values):
        of |= {(name, f"ratio_p{q:02}"): float(group["ratio"].quantile(q / 100)) for q in (5, 95)}
    of |= {
        ("range", f"{called}_{end}"): float(edge)
        for name, called in RANGES.items()
        for end, edge in (("least", loads[name].min()), ("most", loads[name].max()))
    }
    return of, predicted(loads, of)


def _without(loads: pd.DataFrame, known: Constants, tile_bytes: int) -> pd.DataFrame:
    """Configurations of one tile size beside what constants fitted without them predict."""
    out = loads["tile_bytes"].eq(tile_bytes)
    return predicted(loads[out], fitted(loads[~out], known))


def fitted(loads: pd.DataFrame, known: Constants) -> Constants:
    """The constants of loads, from configurations and what is known without them."""
    names = [key for key in NAMES if key not in known]
    return _least_squares(loads, names, known)


def _least_squares(table: pd.DataFrame, names: list[tuple[str, str]], known: Constants) -> Constants:
    """What is known and `names`, fitted to configurations."""
    from scipy.optimize import least_squares

    parts = [(*part[:3], np.log(table.loc[part[3], "median"].to_numpy())) for part in groups(table)]

    def errors(logs: np.ndarray) -> np.ndarray:
        of = known | dict(zip(names, np.exp(logs), strict=True))
        off = [np.log(gbps(name, load, of, share)) - told for name, load, share, told in parts]
        return np.concatenate([*off, UNKNOWN * (logs - start)])

    start = np.log([START[name] for _, name in names])
    bounds = (start - 3, start + 3)
    # lsmr: an exact solver's threads wait for each other longer than they compute
    found = least_squares(
        errors, start, bounds=bounds, loss="soft_l1", f_scale=0.05, x_scale="jac", tr_solver="lsmr"
    )
    return known | dict(zip(names, np.exp(found.x).tolist(), strict=True))


def _with_hbm(of: Constants) -> Constants:
    """With DSM's latency from HBM, of which `handover` has no rows: that from L2, and what TMA's has more."""
    more = of["gpu", "latency_hbm_cycles"] - of["gpu", "latency_l2_cycles"]
    return of | {(way, "latency_hbm_cycles"): of[way, "latency_l2_cycles"] + more for way in DSM}


def _about(way: str, name: str) -> tuple[str, str]:
    """Unit and meaning of a constant."""
    if way == "range":
        return "bytes" if "bytes" in name else "count", "edge of the measured range"
    if name.startswith("share_at"):
        return "ratio", "L2's rate for a tensor of this size over its full rate"
    if name.startswith("sms_at"):
        return "SMs", "SMs that clusters of this size keep busy"
    if name.startswith("ratio_"):
        return (
            "ratio",
            "measured over predicted cycles, quantile; of loads, over tile sizes that were not fitted",
        )
    return SHARED.get((way, name)) or (OF_WAY | beside.MEANINGS)[name]


def save(
    store: Store, gpu: str, progress: Progress = silent, scores: pd.DataFrame | None = None
) -> list[str]:
    """Fit one GPU, and replace its rows of constants, of the rules' verdicts and, where they are given, of `splits`.

    Args:
        store: the rows, and where the tables go.
        gpu: whose.
        progress: shows how far it is.
        scores: of `splits.all_scores`.

    Returns:
        What was measured and is not in the model: of `left_out`.

    Raises:
        NotMeasured: see `frames` and `fit`.
    """
    measured = frames(store, gpu)
    of, _ = fit(measured, progress)
    with suppress(NotMeasured):  # a model of loads alone is one, too
        loops = frames(store, gpu, ("mainloop", "mainloop_power"))
        of |= beside_fit.constants_beside(*loops.values())
        measured |= loops
    runs = ";".join(sorted({str(frame["run_id"].iloc[0]) for frame in measured.values()}))
    rows = [
        {"gpu": gpu, "way": way, "constant": name, "value": _text(value), "unit": unit, "meaning": meaning,
         "run_ids": runs}
        for (way, name), value in of.items()
        for unit, meaning in [_about(way, name)]
    ]  # fmt: skip
    on_cards = cards.rules(store, gpu).set_index("rule").astype(int).to_dict("index")
    verdicts = [
        {"gpu": gpu, "rule": v.rule.id, "chapter": v.rule.chapter, "statement": v.rule.statement, "outcome": v.outcome,
         "evidence": v.sentence, "run_id": ";".join(v.run_ids), "applies_to": v.rule.applies_to,
         **on_cards.get(v.rule.id, {})}
        for v in judge(store, gpu, progress=progress)
    ]  # fmt: skip
    store.write("constants", rows, replacing={"gpu": gpu})
    store.write("verdicts", verdicts, replacing={"gpu": gpu})
    if scores is not None:
        told = scores.assign(gpu=gpu).round(6).astype(object).where(scores.assign(gpu=gpu).notna(), None)
        store.write("splits", told.to_dict("records"), replacing={"gpu": gpu})
    constants.cache_clear()
    return left_out(measured)


def _text(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else f"{value:.6g}"
