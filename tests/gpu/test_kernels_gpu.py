"""Every kernel on a GPU: bit-exact against NumPy, bounded waits, refusals before launch."""

import time

import numpy as np
import pytest

from labkernels.device import Buffer, Gpu, StalledWait, random_fill
from labkernels.kernels.registry import kernel, kernels
from labkernels.legality import IllegalOperand
from labkernels.operand import MIB, Operand, Pipeline, Swizzle, linear_operand
from labkernels.protocols.chase import Chain, Chase, IssueBurst
from labkernels.protocols.memory import Memory
from labkernels.protocols.stream import Configuration, Stream
from labkernels.studies.crossover.row_shape import box_operand
from labkernels.studies.latency.latency import chunks_for

pytestmark = pytest.mark.gpu

FOOTPRINT = 64 * MIB
STREAMS = [spec for spec in kernels(protocol="stream") if not dict(spec.constants).get("excess_bytes")]
RUNS = [spec for spec in STREAMS if not (spec.traits.by_threads or spec.traits.takes_tensor_map)]


@pytest.fixture(scope="module")
def gpu():
    return Gpu()


@pytest.fixture(scope="module")
def memory(gpu):
    memory = Memory(gpu, FOOTPRINT, seed=int(time.time()))
    yield memory
    memory.close()


def pipeline(stages, threads, alignment=128):
    return Pipeline(stages=stages, threads=threads, shared_alignment_bytes=alignment)


def check(gpu, memory, spec, operand):
    memory.refill()
    stream = Stream(gpu, Configuration(spec, operand, "hbm"), memory.buffer, memory.seed)
    for tiles in (1, operand.pipeline.stages, 3 * operand.pipeline.stages + 1):
        stream.check(tiles)
        stream.check_sums(tiles)
    stream.close()


def test_the_hosts_time_is_not_the_kernels(gpu, memory):
    memory.refill()
    gpu.sync()
    with gpu.timed() as elapsed:
        time.sleep(0.02)
        memory.refill()
    assert elapsed() < 5_000


def test_a_failure_while_timing_does_not_stop_the_gpu(gpu, memory):
    with pytest.raises(ZeroDivisionError), gpu.timed():
        _ = 1 / 0
    memory.refill()
    gpu.sync()


def test_words_are_what_numpy_says(gpu):
    with Buffer(4 << 10) as buffer:
        random_fill.fill(gpu, buffer, seed=99)
        gpu.sync()
        assert np.array_equal(buffer.read(np.uint32), random_fill.random_words(np.arange(1 << 10), 99))


@pytest.mark.parametrize("spec", RUNS, ids=lambda s: s.name)
@pytest.mark.parametrize("tile", [128, 1 << 10, 3 << 10, 16 << 10, 32 << 10])
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_bulk(gpu, memory, spec, tile, stages):
    footprint = FOOTPRINT // (tile * 132) * tile * 132
    check(gpu, memory, spec, linear_operand(footprint, tile, pipeline(stages, 64)))


@pytest.mark.parametrize("spec", [s for s in STREAMS if s.traits.takes_tensor_map], ids=lambda s: s.name)
@pytest.mark.parametrize("stages", [1, 4])
def test_tiles_of_every_rank(gpu, memory, spec, stages):
    rank = dict(spec.constants)["rank"]
    middle = [1, 2, 3, 2][: max(rank - 2, 0)]
    inner = 256
    if rank == 1:
        operand = Operand(4, (FOOTPRINT // 4,), (inner,), pipeline=pipeline(stages, 64))
    else:
        rows = FOOTPRINT // (4 * inner * int(np.prod(middle))) // 4 * 4
        operand = Operand(4, (inner, *middle, rows), (inner, *middle, 4), pipeline=pipeline(stages, 64))
    check(gpu, memory, spec, operand)


@pytest.mark.parametrize("swizzle", list(Swizzle), ids=lambda s: s.name)
@pytest.mark.parametrize("pitch", [0, 512])
@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8])
def test_swizzles(gpu, memory, swizzle, pitch, element_bytes):
    inner = swizzle.span_bytes or 64
    pitch = pitch or inner
    operand = Operand(
        element_bytes,
        (pitch // element_bytes, FOOTPRINT // pitch),
        (inner // element_bytes, 64),
        (pitch,),
        swizzle=swizzle,
        pipeline=pipeline(3, 64, 1024),
    )
    check(gpu, memory, kernel("tma_tile", "stream", rank=2), operand)


@pytest.mark.parametrize("inner", [16, 32, 64, 128, 256])
def test_rows_cut_from_a_wide_tensor(gpu, memory, inner):
    spec = kernel("cp_async", "stream", completion="group", depth=2, chunks=4)
    operand = box_operand(1 << 30, inner, 8 << 10, 1 << 10, Swizzle.NONE, pipeline(3, 128))
    with pytest.raises(ValueError, match="132 blocks need"):
        small = box_operand(1 << 20, 16, 8 << 10, 1 << 10, Swizzle.NONE, pipeline(3, 128))
        Stream(gpu, Configuration(spec, small, "hbm"), memory.buffer, memory.seed)
    wide = Memory(gpu, 1 << 30, seed=3)
    check(gpu, wide, spec, operand)
    tile = box_operand(1 << 30, inner, 8 << 10, 1 << 10, Swizzle.NONE, pipeline(3, 64))
    check(gpu, wide, kernel("tma_tile", "stream", rank=tile.rank), tile)
    wide.close()


@pytest.mark.parametrize("spec", [s for s in STREAMS if s.traits.by_threads], ids=lambda s: s.name)
@pytest.mark.parametrize("threads", [32, 128, 256])
def test_copies_by_threads(gpu, memory, spec, threads):
    constants = dict(spec.constants)
    tile = threads * 16 * constants["chunks"]
    stages = constants["depth"] + 1 if "depth" in constants else 2 if spec.traits.through_registers else 3
    if tile * stages > 200 << 10:
        pytest.skip("the pipeline does not fit shared memory")
    producers = threads + 32 if constants.get("completion") == "mbarrier" else threads
    footprint = FOOTPRINT // (tile * 132) * tile * 132
    check(gpu, memory, spec, linear_operand(footprint, tile, pipeline(stages, producers)))


CHASES = kernels(protocol="chase")


@pytest.mark.parametrize("spec", CHASES, ids=lambda s: s.name)
@pytest.mark.parametrize("size", [16, 128, 2 << 10, 16 << 10, 64 << 10])
def test_chases(gpu, memory, spec, size):
    constants = dict(spec.constants)
    if constants.get("rank") == 1 and size > 2 << 10:
        pytest.skip("a box has at most 256 elements a side")
    if constants.get("destination") == "register" and size > 16:
        pytest.skip("registers take one word")
    if "chunks" in constants and constants["chunks"] != chunks_for(size):
        pytest.skip("another number of chunks suits this size")
    memory.refill()
    chase = Chase(gpu, spec, Chain(memory.buffer, 100, max(size, 128), 5), size)
    chase.check()
    if constants.get("clock") == "chain":
        return
    cycles = chase.cycles()
    assert cycles.min() > 100 and cycles.max() < 100_000


@pytest.mark.parametrize("mechanism", ["tma_bulk", "tma_tile", "cp_async"])
def test_bursts_take_longer_the_longer_they_are(gpu, memory, mechanism):
    spec = kernels(mechanism, "issue")[0]
    train = IssueBurst(gpu, spec, memory.buffer, 512)
    short, long = (np.median(train.cycles(n, 8), axis=0) for n in (2, 32))
    assert (long > short).all() and long[0] > 100


def test_a_wait_that_never_completes_ends_with_its_name_and_leaves_the_gpu_usable(gpu, memory):
    operand = linear_operand(FOOTPRINT, 16 << 10, pipeline(4, 64))
    spec = kernel("tma_bulk", "stream", excess_bytes=16)
    stream = Stream(gpu, Configuration(spec, operand, "hbm"), memory.buffer, memory.seed)
    began = time.monotonic()
    stream.launch(8)
    with pytest.raises(StalledWait, match=r"tma_bulk.stream.*block \d+ .*(full|empty)\[\d\]"):
        stream.require_arrived()
    assert time.monotonic() - began < 1.5
    check(gpu, memory, kernel("tma_bulk", "stream", excess_bytes=0), operand)


def test_illegal_operands_are_refused_before_anything_is_launched(gpu, memory):
    too_wide = Operand(2, (1024, 1024), (128, 64), swizzle=Swizzle.B128, pipeline=pipeline(2, 64, 1024))
    with pytest.raises(IllegalOperand, match="Fix:"):
        Stream(gpu, Configuration(kernel("tma_tile", "stream", rank=2), too_wide, "hbm"), memory.buffer, 1)
    uneven = linear_operand(FOOTPRINT, 4 << 10, pipeline(3, 100))
    with pytest.raises(ValueError, match="copying threads"):
        spec = kernel("cp_async", "stream", completion="group", depth=2, chunks=2)
        Stream(gpu, Configuration(spec, uneven, "hbm"), memory.buffer, 1)
    gpu.sync()


def test_wrong_bytes_are_seen(gpu, memory):
    operand = linear_operand(FOOTPRINT, 4 << 10, pipeline(2, 64))
    other_seed = Stream(
        gpu,
        Configuration(kernel("tma_bulk", "stream", excess_bytes=0), operand, "hbm"),
        memory.buffer,
        memory.seed + 1,
    )
    with pytest.raises(AssertionError, match="block 0, tile 0, byte 0"):
        other_seed.check()


ONE_OF_EACH = [
    (kernel("ldg", "stream", chunks=2, policy="nc"), 2, 128),
    (kernel("cp_async", "stream", completion="group", depth=2, chunks=2), 3, 128),
    (kernel("cp_async", "stream", completion="mbarrier", chunks=2), 3, 160),
    (kernel("tma_bulk", "stream", excess_bytes=0), 3, 64),
    (kernel("tma_tile", "stream", rank=2), 3, 64),
]


@pytest.mark.parametrize(("spec", "stages", "threads"), ONE_OF_EACH, ids=lambda x: getattr(x, "name", None))
def test_one_of_each(gpu, spec, stages, threads):
    """Small enough for compute-sanitizer: pytest -m gpu -k one_of_each."""
    small = Memory(gpu, 4 * MIB, seed=4)
    tile = 4 << 10
    operand = linear_operand(4 * MIB, tile, pipeline(stages, threads))
    if spec.traits.takes_tensor_map:
        operand = Operand(4, (256, 4 << 10), (256, 4), pipeline=pipeline(stages, threads))
    check(gpu, small, spec, operand)
    for protocol in ("chase", "issue"):
        one = kernels(spec.mechanism, protocol)[-1]
        if protocol == "chase":
            Chase(gpu, one, Chain(small.buffer, 20, 16 << 10, 5), 4 << 10).check()
        elif not spec.traits.through_registers:
            IssueBurst(gpu, one, small.buffer, 512).cycles(4, 2)
    small.close()
