"""FlashAttention-3 by model shape: its plan, a kernel of vLLM's fork by its name, what is left out; no GPU needed."""

import sys
import types

import pytest

from labkernels.errors import NotInstalled
from labkernels.production.flash_names import parse
from labkernels.store import Store
from labkernels.store.values import render
from labkernels.studies.paged import fa3_shapes, flash


def kernel_name(paged_cp_async, element="cutlass::bfloat16_t"):
    flags = [True, False, False, True, paged_cp_async, False, True, True, False, False, True, False, False]
    return (
        "cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
        "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<64>, cute::C<64>, cute::C<64> >, 512, "
        f"{element}, float, cutlass::arch::Sm90, {', '.join(str(flag).lower() for flag in flags)}, {element}, 1> > >"
    )


@pytest.mark.parametrize("paged_cp_async", [True, False])
def test_a_kernel_of_vllms_fork_is_read_from_its_name(paged_cp_async):
    kernel = parse(kernel_name(paged_cp_async))
    assert (kernel.head_dim, kernel.head_dim_v, kernel.tile_m, kernel.tile_n) == (64, 512, 64, 64)
    assert kernel.causal and kernel.varlen and kernel.has_qv and kernel.pack_gqa
    assert not (kernel.split or kernel.p_in_registers or kernel.overlap or kernel.v_colmajor)
    assert flash.mechanism(kernel) == ("cp_async" if paged_cp_async else "tma_tile")


@pytest.mark.parametrize("preset", fa3_shapes.PRESETS)
def test_each_shape_has_two_calls_that_differ_in_the_left_padding_alone(preset):
    plan = list(fa3_shapes.plan(fa3_shapes.PRESETS[preset]))
    assert len({shape for shape, _ in plan}) == len(plan)
    for shape, ways in plan:
        for page_rows in {way.page_rows for way in ways}:
            assert shape.seqlen_k % page_rows == 0
            routes = {way.route: way for way in ways if way.page_rows == page_rows}
            assert routes["rule"].bound == shape.seqlen_q
            by_tma = routes.get("bound", routes["rule"])
            assert by_tma.bound == routes["leftpad"].bound
            assert by_tma.bound * shape.ratio > fa3_shapes.MOST_QUERY_ROWS


def test_the_full_plan_has_the_shapes_of_models():
    shapes = [shape for shape, _ in fa3_shapes.plan(fa3_shapes.PRESETS["full"])]
    assert {shape.ratio for shape in shapes} >= {1, 4, 8, 16, 128}
    assert {shape.head_dim for shape in shapes} == {64, 96, 128, 192, 256}
    assert {shape.phase for shape in shapes if shape.absorbed} == {"decode", "prefill"}
    assert any(shape.num_splits > 1 for shape in shapes if shape.absorbed)


class MadeUpWheel(flash.Wheel):
    """Errors by page size, or what the wheel says where it refuses."""

    def __init__(self, shape, errors):
        self.shape, self.errors, self.called = shape, errors, []

    def forward(self, way):
        def call():
            if isinstance(self.errors[way.page_rows], str):
                raise flash.Refused(self.errors[way.page_rows])
            self.called.append(way)

        return call

    def error(self, output, page_rows):
        return self.errors[page_rows]

    def float32(self, output):
        return output

    def traced(self, calls):
        self.called.clear()
        calls()
        return [
            event
            for number, way in enumerate(self.called)
            for event in (
                (2 * number, "flash::prepare_varlen_num_blocks_kernel", 2.0),
                (2 * number + 1, kernel_name(way.route == "leftpad"), 50.0),
            )
        ]


def test_what_is_refused_or_wrong_is_left_out_and_the_rest_fits_the_table():
    ways = [fa3_shapes.Way(rows, route, 2) for rows in (64, 128, 256) for route in ("rule", "leftpad")]
    wheel = MadeUpWheel(
        fa3_shapes.Shape(2, 2, 512, 128, 1, 64, 512), {64: 0.001, 128: 0.5, 256: "no such kernel"}
    )
    with pytest.warns(UserWarning) as warned:
        rows = fa3_shapes.time_ways(wheel, ways, rounds=5)
    left_out = [str(one.message) for one in warned]
    assert (
        len(left_out) == 4 and "off float32 by 0.5" in left_out[0] and left_out[-1].endswith("no such kernel")
    )
    assert {(row["route"], row["mechanism"], row["page_rows"]) for row in rows} == {
        ("rule", "tma_tile", 64),
        ("leftpad", "cp_async", 64),
    }
    assert {(row["kernel_us"], row["beside_us"], row["error"]) for row in rows} == {(50.0, 2.0, 0.001)}
    render(Store().tables["fa3_shapes"], [{"run_id": "20260101T000000Z-00000000", **row} for row in rows])


@pytest.mark.parametrize("module", ["torch", "vllm"])
def test_without_the_wheel_or_pytorch_the_refusal_says_what_to_install(module, monkeypatch):
    if module == "vllm":
        monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
        monkeypatch.setattr(fa3_shapes, "find_spec", lambda name: None)
    else:
        monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NotInstalled, match=r"vllm==0\.33\.0"):
        fa3_shapes.require_vllm()
