"""A stream beside a region that is read again and again: how L2 treats the lines of each."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.device import Buffer
from labkernels.device.random_fill import random_words
from labkernels.operand import Operand, Pipeline, boxed_operand, linear_operand
from labkernels.protocols.cell import Cell
from labkernels.protocols.contiguous import Contiguous
from labkernels.protocols.stream import POISON, WrongBytes


@dataclass(frozen=True, kw_only=True)
class MixedCell(Cell):
    """A kernel of protocol `mixed`: `footprint_bytes` stream by, behind `reused_bytes` used over and over."""

    reused_bytes: int

    @property
    def operand(self) -> Operand:
        """Both regions, as the kernel's mechanism sees them."""
        pipeline = Pipeline(self.stages, self.ctas_per_sm, self.threads, shared_alignment_bytes=128)
        shape = boxed_operand if self.spec.traits.takes_tensor_map else linear_operand
        return shape(self.reused_bytes + self.footprint_bytes, self.tile_bytes, pipeline)


class Mixed(Contiguous):
    """A mixed cell ready to run: even tiles stream by, odd ones are of the region."""

    configuration: MixedCell

    def _walk(self, unit: int) -> dict[str, int]:
        return super()._walk(unit) | {"reused_limit": unit * self._reused_rows}

    @property
    def _reused_rows(self) -> int:
        return self.configuration.reused_bytes // self.configuration.tile_bytes

    def place_source(self, _memory: object) -> None:
        """Read both once, so that L2 is as it is in the middle of a stream: queued."""
        self.launch(self.tiles_for(4 * self.configuration.reused_bytes))

    def tiles_for(self, bytes_moved: int) -> int:
        """As many tiles of both kinds."""
        return 2 * super().tiles_for(bytes_moved // 2)

    def check(self, tiles: int | None = None) -> None:
        """Run with a poisoned destination and compare every byte that arrived; see `Contiguous.check`."""
        tiles = tiles or 2 * (self.configuration.stages + 1)
        with Buffer(self.bytes_moved(tiles)) as dump:
            dump.set_bytes(POISON)
            self.launch(tiles, dump.address)
            self.require_arrived()
            arrived = dump.read(np.uint32).reshape(self.blocks, tiles, -1)
        words = np.arange(self.configuration.tile_bytes // 4)
        if not np.array_equal(arrived, self.expected_words(np.arange(self.blocks), tiles, words)):
            raise WrongBytes(f"{self.kernel.spec.name}: tiles arrived that are not what is in memory")

    def expected_words(self, blocks: np.ndarray, tiles: int, words: np.ndarray) -> np.ndarray:
        """Words in memory where the blocks' tiles lie, shape (blocks, tiles, words)."""
        turn = np.arange(tiles)
        lap = blocks[:, None] + (turn // 2)[None, :] * self.blocks
        row = np.where(turn % 2, lap % self._reused_rows, self._reused_rows + lap % self.rows)
        return random_words(row[:, :, None] * (self.configuration.tile_bytes // 4) + words, self.seed)

    def row(self, tiles: int) -> dict[str, Any]:
        """Columns that describe a launch of `tiles` tiles per block."""
        constants = self.configuration.constants
        policies = {name: constants[name] for name in ("streamed", "reused")}
        return super().row(tiles) | {"reused_bytes": self.configuration.reused_bytes, **policies}
