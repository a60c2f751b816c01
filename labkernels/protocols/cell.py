"""A cell of a comparison: a kernel of contiguous tiles, what it takes of an SM, and what it reads."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from labkernels.errors import BadArgument
from labkernels.kernels.registry import KernelSpec
from labkernels.kernels.render import declared
from labkernels.legality import SHARED_BYTES_PER_CTA, require_legal
from labkernels.operand import WARP, Operand, Pipeline, boxed_operand, linear_operand
from labkernels.protocols.stream import STAGE_ALIGNMENT_BYTES

WARP_COPY_BYTES = 16 * WARP  # 16 bytes from each lane
MAX_THREADS_PER_SM = 2048


@dataclass(frozen=True)
class Cell:
    """A kernel of protocol `multistage`, `pipeline` or `prefetched`, what it takes of an SM, and what it reads.

    Attributes:
        spec: the kernel.
        source: `hbm` or `l2`.
        footprint_bytes: memory read in turn (`hbm`) or again and again (`l2`).
        tile_bytes: of every tile.
        stages: tiles that a CTA's shared memory holds; 0 where they stay in registers.
        threads: of a CTA, consumers included.
        ctas_per_sm: that share an SM.
        blocks: of the grid; 0 for as many as all SMs hold at once.
    """

    spec: KernelSpec
    source: str
    footprint_bytes: int
    tile_bytes: int
    stages: int
    threads: int
    ctas_per_sm: int = 1
    blocks: int = 0

    @cached_property
    def constants(self) -> dict[str, Any]:
        """The kernel's compile-time constants."""
        return dict(self.spec.constants)

    @property
    def is_specialized(self) -> bool:
        """Whether some warps copy and others read."""
        return "consumers" in self.constants

    @property
    def consumers(self) -> int:
        """Warps that read tiles: in turns in a specialized pipeline, else all of them every tile."""
        return self.constants["consumers"] if self.is_specialized else self.threads // WARP

    @property
    def producers(self) -> int:
        """Warps that copy."""
        return self.constants["producers"] if self.is_specialized else self.threads // WARP

    @property
    def share(self) -> str:
        """Whether a warp brings whole tiles in `turns` or all of them bring each tile `together`."""
        return self.constants.get("share", "turns" if self.is_specialized else "together")

    @property
    def destination(self) -> str:
        """Where tiles end: `shared` or `register`."""
        return self.constants.get("destination", "shared")

    @property
    def tiles_in_flight(self) -> int:
        """Tiles a CTA has requested and not yet received, at most."""
        return self.constants.get("sets") or self.constants.get("depth") or self.stages

    @property
    def bytes_in_flight_per_sm(self) -> int:
        """What explains throughput."""
        return self.tiles_in_flight * self.tile_bytes * self.ctas_per_sm

    @property
    def shared_bytes_per_sm(self) -> int:
        """What the author pays: tiles alone, barriers and the driver's share left out."""
        return self.stages * self.tile_bytes * self.ctas_per_sm

    @property
    def operand(self) -> Operand:
        """The memory, as the kernel's mechanism sees it."""
        pipeline = Pipeline(max(self.stages, 1), self.ctas_per_sm, self.threads, shared_alignment_bytes=128)
        shape = boxed_operand if self.spec.traits.takes_tensor_map else linear_operand
        return shape(self.footprint_bytes, self.tile_bytes, pipeline)

    def require_runnable(self) -> None:
        """Check the fit of tile, threads and stages, before anything is launched.

        Raises:
            IllegalOperand: the mechanism cannot take the operand.
            BadArgument: with the value, the limit and the fix.
        """
        require_legal(self.operand, self.spec.mechanism)
        declared(self.spec).require(stages=self.stages)
        name, constants = self.spec.name, self.constants
        warps = self.threads // WARP
        if self.is_specialized and warps != (needed := self.producers + self.consumers):
            raise BadArgument(f"{name}: {warps} warps, the kernel has {needed}; give {needed * WARP} threads")
        if "chunks" in constants:
            copying = self.producers if self.share == "together" else 1
            covered = copying * constants["chunks"] * WARP_COPY_BYTES
            if covered != self.tile_bytes:
                raise BadArgument(
                    f"{name}: {copying} warps × {constants['chunks']} × {WARP_COPY_BYTES} B cover {covered} bytes, "
                    f"the tile has {self.tile_bytes}; give a tile of {covered} bytes or another number of threads"
                )
        ahead = constants.get("depth", 2 * (self.destination == "shared"))  # loads to registers have no depth
        held = ahead + (constants.get("barriers") == 1)
        if not self.is_specialized and self.stages != held:
            raise BadArgument(f"{name}: {self.stages} stages, the kernel has {held}; give {held}")
        if self.is_specialized:
            turns = max(self.consumers, self.producers if self.share == "turns" else 1)
            if self.stages % turns:
                raise BadArgument(
                    f"{name}: {self.stages} stages for {turns} warps in turn; give a multiple of {turns}"
                )

    @property
    def fits(self) -> bool:
        """Whether an SM has shared memory and threads for its CTAs."""
        shared = self.stages and self.stages * self.tile_bytes + 2 * STAGE_ALIGNMENT_BYTES
        threads = self.ctas_per_sm * self.threads
        return shared * self.ctas_per_sm <= SHARED_BYTES_PER_CTA and threads <= MAX_THREADS_PER_SM


def footprint_of_its_own(at_most_bytes: int, lap_bytes: int) -> int:
    """The most memory of which every block reads the same tiles in each lap, and no other block does.

    Blocks that take each other's tiles over drift until two of them read one in step, and L2's request coalescer
    serves both with one read.

    Args:
        at_most_bytes: an upper limit.
        lap_bytes: bytes of a tile of every block.
    """
    return at_most_bytes // lap_bytes * lap_bytes
