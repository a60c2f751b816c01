"""Kernels in their best form, without a GPU: loads that overlap, no call, cells at a stated price."""

import re
from itertools import product

import pytest

from labkernels.kernels import sass
from labkernels.kernels.build import assemble
from labkernels.kernels.link import inline
from labkernels.kernels.registry import kernel, kernels
from labkernels.kernels.scoreboards import loads_left_in_flight
from labkernels.operand import KIB, MIB
from labkernels.protocols.cell import Cell, footprint_of_its_own
from labkernels.studies.crossover import pipeline_counters, pipelines, plain_loads
from labkernels.studies.latency import issue_inline

SM_COUNTS = (114, 132, 148)  # H100 PCIe, H100 SXM and H200, B200
SETS = [s for s in kernels("ldg", "multistage") if dict(s.constants)["sets"] > 1]


def tma(warps=1):
    return kernel("tma_tile", "pipeline", producers=warps, consumers=warps)


@pytest.mark.parametrize("spec", SETS, ids=lambda spec: spec.name)
def test_sets_of_registers_are_in_flight_together(spec):
    constants = dict(spec.constants)
    made = assemble(spec)
    assert max(loads_left_in_flight(made.cubin, made.timed)) >= (constants["sets"] - 1) * constants["chunks"]


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_a_use_behind_a_branch_waits_for_every_load(chunks):
    """Why `ldg.stream` is no pipeline: ptxas gives what is used behind a branch one scoreboard."""
    made = assemble(kernel("ldg", "stream", chunks=chunks, policy="nc"))
    assert set(loads_left_in_flight(made.cubin, made.timed)) == {0}


def test_one_set_of_two_vectors_leaves_room_for_2048_threads():
    for spec in kernels("ldg", "multistage"):
        constants = dict(spec.constants)
        if constants["sets"] == 1 and constants["chunks"] <= 2:
            assert assemble(spec).registers <= 32


@pytest.mark.parametrize("protocol", ["multistage", "pipeline", "burst"])
def test_a_kernel_written_into_its_entry_calls_nothing(protocol):
    for spec in kernels(protocol=protocol):
        functions = sass.disassemble(assemble(spec).cubin)
        assert [one.entry for one in functions.values()] == [True], spec.name
        (entry,) = functions.values()
        assert not entry.callees and not entry.calls_indirectly, spec.name


@pytest.mark.parametrize("spec", kernels("cp_async", "burst"), ids=lambda spec: spec.name)
def test_nothing_but_copies_and_their_addresses_lies_between_the_clocks(spec):
    made = assemble(spec)
    opcodes = [one.opcode for one in sass.disassemble(made.cubin)[made.timed].instructions]
    first, second, *_ = (n for n, opcode in enumerate(opcodes) if opcode.startswith("CS2R"))
    between = opcodes[first + 1 : second]
    copies = [opcode for opcode in between if opcode.startswith("LDGSTS")]
    assert len(copies) == dict(spec.constants)["train"]
    assert not [opcode for opcode in between if opcode.startswith(("R2UR", "BRA", "LDC", "LDG."))]


def test_the_function_takes_the_place_of_its_call():
    entry = """.version 8.8
.target sm_90
.address_size 64
.extern .func  (.param .b64 func_retval0) f
(
	.param .b64 f_param_0
)
;
.visible .entry k(.param .u64 k_param_0)
{
	{ // callseq 0, 0
	st.param.b64 	[param0+0], %rd3;
	call.uni (retval0), f, (param0);
	ld.param.b64 	%rd1, [retval0+0];
	} // callseq 0
	ret;
}"""
    function = """.version 8.6
.target sm_90a
.address_size 64
.shared .align 8 .b64 barriers[2];
.func (.reg .b64 result) f(.reg .b64 source)   // as it is
{
    mov.b64 result, source;
    ret;
}"""
    text = inline(entry, function)
    assert text.count(".version") == text.count(".target") == 1 and ".target sm_90a" in text
    assert "call" not in text and "// as it is" not in text
    assert re.search(
        r"barriers\[2\];.*mov\.b64 source, %rd3;.*bra\.uni RETURNED;.*mov\.b64 %rd1, result;", text, re.S
    )


@pytest.mark.parametrize("preset", ["quick", "full"])
@pytest.mark.parametrize("sm_count", SM_COUNTS)
@pytest.mark.parametrize("module", [plain_loads, pipelines, pipeline_counters])
def test_every_cell_is_legal_and_every_sm_has_a_tile(module, preset, sm_count):
    chosen = list(module.cells(module.PRESETS[preset], sm_count))
    assert len(chosen) > 20 and len(set(chosen)) == len(chosen)
    assert {cell.source for cell in chosen} == {"hbm", "l2"}
    for cell in chosen:
        cell.require_runnable()
        assert sm_count * cell.ctas_per_sm * cell.tile_bytes <= cell.footprint_bytes


def test_each_mechanism_has_every_depth_in_the_same_pipeline():
    chosen = list(pipelines.cells(pipelines.PRESETS["full"], 132))
    for tile, warps in product((2 * KIB, 8 * KIB, 32 * KIB), (1, 2, 4)):
        depths = {
            mechanism: {
                cell.stages
                for cell in chosen
                if cell.spec.mechanism == mechanism and cell.is_specialized and cell.tile_bytes == tile
                if (cell.producers, cell.consumers) == (warps, warps)
            }
            for mechanism in ("tma_tile", "tma_bulk", "cp_async")
        }
        assert depths["cp_async"] == depths["tma_tile"] == depths["tma_bulk"]
        most = 12 if tile < 32 * KIB else 7
        assert depths["cp_async"] == {depth for depth in range(1, most + 1) if depth % warps == 0}


def test_streams_from_l2_share_no_line_where_mechanisms_are_compared():
    for cell in pipelines.cells(pipelines.PRESETS["full"], 132):
        if cell.source == "l2":
            assert cell.footprint_bytes // cell.tile_bytes % (132 * cell.ctas_per_sm) == 0


@pytest.mark.parametrize("lap", [132 * KIB, 264 * 8 * KIB, 1056 * 4 * KIB])
def test_a_footprint_of_its_own_is_whole_laps(lap):
    footprint = footprint_of_its_own(16 * MIB, lap)
    assert footprint % lap == 0 and 16 * MIB - lap < footprint <= 16 * MIB


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (Cell(tma(), "hbm", MIB, 8 * KIB, 4, 128), "4 warps, the kernel has 2; give 64 threads"),
        (Cell(tma(2), "hbm", MIB, 8 * KIB, 3, 128), "3 stages for 2 warps in turn; give a multiple of 2"),
        (
            Cell(kernels("cp_async", "multistage")[0], "hbm", MIB, 8 * KIB, 2, 128),
            "cover 2048 bytes, the tile has 8192",
        ),
        (
            Cell(kernels("cp_async", "multistage")[0], "hbm", MIB, 2 * KIB, 1, 128),
            "1 stages, the kernel has 2",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_fix(cell, message):
    with pytest.raises(ValueError, match=message):
        cell.require_runnable()


def test_a_cell_says_what_it_takes_of_an_sm():
    loop = kernel("cp_async", "multistage", depth=3, chunks=4, barriers=1, prefetch="128B")
    cell = Cell(loop, "hbm", MIB, 8 * KIB, 4, 128, 2)
    assert (cell.bytes_in_flight_per_sm, cell.shared_bytes_per_sm) == (48 * KIB, 64 * KIB)
    pipeline = Cell(tma(2), "hbm", MIB, 8 * KIB, 4, 128)
    assert pipeline.bytes_in_flight_per_sm == pipeline.shared_bytes_per_sm == 32 * KIB
    (loads, *_) = (s for s in kernels("ldg", "multistage") if dict(s.constants)["destination"] == "register")
    plain = Cell(loads, "hbm", MIB, 4 * KIB, 0, 256, 8)
    assert (plain.bytes_in_flight_per_sm, plain.shared_bytes_per_sm) == (32 * KIB, 0)


def test_bursts_of_both_kinds_bring_the_same_bytes():
    for preset in issue_inline.PRESETS.values():
        by = {
            (s.mechanism, dict(s.constants)["train"] * dict(s.constants).get("bytes", 512))
            for s, _ in issue_inline.plan(preset)
        }
        for size in (2 * KIB, 8 * KIB, 16 * KIB, 32 * KIB):
            assert ("cp_async", size) in by and ("tma_tile", size) in by
