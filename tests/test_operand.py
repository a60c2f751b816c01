"""Legality: what should be taken is taken, what should not is refused with value, limit and fix."""

import ast
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkernels.legality import RULES, IllegalOperand, require_legal, violations
from labkernels.mechanisms import ARCHITECTURES, MECHANISMS, names
from labkernels.operand import Operand, Pipeline, Swizzle, swizzle_offset
from labkernels.paths import ROOT

SHARED_LIMIT = 232_448
SWIZZLED = [Swizzle.B32, Swizzle.B64, Swizzle.B128]
TENSOR_MAP = {*names(takes_tensor_map=True)}
BULK = {*names(by_threads=False, takes_tensor_map=False, touches_global=True)}
THREADS = {*names(by_threads=True)}
THREAD_GLOBAL = {*names(by_threads=True, touches_global=True)}
DSM = {*names(touches_global=False)}
COUNTS_BYTES = sorted(names(counts_bytes=True))
mechanisms = st.sampled_from([*MECHANISMS])


def test_families_of_mechanisms():
    assert {"tma_tile", "tma_multicast", "tma_store", "tma_reduce"} <= TENSOR_MAP
    assert {"tma_bulk", "bulk_store", "bulk_reduce"} <= BULK
    assert {"ldg", "cp_async", "stg"} <= THREAD_GLOBAL
    assert {"dsm_load", "dsm_store", "dsm_bulk"} <= DSM
    assert {"tma_bulk", "tma_tile", "tma_multicast", "dsm_store", "dsm_bulk"} <= {*COUNTS_BYTES}


@st.composite
def legal(draw, mechanism: str, min_rank: int = 1, swizzle: Swizzle | None = None) -> Operand:
    """An operand that `mechanism` takes by construction, with room left for each single mutation."""
    element = draw(st.sampled_from([2, 4, 8]))
    swizzles = [*Swizzle] if mechanism in TENSOR_MAP else [Swizzle.NONE]
    swizzle = swizzle or draw(st.sampled_from(swizzles))
    row = 16 * draw(st.integers(1, (swizzle.span_bytes or 128) // 16))
    rank = draw(st.integers(min_rank, 5))
    # Bulk copies move one block: rows of their own above dimension 0.
    contiguous = mechanism in BULK
    sides = [1 if contiguous else draw(st.integers(1, 3)) for _ in range(rank - 1)]
    tile = (row // element, *sides)
    shape = tuple(side * draw(st.integers(1, 4)) for side in tile)
    strides, extent = [], shape[0] * element
    for size in shape[1:]:
        strides.append(extent + 16 * draw(st.integers(0, 2)))
        extent = strides[-1] * size
    pipeline = Pipeline(
        stages=draw(st.integers(1, 4)),
        ctas_per_sm=draw(st.integers(1, 2)),
        threads=32 * draw(st.integers(1, 32)),
        cluster=draw(st.integers(2 if mechanism in DSM else 1, 16)),
    )
    return Operand(
        element,
        shape,
        tile,
        tuple(strides),
        draw(st.sampled_from([16, 128, 256])),
        swizzle=swizzle,
        pipeline=pipeline,
    )


def refused(operand: Operand, mechanism: str, quantity: str, value: int, limit: str):
    """The violation of `quantity`, after checking that every way of asking reports it in full."""
    for arch in ARCHITECTURES:
        with pytest.raises(IllegalOperand) as caught:
            require_legal(operand, mechanism, arch)
    assert caught.value.violations == violations(operand, mechanism)
    found = [v for v in caught.value.violations if v.quantity == quantity and limit in v.limit]
    assert found, f"{quantity} not among: {caught.value}"
    (line,) = [line for line in str(caught.value).splitlines() if line == str(found[0])]
    assert mechanism in line and str(value) in line and limit in line
    assert f"Fix: {found[0].fix}" in line and found[0].fix and found[0].source in line
    return found[0]


def stated(violation) -> int:
    """The number that a fix tells to use."""
    return int(re.search(r"(\d+) (?:bytes|elements|stages|CTAs|fit)\b", violation.fix)[1])


@settings(max_examples=1000, deadline=None)
@given(st.data(), mechanisms, st.sampled_from(ARCHITECTURES))
def test_legal_operands_are_taken(data, mechanism, arch):
    operand = data.draw(legal(mechanism))
    assert violations(operand, mechanism, arch) == ()
    require_legal(operand, mechanism, arch)
    if (
        operand.swizzle is Swizzle.NONE and mechanism not in DSM
    ):  # rows of 16 bytes: every thread copy takes them
        assert not any(violations(operand, other) for other in THREAD_GLOBAL)


def mutate_base(operand, mechanism):
    unit = operand.pipeline.copy_bytes
    return replace(operand, base_alignment_bytes=8), "base_alignment_bytes", 8, f"at least {unit}"


def mutate_stages(operand, mechanism):
    pipeline = replace(operand.pipeline, shared_alignment_bytes=8)
    return replace(operand, pipeline=pipeline), "pipeline.shared_alignment_bytes", 8, "at least "


def mutate_row(operand, mechanism):
    side = 16 // operand.element_bytes + 1
    mutant = replace(operand, tile=(side, *operand.tile[1:]), shape=(side, *operand.shape[1:]))
    return mutant, "inner_row_bytes", 16 + operand.element_bytes, "a multiple of 16"


def mutate_size(operand, mechanism):
    # A tile of one element: less than 16 bytes whatever the element.
    mutant = replace(operand, tile=(1,) * operand.rank)
    return mutant, "tile_bytes", operand.element_bytes, "a multiple of 16"


def mutate_box(operand, mechanism):
    mutant = replace(operand, tile=(*operand.tile[:-1], 257), shape=(*operand.shape[:-1], 257))
    return mutant, f"tile[{operand.rank - 1}]", 257, "at most 256"


def mutate_stride(operand, mechanism):
    stride = operand.strides_bytes[-1] + 8
    mutant = replace(operand, strides_bytes=(*operand.strides_bytes[:-1], stride))
    return mutant, f"strides_bytes[{operand.rank - 2}]", stride, "a multiple of 16"


def mutate_far_stride(operand, mechanism):
    mutant = replace(operand, strides_bytes=(*operand.strides_bytes[:-1], 2**40))
    return mutant, f"strides_bytes[{operand.rank - 2}]", 2**40, f"at most {2**40 - 1}"


def mutate_swizzle(operand, mechanism):
    span = operand.swizzle.span_bytes
    side = (span + 16) // operand.element_bytes
    mutant = replace(operand, tile=(side, *operand.tile[1:]), shape=(side, *operand.shape[1:]))
    return mutant, "inner_row_bytes", span + 16, f"at most {span}"


def mutate_stage_under_swizzle(operand, mechanism):
    repeat = operand.swizzle.repeat_bytes
    pipeline = replace(operand.pipeline, shared_alignment_bytes=repeat // 2)
    return (
        replace(operand, pipeline=pipeline),
        "pipeline.shared_alignment_bytes",
        repeat // 2,
        f"at least {repeat}",
    )


def mutate_stage_of_a_plain_box(operand, mechanism):
    pipeline = replace(operand.pipeline, shared_alignment_bytes=64)
    return replace(operand, pipeline=pipeline), "pipeline.shared_alignment_bytes", 64, "at least 128"


def mutate_map(operand, mechanism):
    mutant = replace(operand, tensor_map_alignment_bytes=32)
    return mutant, "tensor_map_alignment_bytes", 32, "at least 64"


def mutate_rank(operand, mechanism):
    more = (1,) * (6 - operand.rank)
    strides = (*operand.strides_bytes, *(1024 * side for side in more))
    mutant = replace(operand, shape=operand.shape + more, tile=operand.tile + more, strides_bytes=strides)
    return mutant, "rank", 6, "at most 5"


def mutate_extent(operand, mechanism):
    extent = 2**32 * operand.tile[-1] + operand.tile[-1]
    mutant = replace(operand, shape=(*operand.shape[:-1], extent))
    return mutant, f"shape[{operand.rank - 1}]", extent, f"at most {2**32}"


def mutate_gap(operand, mechanism):
    shape = (*operand.shape[:-1], 2)
    stride = operand.strides_bytes[-1] + 16
    mutant = replace(
        operand,
        shape=shape,
        tile=(*operand.tile[:-1], 2),
        strides_bytes=(*operand.strides_bytes[:-1], stride),
    )
    return mutant, "contiguous_bytes", operand.tile_bytes, f"at least {mutant.tile_bytes}"


def mutate_rows(operand, mechanism):
    extent = operand.shape[-1] + 1
    mutant = replace(
        operand, tile=(*operand.tile[:-1], 2 * extent - 1), shape=(*operand.shape[:-1], 2 * extent)
    )
    return mutant, f"shape[{operand.rank - 1}]", 2 * extent, f"a multiple of {2 * extent - 1}"


def mutate_shared(operand, mechanism):
    pipeline = replace(operand.pipeline, stages=SHARED_LIMIT // operand.stage_bytes + 1, ctas_per_sm=1)
    mutant = replace(operand, pipeline=pipeline)
    return mutant, "shared_bytes", mutant.shared_bytes, f"at most {SHARED_LIMIT}"


def mutate_shared_per_sm(operand, mechanism):
    # Half the limit of a CTA: one fits, and so would two without the 1 KiB reserved for each, three never do.
    stages = SHARED_LIMIT // 2 // (operand.stage_bytes + 16)
    mutant = replace(operand, pipeline=replace(operand.pipeline, stages=max(stages, 1), ctas_per_sm=3))
    cta_bytes = -(-(mutant.shared_bytes + 1024) // 128) * 128
    return mutant, "shared bytes per SM", 3 * cta_bytes, "at most 233472"


def mutate_cluster(operand, mechanism):
    return (
        replace(operand, pipeline=replace(operand.pipeline, cluster=17)),
        "pipeline.cluster",
        17,
        "at most 16",
    )


def mutate_no_cluster(operand, mechanism):
    return (
        replace(operand, pipeline=replace(operand.pipeline, cluster=1)),
        "pipeline.cluster",
        1,
        "at least 2",
    )


def mutate_ctas(operand, mechanism):
    return (
        replace(operand, pipeline=replace(operand.pipeline, ctas_per_sm=33)),
        "pipeline.ctas_per_sm",
        33,
        "at most 32",
    )


def mutate_threads(operand, mechanism):
    return (
        replace(operand, pipeline=replace(operand.pipeline, threads=1025)),
        "pipeline.threads",
        1025,
        "at most 1024",
    )


def mutate_threads_per_sm(operand, mechanism):
    # 33 threads occupy two warps.
    pipeline = replace(operand.pipeline, threads=993, ctas_per_sm=3)
    return replace(operand, pipeline=pipeline), "threads per SM", 3072, "at most 2048"


def mutate_copy(operand, mechanism):
    return (
        replace(operand, pipeline=replace(operand.pipeline, copy_bytes=12)),
        "pipeline.copy_bytes",
        12,
        "one of ",
    )


def mutate_unneeded_swizzle(operand, mechanism):
    return replace(operand, swizzle=Swizzle.B128), "swizzle span bytes", 128, "at most 0"


def mutate_element(operand, mechanism):
    return replace(operand, element_bytes=1), "element_bytes", 1, "one of 2, 4, 8"


MUTATIONS = [
    # mutation, mechanisms it concerns, smallest rank, swizzles
    (mutate_base, set(MECHANISMS) - DSM, 1, [None]),
    (mutate_stages, set(MECHANISMS), 1, [None]),
    (mutate_row, THREAD_GLOBAL | TENSOR_MAP, 1, [None]),
    (mutate_size, BULK | DSM, 1, [None]),
    (mutate_box, TENSOR_MAP, 2, [None]),
    (mutate_stride, THREAD_GLOBAL | TENSOR_MAP, 2, [None]),
    (mutate_far_stride, TENSOR_MAP, 2, [None]),
    (mutate_swizzle, TENSOR_MAP, 1, SWIZZLED),
    (mutate_stage_under_swizzle, TENSOR_MAP, 1, SWIZZLED),
    (mutate_stage_of_a_plain_box, TENSOR_MAP, 1, [Swizzle.NONE]),
    (mutate_map, TENSOR_MAP, 1, [None]),
    (mutate_rank, TENSOR_MAP, 1, [None]),
    (mutate_extent, TENSOR_MAP, 2, [None]),
    (mutate_gap, BULK, 2, [None]),
    (mutate_rows, set(MECHANISMS), 1, [None]),
    (mutate_shared, set(MECHANISMS), 1, [None]),
    (mutate_shared_per_sm, set(MECHANISMS), 1, [None]),
    (mutate_cluster, set(MECHANISMS), 1, [None]),
    (mutate_no_cluster, DSM, 1, [None]),
    (mutate_ctas, set(MECHANISMS), 1, [None]),
    (mutate_threads, set(MECHANISMS), 1, [None]),
    (mutate_threads_per_sm, set(MECHANISMS), 1, [None]),
    (mutate_copy, THREADS, 1, [None]),
    (mutate_unneeded_swizzle, set(MECHANISMS) - TENSOR_MAP, 1, [None]),
    (mutate_element, {*names(reduces=True)}, 1, [None]),
]


@pytest.mark.parametrize(
    ("mutation", "concerned", "min_rank", "swizzles"), MUTATIONS, ids=[m[0].__name__ for m in MUTATIONS]
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_single_mutation_is_refused(mutation, concerned, min_rank, swizzles, data):
    mechanism = data.draw(st.sampled_from(sorted(concerned)))
    operand = data.draw(legal(mechanism, min_rank, data.draw(st.sampled_from(swizzles))))
    mutant, quantity, value, limit = mutation(operand, mechanism)
    refused(mutant, mechanism, quantity, value, limit)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 64))
def test_bulk_tiles_that_start_off_16_bytes_are_refused(data, eights):
    operand = data.draw(legal("tma_bulk", 2))
    stride = operand.strides_bytes[-1] + 16 * eights - 8
    mutant = replace(
        operand, shape=(*operand.shape[:-1], 2), strides_bytes=(*operand.strides_bytes[:-1], stride)
    )
    broken = refused(mutant, "tma_bulk", "bytes from tile to tile", stride, "a multiple of 16")
    fixed = replace(mutant, strides_bytes=(*mutant.strides_bytes[:-1], stated(broken)))
    assert violations(fixed, "tma_bulk") == ()


def test_dense_rows_off_16_bytes_are_a_legal_bulk_tile_but_no_tensor_map():
    operand = Operand(4, shape=(5, 8), tile=(5, 4))  # rows of 20 bytes, tiles of 80
    assert violations(operand, "tma_bulk") == ()
    assert {v.quantity for v in violations(operand, "tma_tile")} == {"inner_row_bytes", "strides_bytes[0]"}


@pytest.mark.parametrize("mechanism", COUNTS_BYTES)
def test_a_phase_counts_at_most_2_to_20_less_1_bytes(mechanism):
    million = Operand(8, (128, 1024), (128, 1024), pipeline=Pipeline(stages=1, cluster=2))
    refused(million, mechanism, "tile_bytes", 2**20, f"at most {2**20 - 1}")


FIXES = {
    "base_alignment_bytes": lambda o, n: replace(o, base_alignment_bytes=n),
    "pipeline.shared_alignment_bytes": lambda o, n: replace(
        o, pipeline=replace(o.pipeline, shared_alignment_bytes=n)
    ),
    "inner_row_bytes": lambda o, n: replace(
        o, tile=(n, *o.tile[1:]), shape=(n, *o.shape[1:]), strides_bytes=()
    ),
    "tensor_map_alignment_bytes": lambda o, n: replace(o, tensor_map_alignment_bytes=n),
    "shared_bytes": lambda o, n: replace(o, pipeline=replace(o.pipeline, stages=n)),
    "shared bytes per SM": lambda o, n: replace(o, pipeline=replace(o.pipeline, ctas_per_sm=n)),
    "pipeline.cluster": lambda o, n: replace(o, pipeline=replace(o.pipeline, cluster=n)),
    "pipeline.copy_bytes": lambda o, n: replace(o, pipeline=replace(o.pipeline, copy_bytes=n)),
}
MECHANICAL = [mutation for mutation in MUTATIONS if mutation[0] in {
    mutate_base, mutate_stages, mutate_row, mutate_swizzle, mutate_stage_under_swizzle, mutate_map,
    mutate_shared, mutate_shared_per_sm, mutate_cluster, mutate_no_cluster, mutate_copy,
}]  # fmt: skip


@pytest.mark.parametrize(
    ("mutation", "concerned", "min_rank", "swizzles"), MECHANICAL, ids=[m[0].__name__ for m in MECHANICAL]
)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_stated_fix_makes_it_legal(mutation, concerned, min_rank, swizzles, data):
    mechanism = data.draw(st.sampled_from(sorted(concerned)))
    operand = data.draw(legal(mechanism, min_rank, data.draw(st.sampled_from(swizzles))))
    operand = replace(operand, pipeline=replace(operand.pipeline, threads=128))
    mutant, quantity, *_ = mutation(operand, mechanism)
    assert quantity in {v.quantity for v in violations(mutant, mechanism)}
    for _ in range(3):  # a fix may uncover another rule: wider rows need wider strides
        for broken in violations(mutant, mechanism)[:1]:
            mutant = FIXES[broken.quantity](mutant, stated(broken))
    assert violations(mutant, mechanism) == ()


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(sorted(THREAD_GLOBAL | TENSOR_MAP)))
def test_padding_strides_and_rows_as_told_makes_it_legal(data, mechanism):
    operand = data.draw(legal(mechanism, 2))
    last = operand.rank - 1
    mutant = mutate_stride(
        replace(operand, shape=(*operand.shape[:-1], 7), tile=(*operand.tile[:-1], 2)), mechanism
    )[0]
    told = {
        v.quantity: stated(v) for v in violations(replace(mutant, pipeline=Pipeline(stages=1)), mechanism)
    }
    assert set(told) == {f"strides_bytes[{last - 1}]", f"shape[{last}]"}
    fixed = replace(
        mutant,
        shape=(*mutant.shape[:-1], told[f"shape[{last}]"]),
        strides_bytes=(*mutant.strides_bytes[:-1], told[f"strides_bytes[{last - 1}]"]),
        pipeline=Pipeline(stages=1),
    )
    assert violations(fixed, mechanism) == ()


numbers = st.one_of(
    st.integers(-3, 70), st.integers(-(2**200), 2**200), st.sampled_from([2**32, 2**40, 2**64])
)
anything = st.one_of(numbers, st.none(), st.booleans(), st.text(max_size=2), st.floats())


@settings(max_examples=600, deadline=None)
@given(st.data(), mechanisms, st.sampled_from([numbers, anything]))
def test_no_numbers_crash_it(data, mechanism, values):
    def draw(strategy):
        return data.draw(strategy)

    lists = st.lists(values, max_size=6)
    try:
        pipeline = Pipeline(*(draw(values) for _ in range(5)), draw(st.one_of(values, st.just(128))))
        operand = Operand(
            draw(st.one_of(values, st.just(4))),
            draw(st.one_of(lists, values)),
            draw(st.one_of(lists, values)),
            draw(st.one_of(lists, st.just(()))),
            draw(st.one_of(values, st.just(16))),
            swizzle=draw(st.sampled_from([*Swizzle, 3])),
            pipeline=pipeline,
        )
        require_legal(operand, mechanism)
    except IllegalOperand as error:
        assert all(v.fix and v.limit and v.source and str(v.value) in str(error) for v in error.violations)
    except (TypeError, ValueError) as error:
        assert ": give" in str(error) or ": view" in str(error), error


@settings(max_examples=600, deadline=None)
@given(st.data(), mechanisms)
def test_well_formed_but_wild_operands_get_a_verdict(data, mechanism):
    size = st.one_of(st.integers(1, 300), st.integers(1, 2**70))
    alignment = st.integers(0, 20).map(lambda bit: 2**bit)
    rank = data.draw(st.integers(1, 7))

    def several(count):
        return data.draw(st.lists(size, min_size=count, max_size=count))

    pipeline = Pipeline(*(data.draw(size) for _ in range(5)), data.draw(alignment))
    operand = Operand(
        data.draw(st.sampled_from([1, 2, 4, 8])),
        several(rank),
        several(rank),
        several(rank - 1),
        data.draw(alignment),
        data.draw(alignment),
        data.draw(st.sampled_from(Swizzle)),
        pipeline,
    )
    for violation in violations(operand, mechanism):
        assert str(violation.value) in str(violation) and violation.limit in str(violation) and violation.fix


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.source)
def test_every_rule_names_its_source_and_known_mechanisms(rule):
    assert rule.source
    assert rule.mechanisms and rule.mechanisms <= set(MECHANISMS)


@pytest.mark.parametrize("swizzle", Swizzle)
def test_swizzle_is_its_own_inverse_and_a_bijection_on_its_repeat(swizzle):
    offsets = np.arange(max(swizzle.repeat_bytes, 1024), dtype=np.uint32)
    moved = swizzle_offset(offsets, swizzle)
    assert moved.dtype == offsets.dtype
    np.testing.assert_array_equal(swizzle_offset(moved, swizzle), offsets)
    np.testing.assert_array_equal(np.sort(moved), offsets)
    np.testing.assert_array_equal([swizzle_offset(int(offset), swizzle) for offset in offsets], moved)
    # Nothing leaves its 16-byte chunk order, its span, or its 128-byte line.
    np.testing.assert_array_equal(moved % 16, offsets % 16)
    np.testing.assert_array_equal(moved // max(swizzle.span_bytes, 1), offsets // max(swizzle.span_bytes, 1))


def test_swizzle_128_is_the_published_pattern():
    """Chunk x of line y lies at chunk x XOR (y mod 8) of that line (CUDA programming guide, TMA swizzle)."""
    line, chunk = np.divmod(np.arange(128), 8)
    np.testing.assert_array_equal(
        swizzle_offset(128 * line + 16 * chunk, Swizzle.B128), 128 * line + 16 * (chunk ^ (line % 8))
    )


@pytest.mark.parametrize(
    ("swizzle", "repeat"), [(Swizzle.B32, 256), (Swizzle.B64, 512), (Swizzle.B128, 1024)]
)
def test_swizzle_repeats(swizzle, repeat):
    offsets = np.arange(repeat)
    assert swizzle.repeat_bytes == repeat
    np.testing.assert_array_equal(
        swizzle_offset(offsets + repeat, swizzle), swizzle_offset(offsets, swizzle) + repeat
    )
    half = repeat // 2
    assert (
        swizzle_offset(offsets[:half] + half, swizzle) != swizzle_offset(offsets[:half], swizzle) + half
    ).any()


def test_derived_sizes():
    operand = Operand(
        2, (4096, 4096), (64, 32), swizzle=Swizzle.B128, pipeline=Pipeline(stages=6, ctas_per_sm=2)
    )
    assert operand.strides_bytes == (8192,)
    assert operand.inner_row_bytes == operand.contiguous_bytes == 128
    assert operand.tile_bytes == operand.stage_bytes == 4096
    assert operand.tile_steps_bytes == (128, 262_144)
    assert operand.shared_bytes == 6 * (4096 + 16)
    assert operand.bytes_in_flight_per_sm == 4096 * 6 * 2
    narrow = replace(operand, tile=(8, 32))
    assert (narrow.tile_bytes, narrow.stage_bytes) == (512, 4096)  # each 16-byte row takes a 128-byte line


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"element_bytes": 3}, ValueError, "element_bytes is 3, none of"),
        ({"shape": (0, 4)}, ValueError, r"shape\[0\] is 0, below the limit of 1: give"),
        ({"tile": (4, -1)}, ValueError, r"tile\[1\] is -1, below the limit of 1: give"),
        ({"tile": (4,)}, ValueError, "tile has 1 dimensions, shape 2: give"),
        ({"strides_bytes": (64, 64)}, ValueError, "strides_bytes has 2 entries, rank 2 takes 1: give"),
        ({"base_alignment_bytes": 48}, ValueError, "base_alignment_bytes is 48, not a power of two: give 16"),
        ({"shape": 64}, TypeError, "shape is 64, not a sequence: give"),
        ({"shape": (4.0, 4)}, TypeError, r"shape\[0\] is 4.0, not a whole number: give"),
        ({"swizzle": 128}, TypeError, "swizzle is 128, not a Swizzle: give"),
        ({"pipeline": None}, TypeError, "pipeline is None, not a Pipeline: give"),
    ],
)
def test_malformed_operands_say_what_to_give(wrong, error, message):
    form = {"element_bytes": 4, "shape": (16, 4), "tile": (4, 1)}
    with pytest.raises(error, match=message):
        Operand(**(form | wrong))


def test_numpy_integers_are_taken_as_numbers():
    operand = Operand(np.int32(4), np.array([64, 8]), [np.int64(64), 8])
    assert operand == Operand(4, (64, 8), (64, 8)) and type(operand.shape[0]) is int


@pytest.mark.parametrize(("name", "arch"), [("tma", "sm_90a"), ("ldg", "sm_80")])
def test_unknown_names_list_the_known(name, arch):
    with pytest.raises(ValueError, match=r"unknown .* use one of .*(ldg|sm_100a)"):
        violations(Operand(4, (64,), (64,)), name, arch)


def test_units_and_builders_are_defined_here_and_nowhere_else():
    names = ("KIB", "MIB", "GIB", "WARP", "TMA_THREADS", "LONGEST_ROW_BYTES")
    names += ("linear_operand", "boxed_operand", "column_span")
    found = {}
    for folder in (ROOT / "labkernels", ROOT / "tests"):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
                bound = node.name if isinstance(node, ast.FunctionDef) else ""
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    bound = node.id
                if bound in names:
                    found.setdefault(bound, []).append(path.relative_to(ROOT).as_posix())
    assert found == {name: ["labkernels/operand.py"] for name in names}
