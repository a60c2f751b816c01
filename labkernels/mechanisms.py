"""What a mechanism is. Every other module asks these fields; nothing is told from a mechanism's name."""

from dataclasses import dataclass

#: Architectures that kernels are assembled for and operands are judged on.
ARCHITECTURES = ("sm_90a", "sm_100a")

#: Memories: device memory behind L2, a CTA's own shared memory, that of another CTA of its cluster.
GLOBAL, SHARED, CLUSTER = "global", "shared", "cluster"


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One way to move data to or from shared memory.

    Attributes:
        name: the same in code, data, charts and JSON; also the file `kernels/ptx/<name>.ptx`.
        title: how a sentence calls it: loads by …, stores by …, … to other CTAs.
        ptx: its instruction.
        opcodes: SASS opcodes that prove it, each with the modifiers that matter, as in `UBLKCP.S.G`.
        cute: its copy atom or function in CuTe (CUTLASS); empty where CUTLASS wraps none.
        triton: what Triton's language lowers to it; empty where nothing does.
        source: memory it reads.
        destination: memory it writes.
        by_threads: whether every thread moves its own bytes; if not, one thread issues to the copy engine.
        hue: of its lines in charts, a name of `HUES` in `charts/grammar.py`: a data path.
        dash: of its lines, in pixels on and off: tells apart what shares a hue.
        generic: generic access (LD, ST) that is this mechanism where the address is another CTA's.
        access_bytes: sizes that a thread's instruction can move.
        takes_tensor_map: whether a tensor map describes the tensor, so that tiles have coordinates.
        counts_bytes: whether an mbarrier counts the bytes that arrive.
        through_registers: whether the bytes pass through the registers of the threads.
        reduces: whether it adds to the destination.
        carriers: mechanisms that its kernels contain besides, to bring what it forwards.
        preference: rank among those that the model predicts, the fewer busy threads the earlier; it decides between
            predictions that differ neither in time nor in instructions. 0: the model has no constants for it.
    """

    name: str
    title: str
    ptx: str
    opcodes: tuple[str, ...]
    source: str
    destination: str
    by_threads: bool
    hue: str
    dash: tuple[int, ...]
    generic: str = ""
    cute: str = ""
    triton: str = ""
    access_bytes: tuple[int, ...] = ()
    takes_tensor_map: bool = False
    counts_bytes: bool = False
    through_registers: bool = False
    reduces: bool = False
    carriers: tuple[str, ...] = ()
    preference: int = 0

    @property
    def touches_global(self) -> bool:
        """Whether one end is global memory."""
        return GLOBAL in (self.source, self.destination)

    @property
    def crosses_ctas(self) -> bool:
        """Whether one end is another CTA's shared memory."""
        return CLUSTER in (self.source, self.destination)

    @property
    def pushes(self) -> bool:
        """Whether a CTA forwards what lies in its own shared memory."""
        return (self.source, self.destination) == (SHARED, CLUSTER)

    def looks_like(self, other: "Mechanism") -> bool:
        """Whether machine code cannot tell the two apart: they are one, or share an opcode."""
        return self is other or bool({*self.opcodes} & {*other.opcodes})


#: In the order that tables and legends show them.
MECHANISMS = {
    one.name: one
    for one in (
        Mechanism(
            name="ldg",
            title="ld.global",
            ptx="ld",
            opcodes=("LDG",),
            cute="UniversalCopy<uint128_t>",
            triton="tl.load",
            source=GLOBAL,
            destination=SHARED,
            by_threads=True,
            access_bytes=(1, 2, 4, 8, 16),
            through_registers=True,
            hue="blue",
            dash=(1, 0),
            preference=7,
        ),
        Mechanism(
            name="cp_async",
            title="cp.async",
            ptx="cp.async",
            opcodes=("LDGSTS",),
            cute="SM80_CP_ASYNC_CACHEGLOBAL",
            triton="tl.load in a loop with num_stages",
            source=GLOBAL,
            destination=SHARED,
            by_threads=True,
            access_bytes=(4, 8, 16),  # past L1 (.cg): 16 only
            hue="vermilion",
            dash=(6, 3),
            preference=5,
        ),
        Mechanism(
            name="tma_bulk",
            title="bulk copy",
            ptx="cp.async.bulk",
            opcodes=("UBLKCP.S.G",),
            cute="SM90_BULK_COPY_G2S",
            source=GLOBAL,
            destination=SHARED,
            by_threads=False,
            counts_bytes=True,
            hue="green",
            dash=(2, 2),
            preference=2,
        ),
        Mechanism(
            name="tma_tile",
            title="TMA",
            ptx="cp.async.bulk.tensor",
            opcodes=("UTMALDG",),
            cute="SM90_TMA_LOAD",
            triton="tensor_descriptor.load",
            source=GLOBAL,
            destination=SHARED,
            by_threads=False,
            takes_tensor_map=True,
            counts_bytes=True,
            hue="pink",
            dash=(8, 2, 2, 2),
            preference=1,
        ),
        Mechanism(
            name="tma_multicast",
            title="TMA multicast",
            ptx="cp.async.bulk.tensor.multicast::cluster",
            opcodes=("UTMALDG.MULTICAST", "UBLKCP.S.G.MULTICAST"),
            cute="SM90_TMA_LOAD_MULTICAST",
            source=GLOBAL,
            destination=CLUSTER,
            by_threads=False,
            takes_tensor_map=True,
            counts_bytes=True,
            hue="gold",
            dash=(12, 3),
            preference=3,
        ),
        Mechanism(
            name="dsm_load",
            title="ld.shared::cluster",
            ptx="ld",
            opcodes=(),
            generic="LD",
            source=CLUSTER,
            destination=SHARED,
            by_threads=True,
            access_bytes=(1, 2, 4, 8, 16),
            through_registers=True,
            carriers=("tma_tile",),
            hue="violet",
            dash=(1, 0),
            preference=6,
        ),
        Mechanism(
            name="dsm_store",
            title="stores",
            ptx="st.async",
            opcodes=("STAS",),
            cute="store_shared_remote",
            generic="ST",
            source=SHARED,
            destination=CLUSTER,
            by_threads=True,
            access_bytes=(4, 8, 16),
            counts_bytes=True,
            through_registers=True,
            hue="brown",
            dash=(6, 3),
        ),
        Mechanism(
            name="dsm_bulk",
            title="bulk copies",
            ptx="cp.async.bulk",
            opcodes=("UBLKCP.S.S",),
            source=SHARED,
            destination=CLUSTER,
            by_threads=False,
            counts_bytes=True,
            carriers=("tma_tile",),
            hue="grey",
            dash=(2, 2),
            preference=4,
        ),
        Mechanism(
            name="tma_store",
            title="TMA store",
            ptx="cp.async.bulk.tensor",
            opcodes=("UTMASTG",),
            cute="SM90_TMA_STORE",
            triton="tensor_descriptor.store",
            source=SHARED,
            destination=GLOBAL,
            by_threads=False,
            takes_tensor_map=True,
            hue="pink",
            dash=(4, 4),
        ),
        Mechanism(
            name="bulk_store",
            title="bulk store",
            ptx="cp.async.bulk",
            opcodes=("UBLKCP.G.S",),
            cute="SM90_BULK_COPY_S2G",
            source=SHARED,
            destination=GLOBAL,
            by_threads=False,
            hue="green",
            dash=(12, 3),
        ),
        Mechanism(
            name="tma_reduce",
            title="TMA reduce",
            ptx="cp.reduce.async.bulk.tensor",
            opcodes=("UTMAREDG",),
            cute="SM90_TMA_REDUCE_ADD",
            triton="tensor_descriptor.atomic_add",
            source=SHARED,
            destination=GLOBAL,
            by_threads=False,
            takes_tensor_map=True,
            reduces=True,
            hue="pink",
            dash=(1, 3),
        ),
        Mechanism(
            name="bulk_reduce",
            title="bulk reduce",
            ptx="cp.reduce.async.bulk",
            opcodes=("UBLKRED",),
            source=SHARED,
            destination=GLOBAL,
            by_threads=False,
            reduces=True,
            hue="green",
            dash=(1, 3),
        ),
        Mechanism(
            name="stg",
            title="st.global",
            ptx="st",
            opcodes=("STG",),
            cute="UniversalCopy<uint128_t>",
            triton="tl.store",
            source=SHARED,
            destination=GLOBAL,
            by_threads=True,
            access_bytes=(1, 2, 4, 8, 16),
            through_registers=True,
            hue="blue",
            dash=(4, 4),
        ),
    )
}


def names(**traits: object) -> tuple[str, ...]:
    """Mechanisms whose fields or properties have these values: `names(by_threads=True, touches_global=True)`."""
    return tuple(
        one.name
        for one in MECHANISMS.values()
        if all(getattr(one, trait) == value for trait, value in traits.items())
    )
