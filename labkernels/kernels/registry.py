"""The registry: which kernels exist for each mechanism, and what their machine code must and must not contain."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from labkernels.vocabulary import ARCHITECTURES

#: Global-to-shared load opcodes (SASS, sm_90 and sm_100). A kernel contains its own mechanism's and no other.
LOAD_OPCODES = {"ldg": "LDG", "cp_async": "LDGSTS", "tma_bulk": "UBLKCP", "tma_tile": "UTMALDG"}

#: The same inside a cluster, as patterns of opcode and modifiers: what moves data from one CTA to another.
CLUSTER_OPCODES = {
    "tma_multicast": r"UTMALDG\.\dD\.MULTICAST",
    "dsm_load": r"LD\.E",
    "dsm_store": r"STAS|ST\.E",
    "dsm_bulk": r"UBLKCP\.S\.S",
}

#: Loads that kernels of a cluster mechanism contain besides: something brings the tile to the first CTA, and
#: a tile computed there goes to global memory and back (UBLKCP.G.S) before it can be multicast.
CARRIERS = {
    "tma_multicast": {"UTMALDG", "UBLKCP"},
    "dsm_load": {"UTMALDG"},
    "dsm_store": set(),
    "dsm_bulk": {"UTMALDG", "UBLKCP"},
}


@dataclass(frozen=True)
class KernelSpec:
    """One kernel: a mechanism, a protocol, and the compile-time constants its PTX is rendered with.

    Attributes:
        mechanism: name in the book's vocabulary; also the file `ptx/<mechanism>.ptx`.
        protocol: `stream` (many transfers in flight), `gather` (the same through a page table), `chase` (one
            dependent transfer at a time) or `issue` (a train of transfers handed over).
        constants: compile-time constants, sorted by name.
    """

    mechanism: str
    protocol: str
    constants: tuple[tuple[str, int | str], ...] = ()

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
        return ("sm_90a",) if dict(self.constants).get("compute") == "wgmma" else ARCHITECTURES

    @property
    def max_registers(self) -> int:
        """Registers per thread given to the linker: few enough for 512 threads and more on an SM, no spill in a loop.

        `ldg` holds two tiles' worth of 16-byte pieces in registers, the others none; a gather beside tensor
        cores fills the SM with one block of 384 threads.
        """
        if dict(self.constants).get("compute") == "wgmma":
            return 168
        chunks = dict(self.constants).get("chunks", 1) if self.mechanism == "ldg" else 0
        return {0: 64, 1: 64, 2: 64, 4: 80, 8: 128, 16: 128}[chunks]

    @property
    def required_opcode(self) -> str:
        """Pattern of the SASS opcode that proves the mechanism, modifiers included where they do."""
        return (LOAD_OPCODES | CLUSTER_OPCODES)[self.mechanism]

    @property
    def forbidden_opcodes(self) -> frozenset[str]:
        """The SASS opcodes of all other load mechanisms; a page table may be read by LDG."""
        has_table = self.protocol == "gather" or dict(self.constants).get("per_copy") == "lookup"
        allowed = CARRIERS.get(self.mechanism, {self.required_opcode}) | ({"LDG"} if has_table else set())
        return frozenset(LOAD_OPCODES.values()) - allowed


@dataclass(frozen=True)
class Mechanism:
    """One way of moving an operand, with the compile-time axes of each of its protocols.

    Attributes:
        name: name in the book's vocabulary.
        title: how a chart calls it.
        axes: protocol -> list of axis dictionaries (constant -> values); a protocol's kernels are the products.
    """

    name: str
    title: str
    axes: Mapping[str, tuple[Mapping[str, tuple[int | str, ...]], ...]] = field(default_factory=dict)


CHUNKS = (1, 2, 4, 8)  # 16-byte pieces per thread and tile, unrolled as a kernel author would
POLICIES = ("nc", "cg", "L1::no_allocate")  # modifiers of ld.global
PER_COPY = ("copy", "expect", "wait", "lookup")  # what a train's copy comes with; see ptx/macros/issue.ptx
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


def _rings(axes: Mapping[str, tuple[int | str, ...]]) -> dict[str, tuple[int | str, ...]]:
    """Multicast rings: the plain one, varied along the given axes."""
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


MECHANISMS = {
    mechanism.name: mechanism
    for mechanism in (
        Mechanism(
            "ldg",
            "ld.global → st.shared",
            {
                "stream": ({"chunks": CHUNKS, "policy": POLICIES},),
                "chase": (
                    {"destination": ("register",), "chunks": (1,), "policy": POLICIES},
                    {"destination": ("register",), "chunks": (1,), "policy": ("nc",), "clock": ("chain",)},
                    {"destination": ("shared",), "chunks": (1, 4, 8), "policy": ("nc",)},
                ),
                "issue": ({"chunks": (1, 4, 16), "policy": ("nc",)},),
            },
        ),
        Mechanism(
            "cp_async",
            "cp.async",
            {
                "stream": (
                    {"completion": ("group",), "depth": DEPTHS, "chunks": CHUNKS},
                    {"completion": ("mbarrier",), "chunks": CHUNKS},
                ),
                "gather": _gathers(compute=("none",)) + _gathers(compute=("wgmma",)),
                "chase": ({"completion": ("group", "mbarrier"), "chunks": (1, 4, 8)},),
                "issue": ({},),
            },
        ),
        Mechanism(
            "tma_bulk",
            "TMA bulk (1-D)",
            {
                "stream": ({"excess_bytes": (0, 16)},),
                "gather": _gathers(),
                "chase": (
                    {"wait": ("try_wait", "test_wait")},
                    {"wait": ("try_wait",), "clock": ("chain",)},
                ),
                "issue": ({"per_copy": PER_COPY},),
            },
        ),
        Mechanism(
            "tma_tile",
            "TMA tensor tile",
            {
                "stream": ({"rank": (1, 2, 3, 4, 5)},),
                "gather": _gathers(compute=("none",), table=("global", "none"))
                + _gathers(compute=("wgmma",), table=("global", "none")),
                "chase": (
                    {"rank": (1, 2, 3, 4, 5), "wait": ("try_wait",)},
                    {"rank": (2,), "wait": ("try_wait",), "clock": ("chain",)},
                ),
                "issue": ({"rank": (2,), "per_copy": PER_COPY},),
                "ring": ({"producers": (1, 2), "consumers": CONSUMERS},),
                "arrival": ({},),
            },
        ),
        Mechanism(
            "tma_multicast",
            "TMA multicast",
            {
                "ring": (
                    _rings({"share": ("slices", "leader"), "producers": (1, 2), "consumers": CONSUMERS}),
                    _rings({"scope": ("relaxed", "arrive", "wait", "cluster")}),
                    _rings({"arrivers": ("thread", "all"), "scope": ("default", "cluster")}),
                    _rings({"arrivers": ("barrier",), "scope": ("relaxed", "cluster")}),
                    _rings({"share": ("slices", "leader"), "origin": ("computed",)}),
                    _rings({"fault": ("missing_expect", "early_exit")}),
                ),
                "arrival": ({},),
            },
        ),
        Mechanism(
            "dsm_load",
            "ld.shared::cluster",
            {"ring": (HANDOVERS,), "exchange": ({},), "pair": ({},)},
        ),
        Mechanism(
            "dsm_store",
            "st.async / st.shared::cluster",
            {"exchange": ({"completion": ("async", "plain")},), "pair": ({},)},
        ),
        Mechanism(
            "dsm_bulk",
            "cp.async.bulk, CTA → cluster",
            {"ring": (HANDOVERS,), "exchange": ({},), "pair": ({},)},
        ),
    )
}


def kernel(mechanism: str, protocol: str, **constants: int | str) -> KernelSpec:
    """The spec of one kernel.

    Raises:
        ValueError: there is no such mechanism, protocol or combination of constants; the message lists what there is.
    """
    if mechanism not in MECHANISMS:
        raise ValueError(f"mechanism {mechanism!r} has no kernel; choose one of {', '.join(MECHANISMS)}")
    if protocol not in MECHANISMS[mechanism].axes:
        known = ", ".join(MECHANISMS[mechanism].axes)
        raise ValueError(f"{mechanism} has no protocol {protocol!r}; choose one of {known}")
    spec = KernelSpec(mechanism, protocol, tuple(sorted(constants.items())))
    if spec not in (family := kernels(mechanism, protocol)):
        raise ValueError(f"no kernel {spec.name}; there are {', '.join(one.name for one in family)}")
    return spec


def kernels(mechanism: str | None = None, protocol: str | None = None) -> tuple[KernelSpec, ...]:
    """All kernels, or those of one mechanism or protocol, in registry order."""
    return tuple(
        KernelSpec(name, each_protocol, tuple(sorted(zip(axes, values, strict=True))))
        for name, entry in MECHANISMS.items()
        for each_protocol, families in entry.axes.items()
        for axes in families
        for values in product(*axes.values())
        if mechanism in (None, name) and protocol in (None, each_protocol)
    )
