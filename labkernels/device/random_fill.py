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
def _program(gpu: Gpu) -> Program:
    from labkernels.kernels import entry

    arch = gpu.facts.arch
    try:
        cubin = link([numba_ptx(entry.fill, (), arch, "fill_random_words")], arch)
    except AssemblyError as error:
        raise AssemblyError(f"fill: {error}") from error
    return gpu.load_cubin("fill", cubin, "fill_random_words")


def fill(gpu: Gpu, buffer: Buffer, seed: int) -> None:
    """Fill a buffer with `random_words`; queued, not waited for."""
    program = _program(gpu)
    config = program.config(blocks=8 * gpu.facts.sm_count, threads=256, shared_bytes=0)
    program.launch(config, np.uint64(buffer.address), np.int64(buffer.nbytes // 4), np.uint32(seed))


def evict_l2(gpu: Gpu, scratch: Buffer, seed: int = 0) -> None:
    """Push everything else out of L2 by writing a scratch buffer of several times its size."""
    fill(gpu, scratch, seed)
