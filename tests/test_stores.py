"""Stores, prefetches and policies: kernels hold the instructions they promise, and configurations are checked."""

import numpy as np
import pytest

from labkernels.errors import BadArgument, NotMeasured
from labkernels.kernels.build import assemble
from labkernels.kernels.registry import kernel, kernels
from labkernels.legality import IllegalOperand
from labkernels.operand import GIB, KIB, MIB, TMA_THREADS
from labkernels.protocols.drain import Drain
from labkernels.protocols.mixed import Mixed, MixedCell
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.l2 import findings as l2
from labkernels.studies.l2.hints import PRESETS as HINTS
from labkernels.studies.l2.hints import cells
from labkernels.studies.stores import findings, stores

ROWS = kernel("stg", "drain", origin="registers", layout="rows", chunks=4)
FRAGMENTS = kernel("tma_store", "drain", layout="fragments", chunks=4, stages=2)


def drain(spec=ROWS, footprint=16 * MIB, threads=128, row=512, columns=16, ctas=1):
    return Drain(spec, "l2", footprint, threads, row, columns, ctas)


@pytest.mark.parametrize("sm_count", [132, 114, 78])
@pytest.mark.parametrize("preset", stores.PRESETS)
def test_every_store_that_is_measured_can_run(preset, sm_count):
    found = list(stores.drains(stores.PRESETS[preset], sm_count))
    assert {one.spec.mechanism for one in found} == set(stores.MECHANISMS)
    for one in found:
        one.require_runnable()
        assert sm_count * one.ctas_per_sm * one.tile_bytes <= one.footprint_bytes


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"row": 96}, BadArgument, "row_bytes is 96, not a power of two"),
        ({"columns": 3}, BadArgument, "columns is 3, not a power of two"),
        ({"row": 8}, BadArgument, "row_bytes is 8: give 16 to 2048"),
        ({"row": 16 * KIB}, BadArgument, "give 16 to 2048"),
        ({"footprint": 16 * MIB + 512}, BadArgument, "give a multiple of 131072"),
        ({"spec": FRAGMENTS}, BadArgument, "row_bytes is 512, fragments lie in rows of 128"),
        (
            {"spec": kernel("bulk_store", "drain", run="tile", chunks=1, stages=1), "columns": 2},
            BadArgument,
            "its tile is one run of memory",
        ),
        (
            {
                "spec": kernel("tma_store", "drain", layout="rows", chunks=4, stages=8),
                "threads": 1024,
                "row": 2048,
            },
            IllegalOperand,
            "shared_bytes",
        ),
    ],
)
def test_a_store_that_cannot_run_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        drain(**given).require_runnable()


def loop(spec):
    return assemble(spec).loop_opcodes


def test_stores_are_those_that_are_promised():
    assert "STG.E.128" in loop(ROWS) and not any(one.startswith(("STS", "LDS")) for one in loop(ROWS))
    as_they_lie = assemble(kernel("stg", "drain", origin="registers", layout="fragments", chunks=4))
    assert as_they_lie.opcodes["STG.E"] == 16 and "STG.E.128" not in as_they_lie.opcodes
    assert "STSM.16.M88.4" in loop(FRAGMENTS) and any(one.startswith("UTMASTG") for one in loop(FRAGMENTS))
    for spec in kernels("bulk_store", "drain"):
        assert "UBLKCP.G.S" in loop(spec)


def test_prefetches_and_policies_are_in_the_code():
    for mechanism, opcode in (("tma_bulk", "UBLKPF"), ("tma_tile", "UTMAPF")):
        assert any(one.startswith(opcode) for one in loop(kernels(mechanism, "prefetched")[0]))
        for spec in kernels(mechanism, "mixed"):
            constants = dict(spec.constants)
            ptx = assemble(spec).ptx
            assert f"createpolicy.fractional.L2::{constants['streamed']}.b64 of_streamed" in ptx
            assert f"createpolicy.fractional.L2::{constants['reused']}.b64 of_reused" in ptx
    replaced = assemble(kernel("tma_tile", "descriptor", use="replace")).opcodes
    assert any(one.startswith("UTMACCTL.IV") for one in replaced)


@pytest.mark.parametrize("preset", HINTS)
def test_every_region_is_read_again_by_the_blocks_that_read_it_before(preset):
    for cell in cells(HINTS[preset], 132):
        cell.require_runnable()
        assert cell.reused_bytes % (132 * cell.tile_bytes) == 0


def test_mixed_tiles_come_in_turns():
    cell = MixedCell(
        kernels("tma_bulk", "mixed")[0], "hbm", GIB, 16 * KIB, 8, TMA_THREADS, reused_bytes=4 * 16 * KIB
    )
    mixed = object.__new__(Mixed)
    mixed.configuration, mixed.blocks, mixed.seed, mixed.rows = cell, 2, 1, GIB // (16 * KIB)
    words = mixed.expected_words(np.arange(2), 8, np.arange(4))
    assert np.array_equal(words[:, 1], words[:, 5]) and not np.array_equal(words[:, 1], words[:, 3])
    assert len(np.unique(words[:, ::2, 0])) == 8, "what streams by never comes again"


@pytest.fixture(scope="module")
def rows():
    store = Store()
    return lambda name: select.require_rows(store, name, select.gpus(store)[-1])


def test_library_and_forms_are_told_apart(rows):
    table = findings.rates(rows("stores"))
    assert set(table["form"]) == set(findings.FORMS) and "library" not in set(table["mechanism"])
    assert findings.library_gbps(rows("stores"), stores.LIBRARY[0], "hbm").gt(0).all()


def test_stores_reach_what_the_driver_reaches(rows):
    best = findings.rates(rows("stores")).groupby("destination")["median"].max()
    for place in ("hbm", "l2"):
        assert best[place] >= 0.9 * findings.library_gbps(rows("stores"), stores.LIBRARY[0], place).median()


def test_a_gain_is_of_the_same_pipeline(rows):
    frame = rows("l2_prefetch")
    gains = l2.gains(frame)
    assert gains["low"].le(gains["ratio"]).all() and gains["ratio"].le(gains["high"]).all()
    assert not gains.duplicated([*l2.PIPELINE, "lead"]).any()
    with pytest.raises(NotMeasured):
        l2.gains(frame[frame["lead"].eq(0)])
