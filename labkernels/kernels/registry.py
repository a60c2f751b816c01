"""The registry: which kernels exist for each mechanism, as axes of compile-time constants."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from labkernels.errors import BadArgument
from labkernels.mechanisms import ARCHITECTURES, GLOBAL, MECHANISMS, Mechanism
from labkernels.operand import WARP

REGISTERS_PER_SM = 65536


@dataclass(frozen=True)
class KernelSpec:
    """One kernel: a mechanism, a protocol, and the compile-time constants its PTX is rendered with.

    Attributes:
        mechanism: a name of `MECHANISMS`; also the file `ptx/<mechanism>.ptx`.
        protocol: how its transfers follow each other: `stream` (many in flight), `gather` (the same through a page
            table), `chase` (one depends on the one before) and so on; its Numba side is the function of that name in
            `entry`, or passes all arguments through.
        constants: compile-time constants, sorted by name.
    """

    mechanism: str
    protocol: str
    constants: tuple[tuple[str, int | str], ...] = ()

    @property
    def traits(self) -> Mechanism:
        """What its mechanism is."""
        return MECHANISMS[self.mechanism]

    @property
    def name(self) -> str:
        """Readable and unique: `cp_async.stream[chunks=2,completion=group,depth=4]`."""
        inside = ",".join(f"{key}={value}" for key, value in self.constants)
        return f"{self.mechanism}.{self.protocol}" + (f"[{inside}]" if inside else "")

    @property
    def function(self) -> str:
        """Name of the PTX function that holds the timed region."""
        return f"{self.mechanism}_{self.protocol}"

    @property
    def architectures(self) -> tuple[str, ...]:
        """Architectures the kernel exists for: wgmma is Hopper's alone."""
        on_hopper = dict(self.constants).get("compute") == "wgmma" or self.moves_registers
        return ("sm_90a",) if on_hopper else ARCHITECTURES

    @property
    def max_registers(self) -> int:
        """Registers per thread given to the linker: few enough for 512 threads and more on an SM, no spill in a loop.

        Tiles that pass through registers are held there twice, `chunks` vectors of 16 bytes each; a gather beside
        tensor cores fills the SM with one block of 384 threads.
        """
        constants = dict(self.constants)
        if self.protocol == "mainloop":
            return min(224, REGISTERS_PER_SM // self.mainloop_threads // 8 * 8)
        if constants.get("compute") == "wgmma":
            return 168
        if self.protocol == "multistage":  # one set of up to two vectors leaves room for 2,048 threads
            return 32 if constants.get("sets") == 1 and constants["chunks"] <= 2 else 64
        if self.protocol == "burst":
            return 128
        vectors = constants.get("chunks", 1) if self.traits.through_registers else 0
        return {4: 80, 8: 128, 16: 128}.get(vectors, 64)

    @property
    def moves_registers(self) -> bool:
        """Whether its warpgroups hand registers to each other (setmaxnreg)."""
        return bool(dict(self.constants).get("producer_registers"))

    @property
    def mainloop_threads(self) -> int:
        """Threads of a block of protocol `mainloop`: two warpgroups consume; registers move by warpgroups."""
        constants = dict(self.constants)
        warps = constants["producers"]
        return 256 + WARP * (-(-warps // 4) * 4 if self.moves_registers else warps)

    def broken_promise(self, timed: Iterable[str], all_code: Iterable[str]) -> str:
        """What the kernel's machine code lacks or should not have, in words; empty if it is as promised.

        A kernel shows its own mechanism and no other that fills shared memory, but for its carriers; a page table or
        a tensor map may be read by plain loads.

        Args:
            timed: mechanisms and features found in the timed function, as `sass` names them.
            all_code: the same, of all functions.
        """
        own = self.traits
        if not any(own.looks_like(MECHANISMS[name]) for name in timed if name in MECHANISMS):
            shown = " or ".join(own.opcodes or [f"{own.generic} through a mapped address"])
            return f"no {self.mechanism} ({shown}) in its timed code"
        reads_tables = self.protocol in ("gather", "descriptor")
        has_table = reads_tables or dict(self.constants).get("per_copy") == "lookup"
        allowed = {*own.carriers, *(("ldg",) if has_table else ())}
        if self.protocol == "mainloop" and own.crosses_ctas:  # one of two operands is for this CTA alone
            allowed.add("tma_tile")
        foreign = [
            name
            for name in all_code
            if name in MECHANISMS and MECHANISMS[name].destination != GLOBAL
            if name not in allowed and not own.looks_like(MECHANISMS[name])
        ]
        return f"{', '.join(foreign)} in its code, beside {self.mechanism}" if foreign else ""


CHUNKS = (1, 2, 4, 8)  # 16-byte vectors per thread and tile, unrolled as a kernel author would
POLICIES = ("nc", "cg", "L1::no_allocate")  # modifiers of ld.global
PER_COPY = ("copy", "expect", "wait", "lookup")  # what a burst's copy comes with; see ptx/macros/issue.ptx
DEPTHS = (1, 2, 4, 8)  # cp.async.wait_group takes an immediate

#: Rows, and bytes of a row, of attention's K/V tiles: head dims 64 to 256 in one and two bytes, and MLA's 576.
GATHER_SHAPES = (
    (128, 64), (128, 96), (128, 128), (128, 192), (128, 256), (128, 384), (64, 512), (64, 576), (64, 1152),
)  # fmt: skip
WGMMA_SHAPE = (128, 256)  # head dim 128 in bf16


def _gathers(**axes: tuple[str, ...]) -> tuple[Mapping[str, tuple[int | str, ...]], ...]:
    shapes = (WGMMA_SHAPE,) if axes.get("compute") == ("wgmma",) else GATHER_SHAPES
    return tuple({"tile_rows": (rows,), "row_bytes": (row,), **axes} for rows, row in shapes)


CONSUMERS = (1, 2, 4)  # warps that read tiles in turn
HANDOVERS = {"share": ("slices", "leader"), "origin": ("global", "computed")}


def _pipelines(axes: Mapping[str, tuple[int | str, ...]]) -> dict[str, tuple[int | str, ...]]:
    """Multicast pipelines: the plain one, varied along the given axes."""
    plain = {
        "share": ("slices",),
        "origin": ("global",),
        "producers": (1,),
        "consumers": (1,),
        "arrivers": ("lanes",),
        "scope": ("default",),
        "fault": ("none",),
    }
    return {**plain, **axes}


def _register_sets() -> tuple[Mapping[str, tuple[int | str, ...]], ...]:
    """Loads by occupancy (one set of registers) or by sets in flight together; policies and prefetch sizes."""

    def sets(
        count: int, chunks: tuple[int, ...], policies: tuple[str, ...], prefetch: tuple[str, ...]
    ) -> dict:
        return {
            "destination": ("register", "shared"),
            "sets": (count,),
            "unroll": (1 if count == 1 else 2 * count,),
            "chunks": chunks,
            "policy": policies,
            "prefetch": prefetch,
        }

    plain = ("cg",)  # L1::no_allocate is no substitute: L2 gives up such lines first
    return (
        sets(1, (1, 2, 4, 8), plain, ("none",)),
        sets(2, (1, 2, 4), plain, ("none",)),
        sets(3, (1, 2), plain, ("none",)),
        sets(1, (2,), ("nc", "ca", "L1::no_allocate"), ("none",)),
        sets(1, (2,), plain, ("128B", "256B")),
    )


WARPS = (1, 2, 4)  # that copy, and as many that read
LEADS = (1, 2, 4, 8, 16, 32)  # tiles that a prefetch into L2 is ahead of the copy
#: Of a tile that streams by beside one that is used again: what L2 is to do with their lines.
MIXED = {
    "producers": (1,),
    "consumers": (1,),
    "streamed": ("evict_normal", "evict_first", "evict_last"),
    "reused": ("evict_normal", "evict_first", "evict_last"),
}
PIPELINE_TILES = (2048, 8192, 32768)


def _producer_warps() -> tuple[Mapping[str, tuple[int | str, ...]], ...]:
    """cp.async in the pipeline of the copy engine: producer warps in turns, or each tile by all of them together."""

    def pipeline(producers: int, consumers: int, share: str, prefetch: str = "128B") -> dict:
        copying = producers if share == "together" else 1
        return {
            "producers": (producers,),
            "consumers": (consumers,),
            "share": (share,),
            "chunks": tuple(tile // (512 * copying) for tile in PIPELINE_TILES),
            "prefetch": (prefetch,),
        }

    return (
        *(pipeline(warps, warps, "turns") for warps in WARPS),
        *(pipeline(warps, warps, "together") for warps in WARPS[1:]),
        pipeline(4, 1, "together"),
        pipeline(1, 1, "turns", "none"),
    )


WAYS_OUT = {
    "chunks": (1, 2, 4),
    "stages": (1, 2, 4, 8),
}  # of a block that fills a stage, then issues its store
FRAGMENTS = {"layout": ("fragments",), "chunks": (4,)}  # of a warp group: 64 rows of 128 bytes

MAINLOOP_TILES = ((128, 128), (128, 256), (256, 128))
SPANS = (64, 32, 16)  # bytes of a swizzle's row besides 128; 16: none
WORK = (8, 16, 32)  # FFMA for each word that is read
LESS = (1, 2)  # of the four wgmma of a step, those that are computed: less is read of what is copied
MOVED = {"producer_registers": 40, "consumer_registers": 232}  # setmaxnreg, one warpgroup of producers
EVEN = {"producer_registers": 0, "consumer_registers": 0}  # all threads keep what they are launched with
GIVEN = {"pitch_bytes": 4096}  # known when the kernel is compiled
PACKED = {"pitch_bytes": 128}  # the tile of each step is one run of memory

Axes = dict[str, tuple[int | str, ...]]


def _mainloop(tile: tuple[int, int] = (128, 128), **axes: int | str | tuple) -> Axes:
    """Main loops of a matrix product: the plain one, varied along the given axes."""
    plain = {"m": tile[0], "n": tile[1], "span": 128, "compute": "wgmma", "work": 0, "producers": 1, **MOVED}
    return {
        name: value if isinstance(value, tuple) else (value,) for name, value in {**plain, **axes}.items()
    }


def _copied_by_engine() -> tuple[Axes, ...]:
    copies = ("all", "first")
    return (
        *(_mainloop(tile, copies=copies) for tile in MAINLOOP_TILES),
        _mainloop(work=LESS, copies="all"),
        _mainloop(span=SPANS, copies=copies),
        _mainloop(**EVEN, copies=copies),
        *(_mainloop(tile, compute="none", copies="all") for tile in MAINLOOP_TILES),
        _mainloop(compute="none", span=SPANS, copies="all"),
        _mainloop(compute="fma", work=WORK, **EVEN, copies=copies),
    )


def _copied_by_threads() -> tuple[Axes, ...]:
    """cp.async: by more and more warps; by one, whose pitch is not known; handed over by the producer."""
    plain = {"handover": "mbarrier", **GIVEN}
    wide = {**plain, "producers": 8, "consumer_registers": 216}
    return (
        *(_mainloop(tile, **{**plain, "producers": (1, 2, 4)}) for tile in MAINLOOP_TILES),
        *(_mainloop(tile, **wide) for tile in MAINLOOP_TILES if tile[1] < 256),
        *(_mainloop(tile, producers=4, handover="group", behind=2, **GIVEN) for tile in MAINLOOP_TILES),
        _mainloop(producers=4, handover="group", behind=4, **GIVEN),
        _mainloop(work=LESS, producers=4, handover="mbarrier", **GIVEN),
        *(_mainloop(tile, producers=4, handover="mbarrier", pitch_bytes=0) for tile in MAINLOOP_TILES),
        _mainloop(span=SPANS, producers=4, lanes=("rows", "banks"), **plain),
        _mainloop(compute="none", span=SPANS, producers=4, lanes=("rows", "banks"), **plain),
        *(_mainloop(tile, compute="none", producers=(1, 4), **plain) for tile in MAINLOOP_TILES),
        _mainloop(**EVEN, producers=(1, 2, 4), **plain),
        _mainloop(producers=4, handover="mbarrier", **PACKED),
        _mainloop(compute="fma", work=WORK, **EVEN, producers=(1, 2, 4), **plain),
        _mainloop(compute="fma", work=WORK, **EVEN, producers=(1, 4), handover="mbarrier", **PACKED),
    )


def _through_registers() -> tuple[Axes, ...]:
    """Plain loads, with as many vectors under way as the threads that multiply leave registers for."""

    def loads(tile: tuple[int, int], warps: int, turns: int, own: int, **axes: int | str | tuple) -> Axes:
        left = (REGISTERS_PER_SM // 128 // (warps // 4 + 2) // 8 * 8) * (warps // 4 + 2) - warps // 4 * own
        moved = {"producer_registers": own, "consumer_registers": left // 2 // 8 * 8}
        return _mainloop(tile, **{"producers": warps, "turns": turns, **moved, **GIVEN, **axes})

    return (
        loads((128, 128), 4, 1, 104),
        loads((128, 128), 8, 2, 104),
        loads((128, 128), 8, 1, 80),
        loads((128, 256), 4, 1, 136),
        loads((256, 128), 4, 1, 136),
        loads((256, 128), 8, 1, 80),
        loads((128, 128), 8, 2, 104, span=16, lanes=("rows", "banks")),
        loads((128, 128), 8, 2, 104, compute="none"),
        loads((256, 128), 8, 1, 80, compute="none"),
        loads((128, 128), 4, 1, 0, compute="fma", work=WORK, consumer_registers=0),
        loads((128, 128), 8, 2, 0, compute="fma", work=WORK, consumer_registers=0),
    )


#: Mechanism → protocol → families of axes (constant → values); a protocol's kernels are their products. Reductions have
#: none yet.
AXES: dict[str, dict[str, tuple[Mapping[str, tuple[int | str, ...]], ...]]] = {
    "ldg": {
        "stream": ({"chunks": CHUNKS, "policy": POLICIES},),
        "multistage": _register_sets(),
        "chase": (
            {"destination": ("register",), "chunks": (1,), "policy": POLICIES},
            {"destination": ("register",), "chunks": (1,), "policy": ("nc",), "clock": ("chain",)},
            {"destination": ("shared",), "chunks": (1, 4, 8), "policy": ("nc",)},
        ),
        "mainloop": _through_registers(),
        "issue": ({"chunks": (1, 4, 16), "policy": ("nc",)},),
        "burst": ({"train": (1, 4, 8, 16), "policy": ("nc",)},),
    },
    "cp_async": {
        "stream": (
            {"completion": ("group",), "depth": DEPTHS, "chunks": CHUNKS},
            {"completion": ("mbarrier",), "chunks": CHUNKS},
        ),
        "multistage": (
            {"depth": tuple(range(1, 13)), "chunks": (1, 4), "barriers": (1,), "prefetch": ("128B",)},
            {"depth": (1, 2, 3, 4), "chunks": (1, 4), "barriers": (2,), "prefetch": ("128B",)},
            {"depth": (2, 4, 8), "chunks": (4,), "barriers": (1,), "prefetch": ("none",)},
        ),
        "pipeline": _producer_warps(),
        "mainloop": _copied_by_threads(),
        "gather": _gathers(compute=("none",)) + _gathers(compute=("wgmma",)),
        "chase": ({"completion": ("group", "mbarrier"), "chunks": (1, 4, 8)},),
        "issue": ({},),
        "burst": ({"train": (1, 4, 8, 16, 32, 64)},),
    },
    "tma_bulk": {
        "stream": ({"excess_bytes": (0, 16)},),
        "pipeline": tuple({"producers": (n,), "consumers": (n,)} for n in WARPS),
        "prefetched": ({"producers": (1,), "consumers": (1,), "lead": LEADS},),
        "mixed": (MIXED,),
        "gather": _gathers(),
        "chase": (
            {"wait": ("try_wait", "test_wait")},
            {"wait": ("try_wait",), "clock": ("chain",)},
        ),
        "issue": ({"per_copy": PER_COPY},),
        "burst": ({"train": (1, 4, 8, 16), "bytes": (2048, 8192)},),
    },
    "tma_tile": {
        "stream": ({"rank": (1, 2, 3, 4, 5)},),
        "pipeline": tuple({"producers": (n,), "consumers": (n,)} for n in WARPS),
        "prefetched": ({"producers": (1,), "consumers": (1,), "lead": LEADS},),
        "mixed": (MIXED,),
        "gather": _gathers(compute=("none",), table=("global", "none"))
        + _gathers(compute=("wgmma",), table=("global", "none")),
        "chase": (
            {"rank": (1, 2, 3, 4, 5), "wait": ("try_wait",)},
            {"rank": (2,), "wait": ("try_wait",), "clock": ("chain",)},
        ),
        "issue": ({"rank": (2,), "per_copy": PER_COPY},),
        "burst": ({"train": (1, 4, 8, 16), "bytes": (2048, 8192)},),
        "ring": ({"producers": (1, 2), "consumers": CONSUMERS}, {"producers": (4,), "consumers": (4,)}),
        "arrival": ({},),
        "visibility": ({},),
        "descriptor": ({"use": ("plain", "prefetch", "replace")},),
        "mainloop": _copied_by_engine(),
    },
    "tma_multicast": {
        "mainloop": tuple(_mainloop(tile, compute=("wgmma", "none")) for tile in MAINLOOP_TILES),
        "ring": (
            _pipelines({"share": ("slices", "leader"), "producers": (1, 2), "consumers": CONSUMERS}),
            _pipelines({"share": ("slices", "leader"), "producers": (4,), "consumers": (4,)}),
            _pipelines({"scope": ("relaxed", "arrive", "wait", "cluster")}),
            _pipelines({"arrivers": ("thread", "all"), "scope": ("default", "cluster")}),
            _pipelines({"arrivers": ("barrier",), "scope": ("relaxed", "cluster")}),
            _pipelines({"share": ("slices", "leader"), "origin": ("computed",)}),
            _pipelines({"fault": ("missing_expect", "early_exit")}),
            _pipelines({"share": ("slices", "leader"), "group": (4, 8)}),
        ),
        "arrival": ({},),
        "visibility": ({},),
    },
    "stg": {
        "drain": (
            {"origin": ("registers", "shared"), "layout": ("rows",), "chunks": (1, 2, 4)},
            {"origin": ("registers", "shared"), **FRAGMENTS},
        )
    },
    "bulk_store": {"drain": ({"run": ("tile", "row"), **WAYS_OUT},)},
    "tma_store": {"drain": ({"layout": ("rows",), **WAYS_OUT}, {**WAYS_OUT, **FRAGMENTS})},
    "dsm_load": {"ring": (HANDOVERS,), "exchange": ({},), "pair": ({},)},
    "dsm_store": {
        "exchange": ({"completion": ("async", "plain")},),
        "pair": ({},),
        "visibility": ({"completion": ("async", "word", "arrival", "release")},),
    },
    "dsm_bulk": {"ring": (HANDOVERS,), "exchange": ({},), "pair": ({},), "visibility": ({},)},
}


def kernel(mechanism: str, protocol: str, **constants: int | str) -> KernelSpec:
    """The spec of one kernel.

    Raises:
        BadArgument: there is no such mechanism, protocol or combination of constants; the message lists what there is.
    """
    family = kernels(mechanism, protocol)
    if not family:
        raise BadArgument(
            f"{mechanism} has no protocol {protocol!r}: choose one of {', '.join(AXES[mechanism])}"
        )
    spec = KernelSpec(mechanism, protocol, tuple(sorted(constants.items())))
    if spec not in family:
        raise BadArgument(f"no kernel {spec.name}; there are {', '.join(one.name for one in family)}")
    return spec


def kernels(mechanism: str | None = None, protocol: str | None = None) -> tuple[KernelSpec, ...]:
    """All kernels, or those of one mechanism or protocol, in registry order.

    Raises:
        BadArgument: there is no such mechanism, or it has no axes.
    """
    if strangers := [name for name in AXES if name not in MECHANISMS]:
        raise BadArgument(
            f"kernels/registry.py has axes for {strangers[0]!r}, which has no entry in mechanisms.py: add one"
        )
    if mechanism and mechanism not in MECHANISMS:
        raise BadArgument(f"{mechanism!r} is no mechanism: mechanisms.py has {', '.join(MECHANISMS)}")
    if mechanism and mechanism not in AXES:
        raise BadArgument(
            f"{mechanism!r} has no kernel: choose one of {', '.join(AXES)}, or give it axes in kernels/registry.py"
        )
    return tuple(
        KernelSpec(name, each_protocol, tuple(sorted(zip(axes, values, strict=True))))
        for name, protocols in AXES.items()
        for each_protocol, families in protocols.items()
        for axes in families
        for values in product(*axes.values())
        if mechanism in (None, name) and protocol in (None, each_protocol)
    )
