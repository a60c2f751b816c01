"""The second FlashAttention-3 wheel: its plan, the name of one of its kernels, refusal without it; no GPU needed."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkernels.errors import NotInstalled
from labkernels.production.flash_names import demangle, parse
from labkernels.store import Store
from labkernels.store.values import render
from labkernels.studies.paged import fa3_fwd, flash

SYMBOL = (  # fp8, head dim 96, causal, as the wheel spells it
    "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90INS1_25CollectiveMainloopFwdSm90"
    "ILi2EN4cute5tupleIJNS5_1CILi1EEES8_S8_EEENS6_IJNS7_ILi192EEENS7_ILi128EEENS7_ILi96EEEEEELi96ENS_12float_e4m3_tEf"
    "NS_4arch4Sm90ELb1ELb0ELb0ELb1ELb0ELb0ELb0ELb1ELb1ELb1ELb0ELb0EEENS1_21CollectiveEpilogueFwdINS6_IJSA_SC_SB_EEES9_"
    "NS_10bfloat16_tESG_Li384ELb1ELb1ELb0ELb1EEENS1_36VarlenDynamicPersistentTileSchedulerILi192ELi128ELi384ELi128ELb0"
    "ELb1ELb1ELb1ELb1ELb1EEEEEEEEEvNT_6ParamsE"
)


@pytest.mark.parametrize("preset", fa3_fwd.PRESETS)
def test_every_variant_is_loaded_by_tma_and_differs_from_the_contiguous_one_in_its_pages_only(preset):
    plan = list(fa3_fwd.plan(fa3_fwd.PRESETS[preset]))
    assert {variants[0].problem.phase for variants in plan} == {"decode", "prefill"}
    for contiguous, *paged in plan:
        assert contiguous.page_rows == 0 and paged
        for variant in paged:
            assert variant.expected(1) == contiguous.expected(1)  # all but the reasons
            assert variant.expected(1).k == "tma_tile"
            assert variant.bound == contiguous.bound and variant.problem == contiguous.problem
            assert variant.page_rows % variant.expected(1).tile_n == 0
            assert variant.problem.seqlen_k % variant.page_rows == 0


def test_the_plan_names_every_dtype_and_head_dim_once_per_problem():
    parameters = fa3_fwd.PRESETS["full"]
    plan = list(fa3_fwd.plan(parameters))
    pairs = {(variants[0].problem.dtype, variants[0].problem.head_dim) for variants in plan}
    assert pairs == {(dtype, dim) for dtype in ("bf16", "fp8") for dim in (64, 96, 128, 192, 256)}
    assert len(plan) == len(pairs) * len(parameters.problems)


def test_what_the_wheel_cannot_load_is_not_in_the_plan():
    problem = flash.Problem(32, 1, 8192, dtype="fp8", head_dim=64)
    assert problem.rule(160).k == "cp_async"  # one query row: the wheel would refuse
    assert flash.Variant(problem, 128, "bound").expected(1).k == "cp_async"  # a page that is no whole tile


@pytest.mark.parametrize("spelt", ["mangled", "demangled"])
def test_a_kernel_of_the_wheel_is_read_from_its_name_however_the_profiler_spells_it(spelt):
    import cxxfilt

    name = SYMBOL if spelt == "mangled" else cxxfilt.demangle(SYMBOL)
    seen = parse(demangle(name))
    assert (seen.dtype, seen.head_dim, seen.tile_m, seen.tile_n) == ("fp8", 96, 192, 128)
    assert seen.causal and seen.varlen and seen.pack_gqa and not seen.split and not seen.paged_cp_async
    variant = flash.Variant(flash.Problem(4, 2048, 8192, dtype="fp8", head_dim=96), 128, "rule")
    flash.require_expected(variant, seen, 1)
    other = replace(variant, problem=replace(variant.problem, head_dim=256))
    with pytest.raises(flash.WrongKernel, match="the rules say"):
        flash.require_expected(other, seen, 1)


class MadeUpWheel(flash.Wheel):
    """Outputs by page size, or what the wheel says where it refuses; `called` has the page sizes of all calls."""

    tolerance, num_splits = 0.5, 1

    def __init__(self, outputs, reference=0.0):
        self.outputs, self.reference, self.called = outputs, reference, []

    def forward(self, variant):
        def call():
            self.called.append(variant.page_rows)
            if isinstance(output := self.outputs[variant.page_rows], str):
                raise flash.Refused(output)
            return np.full((4, 2050, 32, 1), output)

        return call

    def traced(self, calls):
        self.called.clear()
        calls()
        events = []
        for number in range(len(self.called)):
            events += [
                (2 * number + 1, SYMBOL, 50.0),
                (2 * number, "flash::prepare_varlen_num_blocks_kernel", 2.0),
            ]
        return events

    def float32(self, output):
        assert output.shape[1] == 2048, "rows that no sequence has are not compared"
        return output

    def wrong(self, output):
        return "off float32" if abs(output.max() - self.reference) > self.tolerance else None


VARIANTS = [
    flash.Variant(flash.Problem(4, 2048, 8192, dtype="fp8", head_dim=96), rows, "rule")
    for rows in (0, 128, 256, 384)
]


def test_rounds_of_all_variants_are_interleaved_and_fit_the_table_of_fa3():
    wheel = MadeUpWheel({0: 0.0, 128: 0.25, 256: 1.0, 384: "no such kernel"})
    with pytest.warns(UserWarning) as warned:
        rows = flash.time_variants(wheel, VARIANTS, rounds=5)
    left_out = [str(one.message) for one in warned]
    assert "page_rows=256" in left_out[0] and "differs from the contiguous cache's by 1.0" in left_out[0]
    assert "page_rows=384" in left_out[1] and left_out[1].endswith("is left out: no such kernel")
    assert [sorted(wheel.called[at : at + 2]) for at in range(0, 10, 2)] == [[0, 128]] * 5
    assert [row["page_rows"] for row in rows] == wheel.called
    assert [row["round"] for row in rows] == [number for number in range(5) for _ in range(2)]
    assert {row["kernel_us"] for row in rows} == {50.0} and {row["beside_us"] for row in rows} == {2.0}
    assert {row["page_rows"]: row["max_difference"] for row in rows} == {0: 0.0, 128: 0.25}
    table = Store().tables["fa3"]
    render(
        table, [{"run_id": "20260101T000000Z-00000000", **row} for row in rows]
    )  # refuses what does not fit


@pytest.mark.parametrize(("first", "reference"), [("no such kernel", 0.0), (0.0, 1.0), (float("nan"), 0.0)])
def test_nothing_is_timed_where_the_contiguous_cache_is_refused_or_wrong(first, reference):
    wheel = MadeUpWheel({0: first, 128: 0.0, 256: 0.0, 384: 0.0}, reference)
    with pytest.warns(UserWarning, match="page_rows=0.*left out"):
        assert flash.time_variants(wheel, VARIANTS, rounds=5) == []


def test_a_profile_that_lacks_kernels_is_an_error(monkeypatch):
    wheel = MadeUpWheel(dict.fromkeys((0, 128, 256, 384), 0.0))
    monkeypatch.setattr(wheel, "traced", lambda calls: [(0, SYMBOL, 50.0)])
    with pytest.raises(flash.WrongKernel, match="20 calls, the profiler saw 1 attention kernels"):
        flash.time_variants(wheel, VARIANTS, rounds=5)


@given(
    st.sampled_from((1, 3, 8)), st.sampled_from((128, 512)), st.sampled_from((16, 64, 128)), st.integers(1, 4)
)
def test_pages_hold_each_key_where_the_table_says(batch, seqlen_k, page_rows, kv_heads):
    problem = flash.Problem(batch, 1, seqlen_k, kv_heads, kv_heads, head_dim=8)
    variant = flash.Variant(problem, page_rows, "rule")
    keys = np.arange(batch * seqlen_k * kv_heads * 8).reshape(batch, seqlen_k, kv_heads, 8)
    table = variant.page_table
    pool = keys.reshape(variant.paged_shape)[np.argsort(table.ravel())]
    assert np.array_equal(pool[table].reshape(keys.shape), keys)


@pytest.mark.parametrize("module", ["torch", "fa3_fwd"])
def test_without_the_wheel_or_pytorch_the_refusal_says_what_to_install(module, monkeypatch):
    if module == "fa3_fwd":
        monkeypatch.setitem(sys.modules, "torch", object())
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NotInstalled, match=r"fa3-fwd==0\.0\.3"):
        fa3_fwd.require_wheel()
