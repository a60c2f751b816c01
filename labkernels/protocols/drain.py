"""Tiles made in registers and written to global memory: a kernel bound to a matrix, every byte checked, then timed."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labkernels.device import Buffer, Gpu
from labkernels.device.tensor_map import place
from labkernels.errors import BadArgument
from labkernels.kernels.build import assemble
from labkernels.kernels.registry import KernelSpec
from labkernels.legality import SHARED_BYTES_PER_CTA, require_legal
from labkernels.operand import LONGEST_ROW_BYTES, MIB, Operand, Pipeline, Swizzle, linear_operand
from labkernels.protocols.cell import MAX_THREADS_PER_SM
from labkernels.protocols.rounds import rate
from labkernels.protocols.stream import POISON, STAGE_ALIGNMENT_BYTES, WrongBytes

FRAGMENT_ROW_BYTES = 128  # of a tile of wgmma fragments: the 128-byte swizzle's span
STEP = 0x9E3779B1  # from a word to the next; as in macros/drain.ptx
CHECKED_BYTES = 16 * MIB  # of a matrix, compared whole before anything is timed


@dataclass(frozen=True)
class Drain:
    """A kernel of protocol `drain`, what it takes of an SM, and the matrix it writes.

    Attributes:
        spec: the kernel.
        destination: `hbm` or `l2`.
        footprint_bytes: of the matrix, written in turn (`hbm`) or again and again (`l2`).
        threads: of a CTA; each holds `chunks` × 16 bytes of a tile.
        row_bytes: of a tile, a power of two.
        columns: tiles side by side in the matrix, a power of two: 1 where a tile is one run of memory.
        ctas_per_sm: that share an SM.
    """

    spec: KernelSpec
    destination: str
    footprint_bytes: int
    threads: int
    row_bytes: int
    columns: int = 1
    ctas_per_sm: int = 1

    @cached_property
    def constants(self) -> dict[str, Any]:
        """The kernel's compile-time constants."""
        return dict(self.spec.constants)

    @property
    def layout(self) -> str:
        """How a thread's part of a tile lies: `rows` or `fragments`."""
        return self.constants.get("layout", "rows")

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile."""
        return self.threads * 16 * self.constants["chunks"]

    @property
    def stages(self) -> int:
        """Tiles that a CTA's shared memory holds; 0 where they leave from registers."""
        through_shared = 2 * (self.constants.get("origin") == "shared")
        return self.constants.get("stages", through_shared)

    @property
    def shared_bytes_per_sm(self) -> int:
        """What the author pays: tiles alone."""
        return self.stages * self.tile_bytes * self.ctas_per_sm

    @property
    def operand(self) -> Operand:
        """The matrix, as the kernel's mechanism sees it: boxes of 8-byte elements, or runs of memory."""
        pipeline = Pipeline(max(self.stages, 1), self.ctas_per_sm, self.threads)
        if not self.spec.traits.takes_tensor_map:
            return linear_operand(self.footprint_bytes, self.tile_bytes, pipeline)
        pitch = self.row_bytes * self.columns
        return Operand(
            8,
            (pitch // 8, self.footprint_bytes // pitch),
            (self.row_bytes // 8, self.tile_bytes // self.row_bytes),
            swizzle=Swizzle.B128 if self.layout == "fragments" else Swizzle.NONE,
            pipeline=pipeline,
        )

    @property
    def fits(self) -> bool:
        """Whether an SM has shared memory and threads for its CTAs, and the tile a box or a run."""
        shared = self.stages and self.stages * self.tile_bytes + 2 * STAGE_ALIGNMENT_BYTES
        threads = self.ctas_per_sm * self.threads
        return shared * self.ctas_per_sm <= SHARED_BYTES_PER_CTA and threads <= MAX_THREADS_PER_SM

    def require_runnable(self) -> None:
        """Check rows, tile and matrix, before anything is launched.

        Raises:
            IllegalOperand: the mechanism cannot take the operand.
            BadArgument: with the value, the limit and the fix.
        """
        name = self.spec.name
        for what, value in (("row_bytes", self.row_bytes), ("columns", self.columns)):
            if value < 1 or value & (value - 1):
                raise BadArgument(f"{name}: {what} is {value}, not a power of two: give one")
        if not 16 <= self.row_bytes <= min(self.tile_bytes, LONGEST_ROW_BYTES):
            most = min(self.tile_bytes, LONGEST_ROW_BYTES)
            raise BadArgument(f"{name}: row_bytes is {self.row_bytes}: give 16 to {most}")
        if self.layout == "fragments" and self.row_bytes != FRAGMENT_ROW_BYTES:
            raise BadArgument(
                f"{name}: row_bytes is {self.row_bytes}, fragments lie in rows of {FRAGMENT_ROW_BYTES}: give that"
            )
        if self.constants.get("run") == "tile" and self.columns > 1:
            raise BadArgument(f"{name}: {self.columns} columns, its tile is one run of memory: give 1")
        if self.footprint_bytes % (self.columns * self.tile_bytes):
            unit = self.columns * self.tile_bytes
            raise BadArgument(f"{name}: footprint_bytes is {self.footprint_bytes}: give a multiple of {unit}")
        require_legal(self.operand, self.spec.mechanism)


class BoundDrain:
    """A drain ready to write a buffer.

    Args:
        gpu: where.
        drain: what.
        memory: at least as large as the footprint.

    Raises:
        IllegalOperand, BadArgument: see `Drain.require_runnable`.
    """

    def __init__(self, gpu: Gpu, drain: Drain, memory: Buffer) -> None:
        drain.require_runnable()
        self.gpu, self.drain, self.memory = gpu, drain, memory
        self.kernel = assemble(drain.spec, gpu.facts.arch)
        self._loaded = gpu.load(self.kernel)
        self.blocks = gpu.facts.sm_count * drain.ctas_per_sm
        self.shared_bytes = drain.stages and drain.stages * drain.tile_bytes + STAGE_ALIGNMENT_BYTES
        self._map = place(drain.operand, memory.address) if drain.spec.traits.takes_tensor_map else None
        self._config = self._loaded.config(self.blocks, drain.threads, self.shared_bytes)
        self._seed = 0

    @property
    def is_resident(self) -> bool:
        """Whether an SM holds the CTAs it is to hold: registers, threads and shared memory decide."""
        return self._loaded.blocks_per_sm(self.drain.threads, self.shared_bytes) >= self.drain.ctas_per_sm

    def tiles_for(self, bytes_moved: int) -> int:
        """Tiles per block that write at least this many bytes in all."""
        return -(-bytes_moved // (self.blocks * self.drain.tile_bytes))

    def launch(self, tiles: int, footprint_bytes: int | None = None) -> None:
        """Queue one launch into the matrix, or into its first bytes; each launch writes other words."""
        drain = self.drain
        self._seed += 1
        self._loaded.launch(
            self._config,
            target=self._map or self.memory,
            limit=(footprint_bytes or drain.footprint_bytes) // drain.tile_bytes,
            tiles=tiles,
            tile_bytes=drain.tile_bytes,
            row_shift=drain.row_bytes.bit_length() - 1,
            column_shift=drain.columns.bit_length() - 1,
            seed=self._seed,
        )

    def check(self) -> None:
        """Write the first bytes of the matrix, poisoned before, once and a little more; compare every byte.

        Raises:
            WrongBytes: with the offset of the first difference.
        """
        unit = self.drain.tile_bytes * self.drain.columns
        nbytes = max(CHECKED_BYTES // unit, -(-self.blocks * self.drain.tile_bytes // unit)) * unit
        nbytes = min(nbytes, self.drain.footprint_bytes)
        self.memory.set_bytes(POISON)
        self.launch(self.tiles_for(nbytes), nbytes)
        self._compare(0, nbytes)
        beyond = min(nbytes + unit, self.memory.nbytes) - nbytes
        if (self.memory.read(np.uint8, beyond, nbytes) != POISON).any():
            raise WrongBytes(f"{self.drain.spec.name}: it wrote behind the {nbytes} bytes it was given")

    def check_timed(self, tiles: int) -> None:
        """Launch as it is timed and compare a part of what it wrote."""
        nbytes = min(4 * MIB, self.drain.footprint_bytes)
        for offset in (0, self.drain.footprint_bytes - nbytes):
            self.memory.write(np.full(nbytes, POISON, np.uint8), offset)
        self.launch(tiles)
        for offset in (0, self.drain.footprint_bytes - nbytes):
            self._compare(offset, nbytes)

    def _compare(self, offset: int, nbytes: int) -> None:
        self.gpu.sync()
        index = np.arange(offset // 4, (offset + nbytes) // 4, dtype=np.uint32)
        expected = index * np.uint32(STEP) + np.uint32(self._seed)
        written = self.memory.read(np.uint32, nbytes // 4, offset)
        if not np.array_equal(written, expected):
            word = int(np.flatnonzero(written != expected)[0])
            raise WrongBytes(
                f"{self.drain.spec.name}: byte {offset + 4 * word} of the matrix is {written[word]:#010x}, "
                f"{expected[word]:#010x} was to be written"
            )

    def place(self) -> None:
        """Write an L2-resident matrix once, so that its lines are there: queued."""
        if self.drain.destination == "l2":
            self.launch(self.tiles_for(2 * self.drain.footprint_bytes))

    def timed(self, tiles: int) -> dict[str, Any]:
        """The row of one timed launch."""
        with self.gpu.timed() as elapsed:
            self.launch(tiles)
        drain = self.drain
        moved = self.blocks * tiles * drain.tile_bytes
        return {
            "kernel": drain.spec.name,
            "mechanism": drain.spec.mechanism,
            "origin": "shared" if drain.stages else "registers",
            "layout": drain.layout,
            "run": drain.constants.get("run", "tile" if drain.spec.traits.takes_tensor_map else "vector"),
            "destination": drain.destination,
            "footprint_bytes": drain.footprint_bytes,
            "tile_bytes": drain.tile_bytes,
            "row_bytes": drain.row_bytes if drain.columns > 1 else drain.tile_bytes,
            "stages": drain.stages,
            "ctas_per_sm": drain.ctas_per_sm,
            "threads": drain.threads,
            "registers": self.kernel.registers,
            "shared_bytes_per_sm": drain.shared_bytes_per_sm,
            "bytes_moved": moved,
        } | rate(elapsed(), moved)

    def close(self) -> None:
        """Free what the drain holds on the GPU."""
        if self._map:
            self._map.close()
