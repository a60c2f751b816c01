"""Gathers on a GPU: bit-exact for any cache, tensor cores right, nothing read outside the pool."""

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

from labkernels.device import Buffer, Gpu  # noqa: E402
from labkernels.device.random_fill import fill, random_words  # noqa: E402
from labkernels.kernels.registry import GATHER_SHAPES, kernel, kernels  # noqa: E402
from labkernels.operand import column_span  # noqa: E402
from labkernels.protocols.gather import Cache, Gather, WrongBytes, check_products  # noqa: E402

SEED = 5
LENGTHS = (0, 1, 127, 128, 129, 0, 700, 1537)
PAGES = (0, 1, 8, 512)


@pytest.fixture(scope="module")
def gpu():
    return Gpu()


@pytest.fixture(scope="module")
def pool(gpu):
    buffer = Buffer(128 << 20)
    fill(gpu, buffer, SEED)
    gpu.sync()
    return buffer


def gather(gpu, pool, spec, cache, piece_rows=1, issuers=1, stages=2):
    segments = cache.segments(dict(spec.constants)["tile_rows"])
    return Gather(
        gpu, spec, cache, pool, lambda at: random_words(at, SEED), segments, piece_rows, issuers, stages
    )


def pieces(spec, cache):
    """Rows of one copy and issuing warps that the kernel can take."""
    tile_rows = dict(spec.constants)["tile_rows"]
    if spec.mechanism == "cp_async":
        return [(1, 1)]
    most = min(tile_rows, cache.rows_per_page if spec.mechanism == "tma_tile" else cache.run_rows)
    fewest = 128 // column_span(cache.row_bytes).span_bytes if spec.mechanism == "tma_tile" else 1
    sizes = [rows for rows in (fewest, most) if fewest <= rows <= most and most % rows == 0]
    return [(rows, issuers) for rows in sizes for issuers in (1, 4) if tile_rows // rows >= issuers]


@pytest.mark.parametrize("layout", ("nhd", "hnd"))
@pytest.mark.parametrize("shape", GATHER_SHAPES, ids=str)
def test_every_byte_of_every_gather_is_numpy_s(gpu, pool, shape, layout):
    tried = set()
    for spec in kernels(protocol="gather"):
        constants = dict(spec.constants)
        if (constants["tile_rows"], constants["row_bytes"]) != shape or constants.get("compute") == "wgmma":
            continue
        for page_rows in PAGES:
            if (constants.get("table") == "none") != (page_rows == 0):
                continue
            cache = Cache(shape[1], 3, LENGTHS, page_rows, layout, seed=page_rows)
            for piece_rows, issuers in pieces(spec, cache):
                case = gather(gpu, pool, spec, cache, piece_rows, issuers)
                case.check()
                case.close()
                tried.add((spec.mechanism, issuers))
    assert {mechanism for mechanism, _ in tried} == {"cp_async", "tma_tile", "tma_bulk"}
    assert {issuers for _, issuers in tried} == {1, 4}


@pytest.mark.parametrize("page_rows", (1, 16, 128, 512))
def test_tensor_cores_multiply_what_was_gathered(gpu, page_rows):
    for spec in kernels(protocol="gather"):
        constants = dict(spec.constants)
        if constants.get("compute") == "wgmma" and constants.get("table") != "none":
            piece = min(page_rows, 128)
            check_products(gpu, spec, page_rows, piece, 4 if piece < 128 else 1, 4)


BAD_ENTRY = 61  # of 64: in one of the last tiles, which are checked
MECHANISMS = {
    "cp_async": {"compute": "none"},
    "tma_tile": {"compute": "none", "table": "global"},
    "tma_bulk": {},
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("bad", (-1, 2**31 - 1, 1000))
def test_a_page_outside_the_pool_reads_nothing_outside_it(gpu, pool, mechanism, bad):
    """The page table is corrupted behind the host's back."""
    spec = kernel(mechanism, "gather", tile_rows=128, row_bytes=256, **MECHANISMS[mechanism])
    cache = Cache(256, 2, (1024,), 16)
    case = gather(gpu, pool, spec, cache, 1 if mechanism != "tma_tile" else 16)
    table = cache.table.copy()
    table[BAD_ENTRY] = bad
    case._table.write(table)
    with pytest.raises(WrongBytes):
        case.check()
    inside = cache.table.copy()
    inside[BAD_ENTRY] = cache.pages - 1
    cache.__dict__["table"] = inside
    if mechanism == "tma_tile":  # zeros, not the last page
        exact = case.expected_words

        def with_zeros(segment, tiles, words=None):
            expected = exact(segment, tiles, words).copy()
            row = np.arange(tiles)[:, None] * 128 + case._word_places[0][None, :] + segment[2]
            expected[row // 16 == BAD_ENTRY] = 0
            return expected

        case.expected_words = with_zeros
    case.check()
    case.close()


def test_a_wrong_byte_is_found(gpu, pool):
    spec = kernel("cp_async", "gather", tile_rows=128, row_bytes=256, compute="none")
    case = gather(gpu, pool, spec, Cache(256, 2, (1024,), 16))
    exact = case.words
    case.words = lambda at: exact(at) ^ (at == at.max()).astype(np.uint32)
    with pytest.raises(WrongBytes, match="tile"):
        case.check()


def test_first_tiles_are_logged_for_blocks_that_have_one(gpu, pool):
    spec = kernel("tma_tile", "gather", tile_rows=128, row_bytes=256, compute="none", table="global")
    case = gather(gpu, pool, spec, Cache(256, 2, LENGTHS, 16), 16, 4)
    case.launch()
    cycles = case.first_tile_cycles()
    assert len(cycles) == 2 * sum(length > 0 for length in LENGTHS)
    assert np.all((cycles > 300) & (cycles < 1_000_000))


@pytest.mark.parametrize(
    "spec", [s for s in kernels(protocol="gather") if "row_bytes=256" in s.name], ids=lambda s: s.name
)
def test_one_of_each_gather(gpu, pool, spec):
    """Small enough for compute-sanitizer: pytest -m gpu -k one_of_each."""
    constants = dict(spec.constants)
    if constants.get("compute") == "wgmma":
        check_products(gpu, spec, 0 if constants.get("table") == "none" else 16, 16, 4, 4)
        return
    cache = Cache(256, 1, (300,), 0 if constants.get("table") == "none" else 16, seed=1)
    piece_rows, issuers = pieces(spec, cache)[-1]
    case = gather(gpu, pool, spec, cache, piece_rows, issuers)
    case.check()
    case.close()
