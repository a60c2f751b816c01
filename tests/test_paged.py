"""Paged caches, work splits, refusals and the reading of profiles; no GPU needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkernels.kernels.build import assemble
from labkernels.kernels.registry import kernel, kernels
from labkernels.kernels.render import render
from labkernels.operand import column_span
from labkernels.production.attention import Dispatch
from labkernels.production.flash_names import parse
from labkernels.protocols.gather import Cache, Gather, require_pages_in_pool
from labkernels.studies.paged import fa3, flash
from labkernels.studies.paged.paged import PRESETS, decode_cases, wgmma_cases, work

TILE_ROWS = 128


@st.composite
def caches(draw):
    return Cache(
        row_bytes=draw(st.sampled_from((64, 96, 128, 256, 1152))),
        kv_heads=draw(st.sampled_from((1, 2, 8))),
        lengths=tuple(draw(st.lists(st.integers(0, 700), min_size=1, max_size=5))),
        page_rows=draw(st.sampled_from((0, 1, 2, 16, 128, 512))),
        layout=draw(st.sampled_from(("nhd", "hnd"))),
        shuffled=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
    )


@given(caches())
def test_every_row_of_every_head_has_its_own_bytes_in_the_pool(cache):
    starts = []
    for sequence, length in enumerate(cache.lengths):
        rows = np.arange(length)
        if cache.page_rows:
            page = cache.table[cache.starts[sequence] + rows // cache.page_rows].astype(np.int64)
            within = rows % cache.page_rows
        else:
            page, within = 0, cache.starts[sequence] + rows
        at = page * cache.page_pitch_bytes + within * cache.row_pitch_bytes
        starts += [at + head * cache.head_pitch_bytes for head in range(cache.kv_heads)]
    starts = np.concatenate(starts)
    assert len(np.unique(starts)) == len(starts)
    assert not starts.size or (starts.min() >= 0 and starts.max() + cache.row_bytes <= cache.pool_bytes)
    assert not np.any(starts % cache.row_bytes)


@given(caches(), st.sampled_from((1, 2, 3, 11)))
def test_segments_cover_every_row_once_in_whole_tiles(cache, splits):
    segments = cache.segments(TILE_ROWS, splits)
    assert len(segments) == len(cache.lengths) * cache.kv_heads * splits
    assert segments[:, 3].sum() == sum(cache.lengths) * cache.kv_heads
    covered = set()
    for start, head, first, rows in segments.tolist():
        if rows:
            assert first % TILE_ROWS == 0
            covered |= {(start, head, row) for row in range(first, first + rows)}
    assert len(covered) == sum(cache.lengths) * cache.kv_heads


@given(caches())
def test_a_page_table_names_each_page_once_and_stays_in_the_pool(cache):
    if cache.page_rows and sum(cache.lengths):
        assert sorted(cache.table) == list(range(cache.pages))
    require_pages_in_pool(cache.table, cache.pages)


@pytest.mark.parametrize("bad", (-1, 8, 2**31 - 1))
def test_a_page_outside_the_pool_is_refused_with_its_place(bad):
    table = np.arange(8, dtype=np.int32)
    table[3] = bad
    with pytest.raises(ValueError, match=f"entry 3 is {bad}, the pool has pages 0 to 7"):
        require_pages_in_pool(table, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_rows": 48}, "page_rows is 48"),
        ({"layout": "dhn"}, "layout is 'dhn'"),
        ({"lengths": ()}, "lengths are"),
        ({"lengths": (-1,)}, "lengths are"),
    ],
)
def test_impossible_caches_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Cache(**({"row_bytes": 256, "kv_heads": 8, "lengths": (64,), "page_rows": 16} | changes))


class Unopened:
    """Stands for a buffer of a gigabyte: sizes are refused before a GPU is touched."""

    nbytes = 1 << 30


REFUSED = [
    ("tma_tile", 256, {"piece_rows": 32}, "piece_rows is 32, which does not divide 16"),
    ("tma_tile", 256, {"piece_rows": 16, "issuers": 3}, "3 issuers"),
    ("tma_tile", 64, {"piece_rows": 1}, "give 2 rows or more"),
    ("tma_bulk", 256, {"piece_rows": 2}, "piece_rows is 2, which does not divide 1"),
    ("cp_async", 256, {"row_bytes": 128}, "the cache has rows of 128 bytes; give rows of 256"),
    ("cp_async", 256, {"lengths": (1 << 20,)}, "the buffer 1073741824; use less"),
]


@pytest.mark.parametrize(("mechanism", "row_bytes", "changes", "message"), REFUSED, ids=str)
def test_gathers_that_do_not_fit_are_refused_before_anything_is_launched(
    mechanism, row_bytes, changes, message
):
    constants = {"tma_tile": {"compute": "none", "table": "global"}, "cp_async": {"compute": "none"}}
    spec = kernel(mechanism, "gather", tile_rows=128, row_bytes=row_bytes, **constants.get(mechanism, {}))
    cache = Cache(changes.get("row_bytes", row_bytes), 8, changes.get("lengths", (256,)), 16)
    pieces = changes.get("piece_rows", 1), changes.get("issuers", 1)
    with pytest.raises(ValueError, match=message):
        Gather(None, spec, cache, Unopened(), None, cache.segments(128), *pieces, 3)


def test_column_spans_divide_rows_and_others_are_refused():
    assert [column_span(row).span_bytes for row in (64, 96, 128, 192, 576, 1152)] == [
        64,
        32,
        128,
        64,
        64,
        128,
    ]
    with pytest.raises(ValueError, match="row_bytes is 48"):
        column_span(48)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_case_is_a_kernel_of_the_registry_that_reads_a_ceiling_beside_it(preset):
    cases = [*decode_cases(PRESETS[preset], 132), *wgmma_cases(PRESETS[preset], 132)]
    assert {case.spec for case in cases} <= set(kernels(protocol="gather"))
    assert {"contiguous", "rows", "box", "row", "run", "no_copy"} == {case.variant for case in cases}
    for case in cases:
        assert case.cache.pool_bytes <= PRESETS[preset].pool_bytes
        assert len(work(case, 132)) == 132 * case.ctas_per_sm
        assert 2 <= case.stages <= 32


def test_a_page_number_is_clamped_before_it_becomes_an_address():
    for mechanism, constants in (("cp_async", {"compute": "none"}), ("tma_bulk", {})):
        spec = kernel(mechanism, "gather", tile_rows=128, row_bytes=256, **constants)
        text = render(spec, "sm_90a")
        assert text.index("page, last_page" if mechanism == "tma_bulk" else "page0, last_page") < text.index(
            "page_pitch, source"
        )


def test_tensor_cores_work_beside_the_copies_without_being_serialized():
    for spec in kernels(protocol="gather"):
        if dict(spec.constants).get("compute") == "wgmma":
            built = assemble(
                spec
            )  # ptxas would say in its log that it serializes wgmma: an unclean log is an error
            assert built.count("HGMMA") == 16
            assert built.registers * 384 <= 65536


def forward_name(paged_cp_async, tile_n=128):
    flags = [True, False, False, True, paged_cp_async, False, False, True, True, True, False, False]
    return (
        "cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
        "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, "
        f"cute::tuple<cute::C<128>, cute::C<{tile_n}>, cute::C<128> >, 128, cutlass::bfloat16_t, float, "
        f"cutlass::arch::Sm90, {', '.join(str(flag).lower() for flag in flags)}> > >"
    )


def test_profiled_kernels_are_grouped_by_the_attention_kernel_they_belong_to():
    seen = [
        ("flash::prepare_varlen_num_blocks_kernel", 2.0),
        (forward_name(False), 50.0),
        ("cutlass::device_kernel<flash::FlashAttnFwdCombine<…>>", 3.0),
        ("flash::prepare_varlen_num_blocks_kernel", 4.0),
        (forward_name(True), 60.0),
        ("loop_broadcast_fusion", 9.0),
    ]
    (first, *own), (second, *other) = flash.attribute(seen)
    assert own == [50.0, 5.0] and other == [60.0, 4.0]
    assert (flash.mechanism(first), flash.mechanism(second)) == ("tma_tile", "cp_async")


def test_a_kernel_that_the_rules_do_not_say_is_an_error():
    variant = flash.Variant(flash.Problem(1, 2048, 8192), 128, "rule")
    kernel_seen = parse(forward_name(True))
    with pytest.raises(flash.WrongKernel, match="the rules say"):
        flash.require_expected(variant, kernel_seen, 1)
    flash.require_expected(variant, parse(forward_name(False)), 1)


def test_each_problem_has_a_variant_by_either_mechanism_where_a_page_is_whole_tiles():
    for sizes in fa3.PRESETS["full"].problems:
        problem = flash.Problem(*sizes)
        taken = {}
        for variant in fa3.variants(problem, (64, 128)):
            taken.setdefault(variant.page_rows, set()).add(variant.expected(1).k)
        assert taken == {0: {"tma_tile"}, 64: {"cp_async"}, 128: {"tma_tile", "cp_async"}}


def test_other_variants_change_nothing_but_the_mechanism():
    for sizes in fa3.PRESETS["full"].problems:
        problem = flash.Problem(*sizes)
        splits = problem.num_splits(132)
        choices = [variant.expected(splits) for variant in fa3.variants(problem, (128,)) if variant.page_rows]
        fields = [
            {name: value for name, value in vars(choice).items() if name not in ("k", "v", "reasons")}
            for choice in choices
        ]
        assert fields[0] == fields[1]
        assert isinstance(choices[0], Dispatch)
