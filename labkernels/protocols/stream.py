"""One streaming configuration on the GPU: arguments from an operand, every byte checked, then timed."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labkernels.device import Buffer, Gpu, Statuses
from labkernels.device.random_fill import random_words
from labkernels.device.tensor_map import place
from labkernels.errors import BadArgument, LabError
from labkernels.kernels.build import CONSUMER_THREADS, assemble, is_warp_specialized
from labkernels.kernels.registry import KernelSpec
from labkernels.kernels.render import declared
from labkernels.legality import require_legal
from labkernels.operand import Operand, swizzle_offset
from labkernels.protocols.rounds import rate

STAGE_ALIGNMENT_BYTES = 1024
POISON = 0xA5


class WrongBytes(LabError, AssertionError):
    """A kernel delivered something else than NumPy read at the same place; nothing of it may be timed."""


@dataclass(frozen=True)
class Configuration:
    """A kernel, the operand it streams and where that lies.

    Attributes:
        spec: the kernel.
        operand: tensor, tile and pipeline; the walk goes along dimension 0, then along the last dimension, and a
            tile covers the others.
        source: `hbm` or `l2`.
        l2_promotion_bytes: of the tensor map, where there is one.
    """

    spec: KernelSpec
    operand: Operand
    source: str
    l2_promotion_bytes: int = 0

    @property
    def copying_threads(self) -> int:
        """Threads of a block that copy."""
        return self.operand.pipeline.threads - (CONSUMER_THREADS if is_warp_specialized(self.spec) else 0)

    @property
    def tiles_in_flight(self) -> int:
        """Tiles a block has requested and not yet received, at most."""
        if self.spec.traits.through_registers:
            return 2  # one set of registers being waited for, the next one on its way
        return dict(self.spec.constants).get("depth", self.operand.pipeline.stages)

    @property
    def bytes_in_flight_per_sm(self) -> int:
        """The axis that unites tile size, stages and CTAs."""
        return self.operand.tile_bytes * self.tiles_in_flight * self.operand.pipeline.ctas_per_sm

    @property
    def variant(self) -> str:
        """What tells kernels of one mechanism apart: `group`, `mbarrier`, `nc`, `2d`, or nothing."""
        constants = dict(self.spec.constants)
        rank = f"{constants['rank']}d" if "rank" in constants else ""
        return str(constants.get("completion") or constants.get("policy") or rank)

    def require_runnable(self) -> None:
        """Check the operand and the fit of threads and tile, before anything is launched.

        Raises:
            IllegalOperand: the mechanism cannot take the operand.
            BadArgument: more stages than the kernel has barriers for.
            BadArgument: threads × 16 bytes × chunks is not the tile, or a row does not fit the threads.
        """
        require_legal(self.operand, self.spec.mechanism)
        declared(self.spec).require(stages=self.operand.pipeline.stages)
        if self.operand.stage_bytes != self.operand.tile_bytes:
            raise BadArgument(
                f"{self.spec.name}: a tile of {self.operand.tile_bytes} bytes takes a stage of "
                f"{self.operand.stage_bytes}; give rows as long as the swizzle span and a tile that is a multiple "
                f"of the pipeline's alignment of {self.operand.pipeline.shared_alignment_bytes} bytes"
            )
        chunks = dict(self.spec.constants).get("chunks")
        if chunks and (covered := self.copying_threads * 16 * chunks) != self.operand.tile_bytes:
            raise BadArgument(
                f"{self.spec.name}: {self.copying_threads} threads × 16 B × {chunks} chunks cover {covered} bytes, the "
                f"tile has {self.operand.tile_bytes}; give {self.operand.tile_bytes // (16 * chunks)} copying threads"
            )
        if chunks and not self.is_contiguous and (self.copying_threads * 16) % self.operand.inner_row_bytes:
            raise BadArgument(
                f"{self.spec.name}: rows of {self.operand.inner_row_bytes} bytes do not divide the "
                f"{self.copying_threads * 16} bytes that the threads copy at once; give more threads"
            )

    @property
    def is_contiguous(self) -> bool:
        """Whether a tile is one run of memory."""
        return self.operand.contiguous_bytes == self.operand.tile_bytes


@dataclass
class Walk:
    """The arguments that tell a kernel how to go from tile to tile; bytes, or coordinates for a tensor map."""

    inner_step: int
    inner_limit: int
    outer_unit: int
    outer_limit: int
    row_chunks: int
    row_pitch_bytes: int
    chunk_step: int


def walk_of(configuration: Configuration) -> Walk:
    """The walk over an operand's tiles, in the units that the configuration's kernel counts in."""
    operand = configuration.operand
    strides = (operand.element_bytes, *operand.strides_bytes)
    row_chunks, threads = operand.tile_bytes // 16, configuration.copying_threads
    pitch, step = operand.tile_bytes, threads * 16
    if not configuration.is_contiguous:
        row_chunks, pitch = operand.inner_row_bytes // 16, operand.strides_bytes[0]
        step = threads * 16 // operand.inner_row_bytes * pitch
    if configuration.spec.traits.takes_tensor_map:
        unit, inner_step, inner_limit = 1, operand.tile[0], operand.shape[0]
    else:
        unit, inner_step, inner_limit = strides[-1], operand.inner_row_bytes, operand.shape[0] * strides[0]
    if operand.rank == 1:
        inner_step = inner_limit = 1  # every tile is a carry: the walk is along the last dimension alone
    return Walk(
        inner_step, inner_limit, operand.tile[-1] * unit, operand.shape[-1] * unit, row_chunks, pitch, step
    )


class Stream:
    """A configuration ready to run over a buffer of random words.

    Args:
        gpu: where.
        configuration: what.
        memory: filled by `labkernels.device.random_fill.fill` with `seed`, at least as large as the operand.
        seed: of the words.

    Raises:
        IllegalOperand, ValueError: see `Configuration.require_runnable`.
    """

    def __init__(self, gpu: Gpu, configuration: Configuration, memory: Buffer, seed: int) -> None:
        configuration.require_runnable()
        self.gpu, self.configuration, self.seed = gpu, configuration, seed
        operand, pipeline = configuration.operand, configuration.operand.pipeline
        self.kernel = assemble(configuration.spec, gpu.facts.arch)
        self._loaded = gpu.load(self.kernel)
        self.blocks = gpu.facts.sm_count * pipeline.ctas_per_sm
        # the pipeline starts at the first multiple of its alignment behind the barriers
        self.shared_bytes = pipeline.stages * operand.stage_bytes + STAGE_ALIGNMENT_BYTES
        self.walk = walk_of(configuration)
        if (needed := self.blocks * self.walk.outer_unit) > self.walk.outer_limit:
            raise BadArgument(
                f"{self.blocks} blocks need {needed} along the last dimension, the tensor has "
                f"{self.walk.outer_limit}; give a larger tensor, smaller tiles or fewer CTAs"
            )
        self._map = (
            place(operand, memory.address, configuration.l2_promotion_bytes)
            if configuration.spec.traits.takes_tensor_map
            else None
        )
        self._source = self._map or memory
        self._sums = Buffer(4 * self.blocks * pipeline.threads)
        self._statuses = Statuses(gpu, configuration.spec.name, self.blocks)
        self._config = self._loaded.config(self.blocks, pipeline.threads, self.shared_bytes)

    @property
    def resident_ctas_per_sm(self) -> int:
        """CTAs of this kernel that one SM holds: registers, threads and shared memory decide."""
        return self._loaded.blocks_per_sm(self.configuration.operand.pipeline.threads, self.shared_bytes)

    def tiles_for(self, bytes_moved: int) -> int:
        """Tiles per block that move at least this many bytes in all."""
        return -(-bytes_moved // (self.blocks * self.configuration.operand.tile_bytes))

    def bytes_moved(self, tiles: int) -> int:
        """Bytes delivered to shared memory by one launch of `tiles` tiles per block."""
        return self.blocks * tiles * self.configuration.operand.tile_bytes

    def row(self, tiles: int) -> dict[str, Any]:
        """Columns that describe a launch of `tiles` tiles per block."""
        configuration = self.configuration
        operand = configuration.operand
        return {
            "kernel": configuration.spec.name,
            "mechanism": configuration.spec.mechanism,
            "variant": configuration.variant,
            "source": configuration.source,
            "footprint_bytes": operand.footprint_bytes,
            "tile_bytes": operand.tile_bytes,
            "stages": operand.pipeline.stages,
            "ctas_per_sm": operand.pipeline.ctas_per_sm,
            "threads": operand.pipeline.threads,
            "bytes_in_flight_per_sm": configuration.bytes_in_flight_per_sm,
            "bytes_moved": self.bytes_moved(tiles),
        }

    def launch(self, tiles: int, dump: int = 0) -> None:
        """Queue one launch; `dump` is the address for checked copies, or 0."""
        operand = self.configuration.operand
        self._loaded.launch(
            self._config,
            **vars(self.walk),
            source=self._source,
            tiles=tiles,
            tile_bytes=operand.tile_bytes,
            stages=operand.pipeline.stages,
            dump=dump,
            sums=self._sums,
            statuses=self._statuses,
        )

    def require_arrived(self) -> None:
        """Wait for the launches; see `Statuses.require_arrived`."""
        self._statuses.require_arrived()

    def place_source(self, _memory: object) -> None:
        """Bring the footprint into L2 where the configuration has it there: queued."""
        if self.configuration.source == "l2":
            self.launch(self.tiles_for(2 * self.configuration.operand.footprint_bytes))

    def timed(self, tiles: int) -> dict[str, Any]:
        """The row of one timed launch."""
        with self.gpu.timed() as elapsed:
            self.launch(tiles)
        return self.row(tiles) | rate(elapsed(), self.bytes_moved(tiles))

    def check(self, tiles: int | None = None) -> None:
        """Run with a poisoned destination and compare every byte that arrived.

        Args:
            tiles: per block; by default enough to go around the pipeline twice and once more.

        Raises:
            WrongBytes: with block, tile and offset of the first difference.
            StalledWait: a barrier was never completed.
        """
        operand = self.configuration.operand
        tiles = tiles or 2 * operand.pipeline.stages + 1
        with Buffer(self.bytes_moved(tiles)) as dump:
            dump.set_bytes(POISON)
            self.launch(tiles, dump.address)
            self.require_arrived()
            arrived = dump.read(np.uint32).reshape(self.blocks, tiles, -1)
        expected = self.expected_words(np.arange(self.blocks), tiles)
        if not np.array_equal(arrived, expected):
            block, tile, word = np.argwhere(arrived != expected)[0]
            raise WrongBytes(
                f"{self.configuration.spec.name}: block {block}, tile {tile}, byte {4 * word}: "
                f"{arrived[block, tile, word]:#010x} arrived, {expected[block, tile, word]:#010x} is in memory"
            )

    def check_sums(self, tiles: int, blocks: int = 2) -> None:
        """Compare what the threads of a few blocks read during the last launch; cheap, for timed launches."""
        threads = self.configuration.operand.pipeline.threads
        chosen = np.random.default_rng(self.seed).choice(self.blocks, blocks, replace=False)
        readers = min(
            CONSUMER_THREADS if is_warp_specialized(self.configuration.spec) else threads,
            self._tile_words // 4,
        )
        expected = self.expected_words(chosen, tiles, np.arange(readers) * 4).sum(axis=1, dtype=np.uint32)
        sums = self._sums.read(np.uint32).reshape(self.blocks, threads)[chosen, :readers]
        if not np.array_equal(sums, expected):
            raise WrongBytes(f"{self.configuration.spec.name}: a timed launch read wrong words")

    @property
    def _tile_words(self) -> int:
        return self.configuration.operand.tile_bytes // 4

    @cached_property
    def _word_offsets(self) -> np.ndarray:
        """Bytes from a tile's start in global memory, for each word of the tile as it lies in shared memory."""
        operand = self.configuration.operand
        plain = swizzle_offset(np.arange(0, operand.tile_bytes, 4), operand.swizzle)
        element, within = np.divmod(plain, operand.element_bytes)
        strides = (operand.element_bytes, *operand.strides_bytes)
        coordinates = np.unravel_index(element, operand.tile, order="F")
        return within + sum(c.astype(np.int64) * s for c, s in zip(coordinates, strides, strict=True))

    def expected_words(self, blocks: np.ndarray, tiles: int, words: np.ndarray | None = None) -> np.ndarray:
        """Words in memory where the blocks' tiles lie, shape (blocks, tiles, words of a tile or those asked for)."""
        operand = self.configuration.operand
        strides = (operand.element_bytes, *operand.strides_bytes)
        columns = 1 if operand.rank == 1 else operand.shape[0] // operand.tile[0]
        turn = np.arange(tiles)
        column, lap = turn % columns, turn // columns
        rows = operand.shape[-1] // operand.tile[-1]
        row = (blocks[:, None] + lap[None, :] * self.blocks) % rows
        start = row * (operand.tile[-1] * strides[-1]) + column * operand.inner_row_bytes * (operand.rank > 1)
        offsets = self._word_offsets if words is None else self._word_offsets[words]
        return random_words((start[:, :, None] + offsets) // 4, self.seed)

    def close(self) -> None:
        """Free what the configuration holds on the GPU."""
        for buffer in (self._map, self._sums, self._statuses):
            if buffer:
                buffer.close()
