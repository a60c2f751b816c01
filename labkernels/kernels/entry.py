"""The Numba side of every protocol: splits the work, calls the mechanism's PTX, stores what it returned. Not timed.

Each factory closes over compile-time constants and returns a kernel. A parameter that the PTX function has too takes
its type from there; others are annotated. `call` stands for the PTX function and names only the arguments that differ
from the kernel's own. `labkernels.kernels.numba_side` fills in the rest.
"""

from collections.abc import Callable
from typing import Any

from numba import cuda, types

I32, I64 = types.int32, types.int64
I32_POINTER, U32_POINTER = types.CPointer(types.int32), types.CPointer(types.uint32)
SEGMENT_INTS = 4  # start of the sequence in the page tables, head, first row, rows


def call(**arguments: Any) -> int:
    """Stands for the PTX function: its sum in bits 0-31 of the result, its status above."""
    raise NotImplementedError


def passed_through() -> Callable:
    """The kernel of the protocols that compute nothing here: the PTX function's arguments, then `statuses`."""

    def kernel(statuses: U32_POINTER):
        result = call()
        if result >> 32:
            statuses[cuda.blockIdx.x] = types.uint32(result >> 32)

    return kernel


def stream(consumers: int) -> Callable:
    """Every block streams `tiles` tiles; block b starts at tile b and moves on by the number of blocks.

    `dump` is 0 or the address of blocks × tiles × tile_bytes bytes; `sums` holds a word per thread, `statuses` a word
    per block. The caller sees to it that blocks × outer_unit does not exceed outer_limit.

    Args:
        consumers: how many of the first threads copy nothing (32 in a warp-specialized ring, else 0).
    """

    def kernel(
        source,
        inner_step,
        inner_limit,
        outer_unit: I64,
        outer_limit,
        tiles,
        tile_bytes,
        stages,
        row_chunks: I32,
        row_pitch_bytes: I64,
        chunk_step,
        dump,
        sums: U32_POINTER,
        statuses: U32_POINTER,
    ):
        block = types.int64(cuda.blockIdx.x)
        lane = max(types.int32(cuda.threadIdx.x) - consumers, 0)
        lane_offset = types.int64(lane // row_chunks) * row_pitch_bytes + (lane % row_chunks) * 16
        if dump != 0:
            dump += types.uint64(block * tiles * tile_bytes)
        result = call(
            outer=block * outer_unit,
            outer_step=types.int64(cuda.gridDim.x) * outer_unit,
            lane_offset=lane_offset,
        )
        sums[block * cuda.blockDim.x + cuda.threadIdx.x] = types.uint32(result)
        if result >> 32:
            statuses[block] = types.uint32(result >> 32)

    return kernel


def multistage() -> Callable:
    """As `stream`, over contiguous tiles whose threads find their part of a tile themselves."""

    def kernel(
        source,
        outer_unit: I64,
        outer_limit,
        tiles,
        tile_bytes,
        stages,
        dump,
        sums: U32_POINTER,
        statuses: U32_POINTER,
    ):
        block = types.int64(cuda.blockIdx.x)
        if dump != 0:
            dump += types.uint64(block * tiles * tile_bytes)
        step = types.int64(cuda.gridDim.x) * outer_unit
        result = call(outer=block * outer_unit, outer_step=step)
        sums[block * cuda.blockDim.x + cuda.threadIdx.x] = types.uint32(result)
        if result >> 32:
            statuses[block] = types.uint32(result >> 32)

    return kernel


pipeline = prefetched = mixed = multistage  # the same, whoever copies and whoever reads


def drain() -> Callable:
    """Every block writes `tiles` tiles; block b starts at tile b and moves on by the number of blocks."""

    def kernel(target, limit, tiles, tile_bytes, row_shift, column_shift, seed):
        call(first=types.int32(cuda.blockIdx.x), step=types.int32(cuda.gridDim.x))

    return kernel


def gather(tile_rows: int, row_bytes: int) -> Callable:
    """Block b gathers segment b: some rows of one head of one sequence, none perhaps.

    `source` and `table` are addresses, `segments` holds `SEGMENT_INTS` numbers per block, `dump` is 0 or the address
    of blocks × dump_tiles tiles, `log` has a word per block, `sums` one per thread, `statuses` one per block.
    `head_pitch_bytes` is 0 where `source` is a tensor map.

    Args:
        tile_rows: rows of a tile.
        row_bytes: bytes of a row.
    """
    tile_bytes = tile_rows * row_bytes

    def kernel(
        source,
        table,
        segments: I32_POINTER,
        head_pitch_bytes: I64,
        page_shift,
        last_page,
        row_pitch,
        page_pitch,
        piece_rows,
        issuers,
        stages,
        copied,
        dump,
        dump_tiles: I32,
        log,
        sums: U32_POINTER,
        statuses: U32_POINTER,
    ):
        block = types.int64(cuda.blockIdx.x)
        start, head = segments[block * SEGMENT_INTS], segments[block * SEGMENT_INTS + 1]
        first, rows = segments[block * SEGMENT_INTS + 2], segments[block * SEGMENT_INTS + 3]
        if dump != 0:
            dump += types.uint64(block * dump_tiles * tile_bytes)
        result = call(
            source=source + types.uint64(types.int64(head) * head_pitch_bytes),
            table=table + types.uint64(types.int64(start) * 4),
            head=head,
            first=first,
            rows=rows,
            tiles=types.int32((rows + tile_rows - 1) // tile_rows),
            log=log + types.uint64(block * 4),
        )
        sums[block * cuda.blockDim.x + cuda.threadIdx.x] = types.uint32(result)
        if result >> 32:
            statuses[block] = types.uint32(result >> 32)

    return kernel


def ring() -> Callable:
    """Blocks in groups of `group`, neighbors or `scattered`; a group streams the same tiles into each of its blocks.

    Group g starts at tile g and moves on by the number of groups. `source` is the address of a tensor map, `memory`
    that of its tensor. The block of rank r in its group starts r × `lag_cycles` late, the one of `delayed_rank` spends
    `delay` cycles before each copy, and every block keeps a tile for `hold` cycles. `dump` is 0 or the address of
    blocks × tiles × tile_bytes bytes; `log` and `statuses` hold a word per block, `sums` one per thread.
    """

    def kernel(
        source,
        memory,
        group: I32,
        scattered: I32,
        row_limit,
        tile_rows,
        tiles,
        tile_bytes,
        stages,
        lag_cycles: I32,
        delay,
        delayed_rank: I32,
        hold,
        dump,
        log,
        sums: U32_POINTER,
        statuses: U32_POINTER,
    ):
        block = types.int64(cuda.blockIdx.x)
        groups = types.int32(cuda.gridDim.x) // group
        rank = types.int32(block % group)
        first = types.int32(block // group)
        if scattered:
            rank, first = types.int32(block // groups), types.int32(block % groups)
        if dump != 0:
            dump += types.uint64(block * tiles * tile_bytes)
        result = call(
            row=first * tile_rows,
            row_step=groups * tile_rows,
            lag=rank * lag_cycles,
            delay=delay if rank == delayed_rank else types.int32(0),
            log=log + types.uint64(4 * block),
        )
        sums[block * cuda.blockDim.x + cuda.threadIdx.x] = types.uint32(result)
        if result >> 32:
            statuses[block] = types.uint32(result >> 32)

    return kernel


def exchange() -> Callable:
    """Every block moves its outbox into the inboxes of its peers, `laps` times.

    `pattern`: 0 pairs, even to odd; 1 pairs, both ways; 2 ring; 3 all to all; 4 first to all others. `dump` is 0 or the
    address of blocks × stages × slot_bytes bytes: the inboxes at the end. `log` holds two words per block (cycles, SM),
    `statuses` one.
    """

    def kernel(
        cluster: I32,
        pattern: I32,
        share_bytes,
        command_bytes,
        slot_bytes,
        stages,
        laps,
        dump,
        log,
        statuses: U32_POINTER,
    ):
        block = types.int32(cuda.blockIdx.x)
        rank = block % cluster
        fan_out, first_out, fan_in, first_in = 1, 1, 1, 1
        region_step = 0
        if pattern == 0:
            fan_out, fan_in = 1 - rank % 2, rank % 2
        elif pattern == 1:
            first_out = first_in = 1 if rank % 2 == 0 else cluster - 1
            first_in = cluster - first_out
        elif pattern == 3:
            fan_out = fan_in = cluster - 1
            region_step = share_bytes
        elif pattern == 4:
            fan_out = cluster - 1 if rank == 0 else 0
            fan_in = 0 if rank == 0 else 1
            first_in = rank
        if dump != 0:
            dump += types.uint64(types.int64(block) * stages * slot_bytes)
        result = call(
            fan_out=types.int32(fan_out),
            first_out=types.int32(first_out),
            fan_in=types.int32(fan_in),
            first_in=types.int32(first_in),
            region_step=types.int32(region_step),
            block=block,
            log=log + types.uint64(8 * block),
        )
        if result >> 32:
            statuses[block] = types.uint32(result >> 32)

    return kernel


def fill() -> Callable:
    """Fills memory with `labkernels.device.random_fill.random_words`; a plain Numba kernel."""

    def kernel(words: U32_POINTER, count: I64, seed: types.uint32):
        # Numba widens 32-bit arithmetic to 64 bits: masked, as NumPy's stays in 32.
        mask = types.uint64(0xFFFFFFFF)
        for index in range(cuda.grid(1), count, cuda.gridsize(1)):
            word = (types.uint64(index) ^ types.uint64(seed)) * types.uint64(0x9E3779B1) & mask
            word = (word ^ (word >> types.uint64(15))) * types.uint64(0x85EBCA77) & mask
            words[index] = types.uint32(word ^ (word >> types.uint64(13)))

    return kernel


def differ() -> Callable:
    """Compares what streams of contiguous tiles delivered with `labkernels.device.random_fill.random_words`.

    `arrived` holds blocks × tiles × tile_words words; `wrong[0]` becomes 1 + the index of some word that differs.
    """

    def kernel(
        arrived: U32_POINTER,
        count: I64,
        tile_words: I64,
        tiles: I64,
        blocks: I64,
        rows: I64,
        seed: types.uint32,
        wrong: types.CPointer(types.int64),
    ):
        mask = types.uint64(0xFFFFFFFF)
        for index in range(cuda.grid(1), count, cuda.gridsize(1)):
            at = index // tile_words
            row = (at // tiles + (at % tiles) * blocks) % rows
            word = (types.uint64(row * tile_words + index % tile_words) ^ types.uint64(seed)) * types.uint64(
                0x9E3779B1
            ) & mask
            word = (word ^ (word >> types.uint64(15))) * types.uint64(0x85EBCA77) & mask
            if arrived[index] != types.uint32(word ^ (word >> types.uint64(13))):
                wrong[0] = index + 1

    return kernel
