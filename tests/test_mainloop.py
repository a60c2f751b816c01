"""Main loops of a matrix product, without a GPU: machine code, what each producer takes, what NumPy expects."""

import re
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from labkernels.errors import BadArgument
from labkernels.kernels import build, link, sass
from labkernels.kernels.build import assemble
from labkernels.kernels.registry import REGISTERS_PER_SM, kernel, kernels
from labkernels.kernels.render import AssemblyError, render
from labkernels.kernels.whole import compile_whole
from labkernels.legality import SHARED_BYTES_PER_CTA
from labkernels.protocols.mainloop import (
    LAP,
    STEP_BYTES,
    MainLoop,
    MainLoopConfiguration,
    Operands,
    as_float32,
    grid,
)
from labkernels.store import Store
from labkernels.store.values import render as render_rows
from labkernels.studies.kernel import mainloop, mainloop_counters, mainloop_power

SPECS = kernels(protocol="mainloop")
TENSOR = [spec for spec in SPECS if dict(spec.constants)["compute"] == "wgmma"]
BLOCKS = 132


@cache
def timed_code(spec):
    made = assemble(spec)
    return sass.disassemble(made.cubin)[made.timed]


def in_loops(spec):
    timed = timed_code(spec)
    inside = frozenset().union(*timed.loops)
    return [one for one in timed.instructions if one.address in inside]


@pytest.mark.parametrize("spec", TENSOR, ids=lambda spec: spec.name)
def test_products_of_a_stage_are_under_way_while_the_one_before_is_released(spec):
    of, body = dict(spec.constants), in_loops(spec)
    products = [one.opcode for one in body if one.base == "HGMMA"]
    assert products == [f"HGMMA.64x{of['n']}x16.F32.BF16"] * ((of["work"] or 4) * of["m"] // 128)
    waits = [one.operands for one in body if one.opcode.startswith("WARPGROUP.DEPBAR")]
    assert [re.sub(r"\s", "", wait) for wait in waits] == ["gsb0,0x1"]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_an_sm_has_the_registers_that_its_warpgroups_ask_for(spec):
    of, threads = dict(spec.constants), spec.mainloop_threads
    assert assemble(spec).registers * threads <= REGISTERS_PER_SM
    if spec.moves_registers:
        asked = 256 * of["consumer_registers"] + (threads - 256) * of["producer_registers"]
        assert asked <= assemble(spec).registers * threads
        assert {
            one.base for one in sass.disassemble(assemble(spec).cubin)[assemble(spec).timed].instructions
        } >= {"USETMAXREG"}


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if spec.traits.by_threads], ids=lambda spec: spec.name
)
def test_threads_copy_a_stage_with_one_instruction_for_16_bytes_of_each(spec):
    of, body = dict(spec.constants), in_loops(spec)
    copying = 32 * of["producers"] // of.get("turns", 1)
    copies = [one for one in body if one.base in ("LDGSTS", "LDG")]
    assert len(copies) * 16 * copying == (of["m"] + of["n"]) * STEP_BYTES


def test_loads_through_registers_are_all_under_way_before_one_is_stored():
    for spec in kernels("ldg", "mainloop"):
        bases = [one.base for one in in_loops(spec) if one.base in ("LDG", "STS")]
        assert bases == sorted(bases, reverse=True), (
            spec.name
        )  # of a turn: all stores, then all loads of the next


def test_a_pitch_that_ptxas_knows_saves_nothing():
    """An LDGSTS holds no offset of 16 KiB: either way a 64-bit address is added for each copy."""
    known, unknown = (
        kernel(
            "cp_async", "mainloop", m=128, n=128, span=128, compute="wgmma", work=0, producers=4,
            producer_registers=40, consumer_registers=232, handover="mbarrier", pitch_bytes=pitch,
        )
        for pitch in (4096, 0)
    )  # fmt: skip
    adds = [
        sum(one.opcode.startswith(("IADD3", "IMAD.X")) for one in in_loops(spec)) for spec in (known, unknown)
    ]
    assert abs(adds[0] - adds[1]) <= 2


def test_whatever_ptxas_says_is_an_error():
    spec = next(one for one in TENSOR if dict(one.constants)["n"] == 256)
    text, _ = build._numba_side(spec, "sm_90a", "k")
    module = link.inline(text, render(spec, "sm_90a"))
    assert compile_whole(module, "sm_90a", spec.mainloop_threads)
    with pytest.raises(AssemblyError, match="Insufficient registers"):
        compile_whole(module, "sm_90a", 512)
    with pytest.raises(AssemblyError, match="setmaxnreg"):
        link.link([module], "sm_90a", 168)


def of_no_gpu(spec, stages, source="l2"):
    one = object.__new__(MainLoop)
    one.configuration = MainLoopConfiguration(spec, stages, source)
    one.blocks, one.grid = BLOCKS, grid(BLOCKS)
    one.panels, one._panel_rows = one.configuration.panels(BLOCKS), one.configuration.panel_rows(BLOCKS)
    one.memory = Operands((), BLOCKS)
    return one


@pytest.mark.parametrize("source", ["l2", "hbm"])
@pytest.mark.parametrize(
    "spec", TENSOR[:1] + [s for s in TENSOR if dict(s.constants).get("copies") == "first"][:3]
)
def test_what_is_expected_of_a_block_is_its_rows_times_its_columns(spec, source):
    one, of, laps, block = of_no_gpu(spec, 4, source), dict(spec.constants), 3, 50
    column, row = divmod(block, one.grid[0])
    panel = 0 if one.configuration.is_alone else (laps - 1) % one.panels
    a, b = (
        as_float32(one.memory.rows(operand, "random", panel * one._panel_rows[operand] + at * side, side))
        for operand, at, side in ((0, row, of["m"]), (1, column, of["n"]))
    )
    total = np.zeros((of["m"], of["n"]), np.float32)
    for step in range((laps - 1) * LAP, laps * LAP):
        k = 64 * (step % (4 if one.configuration.is_alone else LAP))
        total += a[:, k : k + 64] @ b[:, k : k + 64].T
    assert np.abs(one._products(laps)[block] - total).max() < 1e-3


@pytest.mark.parametrize("tile", [(128, 128), (128, 256), (256, 128)])
def test_accumulators_are_put_where_the_isa_says(tile):
    spec = next(s for s in TENSOR if (dict(s.constants)["m"], dict(s.constants)["n"]) == tile)
    one, (m, n) = of_no_gpu(spec, 2), tile
    matrix = np.arange(m * n, dtype=np.float32).reshape(m, n)
    found = np.zeros((BLOCKS, 256, one.accumulators), np.float32)
    for thread in range(256):
        half, warp, lane = thread // 128, thread % 128 // 32, thread % 32
        for index in range(one.accumulators):
            part, rest = divmod(index, n // 2)
            rows = half * m // 2 + part * 64 + 16 * warp + lane // 4 + 8 * (rest % 4 // 2)
            found[7, thread, index] = matrix[rows, rest // 4 * 8 + lane % 4 * 2 + rest % 2]
    assert np.array_equal(one._by_rows(found)[7], matrix)


def test_ffma_add_up_every_word_of_every_step():
    spec = next(s for s in kernels("tma_tile", "mainloop") if dict(s.constants)["work"] == 8)
    one, block = of_no_gpu(spec, 6), 131
    words = [
        one.memory.rows(operand, "random", at * 128, 128).view(np.float32).astype(float).sum()
        for operand, at in ((0, block % one.grid[0]), (1, block // one.grid[0]))
    ]
    assert np.allclose(one._sums(2)[block], 2 * sum(words) * (1 + np.arange(8) / 64))


@pytest.mark.parametrize("preset", ["quick", "full"])
@pytest.mark.parametrize("module", [mainloop, mainloop_counters, mainloop_power])
def test_every_configuration_can_run(module, preset):
    chosen = list(module.configurations(module.PRESETS[preset]))
    assert len(set(chosen)) == len(chosen)
    for one in chosen:
        one.require_runnable()
        assert one.stages * one.stage_bytes + 3072 <= SHARED_BYTES_PER_CTA


def test_rivals_of_a_contest_have_the_same_stages_and_each_mechanism_is_there():
    for tile in ((128, 128), (128, 256), (256, 128)):
        chosen = list(mainloop.contest(tile))
        assert len({one.stages for one in chosen}) == 1
        assert [(one.spec.mechanism, one.is_alone) for one in chosen] == [
            ("tma_tile", True),
            ("tma_tile", False),
            ("tma_multicast", False),
            ("cp_async", False),
            ("ldg", False),
        ]


def test_stages_that_producers_cannot_share_are_refused():
    one = next(c for c in mainloop.contest((128, 128)) if c.spec.mechanism == "ldg")
    with pytest.raises(BadArgument, match="5 stages for 2 producers in turn; give a multiple"):
        replace(one, stages=5).require_runnable()


def test_a_grid_is_even_along_a_and_covers_the_gpu():
    assert [grid(count) for count in (132, 144, 114)] == [(12, 11), (12, 12), (6, 19)]


@pytest.mark.parametrize("module", [mainloop, mainloop_power, mainloop_counters])
def test_rows_of_every_configuration_fit_their_table(module):
    counted = dict.fromkeys(getattr(module, "COUNTED", {}).values(), 7)
    rows = []
    for one in module.configurations(module.PRESETS["full"]):
        loop = of_no_gpu(one.spec, one.stages, one.source)
        loop.configuration, loop.kernel = one, assemble(one.spec)
        loop._maps = [object()] * one.spec.traits.takes_tensor_map
        loop._log = SimpleNamespace(read=lambda dtype: np.arange(1, BLOCKS + 1, dtype=dtype))
        rates = {} if counted else loop.rates(812.5, 64) | {"round": 0}
        if module is mainloop_power:
            rates |= {"power_w": 690.1, "power_window_s": 0.4, "energy_per_step_uj": 1.25}
        rows.append({"run_id": "20260101T000000Z-00000000", **loop.row(64), **rates, **counted})
    table = Store().tables[module.EXPERIMENT.table()]
    assert render_rows(table, rows) and set(rows[0]) == set(table.columns)
