"""Contiguous tiles through each mechanism's best form: a cell bound to a GPU, every byte checked, then timed."""

from typing import Any

import numpy as np

from labkernels.device import Buffer, Gpu, Statuses
from labkernels.device.random_fill import first_difference, random_words
from labkernels.device.tensor_map import place
from labkernels.errors import BadArgument
from labkernels.kernels.build import assemble
from labkernels.operand import WARP
from labkernels.protocols.cell import Cell
from labkernels.protocols.memory import Memory
from labkernels.protocols.rounds import rate
from labkernels.protocols.stream import POISON, STAGE_ALIGNMENT_BYTES, WrongBytes


class Contiguous:
    """A cell ready to run over a buffer of random words.

    Args:
        gpu: where.
        cell: what.
        memory: filled by `labkernels.device.random_fill.fill` with `seed`, at least as large as the footprint.
        seed: of the words.

    Raises:
        IllegalOperand, ValueError: see `Cell.require_runnable`; or the blocks' first tiles exceed the footprint.
    """

    def __init__(self, gpu: Gpu, cell: Cell, memory: Buffer, seed: int) -> None:
        cell.require_runnable()
        self.gpu, self.configuration, self.memory, self.seed = gpu, cell, memory, seed
        self.kernel = assemble(cell.spec, gpu.facts.arch)
        self._loaded = gpu.load(self.kernel)
        self.blocks = cell.blocks or gpu.facts.sm_count * cell.ctas_per_sm
        self.rows = cell.footprint_bytes // cell.tile_bytes
        if self.blocks > self.rows:
            raise BadArgument(
                f"{self.blocks} blocks read {self.blocks * cell.tile_bytes} bytes at once, the footprint has "
                f"{cell.footprint_bytes}; give smaller tiles or fewer CTAs"
            )
        self.shared_bytes = cell.stages and cell.stages * cell.tile_bytes + STAGE_ALIGNMENT_BYTES
        self._map = place(cell.operand, memory.address) if cell.spec.traits.takes_tensor_map else None
        self._sums = Buffer(4 * self.blocks * cell.threads)
        self._statuses = Statuses(gpu, cell.spec.name, self.blocks)
        self._config = self._loaded.config(self.blocks, cell.threads, self.shared_bytes)

    @property
    def resident_ctas_per_sm(self) -> int:
        """CTAs of this kernel that one SM holds: registers, threads and shared memory decide."""
        return self._loaded.blocks_per_sm(self.configuration.threads, self.shared_bytes)

    def tiles_for(self, bytes_moved: int) -> int:
        """Tiles per block that move at least this many bytes in all, a multiple of what the kernel's loop takes."""
        unroll = self.configuration.constants.get("unroll", 1)
        return -(-bytes_moved // (self.blocks * self.configuration.tile_bytes * unroll)) * unroll

    def bytes_moved(self, tiles: int) -> int:
        """Bytes delivered by one launch of `tiles` tiles per block."""
        return self.blocks * tiles * self.configuration.tile_bytes

    def launch(self, tiles: int, dump: int = 0) -> None:
        """Queue one launch; `dump` is the address for checked copies, or 0."""
        cell = self.configuration
        self._loaded.launch(
            self._config,
            **self._walk(cell.operand.tile[-1] if self._map else cell.tile_bytes),
            source=self._map or self.memory,
            tiles=tiles,
            tile_bytes=cell.tile_bytes,
            stages=cell.stages,
            dump=dump,
            sums=self._sums,
            statuses=self._statuses,
        )

    def _walk(self, unit: int) -> dict[str, int]:
        """Arguments that tell the kernel how to go from tile to tile, a tile being `unit` bytes or rows."""
        return {"outer_unit": unit, "outer_limit": unit * self.rows}

    def require_arrived(self) -> None:
        """Wait for the launches; see `Statuses.require_arrived`."""
        self._statuses.require_arrived()

    def place_source(self, memory: Memory) -> None:
        """Bring the footprint into L2 where the cell has it there, and out of it where it would stay there: queued."""
        if self.configuration.source == "l2":
            self.launch(self.tiles_for(2 * self.configuration.footprint_bytes))
        elif self.configuration.footprint_bytes < 4 * self.gpu.facts.l2_bytes:
            memory.evict()

    def timed(self, tiles: int) -> dict[str, Any]:
        """The row of one timed launch."""
        with self.gpu.timed() as elapsed:
            self.launch(tiles)
        return self.row(tiles) | rate(elapsed(), self.bytes_moved(tiles))

    def check(self, tiles: int | None = None) -> None:
        """Run with a poisoned destination and compare every byte that arrived, on the GPU.

        Args:
            tiles: per block; by default enough to go around the pipeline twice and once more.

        Raises:
            WrongBytes: with block, tile and offset of a difference.
            StalledWait: a barrier was never completed.
        """
        words = self.configuration.tile_bytes // 4
        tiles = self.tiles_for(self.bytes_moved(tiles or 2 * max(self.configuration.stages, 1) + 1))
        with Buffer(self.bytes_moved(tiles)) as dump:
            dump.set_bytes(POISON)
            self.launch(tiles, dump.address)
            self.require_arrived()
            wrong = first_difference(self.gpu, dump, self.seed, (self.blocks, tiles, words), self.rows)
        if wrong is not None:
            block, rest = divmod(wrong, tiles * words)
            tile, word = divmod(rest, words)
            raise WrongBytes(
                f"{self.kernel.spec.name}: block {block}, tile {tile}, byte {4 * word} is not what is in memory"
            )

    def check_sums(self, tiles: int, blocks: int = 2) -> None:
        """Compare what the threads of a few blocks read during the last launch; cheap, for timed launches."""
        threads = self.configuration.threads
        few = min(blocks, self.blocks)
        chosen = np.random.default_rng(self.seed).choice(self.blocks, few, replace=False)
        expected = self._expected_sums(chosen, tiles)
        sums = self._sums.read(np.uint32).reshape(self.blocks, threads)[chosen, : expected.shape[1]]
        if not np.array_equal(sums, expected):
            raise WrongBytes(f"{self.kernel.spec.name}: a timed launch read wrong words")

    def _expected_sums(self, blocks: np.ndarray, tiles: int) -> np.ndarray:
        """Sums of the words that each reading thread reads, shape (blocks, threads)."""
        cell = self.configuration
        if cell.destination == "register":  # every word of its own vectors
            words = self.expected_words(blocks, tiles, np.arange(cell.tile_bytes // 4))
            vectors = words.reshape(len(blocks), tiles, -1, cell.constants["chunks"], WARP, 4)
            return vectors.sum(axis=(1, 3, 5), dtype=np.uint32).reshape(len(blocks), -1)
        if not cell.is_specialized:  # the first word of every 16 bytes
            return self.expected_words(blocks, tiles, 4 * np.arange(cell.threads)).sum(
                axis=1, dtype=np.uint32
            )
        words = self.expected_words(blocks, tiles, 4 * np.arange(WARP))
        turns = [
            words[:, warp :: cell.consumers].sum(axis=1, dtype=np.uint32) for warp in range(cell.consumers)
        ]
        return np.concatenate(turns, axis=1)

    def expected_words(self, blocks: np.ndarray, tiles: int, words: np.ndarray) -> np.ndarray:
        """Words in memory where the blocks' tiles lie, shape (blocks, tiles, words)."""
        row = (blocks[:, None] + np.arange(tiles)[None, :] * self.blocks) % self.rows
        return random_words(row[:, :, None] * (self.configuration.tile_bytes // 4) + words, self.seed)

    def row(self, tiles: int) -> dict[str, Any]:
        """Columns that describe a launch of `tiles` tiles per block."""
        cell = self.configuration
        return {
            "kernel": cell.spec.name,
            "mechanism": cell.spec.mechanism,
            "pipeline": cell.spec.protocol,
            "share": cell.share,
            "producer_warps": cell.producers,
            "consumer_warps": cell.consumers,
            "destination": cell.destination,
            "source": cell.source,
            "order": "moving" if self.rows % self.blocks else "own",
            "footprint_bytes": cell.footprint_bytes,
            "tile_bytes": cell.tile_bytes,
            "stages": cell.stages,
            "ctas_per_sm": cell.ctas_per_sm,
            "threads": cell.threads,
            "registers": self.kernel.registers,
            "bytes_in_flight_per_sm": cell.bytes_in_flight_per_sm,
            "shared_bytes_per_sm": cell.shared_bytes_per_sm,
            "bytes_moved": self.bytes_moved(tiles),
        }

    def close(self) -> None:
        """Free what the cell holds on the GPU."""
        for buffer in (self._map, self._sums, self._statuses):
            if buffer:
                buffer.close()
