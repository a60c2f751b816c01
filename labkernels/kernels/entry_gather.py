"""The Numba side of gathers through a page table. Not timed: a block reads what to gather, then calls PTX."""

from collections.abc import Callable

from numba import cuda, types

from labkernels.kernels.entry import U32_POINTER

SEGMENT_INTS = 4  # start of the sequence in the page tables, head, first row, rows

GATHER = types.int64(
    types.uint64,  # source: pool, or address of a tensor map
    types.uint64,  # table
    types.int32,  # head
    types.int32,  # first
    types.int32,  # rows
    types.int32,  # page_shift
    types.int32,  # last_page
    types.int64,  # row_pitch
    types.int64,  # page_pitch
    types.int32,  # piece_rows
    types.int32,  # issuers
    types.int32,  # tiles
    types.int32,  # stages
    types.int32,  # copied
    types.uint64,  # dump
    types.uint64,  # log
)


def gather(function: str, tile_rows: int, row_bytes: int) -> tuple[Callable, types.Type]:
    """Block b gathers segment b: some rows of one head of one sequence, none perhaps.

    Args:
        function: name of the PTX function.
        tile_rows: rows of a tile.
        row_bytes: bytes of a row.

    Returns:
        The kernel, of (source, tables, segments, head_pitch_bytes, page_shift, last_page, row_pitch_bytes,
        page_pitch_bytes, piece_rows, issuers, stages, copied, dump, dump_tiles, log, sums, statuses), and its
        signature. `source` and `tables` are addresses, `segments` holds `SEGMENT_INTS` numbers per block, `dump`
        is 0 or the address of blocks × dump_tiles tiles, `log` has a word per block, `sums` one per thread,
        `statuses` one per block. `head_pitch_bytes` is 0 where `source` is a tensor map.
    """
    call = cuda.declare_device(function, GATHER, abi="c")
    tile_bytes = tile_rows * row_bytes

    def kernel(
        source,
        tables,
        segments,
        head_pitch_bytes,
        page_shift,
        last_page,
        row_pitch_bytes,
        page_pitch_bytes,
        piece_rows,
        issuers,
        stages,
        copied,
        dump,
        dump_tiles,
        log,
        sums,
        statuses,
    ):
        block = types.int64(cuda.blockIdx.x)
        start, head = segments[block * SEGMENT_INTS], segments[block * SEGMENT_INTS + 1]
        first, rows = segments[block * SEGMENT_INTS + 2], segments[block * SEGMENT_INTS + 3]
        if dump != 0:
            dump += types.uint64(block * dump_tiles * tile_bytes)
        result = call(
            source + types.uint64(types.int64(head) * head_pitch_bytes),
            tables + types.uint64(types.int64(start) * 4),
            head,
            first,
            rows,
            page_shift,
            last_page,
            row_pitch_bytes,
            page_pitch_bytes,
            piece_rows,
            issuers,
            types.int32((rows + tile_rows - 1) // tile_rows),
            stages,
            copied,
            dump,
            log + types.uint64(block * 4),
        )
        sums[block * cuda.blockDim.x + cuda.threadIdx.x] = types.uint32(result)
        if result >> 32:
            statuses[block] = types.uint32(result >> 32)

    signature = types.void(
        types.uint64,
        types.uint64,
        types.CPointer(types.int32),
        types.int64,
        types.int32,
        types.int32,
        types.int64,
        types.int64,
        types.int32,
        types.int32,
        types.int32,
        types.int32,
        types.uint64,
        types.int32,
        types.uint64,
        U32_POINTER,
        U32_POINTER,
    )
    return kernel, signature
