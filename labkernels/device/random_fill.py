"""Random words that the GPU writes and NumPy can recompute at any index: no gigabyte crosses the bus."""

from functools import cache
from typing import Any

import numpy as np

from labkernels.device.gpu import Buffer, Gpu, LoadedKernel
from labkernels.kernels.link import link
from labkernels.kernels.render import AssemblyError, Parameter


def random_words(index: np.ndarray, seed: int) -> np.ndarray:
    """The 32-bit words at the given word indices (any shape of integers), as `fill` writes them."""
    word = (index.astype(np.uint32) ^ np.uint32(seed)) * np.uint32(0x9E3779B1)
    word = (word ^ (word >> np.uint32(15))) * np.uint32(0x85EBCA77)
    return word ^ (word >> np.uint32(13))


@cache
def _loaded(gpu: Gpu, name: str) -> LoadedKernel:
    from labkernels.kernels import entry, numba_side

    text, parameters = numba_side.ptx(getattr(entry, name)(), gpu.facts.arch, {})
    called = f"{name}_random_words"
    try:
        cubin = link([text.replace(numba_side.ENTRY, called)], gpu.facts.arch)
    except AssemblyError as error:
        raise AssemblyError(f"{name}: {error}") from error
    return gpu.load_cubin(name, cubin, called, tuple(Parameter(*one) for one in parameters.items()))


def _launch(gpu: Gpu, name: str, **arguments: Any) -> None:
    kernel = _loaded(gpu, name)
    kernel.launch(kernel.config(8 * gpu.facts.sm_count, threads=256, shared_bytes=0), **arguments)


def fill(gpu: Gpu, buffer: Buffer, seed: int) -> None:
    """Fill a buffer with `random_words`; queued, not waited for."""
    _launch(gpu, "fill", words=buffer, count=buffer.nbytes // 4, seed=seed)


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
    count = blocks * tiles * tile_words
    with Buffer(8) as wrong:
        wrong.set_bytes(0)
        sizes = {"count": count, "tile_words": tile_words, "tiles": tiles, "blocks": blocks, "rows": rows}
        _launch(gpu, "differ", arrived=arrived, **sizes, seed=seed, wrong=wrong)
        gpu.sync()
        found = int(wrong.read(np.int64)[0])
    return found - 1 if found else None
