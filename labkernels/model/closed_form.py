"""A closed form for the time of one tile: what has to happen in each round trip of a stage, and what binds.

    period = (Σ termᵖ)^(1/p)

A term is the cycles that one tile of one CTA would take if nothing else were in the way (`terms`); the sum with a large
exponent is nearly the largest of them, and a little more where two are close. `QUEUED` terms are first added with an
exponent of their own: requests wait for each other before the rate of L2, and long before that of HBM, is reached.
Numbers of a `Load` may be NumPy arrays, of as many configurations. The same formulas are in
`book/_static/lab-decide.js`; the tests compare them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, reduce
from pathlib import Path

from labkernels.errors import NotMeasured
from labkernels.kernels.registry import AXES
from labkernels.mechanisms import CLUSTER, MECHANISMS
from labkernels.operand import KIB
from labkernels.paths import DATA
from labkernels.store import Store

#: Mechanisms that the model predicts, those with the fewest busy threads first.
PREFERENCE = tuple(
    one.name for one in sorted(MECHANISMS.values(), key=lambda one: one.preference) if one.preference
)
DSM = tuple(
    name for name in PREFERENCE if not MECHANISMS[name].touches_global
)  # shared memory to shared memory
CROSSING = tuple(name for name in PREFERENCE if MECHANISMS[name].crosses_ctas)
IN_CLUSTERS = tuple(
    name for name in PREFERENCE if "ring" in AXES[name]
)  # run with CTAs that need the same tile
SHARES = ("slices", "leader")  # each CTA loads or computes its part of a tile for all, or a leader all of it
ALONE = "alone"
UNICAST = ("everyone", ALONE)  # each CTA loads for itself: those of a cluster, or neighbors without one
SPECIALIZED, MULTISTAGE = "specialized", "multistage"  # warps that copy and warps that read; all do both
WARPS = (1, 2, 4)  # that copy, and as many that read
SMALL_TILE_BYTES = (
    8 * KIB
)  # larger ones take longer than one warp needs from tile to tile, unless a multicast brings them
VECTOR_BYTES = 16  # of a thread's instruction

#: Terms whose requests wait for each other, by where the data lie.
QUEUED = {
    "hbm": ("latency", "bandwidth", "box rows", "DSM egress"),
    "l2": ("latency", "bandwidth", "SM ingress", "DSM egress"),
    "computed": ("latency", "bandwidth", "DSM egress"),
}

#: What each term stands for, in cycles of one tile of one CTA.
TERMS = {
    "latency": "the round trip of a stage, over the tiles in flight (Little's law)",
    "issue": "the copies' instructions and the synchronization of the stage, over the warps that take turns",
    "bandwidth": "this tile's share of what HBM or L2 delivers to all SMs",
    "SM ingress": "this tile's share of what one SM takes in",
    "box rows": "rows of a box, one after the other",
    "DSM egress": "what one SM forwards to the others of its cluster through DSM",
    "compute": "work on the tile that the copies hide behind",
    "tensor cores": "a step of the product, at the power limit; or copies and wgmma's reads through one load unit",
}


@dataclass(frozen=True)
class Load:
    """What the model knows of an operand.

    Attributes:
        tile_bytes: bytes of a tile.
        row_bytes: bytes of a tile's row that lie without a gap in global memory.
        is_dense: whether the next row follows at once; if not, other data lie between.
        tiles_in_flight: tiles that one CTA has under way, at most.
        ctas_per_sm: CTAs on each SM.
        threads: that copy a tile together, where threads copy.
        pipeline: `SPECIALIZED` or `MULTISTAGE`.
        warps: of a specialized pipeline, that copy in turns, and as many that read.
        barriers: a tile, of a multistage pipeline: after one of two a slot is refilled at once.
        source: where the data lie: `hbm` or `l2`; `computed` where the cluster makes them in shared memory.
        fan_out: CTAs that need the same tile, a cluster of them or neighbours.
        pace: whether they ask for it `together` or `apart`, by 1,000 cycles and more; multicast keeps them together.
        copies: TMA copies that a tile takes: 1, or those of its pages or rows where each has an index of its own.
        lookups: page-table loads that a tile's copies need; 0 where it has none.
        issuers: producer warps that share copies and page-table loads.
        compute_cycles: cycles for which a CTA works on a tile.
        copy_bytes: that a thread's instruction moves.
        used_share: of what is read from HBM, where rows have gaps that their sectors cover.
        l2_share: of its full rate that L2 gives a tensor so large, data in L2.
    """

    tile_bytes: int
    row_bytes: int
    is_dense: bool = True
    tiles_in_flight: int = 4
    ctas_per_sm: int = 1
    threads: int = 128
    pipeline: str = SPECIALIZED
    warps: int = 1
    barriers: int = 1
    source: str = "hbm"
    fan_out: int = 1
    pace: str = "together"
    copies: int = 1
    lookups: int = 0
    issuers: int = 1
    compute_cycles: float = 0.0
    copy_bytes: int = VECTOR_BYTES
    used_share: float = 1.0
    l2_share: float = 1.0

    @property
    def bytes_in_flight_per_sm(self) -> int:
        """The axis of the crossover chapter."""
        return self.tile_bytes * self.tiles_in_flight * self.ctas_per_sm


Constants = dict[tuple[str, str], float]


@dataclass(frozen=True)
class Prediction:
    """One mechanism's time.

    Attributes:
        mechanism: its name.
        terms: cycles of each term, as in `TERMS`.
        cycles_per_tile: period of one CTA's pipeline.
        gbps: 10⁹ bytes a second delivered to shared memory, all SMs together.
        low: 5th percentile of measured over predicted cycles, on configurations that were not fitted.
        high: 95th percentile.
        instructions: copies and page-table loads of a tile that the busiest thread issues.
        share: of DSM and of computed tiles, the faster of `SHARES`; of a tile that several CTAs load for themselves,
            the faster of `UNICAST`; else empty.
        form: of the pipeline, in words.
        warps: of a specialized pipeline, that copy, and as many that read.
    """

    mechanism: str
    terms: dict[str, float]
    cycles_per_tile: float
    gbps: float
    low: float
    high: float
    instructions: float = 1.0
    share: str = ""
    form: str = ""
    warps: int = 1

    @property
    def binding(self) -> str:
        """The largest term."""
        return max(self.terms, key=self.terms.__getitem__)


def way_of(mechanism: str, load: Load, share: str = "") -> str:
    """Which constants a mechanism has: TMA is one way, of CTAs in step another, as their requests merge.

    A computed tile is stored to L2 before it is multicast: a round trip.
    """
    moves = MECHANISMS[mechanism]
    if not moves.touches_global:
        return mechanism
    if load.source == "computed" and moves.crosses_ctas:
        return "round trip"
    if moves.by_threads:
        return f"{mechanism} {load.pipeline}"
    if moves.crosses_ctas:
        return f"{mechanism} {share}"
    return "tma" if load.fan_out == 1 or load.pace == "apart" else "tma in step"


def shares_of(mechanism: str, load: Load) -> tuple[str, ...]:
    """Who may bring the tile, where that makes a difference: all that `predict` chooses from."""
    moves = MECHANISMS[mechanism]
    if not moves.touches_global or load.source == "computed":
        return SHARES if load.tile_bytes % (VECTOR_BYTES * load.fan_out) == 0 else SHARES[1:]
    if load.fan_out == 1 or moves.by_threads:
        return ("",)
    if not moves.crosses_ctas:
        return UNICAST
    return (
        SHARES if load.warps == 1 else SHARES[1:]
    )  # in turns, slices were slower than one CTA's whole tiles


def forms_of(mechanism: str, load: Load, slots: int) -> Iterator[Load]:
    """An operand in each pipeline that a mechanism has in so many slots of shared memory, those with few warps first.

    A multistage pipeline with one barrier a tile reads one slot while the others are under way; plain loads, which wait
    in registers, need two slots and have one tile in flight. Warps that take turns need as many slots, or a multiple.
    """
    moves = MECHANISMS[mechanism]
    if moves.by_threads and moves.touches_global:
        staged = replace(load, pipeline=MULTISTAGE)
        if moves.through_registers:
            yield replace(staged, tiles_in_flight=1)
            return
        if slots > 1:
            yield replace(staged, tiles_in_flight=slots - 1)
        yield replace(staged, tiles_in_flight=slots, barriers=2)
    in_turns = moves.touches_global and load.source != "computed" and not load.lookups
    for warps in (
        WARPS if in_turns and (moves.crosses_ctas or load.tile_bytes <= SMALL_TILE_BYTES) else WARPS[:1]
    ):
        if slots % warps == 0:
            copying = 32 if moves.by_threads else load.threads
            yield replace(load, pipeline=SPECIALIZED, warps=warps, tiles_in_flight=slots, threads=copying)


def form_of(load: Load) -> str:
    """A pipeline in words."""
    if load.pipeline == SPECIALIZED:
        return f"{load.warps} + {load.warps} warps"
    return MULTISTAGE if load.barriers == 1 else f"{MULTISTAGE}, two barriers"


def sms_of(load: Load, of: Constants, share: str = "") -> float:
    """SMs at work: clusters leave some idle, neighbors only what their number does not divide."""
    if share == ALONE:
        return of["gpu", "sms_at_fan_out_1"] // load.fan_out * load.fan_out
    return of["gpu", f"sms_at_fan_out_{load.fan_out}"]


def terms(mechanism: str, load: Load, of: Constants, share: str = "slices") -> dict[str, float]:
    """Cycles that each term alone would take for one tile of one CTA; see `TERMS`.

    Args:
        mechanism: a name from `PREFERENCE`.
        load: the operand.
        of: constants of one GPU by way and name.
        share: one of `shares_of`.

    Raises:
        KeyError: there are no constants for this mechanism.
    """
    moves = MECHANISMS[mechanism]
    if not moves.touches_global or load.source == "computed":
        return _forwarded(mechanism, load, of, share)
    way = way_of(mechanism, load, share)
    tile, flight = load.tile_bytes, load.tiles_in_flight
    sms = sms_of(load, of, share)
    in_step = load.fan_out > 1 and load.source == "l2" and way != "tma"
    port = of[way if in_step else "gpu", "port_bytes_per_cycle"]
    round_trip = of["gpu", f"latency_{load.source}_cycles"] + of[way, "overhead_cycles"] + tile / port
    issue = 0.0 if moves.through_registers else of[way, "handshake_cycles"] / load.warps
    if moves.by_threads:
        each = of[
            "threads", "piece_cycles" if load.lookups else "vector_cycles"
        ]  # with an address of its own, or not
        vectors = each * tile / load.copy_bytes / load.threads
        if not moves.through_registers:  # all warps that copy one tile meet at its barrier
            together = load.threads / 32 - (load.pipeline == SPECIALIZED)
            synchronized = of["threads", "warp_cycles"] * together
            synchronized += of["threads", "barrier_cycles"] * (load.barriers - 1)
            round_trip += synchronized
            issue += synchronized
        issue += vectors / load.warps
        # All warps of an SM issue through one load unit.
        at_once = of["threads", "slot_cycles"] * tile / load.copy_bytes / 32 * load.ctas_per_sm
        issue = _most(issue, at_once)
        round_trip += vectors
    else:
        copying = of["tma", "copy_cycles"] * (load.copies - 1)
        if load.lookups:
            copying += of[mechanism, "lookup_cycles"] * load.lookups
        issue += copying / load.issuers
    if moves.crosses_ctas:  # who brings a whole tile waits for all CTAs; of slices, as many copies arrive
        each = (
            of[way, "peer_cycles"] * load.fan_out / load.warps
            if share == SHARES[0]
            else of[way, "serial_cycles"]
        )
        issue = _most(issue + each, of["tma in step", "handshake_cycles"] / load.warps)
    found = {"latency": round_trip / flight, "issue": issue}

    # A multicast is one read for all; what a cluster's first CTA takes from HBM, the others find in L2.
    once_for = float(load.fan_out)
    if way == "tma" and load.source == "l2":
        once_for = 1.0
    elif moves.takes_tensor_map and not moves.crosses_ctas and in_step:
        once_for = _least(once_for, 1 + of[way, "merged_per_64_kib"] * tile * flight / (64 * KIB))
    efficiency = _row_efficiency(mechanism, load, of)
    asked = tile * load.ctas_per_sm * sms
    efficiency *= load.used_share if load.source == "hbm" else load.l2_share
    found["bandwidth"] = asked / once_for / of["gpu", f"{load.source}_bytes_per_cycle"] / efficiency
    if way == "tma" and load.fan_out > 1:  # apart, L2 reads for every CTA what HBM brought once
        found["bandwidth"] = _most(found["bandwidth"], asked / of["gpu", "l2_bytes_per_cycle"])
    found["SM ingress"] = tile * load.ctas_per_sm / of["gpu", "ingest_bytes_per_cycle"]
    if moves.takes_tensor_map:
        found["box rows"] = tile / load.row_bytes * load.ctas_per_sm * of["tma", "row_cycles"]
    if load.compute_cycles:
        found["compute"] = load.compute_cycles
    return found


def _forwarded(mechanism: str, load: Load, of: Constants, share: str) -> dict[str, float]:
    """Terms of a tile that goes from shared memory to shared memory, pushed, pulled, or by L2 and multicast."""
    moves, way = MECHANISMS[mechanism], way_of(mechanism, load)
    tile, others, at_once = load.tile_bytes, load.fan_out - 1, load.ctas_per_sm
    own = tile / load.fan_out if share == "slices" else tile  # what one CTA loads or computes, and forwards
    sms = sms_of(load, of)
    # A leader stores once; whoever pulls from a leader waits for one CTA.
    peers = others if share == "slices" or moves.pushes else 1
    found = {"issue": of[way, "handshake_cycles"] + of[way, "peer_cycles"] * peers}
    if load.source == "computed" and moves.source != CLUSTER:  # who pulls waits longer than computing takes
        found["issue"] += own / of[way, "make_bytes_per_cycle"]
    if not moves.touches_global:
        # One CTA forwards at the full egress rate of its SM, and so do two that push; where more cross, they get less.
        alone = share == "leader" or (moves.pushes and others == 1)
        rate = of["dsm", "outbox_bytes_per_cycle"] if alone else of[way, "crossing_bytes_per_cycle"]
        found["DSM egress"] = own * others * at_once / rate
        round_trip = found["DSM egress"] / at_once
        if load.source != "computed":
            round_trip += of[way, f"latency_{load.source}_cycles"] + own / of[way, "turn_bytes_per_cycle"]
            memory = of["gpu", f"{load.source}_bytes_per_cycle"]
            found["bandwidth"] = tile * at_once * sms / load.fan_out / memory
            found["box rows"] = own / load.row_bytes * at_once * of["tma", "row_cycles"]
    else:
        round_trip = of[way, "latency_l2_cycles"] + tile / of[way, "turn_bytes_per_cycle"]
        found["bandwidth"] = tile * at_once * sms / load.fan_out / of[way, "store_bytes_per_cycle"]
        found["box rows"] = tile / load.row_bytes * at_once * of["tma", "row_cycles"]
    found["latency"] = round_trip / load.tiles_in_flight
    found["SM ingress"] = tile * at_once / of["gpu", "ingest_bytes_per_cycle"]
    if load.compute_cycles:
        found["compute"] = load.compute_cycles
    return found


def _row_efficiency(mechanism: str, load: Load, of: Constants) -> float:
    """Share of HBM's rate that rows far apart get; a tensor map promotes its requests to 128 bytes and has no loss."""
    if load.source != "hbm" or load.is_dense or not MECHANISMS[mechanism].by_threads:
        return 1.0
    short = (
        of["threads", "short_row_share_at_16"] * (load.row_bytes / 16) ** of["threads", "short_row_exponent"]
    )
    return short * (load.row_bytes < 128) + (load.row_bytes >= 128)


def predict(mechanism: str, load: Load, of: Constants, share: str = "") -> Prediction:
    """Period, rate and interval of one mechanism; arguments and errors as `terms`, no `share` for the fastest one."""
    if not share and (possible := shares_of(mechanism, load)) != ("",):
        return max((predict(mechanism, load, of, one) for one in possible), key=lambda one: one.gbps)
    found = terms(mechanism, load, of, share)
    period = _period(found, load.source, of)
    way = way_of(mechanism, load, share)
    ratios = of[way, "ratio_p05"], of[way, "ratio_p95"]
    rate = _gbps(load, of, share, period)
    return Prediction(
        mechanism,
        found,
        period,
        rate,
        *ratios,
        instructions(mechanism, load),
        share,
        form_of(load),
        load.warps,
    )


def start_us(mechanism: str, source: str, of: Constants) -> float:
    """What a launch takes beside its bytes at the full rate: its start, and one tile's way."""
    moves = MECHANISMS[mechanism]
    who = mechanism if moves.by_threads and moves.touches_global else "tma"
    return of[who, f"start_{'hbm' if source == 'hbm' else 'l2'}_us"]


def time_us(one: Prediction, nbytes: float, source: str, of: Constants, times: float = 1.0) -> float:
    """Time of a launch that delivers some bytes; `times`: the ratio by which the time of the bytes may be off."""
    return start_us(one.mechanism, source, of) + nbytes / one.gbps / 1e3 * times


def gbps(mechanism: str, load: Load, of: Constants, share: str) -> float:
    """The rate alone, of one configuration or, in arrays, of many."""
    return _gbps(load, of, share, _period(terms(mechanism, load, of, share), load.source, of))


def _gbps(load: Load, of: Constants, share: str, period: float) -> float:
    at_once = load.tile_bytes * load.ctas_per_sm * sms_of(load, of, share)
    return at_once / period * of["gpu", "sm_clock_mhz"] / 1e3


def _period(found: dict[str, float], source: str, of: Constants) -> float:
    queued = [term for name, term in found.items() if name in QUEUED[source]]
    others = [term for name, term in found.items() if name not in QUEUED[source]]
    queue = "hbm" if source == "hbm" else "l2"
    waited = _sum(queued, of["gpu", f"{queue}_queue_sharpness"])
    return _sum([waited, *others], of["gpu", f"{queue}_sharpness"])


def instructions(mechanism: str, load: Load) -> float:
    """Copies and page-table loads of a tile that the busiest thread issues."""
    moves = MECHANISMS[mechanism]
    if moves.by_threads:
        return max(1.0, load.tile_bytes / load.copy_bytes / load.threads)
    if moves.pushes:
        return float(load.fan_out)  # its own part, and one copy to each other CTA
    return (load.copies + load.lookups) / load.issuers


def _most(one: float, other: float) -> float:
    return (one + other + abs(one - other)) / 2  # of arrays too


def _least(one: float, other: float) -> float:
    return (one + other - abs(one - other)) / 2


def _sum(parts: list[float], exponent: float) -> float:
    largest = reduce(_most, parts)
    return largest * sum((part / largest) ** exponent for part in parts) ** (1 / exponent)


@cache
def constants(gpu: str, root: Path = DATA) -> Constants:
    """The fitted constants of one GPU.

    Raises:
        NotMeasured: there are none; the message names the GPUs that have them.
    """
    rows = Store(root).records("constants")
    if not rows:
        raise NotMeasured(f"{root} holds no model: run python -m labkernels fit")
    found = {(row["way"], row["constant"]): row["value"] for row in rows if row["gpu"] == gpu}
    if not found:
        known = ", ".join(dict.fromkeys(row["gpu"] for row in rows))
        raise NotMeasured(
            f"no model of {gpu!r}: choose {known}, or measure it and run python -m labkernels fit"
        )
    return found
