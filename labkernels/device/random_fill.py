"""Random words that the GPU writes and NumPy can recompute at any index: no gigabyte crosses the bus."""

from functools import cache

import numpy as np

from labkernels.device.gpu import Buffer, Gpu, Program
from labkernels.kernels.build import AssemblyError, link, numba_ptx


def random_words(index: np.ndarray, seed: int) -> np.ndarray:
    """The 32-bit words at the given word indices (any shape of integers), as `fill` writes them."""
    word = (index.astype(np.uint32) ^ np.uint32(seed)) * np.uint32(0x9E3779B1)
    word = (word ^ (word >> np.uint32(15))) * np.uint32(0x85EBCA77)
    return word ^ (word >> np.uint32(13))


@cache
def _program(gpu: Gpu, name: str = "fill") -> Program:
    from labkernels.kernels import entry

    arch = gpu.facts.arch
    try:
        cubin = link([numba_ptx(getattr(entry, name), (), arch, f"{name}_random_words")], arch)
    except AssemblyError as error:
        raise AssemblyError(f"{name}: {error}") from error
    return gpu.load_cubin(name, cubin, f"{name}_random_words")


def fill(gpu: Gpu, buffer: Buffer, seed: int) -> None:
    """Fill a buffer with `random_words`; queued, not waited for."""
    program = _program(gpu)
    config = program.config(blocks=8 * gpu.facts.sm_count, threads=256, shared_bytes=0)
    program.launch(config, np.uint64(buffer.address), np.int64(buffer.nbytes // 4), np.uint32(seed))


def first_difference(
    gpu: Gpu, arrived: Buffer, seed: int, shape: tuple[int, int, int], rows: int
) -> int | None:
    """Index of a word that is not what `fill` wrote where it was read, or None; every word is compared.

    Args:
        gpu: where.
        arrived: the words of each block's tiles.
        seed: of the words.
        shape: blocks, tiles and words of a tile. Tile t of block b is tile (b + t × blocks) % rows of the memory.
        rows: tiles of the memory.
    """
    blocks, tiles, tile_words = shape
    program = _program(gpu, "differ")
    config = program.config(blocks=8 * gpu.facts.sm_count, threads=256, shared_bytes=0)
    with Buffer(8) as wrong:
        wrong.set_bytes(0)
        sizes = (blocks * tiles * tile_words, tile_words, tiles, blocks, rows)
        addresses = np.uint64(arrived.address), np.uint64(wrong.address)
        program.launch(config, addresses[0], *map(np.int64, sizes), np.uint32(seed), addresses[1])
        gpu.sync()
        found = int(wrong.read(np.int64)[0])
    return found - 1 if found else None


def evict_l2(gpu: Gpu, scratch: Buffer, seed: int = 0) -> None:
    """Push everything else out of L2 by writing a scratch buffer of several times its size."""
    fill(gpu, scratch, seed)
