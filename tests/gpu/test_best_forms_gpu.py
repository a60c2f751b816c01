"""Kernels of protocols multistage, pipeline and burst on a GPU: every byte against NumPy, at every depth."""

import time

import numpy as np
import pytest

from labkernels.device import Buffer, Gpu
from labkernels.device.random_fill import first_difference, random_words
from labkernels.kernels.registry import kernels
from labkernels.operand import KIB, MIB, WARP
from labkernels.protocols.burst import Burst
from labkernels.protocols.cell import WARP_COPY_BYTES, Cell
from labkernels.protocols.contiguous import Contiguous
from labkernels.protocols.drain import BoundDrain, Drain
from labkernels.protocols.memory import Memory
from labkernels.protocols.mixed import Mixed, MixedCell
from labkernels.protocols.stream import POISON, WrongBytes

pytestmark = pytest.mark.gpu

FOOTPRINT = 48 * MIB


@pytest.fixture(scope="module")
def gpu():
    return Gpu()


@pytest.fixture(scope="module")
def memory(gpu):
    memory = Memory(gpu, FOOTPRINT, seed=int(time.time()))
    yield memory
    memory.close()


def some_cells(spec):
    """Cells of a kernel with the fewest and with more stages, as far as it leaves a choice."""
    constants = dict(spec.constants)
    if spec.protocol == "multistage":
        stages = 2 * (constants.get("destination") == "shared")
        if "depth" in constants:
            stages = constants["depth"] + (constants["barriers"] == 1)
        for threads, ctas in ((64, 1), (256, 2), (512, 1)):
            yield Cell(spec, "hbm", FOOTPRINT, threads * 16 * constants["chunks"], stages, threads, ctas)
        return
    producers, consumers = constants["producers"], constants["consumers"]
    copying = producers if constants.get("share") == "together" else 1
    tiles = (
        [constants["chunks"] * copying * WARP_COPY_BYTES] if "chunks" in constants else [2 * KIB, 24 * KIB]
    )
    for tile_bytes in tiles:
        for pipelines in (1, 2, 3):
            stages = pipelines * max(producers, consumers)
            yield Cell(spec, "hbm", FOOTPRINT, tile_bytes, stages, (producers + consumers) * WARP)


@pytest.mark.parametrize(
    "spec",
    [one for name in ("stg", "bulk_store", "tma_store") for one in kernels(name, "drain")],
    ids=lambda spec: spec.name,
)
def test_every_byte_of_a_drain_is_written(spec, gpu):
    constants = dict(spec.constants)
    with Buffer(FOOTPRINT) as target:
        for threads, ctas in ((128, 1), (256, 2)):
            tile_bytes = threads * 16 * constants["chunks"]
            shapes = (
                [(128, 1), (128, 8)]
                if constants.get("layout") == "fragments"
                else [(min(2048, tile_bytes), 1)]
            )
            if constants.get("run") == "row" or constants.get("layout") == "rows":
                shapes += [(64, 16), (512, 4)]
            for row_bytes, columns in shapes:
                drain = Drain(spec, "l2", FOOTPRINT, threads, row_bytes, columns, ctas)
                if not drain.fits:
                    continue
                bound = BoundDrain(gpu, drain, target)
                bound.check()
                bound.close()


@pytest.mark.parametrize(
    "spec",
    [one for name in ("tma_bulk", "tma_tile") for one in kernels(name, "mixed")],
    ids=lambda spec: spec.name,
)
def test_streamed_and_reused_tiles_come_in_turns(spec, gpu, memory):
    cell = MixedCell(spec, "hbm", FOOTPRINT // 2, 8 * KIB, 4, 2 * WARP, reused_bytes=132 * 8 * KIB)
    mixed = Mixed(gpu, cell, memory.buffer, memory.seed)
    mixed.check(40)
    mixed.close()


def arrived(stream, tiles):
    with Buffer(stream.bytes_moved(tiles)) as dump:
        dump.set_bytes(POISON)
        stream.launch(tiles, dump.address)
        stream.require_arrived()
        return dump.read(np.uint32).reshape(stream.blocks, tiles, -1)


@pytest.mark.parametrize(
    "spec",
    [one for name in ("multistage", "pipeline", "prefetched") for one in kernels(protocol=name)],
    ids=lambda s: s.name,
)
def test_every_byte_is_what_numpy_says(gpu, memory, spec):
    memory.refill()
    ran = 0
    for cell in filter(lambda cell: cell.fits, some_cells(spec)):
        stream = Contiguous(gpu, cell, memory.buffer, memory.seed)
        for tiles in {stream.tiles_for(stream.bytes_moved(n)) for n in (1, 2 * max(cell.stages, 1) + 1)}:
            words = np.arange(cell.tile_bytes // 4)
            assert np.array_equal(
                arrived(stream, tiles), stream.expected_words(np.arange(stream.blocks), tiles, words)
            )
            stream.check_sums(tiles)
        stream.check()
        stream.close()
        ran += 1
    assert ran


def test_the_gpu_sees_a_wrong_word_wherever_it_is(gpu, memory):
    blocks, tiles, words, rows = 3, 5, 64, 7
    tile = np.arange(blocks)[:, None] + np.arange(tiles)[None, :] * blocks
    good = random_words((tile % rows)[:, :, None] * words + np.arange(words), memory.seed).reshape(-1)
    with Buffer(good.nbytes) as buffer:
        buffer.write(good)
        assert first_difference(gpu, buffer, memory.seed, (blocks, tiles, words), rows) is None
        for at in (0, 1, good.size // 2, good.size - 1):
            bad = good.copy()
            bad[at] ^= 1
            buffer.write(bad)
            assert first_difference(gpu, buffer, memory.seed, (blocks, tiles, words), rows) == at


def test_wrong_bytes_are_named(gpu, memory):
    memory.refill()
    cell = Cell(kernels("tma_tile", "pipeline")[0], "hbm", FOOTPRINT, 8 * KIB, 4, 64)
    stream = Contiguous(gpu, cell, memory.buffer, memory.seed + 1)
    with pytest.raises(WrongBytes, match=r"block \d+, tile \d+, byte \d+ is not what is in memory"):
        stream.check()


@pytest.mark.parametrize("warps", [1, 3])
@pytest.mark.parametrize("spec", kernels(protocol="burst"), ids=lambda s: s.name)
def test_bursts_bring_their_bytes(gpu, memory, spec, warps):
    memory.refill()
    constants = dict(spec.constants)
    if warps * constants["train"] * constants.get("bytes", WARP_COPY_BYTES) > 200 * KIB:
        pytest.skip("the bursts do not fit shared memory")
    burst = Burst(gpu, spec, memory.buffer, memory.seed, warps)
    burst.check()
    cycles = burst.cycles(4)
    assert cycles.shape == (4, warps, 2)
    assert (cycles[..., 1] > cycles[..., 0]).all() and (cycles[..., 1] < 100_000).all()
    burst.close()


@pytest.mark.parametrize(
    "spec", [kernels(m, "pipeline")[0] for m in ("cp_async", "tma_bulk", "tma_tile")], ids=lambda s: s.name
)
def test_one_of_each_best_form(gpu, spec):
    """Small enough for compute-sanitizer: pytest -m gpu -k one_of_each."""
    small = Memory(gpu, 4 * MIB, seed=4)
    tile_bytes = dict(spec.constants).get("chunks", 4) * WARP_COPY_BYTES
    stream = Contiguous(gpu, Cell(spec, "hbm", 4 * MIB, tile_bytes, 3, 64), small.buffer, small.seed)
    stream.check(4)
    stream.close()
    small.close()
