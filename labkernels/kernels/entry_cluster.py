"""The Numba side of kernels that work as clusters; as `labkernels.kernels.entry`."""

from collections.abc import Callable

from numba import cuda, types

from labkernels.kernels.entry import U32_POINTER

U32, U64, I32 = types.uint32, types.uint64, types.int32

RING = types.int64(U64, U64, I32, I32, I32, I32, I32, I32, I32, I32, I32, I32, U64, U64)
EXCHANGE = types.int64(I32, I32, I32, I32, I32, I32, I32, I32, I32, I32, I32, U64, U64)
PAIR = types.int64(I32, I32, I32, I32, U64)
VISIBILITY = types.int64(U64, I32, I32, I32, I32, U64, U64)
ARRIVAL = types.int64(U64, I32, I32, I32, I32, U64)


def ring(function: str) -> tuple[Callable, types.Type]:
    """Blocks in groups of `group`, neighbours or `scattered`; a group streams the same tiles into each of its blocks.

    Group g starts at tile g and moves on by the number of groups.

    Returns:
        The kernel, of (source, memory, group, scattered, row_limit, tile_rows, tiles, tile_bytes, stages, lag_cycles,
        delay_cycles, delayed_rank, hold_cycles, dump, log, sums, statuses), and its signature. `source` is the
        address of a tensor map, `memory` that of its tensor. The block of rank r in its group starts
        r × `lag_cycles` late, the one of `delayed_rank` spends `delay_cycles` before each copy, and every block
        keeps a tile for `hold_cycles`. `dump` is 0 or the address of blocks × tiles × tile_bytes bytes; `log`
        and `statuses` hold a word per block, `sums` one per thread.
    """
    call = cuda.declare_device(function, RING, abi="c")

    def kernel(
        source,
        memory,
        group,
        scattered,
        row_limit,
        tile_rows,
        tiles,
        tile_bytes,
        stages,
        lag_cycles,
        delay_cycles,
        delayed_rank,
        hold_cycles,
        dump,
        log,
        sums,
        statuses,
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
            source,
            memory,
            first * tile_rows,
            groups * tile_rows,
            row_limit,
            tile_rows,
            tiles,
            tile_bytes,
            stages,
            rank * lag_cycles,
            delay_cycles if rank == delayed_rank else types.int32(0),
            hold_cycles,
            dump,
            log + types.uint64(4 * block),
        )
        sums[block * cuda.blockDim.x + cuda.threadIdx.x] = types.uint32(result)
        if result >> 32:
            statuses[block] = types.uint32(result >> 32)

    return kernel, types.void(U64, U64, *[I32] * 11, U64, U64, U32_POINTER, U32_POINTER)


def exchange(function: str) -> tuple[Callable, types.Type]:
    """Every block moves its outbox into the inboxes of its peers, `laps` times.

    Returns:
        The kernel, of (cluster, pattern, share_bytes, command_bytes, slot_bytes, stages, laps, dump, log,
        statuses), and its signature. `pattern`: 0 pairs, even to odd; 1 pairs, both ways; 2 ring; 3 all to all;
        4 first to all others. `dump` is 0 or the address of blocks × stages × slot_bytes bytes: the inboxes at
        the end. `log` holds two words per block (cycles, SM), `statuses` one.
    """
    call = cuda.declare_device(function, EXCHANGE, abi="c")

    def kernel(cluster, pattern, share_bytes, command_bytes, slot_bytes, stages, laps, dump, log, statuses):
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
            types.int32(fan_out),
            types.int32(first_out),
            types.int32(fan_in),
            types.int32(first_in),
            share_bytes,
            command_bytes,
            types.int32(region_step),
            slot_bytes,
            stages,
            laps,
            block,
            dump,
            log + types.uint64(8 * block),
        )
        if result >> 32:
            statuses[block] = types.uint32(result >> 32)

    return kernel, types.void(I32, I32, I32, I32, I32, I32, I32, U64, U64, U32_POINTER)


def pair(function: str) -> tuple[Callable, types.Type]:
    """One transfer at a time between two blocks of a cluster.

    Returns:
        The kernel, of (asker, answerer, steps, transfer_bytes, log, statuses), and its signature. `log` is
        the address of `steps` 32-bit cycle counts.
    """
    call = cuda.declare_device(function, PAIR, abi="c")

    def kernel(asker, answerer, steps, transfer_bytes, log, statuses):
        result = call(asker, answerer, steps, transfer_bytes, log)
        if result >> 32:
            statuses[cuda.blockIdx.x] = types.uint32(result >> 32)

    return kernel, types.void(I32, I32, I32, I32, U64, U32_POINTER)


def arrival(function: str) -> tuple[Callable, types.Type]:
    """The first block of a cluster sends; every block in `mask` notes when the bytes are there.

    Returns:
        The kernel, of (source, mask, steps, transfer_bytes, transfer_rows, log, statuses), and its signature.
        `log` is the address of blocks × (128 + 2 × steps) 64-bit words: see macros/cluster_arrival.ptx.
    """
    call = cuda.declare_device(function, ARRIVAL, abi="c")

    def kernel(source, mask, steps, transfer_bytes, transfer_rows, log, statuses):
        result = call(source, mask, steps, transfer_bytes, transfer_rows, log)
        if result >> 32:
            statuses[cuda.blockIdx.x] = types.uint32(result >> 32)

    return kernel, types.void(U64, I32, I32, I32, I32, U64, U32_POINTER)


def visibility(function: str) -> tuple[Callable, types.Type]:
    """One transfer at a time from the first block of a cluster; every block in `mask` polls until it is there.

    Returns:
        The kernel, of (source, mask, steps, transfer_bytes, transfer_rows, dump, log, statuses), and its signature.
    """
    call = cuda.declare_device(function, VISIBILITY, abi="c")

    def kernel(source, mask, steps, transfer_bytes, transfer_rows, dump, log, statuses):
        result = call(source, mask, steps, transfer_bytes, transfer_rows, dump, log)
        if result >> 32:
            statuses[cuda.blockIdx.x] = types.uint32(result >> 32)

    return kernel, types.void(U64, I32, I32, I32, I32, U64, U64, U32_POINTER)
