"""The second FlashAttention-3 wheel: its plan, the name of one of its kernels, refusal without it; no GPU needed."""

import sys
from dataclasses import replace

import pytest

from labkernels.errors import NotInstalled
from labkernels.production.flash_names import demangle, parse
from labkernels.store import Store
from labkernels.store.text import render
from labkernels.studies.paged import fa3_fwd, flash

SYMBOL = (  # fp8, head dim 96, causal, as the wheel spells it
    "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90INS1_25CollectiveMainloopFwdSm90"
    "ILi2EN4cute5tupleIJNS5_1CILi1EEES8_S8_EEENS6_IJNS7_ILi192EEENS7_ILi128EEENS7_ILi96EEEEEELi96ENS_12float_e4m3_tEf"
    "NS_4arch4Sm90ELb1ELb0ELb0ELb1ELb0ELb0ELb0ELb1ELb1ELb1ELb0ELb0EEENS1_21CollectiveEpilogueFwdINS6_IJSA_SC_SB_EEES9_"
    "NS_10bfloat16_tESG_Li384ELb1ELb1ELb0ELb1EEENS1_36VarlenDynamicPersistentTileSchedulerILi192ELi128ELi384ELi128ELb0"
    "ELb1ELb1ELb1ELb1ELb1EEEEEEEEEvNT_6ParamsE"
)


@pytest.mark.parametrize("preset", fa3_fwd.PRESETS)
def test_every_way_is_loaded_by_tma_and_differs_from_the_contiguous_one_in_its_pages_only(preset):
    plan = list(fa3_fwd.plan(fa3_fwd.PRESETS[preset]))
    assert {ways[0].problem.phase for ways in plan} == {"decode", "prefill"}
    for contiguous, *paged in plan:
        assert contiguous.page_rows == 0 and paged
        for way in paged:
            assert way.expected(1) == contiguous.expected(1)  # all but the reasons
            assert way.expected(1).k == "tma_tile"
            assert way.bound == contiguous.bound and way.problem == contiguous.problem
            assert way.page_rows % way.expected(1).tile_n == 0
            assert way.problem.seqlen_k % way.page_rows == 0


def test_the_plan_names_every_dtype_and_head_dim_once_per_problem():
    parameters = fa3_fwd.PRESETS["full"]
    plan = list(fa3_fwd.plan(parameters))
    pairs = {(ways[0].problem.dtype, ways[0].problem.head_dim) for ways in plan}
    assert pairs == {(dtype, dim) for dtype in ("bf16", "fp8") for dim in (64, 96, 128, 192, 256)}
    assert len(plan) == len(pairs) * len(parameters.problems)


def test_what_the_wheel_cannot_load_is_not_in_the_plan():
    problem = flash.Problem(32, 1, 8192, dtype="fp8", head_dim=64)
    assert problem.rule(160).k == "cp_async"  # one query row: the wheel would refuse
    assert flash.Way(problem, 128, "bound").expected(1).k == "cp_async"  # a page that is no whole tile


@pytest.mark.parametrize("spelt", ["mangled", "demangled"])
def test_a_kernel_of_the_wheel_is_read_from_its_name_however_the_profiler_spells_it(spelt):
    import cxxfilt

    name = SYMBOL if spelt == "mangled" else cxxfilt.demangle(SYMBOL)
    seen = parse(demangle(name))
    assert (seen.dtype, seen.head_dim, seen.tile_m, seen.tile_n) == ("fp8", 96, 192, 128)
    assert seen.causal and seen.varlen and seen.pack_gqa and not seen.split and not seen.paged_cp_async
    way = flash.Way(flash.Problem(4, 2048, 8192, dtype="fp8", head_dim=96), 128, "rule")
    flash.require_expected(way, seen, 1)
    other = replace(way, problem=replace(way.problem, head_dim=256))
    with pytest.raises(AssertionError, match="the rules say"):
        flash.require_expected(other, seen, 1)


def test_rounds_of_all_ways_are_interleaved_and_fit_the_table_of_fa3():
    ways = [
        flash.Way(flash.Problem(4, 2048, 8192, dtype="fp8", head_dim=96), rows, "rule")
        for rows in (0, 128, 256)
    ]
    called = []

    def traced(calls):
        calls()
        return [
            pair
            for _ in called
            for pair in (("flash::prepare_varlen_num_blocks_kernel", 2.0), (demangle(SYMBOL), 50.0))
        ]

    with pytest.warns(UserWarning, match="page_rows=256.*left out"):
        rows = flash.time_ways(
            ways,
            [0.0, 0.0, 1.0],
            tolerance=fa3_fwd.TOLERANCE,
            rounds=5,
            num_splits=1,
            call=called.append,
            traced=traced,
        )
    assert [sorted(called[at : at + 2]) for at in range(0, 10, 2)] == [[0, 1]] * 5
    assert len(rows) == 10 and {row["beside_us"] for row in rows} == {2.0}
    table = Store().tables["fa3"]
    written = render(table, [{"run_id": "20260101T000000Z-00000000", **row} for row in rows])
    assert written.problems == []


@pytest.mark.parametrize("module", ["torch", "fa3_fwd"])
def test_without_the_wheel_or_pytorch_the_refusal_says_what_to_install(module, monkeypatch):
    if module == "fa3_fwd":
        monkeypatch.setitem(sys.modules, "torch", object())
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NotInstalled, match=r"fa3-fwd==0\.0\.3"):
        fa3_fwd.Flash()
