"""Kernels of a cluster on a GPU: every byte of every CTA, every fan-out; faults end in a named error."""

import numpy as np
import pytest

from labkernels.device import Buffer, Gpu, StalledWait
from labkernels.kernels.registry import kernel, kernels
from labkernels.operand import KIB, MIB
from labkernels.protocols.cluster_pipeline import (
    ClusterPipeline,
    PipelineConfiguration,
    multicast_pipeline,
    unicast_pipeline,
)
from labkernels.protocols.exchange import PATTERNS, Exchange, ExchangeConfiguration, arrivals, pair_cycles
from labkernels.protocols.memory import Memory
from labkernels.protocols.stream import WrongBytes
from labkernels.protocols.visibility import sight
from labkernels.studies.broadcast.dsm import ALL_TO_ALL_SHARE_BYTES, SPECS, THREADS

pytestmark = pytest.mark.gpu
SOUND = [spec for spec in kernels(protocol="ring") if dict(spec.constants).get("fault", "none") == "none"]
GROUPED = [spec for spec in SOUND if "group" in dict(spec.constants)]
PIPELINES = [spec for spec in SOUND if spec not in GROUPED]
VISIBILITY = kernels(protocol="visibility")


@pytest.fixture(scope="module")
def gpu():
    return Gpu()


@pytest.fixture(scope="module")
def memory(gpu):
    memory = Memory(gpu, 64 * MIB)
    yield memory
    memory.close()


@pytest.fixture(scope="module")
def scratch():
    with Buffer(64 * MIB) as buffer:
        yield buffer


def pipeline(gpu, memory, spec, fan_out, tile=8 * KIB, stages=4, scratch=None, **more):
    source = "computed" if dict(spec.constants).get("origin") == "computed" else "l2"
    configuration = PipelineConfiguration(spec, fan_out, source, tile, stages, 32 * MIB, **more)
    return ClusterPipeline(
        gpu, configuration, scratch if source == "computed" else memory.buffer, memory.seed
    )


@pytest.mark.parametrize("fan_out", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("spec", PIPELINES, ids=lambda spec: spec.name)
def test_every_cta_of_a_ring_receives_every_byte(gpu, memory, scratch, spec, fan_out):
    if fan_out == 1 and not spec.traits.touches_global:
        pytest.skip("nobody to send to")
    for tile in (4 * KIB, 32 * KIB):
        one = pipeline(gpu, memory, spec, fan_out, tile, scratch=scratch)
        one.check()
        one.close()


@pytest.mark.parametrize("spec", GROUPED, ids=lambda spec: spec.name)
def test_groups_inside_a_cluster_receive_tiles_of_their_own(gpu, memory, spec):
    group = dict(spec.constants)["group"]
    for in_one in (2, 16 // group):
        one = pipeline(gpu, memory, spec, group, 32 * KIB, groups_per_cluster=in_one)
        assert one.groups % in_one == 0 and one.configuration.cluster == in_one * group
        one.check()
        one.close()


def test_ctas_alone_receive_what_their_group_shares(gpu, memory):
    for scattered in (False, True):
        one = pipeline(gpu, memory, unicast_pipeline(), 4, clustered=False, scattered=scattered)
        one.check()
        one.close()


def test_every_block_has_an_sm_of_its_own(gpu, memory):
    one = pipeline(gpu, memory, multicast_pipeline(), 4)
    assert one.clusters.blocks_per_sm == 1
    assert one.blocks <= gpu.facts.sm_count
    one.close()


@pytest.mark.parametrize("more", [{"lag_cycles": 3000}, {"delay_cycles": 3000}, {"hold_cycles": 3000}])
def test_skew_delivers_the_same_bytes(gpu, memory, more):
    for spec in (
        multicast_pipeline(),
        multicast_pipeline(share="leader"),
        kernel("dsm_bulk", "ring", share="slices", origin="global"),
    ):
        one = pipeline(gpu, memory, spec, 8, **more)
        one.check(tiles=40)
        one.close()


def test_a_wrong_byte_is_found(gpu, memory):
    one = pipeline(gpu, memory, multicast_pipeline(), 4)
    one.check()
    word = memory.buffer.read(np.uint32, 1, 8 * KIB)
    memory.buffer.write(word ^ 1, 8 * KIB)
    try:
        with pytest.raises(WrongBytes, match=r"group 1, CTA 0 of 4, tile 0, byte 0"):
            one.check()
    finally:
        memory.buffer.write(word, 8 * KIB)
        one.close()


@pytest.mark.parametrize("fault", ["missing_expect", "early_exit"])
def test_a_faulty_ring_ends_in_a_named_error_and_the_gpu_goes_on(gpu, memory, fault):
    broken = pipeline(gpu, memory, multicast_pipeline(fault=fault), 4)
    broken.launch(12)
    with pytest.raises(StalledWait, match=r"(full|empty)\[0\]"):
        broken.require_arrived()
    broken.close()
    sound = pipeline(gpu, memory, multicast_pipeline(), 4)
    sound.check()
    sound.close()


def test_what_does_not_fit_is_refused_before_the_launch(gpu, memory):
    with pytest.raises(ValueError, match="cluster 32 is above the limit of 16"):
        pipeline(gpu, memory, multicast_pipeline(), 32)
    with pytest.raises(ValueError, match="give fewer stages or smaller tiles"):
        pipeline(gpu, memory, multicast_pipeline(), 4, tile=64 * KIB)


@pytest.mark.parametrize("cluster", [2, 4, 8, 16])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_exchanges_fill_every_destination(gpu, spec, pattern, cluster):
    share = ALL_TO_ALL_SHARE_BYTES[cluster]
    configuration = ExchangeConfiguration(
        spec, cluster, pattern, share, share // 4, 2, THREADS[spec.mechanism]
    )
    one = Exchange(gpu, configuration)
    one.check()
    one.close()


@pytest.mark.parametrize("mechanism", ["dsm_load", "dsm_store", "dsm_bulk"])
def test_single_transfers_take_a_plausible_time(gpu, mechanism):
    cycles = pair_cycles(gpu, kernel(mechanism, "pair"), 4, 3, 1, 16, 64)
    assert 100 < np.median(cycles) < 2000


def test_a_multicast_arrives_everywhere_at_about_the_same_time(gpu, memory):
    found = arrivals(gpu, kernel("tma_multicast", "arrival"), 8, 0xFF, 2048, 64, memory.buffer)
    median = np.median(found.cycles[8:], axis=0)
    assert median.shape == (8,)
    assert np.all((median > 200) & (median < 3000))
    assert np.ptp(median) < 300


@pytest.mark.parametrize("cluster", [2, 8, 16])
@pytest.mark.parametrize("spec", VISIBILITY, ids=lambda spec: spec.name)
def test_a_transfer_is_seen_where_it_goes_and_nowhere_else(gpu, memory, spec, cluster):
    from_memory = spec.traits.touches_global
    everyone = (1 << cluster) - 1
    # Loads of one word fall into step with each other where the tries of a barrier do not.
    grain = 40 if dict(spec.constants).get("completion") == "word" else 20
    for mask in (1, everyone) if from_memory else {2, 1 << cluster - 1}:
        for nbytes in (128, 16 * KIB) if from_memory or spec.mechanism == "dsm_bulk" else (16,):
            seen = sight(gpu, spec, cluster, mask, nbytes, 48, memory.buffer, memory.seed)
            receives = [bool(mask >> rank & 1) for rank in range(cluster)]
            assert np.isfinite(seen.cycles).all(axis=0).tolist() == receives
            assert (seen.cycles[8:, receives] > 100).all() and np.median(seen.cycles[8:, receives]) < 3000
            assert np.nanmedian(seen.grain_cycles[8:]) <= grain
            assert len(set(seen.sms)) == cluster


def test_a_wrong_byte_of_a_transfer_is_found(gpu, memory):
    spec, steps, nbytes = kernel("tma_multicast", "visibility"), 8, 1024
    at = (steps - 1) * nbytes + 64
    word = memory.buffer.read(np.uint32, 1, at)
    memory.buffer.write(word ^ 1, at)
    try:
        with pytest.raises(WrongBytes, match="CTA 0 of 4, byte 64"):
            sight(gpu, spec, 4, 15, nbytes, steps, memory.buffer, memory.seed)
    finally:
        memory.buffer.write(word, at)


@pytest.mark.parametrize("spec", SOUND, ids=lambda spec: spec.name)
def test_one_of_each_ring(gpu, spec):
    """Small enough for compute-sanitizer: pytest -m gpu -k one_of_each."""
    computed = dict(spec.constants).get("origin") == "computed"
    small = Memory(gpu, 4 * MIB)
    fan_out, in_one = (group, 2) if (group := dict(spec.constants).get("group")) else (4, 1)
    configuration = PipelineConfiguration(
        spec, fan_out, "computed" if computed else "l2", 4 * KIB, 4, 2 * MIB, groups_per_cluster=in_one
    )
    one = ClusterPipeline(gpu, configuration, small.buffer, small.seed, clusters=2)
    one.check(7)
    one.close()
    small.close()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_one_of_each_exchange(gpu, spec, pattern):
    """Small enough for compute-sanitizer."""
    one = Exchange(gpu, ExchangeConfiguration(spec, 4, pattern, 1024, 512, 2, THREADS[spec.mechanism]))
    one.check()
    one.close()


@pytest.mark.parametrize("spec", VISIBILITY, ids=lambda spec: spec.name)
def test_one_of_each_transfer(gpu, spec):
    """Small enough for compute-sanitizer."""
    small = Memory(gpu, MIB)
    nbytes = 16 if spec.mechanism == "dsm_store" else 1024
    mask = 15 if spec.traits.touches_global else 2
    assert sight(gpu, spec, 4, mask, nbytes, 8, small.buffer, small.seed, 2).cycles.shape == (8, 4)
    small.close()


def test_one_of_each_pair_and_arrival(gpu):
    """Small enough for compute-sanitizer."""
    with Buffer(4 * MIB) as zeros:
        for mechanism in ("dsm_load", "dsm_store", "dsm_bulk"):
            assert pair_cycles(gpu, kernel(mechanism, "pair"), 4, 0, 1, 16, 8).size
        for mechanism, mask in (("tma_tile", 1), ("tma_multicast", 15)):
            assert arrivals(
                gpu, kernel(mechanism, "arrival"), 4, mask, 1024, 8, zeros.set_bytes(0)
            ).cycles.size
