"""Kernels of a cluster without a GPU: what their machine code contains, who sends to whom, clocks put on one scale."""

import numpy as np
import pytest

from labkernels.device import counters
from labkernels.kernels.build import assemble
from labkernels.kernels.registry import kernel, kernels
from labkernels.operand import KIB
from labkernels.protocols import measure
from labkernels.protocols import visibility as visible
from labkernels.protocols.cluster_pipeline import PipelineConfiguration, multicast_pipeline, unicast_pipeline
from labkernels.protocols.exchange import EXCHANGES, PATTERNS, ExchangeConfiguration, align
from labkernels.protocols.experiment import silent
from labkernels.studies.broadcast import broadcast, dsm, handover
from labkernels.studies.multicast import (
    cluster_counters,
    crowding,
    handshake,
    multicast,
    multicast_fair,
    visibility,
    wide_clusters,
)

PROTOCOLS = ("ring", "exchange", "pair", "arrival", "visibility")
PIPELINES = [broadcast, crowding, handover, handshake, multicast, multicast_fair, wide_clusters]
SPECS = [spec for protocol in PROTOCOLS for spec in kernels(protocol=protocol)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_kernel_assembles_and_shows_its_mechanism(spec):
    built = assemble(spec)
    assert built.registers <= 64
    assert built.shared_bytes <= 3 * KIB


@pytest.mark.parametrize(
    ("scope", "fences", "invalidates"),
    [
        ("default", False, False),
        ("relaxed", False, False),
        ("arrive", True, False),
        ("wait", False, True),
        ("cluster", True, True),
    ],
)
def test_cluster_scope_is_what_brings_fences_into_the_loop(scope, fences, invalidates):
    opcodes = assemble(multicast_pipeline(scope=scope)).loop_opcodes
    assert ("MEMBAR.ALL.GPU" in opcodes) == fences
    assert ("CCTL.IVALL" in opcodes) == invalidates


def test_a_unicast_ring_multicasts_nothing():
    assert not [o for o in assemble(unicast_pipeline()).opcodes if "MULTICAST" in o]


def pipeline(**changes):
    given = dict(fan_out=4, source="l2", tile_bytes=32 * KIB, stages=4, footprint_bytes=1 << 24)
    return PipelineConfiguration(changes.pop("spec", multicast_pipeline()), **{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tile_bytes": 1024 + 128, "fan_out": 16}, "not multiples of 128; give a tile of 2048"),
        ({"stages": 33}, "stages is 33, its PTX declares barriers for 32: give 1 to 32"),
        ({"stages": 3, "spec": multicast_pipeline(producers=2)}, "3 stages are no multiple of 2 producers"),
        ({"footprint_bytes": 1000}, "1000 bytes does not hold whole tiles"),
        ({"groups_per_cluster": 2}, "2 groups of 4 CTAs in a cluster; give a kernel with group=4"),
    ],
)
def test_a_ring_that_cannot_run_is_refused_by_number_limit_and_fix(changes, says):
    with pytest.raises(ValueError, match=says):
        pipeline(**changes).require_runnable()


def test_who_brings_a_tile():
    unicast = unicast_pipeline()
    assert pipeline().share == "slices"
    assert pipeline(spec=multicast_pipeline(share="leader")).share == "leader"
    assert pipeline(spec=unicast).share == "everyone"
    assert pipeline(spec=unicast, clustered=False).share == "alone"


@pytest.mark.parametrize("module", [*PIPELINES, cluster_counters])
@pytest.mark.parametrize("preset", ["quick", "full"])
def test_presets_hold_distinct_runnable_rings(module, preset):
    chosen = list(module.configurations(module.PRESETS[preset]))
    assert len(set(chosen)) == len(chosen) > 0
    for configuration in chosen:
        configuration.require_runnable()
        assert configuration.tile_bytes * configuration.stages <= 224 * KIB


def exchange(pattern, cluster):
    return ExchangeConfiguration(kernel("dsm_bulk", "exchange"), cluster, pattern, KIB, KIB, 2, 64)


@pytest.mark.parametrize("cluster", [2, 4, 8, 16])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_send_as_often_as_they_receive(pattern, cluster):
    one = exchange(pattern, cluster)
    received = sum(len(one.sources(rank)) for rank in range(cluster))
    senders = {source for rank in range(cluster) for source in one.sources(rank)}
    assert received == len(senders) * one.peers
    assert all(rank not in one.sources(rank) for rank in range(cluster))
    assert max(len(one.sources(rank)) for rank in range(cluster)) * one.share_bytes == one.stage_bytes


def test_patterns_by_hand():
    assert [exchange("pair_one_way", 4).sources(rank) for rank in range(4)] == [[], [0], [], [2]]
    assert [exchange("pair_two_way", 4).sources(rank) for rank in range(4)] == [[1], [0], [3], [2]]
    assert [exchange("ring", 4).sources(rank) for rank in range(4)] == [[3], [0], [1], [2]]
    assert exchange("all_to_all", 4).sources(1) == [0, 3, 2]
    assert [exchange("one_to_all", 4).sources(rank) for rank in range(4)] == [[], [0], [0], [0]]


@pytest.mark.parametrize("preset", ["quick", "full"])
def test_exchanges_fit_shared_memory(preset):
    for one, _ in dsm.configurations(dsm.PRESETS[preset]):
        assert one.share_bytes + one.stages * one.stage_bytes <= 224 * KIB
        assert one.share_bytes % one.command_bytes == 0


def test_clocks_of_sms_are_put_on_one_scale():
    cluster, steps, offsets = 4, 5, np.array([0, 1_000_000, -777, 42])
    logged = np.zeros(cluster * (4 * EXCHANGES + 2 * steps), np.int64)
    asked = logged[: cluster * 4 * EXCHANGES].reshape(cluster, EXCHANGES, 4)
    for rank in range(1, cluster):
        sent = 10_000 + 500 * np.arange(EXCHANGES)
        asked[rank, :, 0] = sent
        asked[rank, :, 1] = sent + 210 + offsets[rank]
        asked[rank, :, 2] = sent + 420
        asked[rank, 3, 1:3] += 5000  # an answer that was held up counts for nothing
    stepped = logged[cluster * 4 * EXCHANGES :].reshape(steps, cluster, 2)
    stepped[:, 0, 0] = 100_000 + 1000 * np.arange(steps)
    stepped[..., 1] = stepped[:, :1, 0] + [600, 610, 620, 630] + offsets
    found = align(logged, cluster, steps, mask=0b1011)
    assert np.array_equal(found.cycles[:, [0, 1, 3]], np.tile([600.0, 610.0, 630.0], (steps, 1)))
    assert np.isnan(found.cycles[:, 2]).all()
    assert np.median(found.answer_cycles) == 420


def polls(arrival, phase, turn=48, latency=25):
    missed = (arrival - phase) // turn * turn + phase
    return [missed, missed + turn, missed + turn + latency]


def test_polls_of_several_warps_bracket_an_arrival_on_one_scale():
    cluster, steps, pollers, offsets = 4, 20, 4, np.array([0, 1_000_000, -777, 42])
    log = np.zeros(
        (cluster * (1 + 2 * visible.EXCHANGES) + steps * cluster * pollers, visible.RECORD), np.int64
    )
    log[:cluster, 0] = [6, 7, 22, 23]
    exchanged = log[cluster : cluster * (1 + 2 * visible.EXCHANGES)].reshape(cluster, -1, 2, visible.RECORD)
    for rank in range(1, cluster):
        for number, exchange in enumerate(exchanged[rank]):
            sent = 10_000 * rank + 500 * number
            exchange[1, 1:] = polls(sent + 150 + offsets[rank], 5 * number)
            exchange[1, 0] = exchange[1, 3] + 2
            exchange[0] = [sent, *polls(exchange[1, 0] - offsets[rank] + 150, 7 * number)]
    stepped = log[cluster * (1 + 2 * visible.EXCHANGES) :].reshape(steps, cluster, pollers, visible.RECORD)
    late = np.array([600, 610, 620, 631])
    for step, rank, warp in np.ndindex(steps, cluster, pollers):
        sent = 100_000 + 1000 * step
        stepped[step, rank, warp, 1:] = polls(sent + late[rank] + offsets[rank], 12 * warp)
    stepped[:, 0, 0, 0] = 100_000 + 1000 * np.arange(steps)
    stepped[:, 2] = 0  # receives nothing
    found = visible.read_log(log.ravel(), cluster, steps, pollers, own=False)
    assert found.sms.tolist() == [6, 7, 22, 23] and 0 < found.clock_error_cycles < 5
    assert np.isnan(found.cycles[:, 2]).all() and (found.grain_cycles[:, [0, 1, 3]] == 12).all()
    waited = (
        found.cycles[:, [0, 1, 3]] - late[[0, 1, 3]] - 25
    )  # at most a grain, and what the clocks are uncertain by
    assert (waited > -8).all() and (waited < 12 + 8).all()


def test_rows_of_a_multicast_tell_first_last_and_skew():
    one = visibility.Transfer(kernel("tma_multicast", "visibility"), 4, 0b1011, 128)
    cycles = np.tile([300.0, 310.0, np.nan, 330.0], (20, 1))
    seen = visible.Sighting(cycles, np.full((20, 4), 9.0), 1.5, np.arange(4))
    rows = list(visibility.rows(one, seen, visibility.Parameters(), 3))
    told = {(row["quantity"], row["receiver"]): row["cycles_median"] for row in rows}
    assert [told["arrival", rank] for rank in (0, 1, 3)] == [300, 310, 330]
    assert (told["first", 0], told["last", 0], told["skew", 0]) == (300, 330, 30)
    assert {(row["destinations"], row["grain_cycles"], row["round"]) for row in rows} == {(3, 9.0, 3)}


NCU = """"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","ring","lts__t_sectors_op_read.sum","sector","1,024"
"0","ring","sm__cycles_elapsed.max","cycle","5000"
"1","ring","lts__t_sectors_op_read.sum","sector","8"
"1","ring","sm__cycles_elapsed.max","cycle","6000"
"""


def test_counters_are_read_per_launch_and_sectors_become_bytes():
    metrics = {"lts__t_sectors_op_read.sum": "l2_read_bytes", "sm__cycles_elapsed.max": "cycles"}
    assert counters.parse(NCU.splitlines(), metrics) == [
        {"l2_read_bytes": 32768, "cycles": 5000},
        {"l2_read_bytes": 256, "cycles": 6000},
    ]
    with pytest.raises(counters.NoCounters, match="no such counter"):
        counters.parse(NCU.replace('"8"', '"n/a"').splitlines(), metrics)


@pytest.mark.parametrize(
    ("says", "status", "kind", "message"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - no permission",
            1,
            counters.NoCounters,
            "may not read the GPU's counters",
        ),
        ("Traceback: a bug in what was counted", 1, counters.CountingFailed, r"ncu failed \(1\): .* a bug"),
        ("==WARNING== No kernels were profiled", 0, counters.CountingFailed, "No kernels were profiled"),
    ],
)
def test_what_keeps_ncu_from_counting_is_told_from_a_failure(
    tmp_path, monkeypatch, says, status, kind, message
):
    fake = tmp_path / "ncu"
    fake.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(kind, match=message):
        counters.count(["true"], {})


def test_no_nsight_compute_is_said_by_name(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(counters.NoCounters, match="no ncu on the PATH"):
        counters.count(["true"], {})


@pytest.mark.parametrize("module", PIPELINES)
def test_rings_ask_for_memory_as_large_as_the_largest_reads(module, monkeypatch):
    class Asked(Exception):
        """Ends the measuring before a GPU is needed."""

    def memory(gpu, nbytes):
        raise Asked(nbytes)

    monkeypatch.setattr(measure, "Memory", memory)
    preset = module.PRESETS["quick"]
    with pytest.raises(Asked) as asked:
        module.EXPERIMENT.measure(None, preset, silent)
    assert asked.value.args == (max(c.footprint_bytes for c in module.configurations(preset)),)
