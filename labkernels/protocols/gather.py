"""One gather through a page table on the GPU: a paged cache, every byte checked against NumPy, then timed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from labkernels.device import Buffer, Gpu, Statuses
from labkernels.device.random_fill import random_words
from labkernels.device.tensor_map import place
from labkernels.errors import BadArgument
from labkernels.kernels.build import CONSUMER_THREADS, assemble
from labkernels.kernels.registry import KernelSpec
from labkernels.kernels.render import declared
from labkernels.legality import require_legal
from labkernels.operand import Operand, Pipeline, column_span, round_up, swizzle_offset
from labkernels.protocols.stream import POISON, STAGE_ALIGNMENT_BYTES, WrongBytes

PRODUCERS = 128  # a warpgroup, as in FlashAttention-3; TMA uses one warp of it
QUERY_ROWS = 128
WARPGROUPS_THREADS = 256
EVERY_TILE = 2**31 - 1
CHECKED_BLOCKS = 24


@dataclass(frozen=True)
class Cache:
    """Keys (or values) of some sequences in a pool of pages.

    Attributes:
        row_bytes: one row of one head.
        kv_heads: heads of a row.
        lengths: rows of each sequence; 0 is allowed.
        page_rows: rows of a page, a power of two; 0 for a contiguous cache, where a sequence is one piece.
        layout: `nhd` (the heads of a row lie side by side) or `hnd` (a page holds one head after the other).
        shuffled: whether a sequence's pages lie in random order in the pool, or one after the other.
        seed: of the order.
    """

    row_bytes: int
    kv_heads: int
    lengths: tuple[int, ...]
    page_rows: int
    layout: str = "nhd"
    shuffled: bool = True
    seed: int = 1

    def __post_init__(self) -> None:
        if self.layout not in ("nhd", "hnd"):
            raise BadArgument(f"layout is {self.layout!r}: give 'nhd' or 'hnd'")
        if self.page_rows < 0 or self.page_rows & (self.page_rows - 1):
            raise BadArgument(
                f"page_rows is {self.page_rows}: give a power of two, or 0 for a contiguous cache"
            )
        if not self.lengths or min(self.lengths) < 0:
            raise BadArgument(f"lengths are {self.lengths}: give at least one sequence, of 0 rows or more")

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each sequence begins in the page tables; in a contiguous cache, its first row."""
        unit = self.page_rows or 256  # a multiple of every tile
        sizes = [round_up(length, unit) // (self.page_rows or 1) for length in self.lengths]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    @property
    def pages(self) -> int:
        """Pages in the pool; a contiguous cache is one page."""
        return max(1, int(self.starts[-1])) if self.page_rows else 1

    @property
    def rows_per_page(self) -> int:
        """Rows of a page; of a contiguous cache, all rows."""
        return self.page_rows or max(256, int(self.starts[-1]))

    @cached_property
    def table(self) -> np.ndarray:
        """The page tables of all sequences, one after the other."""
        if not self.page_rows:
            return np.zeros(1, np.int32)
        return _shuffled(self.pages, self.seed) if self.shuffled else np.arange(self.pages, dtype=np.int32)

    @property
    def row_pitch_bytes(self) -> int:
        """From a row to the next of the same head."""
        return self.row_bytes * (self.kv_heads if self.layout == "nhd" else 1)

    @property
    def head_pitch_bytes(self) -> int:
        """From a head to the next of the same row."""
        return self.row_bytes * (1 if self.layout == "nhd" else self.rows_per_page)

    @property
    def page_pitch_bytes(self) -> int:
        """Size of a page with all heads."""
        return self.row_bytes * self.kv_heads * self.rows_per_page

    @property
    def pool_bytes(self) -> int:
        """Size of the pool."""
        return self.pages * self.page_pitch_bytes

    @property
    def run_rows(self) -> int:
        """Rows of one head that are contiguous in memory."""
        return self.rows_per_page if self.layout == "hnd" or self.kv_heads == 1 else 1

    def segments(self, tile_rows: int, splits: int = 1) -> np.ndarray:
        """Work for one block each: every head of every sequence, its rows in `splits` parts of whole tiles.

        Returns:
            Shape (blocks, 4): start in the page tables, head, first row, rows; heads vary fastest.
        """
        parts = []
        for sequence, length in enumerate(self.lengths):
            share = round_up(-(-length // splits), tile_rows)
            start = int(self.starts[sequence])
            base = 0 if self.page_rows else start
            for part in range(splits):
                first = min(part * share, length)
                rows = min(share, length - first)
                for head in range(self.kv_heads):
                    parts.append((start if self.page_rows else 0, head, base + first, rows))
        return np.array(parts, np.int32)


@cache
def _shuffled(pages: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.arange(pages, dtype=np.int32))


def require_pages_in_pool(table: np.ndarray, pages: int) -> None:
    """Refuse a page table that names a page outside the pool, before anything is launched.

    Raises:
        BadArgument: with the entry, its value and the limit.
    """
    outside = np.flatnonzero((table < 0) | (table >= pages))
    if outside.size:
        at = int(outside[0])
        raise BadArgument(
            f"page table entry {at} is {int(table[at])}, the pool has pages 0 to {pages - 1}: give one"
        )


class Gather:
    """A gather kernel bound to a cache whose pool lies in a buffer.

    Args:
        gpu: where.
        spec: a kernel of protocol `gather`.
        cache: what is gathered.
        memory: the pool; at least as large as the cache.
        words: the 32-bit words that lie at some word indices of it.
        segments: work of each block, as `Cache.segments` gives it.
        piece_rows: rows of one TMA copy.
        issuers: warps that share the TMA copies of a tile: 1, 2 or 4.
        stages: of the pipeline.

    Raises:
        BadArgument: more stages than the kernel has barriers for.
        BadArgument: sizes that do not fit one another; the message names them.
        IllegalOperand: a box that the copy engine cannot take.
    """

    def __init__(
        self,
        gpu: Gpu,
        spec: KernelSpec,
        cache: Cache,
        memory: Buffer,
        words: Callable[[np.ndarray], np.ndarray],
        segments: np.ndarray,
        piece_rows: int,
        issuers: int,
        stages: int,
    ) -> None:
        self.gpu, self.spec, self.cache, self.memory, self.words = gpu, spec, cache, memory, words
        self.segments, self.piece_rows, self.issuers, self.stages = segments, piece_rows, issuers, stages
        constants = dict(spec.constants)
        self.tile_rows = int(constants["tile_rows"])
        self.is_wgmma = constants.get("compute") == "wgmma"
        self.tile_bytes = self.tile_rows * cache.row_bytes
        self._require_fit(int(constants["row_bytes"]))
        require_pages_in_pool(cache.table, cache.pages)
        self.threads = PRODUCERS + (WARPGROUPS_THREADS if self.is_wgmma else CONSUMER_THREADS)
        query_bytes = QUERY_ROWS * cache.row_bytes if self.is_wgmma else 0
        self.shared_bytes = stages * self.tile_bytes + query_bytes + STAGE_ALIGNMENT_BYTES
        self._map = self._place_map() if spec.traits.takes_tensor_map else None
        self._table = Buffer(cache.table.nbytes).write(cache.table)
        self._segments = Buffer(segments.nbytes).write(segments)
        self._log = Buffer(4 * self.blocks)
        self._sums = Buffer(4 * self.blocks * self.threads)
        self._statuses = Statuses(gpu, spec.name, self.blocks)
        self.kernel = assemble(spec, gpu.facts.arch)
        self._loaded = gpu.load(self.kernel)
        self._config = self._loaded.config(self.blocks, self.threads, self.shared_bytes)

    def _require_fit(self, row_bytes: int) -> None:
        cache, name = self.cache, self.spec.name
        declared(self.spec).require(stages=self.stages)
        if cache.row_bytes != row_bytes:
            raise BadArgument(
                f"{name}: the cache has rows of {cache.row_bytes} bytes; give rows of {row_bytes}"
            )
        if cache.pool_bytes > self.memory.nbytes:
            raise BadArgument(
                f"{name}: the pool has {cache.pool_bytes} bytes, the buffer {self.memory.nbytes}; use less"
            )
        limit = min(self.tile_rows, cache.rows_per_page)
        if self._by_run:
            limit = min(limit, cache.run_rows)
        if self.piece_rows < 1 or limit % self.piece_rows:
            raise BadArgument(
                f"{name}: piece_rows is {self.piece_rows}, which does not divide {limit}, the rows that a "
                "tile, a page and a contiguous run allow; give a power of two up to that"
            )
        if self.issuers not in (1, 2, 4) or self.tile_rows % (self.issuers * self.piece_rows):
            raise BadArgument(
                f"{name}: {self.issuers} issuers cannot share {self.tile_rows // self.piece_rows} copies of a tile "
                "evenly; give 1, 2 or 4, and no more than there are copies"
            )
        span = column_span(cache.row_bytes).span_bytes
        if self.spec.traits.takes_tensor_map and self.piece_rows * span % 128:
            raise BadArgument(
                f"{name}: boxes of {self.piece_rows} rows × {span} bytes would not start on multiples of 128 "
                f"bytes; give {128 // span} rows or more"
            )

    @property
    def _by_run(self) -> bool:
        """Whether a copy is one run of bytes, without a tensor map."""
        return not (self.spec.traits.by_threads or self.spec.traits.takes_tensor_map)

    def _place_map(self) -> Buffer:
        cache = self.cache
        swizzle = column_span(cache.row_bytes)
        operand = Operand(
            1,
            (cache.row_bytes, cache.kv_heads, cache.rows_per_page, cache.pages),
            (swizzle.span_bytes, 1, self.piece_rows, 1),
            (cache.head_pitch_bytes, cache.row_pitch_bytes, cache.page_pitch_bytes),
            swizzle=swizzle,
            pipeline=Pipeline(stages=1, threads=self.threads, shared_alignment_bytes=1024),
        )
        require_legal(operand, self.spec.mechanism)
        return place(operand, self.memory.address)

    @property
    def blocks(self) -> int:
        """Blocks of a launch: one per segment."""
        return len(self.segments)

    @property
    def resident_ctas_per_sm(self) -> int:
        """Blocks that one SM holds at once."""
        return self._loaded.blocks_per_sm(self.threads, self.shared_bytes)

    @property
    def bytes_moved(self) -> int:
        """Bytes of the rows that one launch delivers; what fills up the last tiles is not counted."""
        return int(self.segments[:, 3].sum()) * self.cache.row_bytes

    def launch(
        self,
        copied: int = EVERY_TILE,
        segments: Buffer | None = None,
        blocks: int | None = None,
        dump: int = 0,
        dump_tiles: int = 0,
    ) -> None:
        """Queue one launch; tiles from number `copied` on are handed over without having been copied."""
        cache = self.cache
        config = self._loaded.config(blocks, self.threads, self.shared_bytes) if blocks else self._config
        self._loaded.launch(
            config,
            source=self._map or self.memory,
            table=self._table,
            segments=segments or self._segments,
            head_pitch_bytes=0 if self._map else cache.head_pitch_bytes,
            page_shift=cache.page_rows.bit_length() - 1 if cache.page_rows else 31,
            last_page=cache.pages - 1,
            row_pitch=cache.row_pitch_bytes,
            page_pitch=cache.page_pitch_bytes,
            piece_rows=self.piece_rows,
            issuers=self.issuers,
            stages=self.stages,
            copied=copied,
            dump=dump,
            dump_tiles=dump_tiles,
            log=self._log,
            sums=self._sums,
            statuses=self._statuses,
        )

    def require_arrived(self) -> None:
        """Wait for the launches; see `Statuses.require_arrived`."""
        self._statuses.require_arrived()

    def time_us(self, copied: int = EVERY_TILE) -> float:
        """Microseconds of one launch, between events."""
        with self.gpu.timed() as elapsed:
            self.launch(copied)
        return elapsed()

    def first_tile_cycles(self) -> np.ndarray:
        """Of the last launch: SM cycles from each block's start until its first tile was there."""
        self.require_arrived()
        return self._log.read(np.uint32)[self.segments[:, 3] > 0]

    def refresh_table(self) -> None:
        """Write the page table again, which leaves it in L2."""
        self._table.write(self.cache.table)

    @cached_property
    def _word_places(self) -> tuple[np.ndarray, np.ndarray]:
        """For each word of a tile in shared memory: its row, and its byte in the row."""
        at = np.arange(0, self.tile_bytes, 4)
        if self._by_run:
            return np.divmod(at, self.cache.row_bytes)
        swizzle = column_span(self.cache.row_bytes)
        column, rest = np.divmod(swizzle_offset(at, swizzle), self.tile_rows * swizzle.span_bytes)
        row, within = np.divmod(rest, swizzle.span_bytes)
        return row, column * swizzle.span_bytes + within

    def expected_words(self, segment: np.ndarray, tiles: int, words: np.ndarray | None = None) -> np.ndarray:
        """What `tiles` tiles of one segment hold: shape (tiles, words of a tile or those asked for).

        Behind the last row threads fill with zeros; the copy engine brings the rest of the page.
        """
        cache = self.cache
        start, head, first, rows = map(int, segment)
        row, byte = self._word_places if words is None else (part[words] for part in self._word_places)
        g = first + np.arange(tiles)[:, None] * self.tile_rows + row[None, :]
        last = first + rows - 1
        if cache.page_rows:
            page = cache.table[start + np.minimum(g, last) // cache.page_rows].astype(np.int64)
            in_page = g % cache.page_rows
        else:
            page, in_page = 0, g
        at = page * cache.page_pitch_bytes + in_page * cache.row_pitch_bytes + head * cache.head_pitch_bytes
        found = self.words((at + byte) // 4)
        return np.where(g > last, np.uint32(0), found) if self.spec.traits.by_threads else found

    def check(self, seed: int = 1) -> None:
        """Gather the last tiles of some segments to a poisoned destination and compare every byte.

        Raises:
            WrongBytes: with segment, tile and offset of the first difference.
            StalledWait: a barrier was never completed.
        """
        chosen = np.random.default_rng(seed).permutation(self.blocks)[:CHECKED_BLOCKS]
        segments = self.segments[chosen].copy()
        most = 2 * self.stages + 1
        for segment in segments:
            skipped = max(0, -(-segment[3] // self.tile_rows) - most) * self.tile_rows
            segment[2] += skipped
            segment[3] -= skipped
        with (
            Buffer(segments.nbytes) as work,
            Buffer(len(segments) * most * self.tile_bytes) as dump,
        ):
            work.write(segments)
            dump.set_bytes(POISON)
            self.launch(segments=work, blocks=len(segments), dump=dump.address, dump_tiles=most)
            self.require_arrived()
            arrived = dump.read(np.uint32).reshape(len(segments), most, -1)
        for number, segment in enumerate(segments):
            tiles = -(-int(segment[3]) // self.tile_rows)
            expected = np.full_like(arrived[number], int.from_bytes([POISON] * 4))
            if tiles:
                expected[:tiles] = self.expected_words(segment, tiles)
            if not np.array_equal(arrived[number], expected):
                tile, word = np.argwhere(arrived[number] != expected)[0]
                raise WrongBytes(
                    f"{self.spec.name}: segment {segment.tolist()}, tile {tile}, byte {4 * word}: "
                    f"{arrived[number, tile, word]:#010x} arrived, {expected[tile, word]:#010x} is in memory"
                )

    def check_sums(self, blocks: int = 2) -> None:
        """Compare what consumer threads of a few blocks read during the last launch: cheap, for timed ones.

        Raises:
            WrongBytes: a timed launch read wrong words.
        """
        sums = self._sums.read(np.uint32).reshape(self.blocks, self.threads)
        words = np.arange(min(CONSUMER_THREADS, self.tile_bytes // 16)) * 4
        for block in np.random.default_rng(1).choice(self.blocks, min(blocks, self.blocks), replace=False):
            tiles = -(-int(self.segments[block, 3]) // self.tile_rows)
            expected = self.expected_words(self.segments[block], tiles, words).sum(axis=0, dtype=np.uint32)
            if not np.array_equal(sums[block, : len(words)], expected):
                raise WrongBytes(f"{self.spec.name}: a timed launch read wrong words in block {block}")

    def products(self) -> np.ndarray:
        """Of the last launch of a kernel with tensor cores: each thread's sum, shape (blocks, 256)."""
        self.require_arrived()
        return self._sums.read(np.float32).reshape(self.blocks, self.threads)[:, :WARPGROUPS_THREADS]

    def close(self) -> None:
        """Free what the gather holds on the GPU."""
        for buffer in (self._map, self._table, self._segments, self._log, self._sums, self._statuses):
            if buffer:
                buffer.close()


SMALL_INTEGERS = np.array([0x0000, 0x3F80, 0x4000, 0x4040], np.uint32)  # 0 to 3 in bf16


def check_products(
    gpu: Gpu, spec: KernelSpec, page_rows: int, piece_rows: int, issuers: int, stages: int
) -> None:
    """Gather small whole numbers and compare what tensor cores add up with NumPy, exactly.

    Raises:
        WrongBytes: a sum differs.
        StalledWait: a barrier was never completed.
    """
    constants = dict(spec.constants)
    row_bytes, tile_rows = int(constants["row_bytes"]), int(constants["tile_rows"])
    cache = Cache(row_bytes, 2, (6 * tile_rows, 9 * tile_rows), page_rows)
    digits = random_words(np.arange(cache.pool_bytes // 2), 3) & 3
    halves = SMALL_INTEGERS[digits].astype(np.uint16)
    packed = halves.view(np.uint32)
    with Buffer(cache.pool_bytes) as memory:
        memory.write(halves)
        gather = Gather(
            gpu,
            spec,
            cache,
            memory,
            lambda at: packed[at],
            cache.segments(tile_rows),
            piece_rows,
            issuers,
            stages,
        )
        gather.launch()
        found = gather.products()
        row, _ = gather._word_places
        for block, segment in enumerate(gather.segments):
            words = gather.expected_words(segment, int(segment[3]) // tile_rows)[1::2]
            low, high = (words & 0xFFFF) << 16, words & np.uint32(0xFFFF0000)
            values = low.view(np.float32) + high.view(np.float32)
            per_row = np.zeros(tile_rows)
            np.add.at(per_row, row, values.sum(axis=0))
            columns = per_row.reshape(-1, 4, 2).sum(
                axis=(0, 2)
            )  # a thread holds 2 of 8 keys, for two query rows
            expected = 2 * columns[np.arange(WARPGROUPS_THREADS) % 4]
            if not np.array_equal(found[block], expected.astype(np.float32)):
                raise WrongBytes(f"{spec.name}: tensor cores found {found[block, :4]}, not {expected[:4]}")
        gather.close()
