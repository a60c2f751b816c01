"""Plans of the experiments: legal before anything is launched, parameters checked by name and type."""

import numpy as np
import pytest

from labkernels.kernels.build import SANITIZER
from labkernels.kernels.registry import PER_COPY, kernel
from labkernels.legality import IllegalOperand, violations
from labkernels.operand import Operand, Ring, Swizzle, linear_operand
from labkernels.protocols.chase import transfer_operand
from labkernels.protocols.stream import Configuration, walk_of
from labkernels.studies.crossover import l2_footprint, row_shape, stream_counters, throughput
from labkernels.studies.experiments import experiment, studies
from labkernels.studies.latency import issue
from labkernels.studies.run import parameters_of, run

SM_COUNTS = (114, 132, 148)  # H100 PCIe, H100 SXM and H200, B200


@pytest.mark.parametrize("name", studies())
def test_every_experiment_has_the_two_presets(name):
    assert {"quick", "full"} <= set(experiment(name).presets)
    assert experiment(name).question.endswith("?")


@pytest.mark.parametrize("preset", ["quick", "full"])
@pytest.mark.parametrize("sm_count", SM_COUNTS)
@pytest.mark.parametrize("module", [throughput, row_shape])
def test_every_configuration_is_legal_and_fits(module, preset, sm_count):
    chosen = list(module.configurations(module.PRESETS[preset], sm_count))
    assert len(chosen) > 20 and len(set(chosen)) == len(chosen)
    for configuration in chosen:
        configuration.require_runnable()
        walk = walk_of(configuration)
        blocks = sm_count * configuration.operand.ring.ctas_per_sm
        assert blocks * walk.outer_unit <= walk.outer_limit
        assert walk.inner_limit % walk.inner_step == 0


def test_mechanisms_are_compared_at_equal_bytes_in_flight():
    chosen = list(throughput.configurations(throughput.PRESETS["full"], 132))
    reached = {
        mechanism: {c.bytes_in_flight_per_sm for c in chosen if c.spec.mechanism == mechanism}
        for mechanism in ("ldg", "cp_async", "tma_bulk", "tma_tile")
    }
    common = set.intersection(*reached.values())
    assert {4096 << n for n in range(6)} <= common


def test_trains_fit_a_barrier_phase():
    for spec, size, train in issue.plan(issue.PRESETS["full"]):
        assert size * train < 1 << 20, spec.name


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("transfer", [16, 128, 2048, 65536])
def test_a_transfer_is_a_legal_box_of_any_rank(rank, transfer):
    if rank == 1 and transfer > 2048:
        pytest.skip("a box has at most 256 elements a side")
    operand = transfer_operand(
        transfer, 10, max(transfer, 128), rank, Ring(stages=2, shared_alignment_bytes=128)
    )
    assert operand.rank == rank and operand.tile_bytes == transfer
    assert not violations(operand, "tma_tile")


def test_a_ring_whose_threads_do_not_cover_the_tile_is_refused_with_the_fix():
    operand = linear_operand(1 << 20, 4096, Ring(stages=3, threads=100, shared_alignment_bytes=128))
    spec = kernel("cp_async", "stream", completion="group", depth=2, chunks=2)
    with pytest.raises(ValueError, match="3200 bytes, the tile has 4096; give 128 copying threads"):
        Configuration(spec, operand, "hbm").require_runnable()


def test_a_box_wider_than_its_swizzle_is_refused():
    operand = Operand(2, (128, 128), (128, 64), swizzle=Swizzle.B128)
    with pytest.raises(IllegalOperand):
        Configuration(kernel("tma_tile", "stream", rank=2), operand, "hbm").require_runnable()


def test_a_swizzle_over_short_rows_is_refused_because_slots_are_padded():
    operand = Operand(2, (32, 128), (32, 64), swizzle=Swizzle.B128)
    with pytest.raises(ValueError, match="swizzle span"):
        Configuration(kernel("tma_tile", "stream", rank=2), operand, "hbm").require_runnable()


def test_overrides_keep_the_rest_of_a_preset():
    parameters = parameters_of("throughput", "quick", {"rounds": 3, "tile_bytes": [4096]})
    assert parameters.rounds == 3 and parameters.tile_bytes == (4096,)
    assert parameters.stages == throughput.PRESETS["quick"].stages


@pytest.mark.parametrize(
    ("name", "preset", "overrides", "kind", "message"),
    [
        ("thruput", "quick", {}, ValueError, "no experiment 'thruput'; choose one of broadcast"),
        ("latency", "fast", {}, ValueError, "no preset 'fast'; choose one of quick, full"),
        ("latency", "quick", {"round": 3}, ValueError, "no parameter 'round'; it has .*rounds"),
        ("latency", "quick", {"rounds": "3"}, TypeError, "rounds is '3', a str; give a int like 9"),
        ("latency", "quick", {"rounds": True}, TypeError, "rounds is True"),
    ],
)
def test_bad_parameters_are_named(name, preset, overrides, kind, message):
    with pytest.raises(kind, match=message):
        parameters_of(name, preset, overrides)


def test_words_do_not_repeat_where_it_matters():
    from labkernels.device.random_fill import random_words

    words = random_words(np.arange(1 << 16), 7)
    assert len(set(words.tolist())) > 0.99 * (1 << 16)
    assert not np.array_equal(words, random_words(np.arange(1 << 16), 8))


def test_trains_come_with_all_that_a_copy_may_come_with():
    for preset in issue.PRESETS.values():
        found = {
            dict(spec.constants).get("per_copy")
            for spec, _, _ in issue.plan(preset)
            if spec.mechanism != "ldg"
        }
        assert set(PER_COPY) <= found


@pytest.mark.parametrize("preset", ["quick", "full"])
def test_every_counted_stream_is_legal_and_every_sm_has_a_tile(preset):
    chosen = list(stream_counters.configurations(stream_counters.PRESETS[preset]))
    assert {c.source for c in chosen} == {"l2", "hbm"}
    for configuration in chosen:
        configuration.require_runnable()
        ring = configuration.operand.ring
        needed = 132 * ring.ctas_per_sm * walk_of(configuration).outer_unit
        assert needed <= walk_of(configuration).outer_limit


@pytest.mark.parametrize("preset", ["quick", "full"])
def test_every_footprint_is_legal(preset):
    for configuration in l2_footprint.configurations(l2_footprint.PRESETS[preset], 132):
        configuration.require_runnable()


def test_kernels_for_sanitizers_are_not_measured(monkeypatch):
    monkeypatch.setenv(SANITIZER, "1")
    with pytest.raises(ValueError, match=f"{SANITIZER} is set.*unset it"):
        run("issue")
