"""The Numba side of every kernel: splits the work, calls the mechanism's PTX, stores what it returned. Not timed.

Each factory closes over compile-time constants and returns `(function, signature)` for `numba.cuda.compile`.
"""

from collections.abc import Callable

from numba import cuda, types

U32_POINTER = types.CPointer(types.uint32)

STREAM = types.int64(
    types.uint64,  # source: global address or address of a tensor map
    types.int32,  # inner_step
    types.int32,  # inner_limit
    types.int64,  # outer
    types.int64,  # outer_step
    types.int64,  # outer_limit
    types.int32,  # tiles
    types.int32,  # tile_bytes
    types.int32,  # stages
    types.int64,  # lane_offset
    types.int64,  # chunk_step
    types.uint64,  # dump
)
CONTIGUOUS = types.int64(
    types.uint64,  # source: global address or address of a tensor map
    types.int64,  # outer
    types.int64,  # outer_step
    types.int64,  # outer_limit
    types.int32,  # tiles
    types.int32,  # tile_bytes
    types.int32,  # stages
    types.uint64,  # dump
)
BURST = types.int64(types.uint64, types.int32, types.uint64, types.uint64)
CHASE = types.int64(types.uint64, types.int64, types.int32, types.int32, types.uint64, types.uint64)
ISSUE = types.int64(types.uint64, types.int32, types.int32, types.int32, types.uint64, types.uint64)


def stream(function: str, consumers: int) -> tuple[Callable, types.Type]:
    """Every block streams `tiles` tiles; block b starts at tile b and moves on by the number of blocks.

    Args:
        function: name of the PTX function.
        consumers: how many of the first threads copy nothing (32 in a warp-specialized ring, else 0).

    Returns:
        The kernel, of (source, inner_step, inner_limit, outer_unit, outer_limit, tiles, tile_bytes, stages,
        row_chunks, row_pitch_bytes, chunk_step_bytes, dump, sums, statuses), and its signature. `dump` is 0 or the
        address of blocks × tiles × tile_bytes bytes; `sums` holds a word per thread, `statuses` a word per block.
        The caller sees to it that blocks × outer_unit does not exceed outer_limit.
    """
    call = cuda.declare_device(function, STREAM, abi="c")

    def kernel(
        source,
        inner_step,
        inner_limit,
        outer_unit,
        outer_limit,
        tiles,
        tile_bytes,
        stages,
        row_chunks,
        row_pitch_bytes,
        chunk_step_bytes,
        dump,
        sums,
        statuses,
    ):
        block = types.int64(cuda.blockIdx.x)
        lane = max(types.int32(cuda.threadIdx.x) - consumers, 0)
        lane_offset = types.int64(lane // row_chunks) * row_pitch_bytes + (lane % row_chunks) * 16
        if dump != 0:
            dump += types.uint64(block * tiles * tile_bytes)
        result = call(
            source,
            inner_step,
            inner_limit,
            block * outer_unit,
            types.int64(cuda.gridDim.x) * outer_unit,
            outer_limit,
            tiles,
            tile_bytes,
            stages,
            lane_offset,
            chunk_step_bytes,
            dump,
        )
        sums[block * cuda.blockDim.x + cuda.threadIdx.x] = types.uint32(result)
        if result >> 32:
            statuses[block] = types.uint32(result >> 32)

    signature = types.void(
        types.uint64,
        types.int32,
        types.int32,
        types.int64,
        types.int64,
        types.int32,
        types.int32,
        types.int32,
        types.int32,
        types.int64,
        types.int64,
        types.uint64,
        U32_POINTER,
        U32_POINTER,
    )
    return kernel, signature


def multistage(function: str) -> tuple[Callable, types.Type]:
    """As `stream`, over contiguous tiles whose threads find their part of a tile themselves.

    Returns:
        The kernel, of (source, outer_unit, outer_limit, tiles, tile_bytes, stages, dump, sums, statuses), and its
        signature.
    """
    call = cuda.declare_device(function, CONTIGUOUS, abi="c")

    def kernel(source, outer_unit, outer_limit, tiles, tile_bytes, stages, dump, sums, statuses):
        block = types.int64(cuda.blockIdx.x)
        if dump != 0:
            dump += types.uint64(block * tiles * tile_bytes)
        step = types.int64(cuda.gridDim.x) * outer_unit
        result = call(source, block * outer_unit, step, outer_limit, tiles, tile_bytes, stages, dump)
        sums[block * cuda.blockDim.x + cuda.threadIdx.x] = types.uint32(result)
        if result >> 32:
            statuses[block] = types.uint32(result >> 32)

    return kernel, types.void(
        types.uint64,
        types.int64,
        types.int64,
        types.int32,
        types.int32,
        types.int32,
        types.uint64,
        U32_POINTER,
        U32_POINTER,
    )


pipeline = multistage  # the same, whoever copies and whoever reads


def chase(function: str) -> tuple[Callable, types.Type]:
    """One block follows a chain of dependent transfers.

    Returns:
        The kernel, of (source, first, steps, transfer_bytes, log, dump, statuses), and its signature. `log` is the
        address of `steps` 32-bit cycle counts, `dump` 0 or the address of `transfer_bytes` bytes.
    """
    call = cuda.declare_device(function, CHASE, abi="c")

    def kernel(source, first, steps, transfer_bytes, log, dump, statuses):
        result = call(source, first, steps, transfer_bytes, log, dump)
        if result >> 32:
            statuses[cuda.blockIdx.x] = types.uint32(result >> 32)

    return kernel, types.void(*CHASE.args, U32_POINTER)


def issue(function: str) -> tuple[Callable, types.Type]:
    """One warp hands over trains of transfers.

    Returns:
        The kernel, of (source, train, repeats, transfer_bytes, table, log, statuses), and its signature. `table` is
        the address of 32-bit slot numbers, for kernels that look them up; `log` that of `repeats` pairs of 32-bit
        cycle counts: until handed over, until arrived.
    """
    call = cuda.declare_device(function, ISSUE, abi="c")

    def kernel(source, train, repeats, transfer_bytes, table, log, statuses):
        result = call(source, train, repeats, transfer_bytes, table, log)
        if result >> 32:
            statuses[cuda.blockIdx.x] = types.uint32(result >> 32)

    return kernel, types.void(*ISSUE.args, U32_POINTER)


def burst(function: str) -> tuple[Callable, types.Type]:
    """Every warp of one block issues bursts of copies.

    Returns:
        The kernel, of (source, repeats, log, dump, statuses), and its signature. `log` is the address of a pair of
        32-bit cycle counts for each repeat and warp: until issued, until arrived; `dump` 0 or the address of the bytes
        of one burst of each warp.
    """
    call = cuda.declare_device(function, BURST, abi="c")

    def kernel(source, repeats, log, dump, statuses):
        result = call(source, repeats, log, dump)
        if result >> 32:
            statuses[cuda.blockIdx.x] = types.uint32(result >> 32)

    return kernel, types.void(*BURST.args, U32_POINTER)


def differ() -> tuple[Callable, types.Type]:
    """Compares what streams of contiguous tiles delivered with `labkernels.device.random_fill.random_words`.

    Returns:
        The kernel, of (arrived, count, tile_words, tiles, blocks, rows, seed, wrong), and its signature. `arrived`
        holds blocks × tiles × tile_words words; `wrong[0]` becomes 1 + the index of some word that differs.
    """

    def kernel(arrived, count, tile_words, tiles, blocks, rows, seed, wrong):
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

    integers = (types.int64,) * 5
    return kernel, types.void(U32_POINTER, *integers, types.uint32, types.CPointer(types.int64))


def fill() -> tuple[Callable, types.Type]:
    """Fills memory with `labkernels.device.random_fill.random_words`; a plain Numba kernel.

    Returns:
        The kernel, of (words, count, seed), and its signature.
    """

    def kernel(words, count, seed):
        # Numba widens 32-bit arithmetic to 64 bits: masked, as NumPy's stays in 32.
        mask = types.uint64(0xFFFFFFFF)
        for index in range(cuda.grid(1), count, cuda.gridsize(1)):
            word = (types.uint64(index) ^ types.uint64(seed)) * types.uint64(0x9E3779B1) & mask
            word = (word ^ (word >> types.uint64(15))) * types.uint64(0x85EBCA77) & mask
            words[index] = types.uint32(word ^ (word >> types.uint64(13)))

    return kernel, types.void(U32_POINTER, types.int64, types.uint32)
