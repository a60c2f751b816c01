"""Plans of the experiments: legal before anything is launched, parameters checked by name and type."""

import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import ClassVar

import numpy as np
import pytest

from labkernels.device import Gpu
from labkernels.errors import LabError, NoGpu, NotInstalled
from labkernels.kernels.build import SANITIZER
from labkernels.kernels.registry import PER_COPY, kernel
from labkernels.legality import IllegalOperand, violations
from labkernels.operand import Operand, Pipeline, Swizzle, linear_operand
from labkernels.paths import PACKAGE
from labkernels.protocols import counted, measure
from labkernels.protocols.chase import transfer_operand
from labkernels.protocols.experiment import needs, silent
from labkernels.protocols.rounds import interleaved, timed_rounds
from labkernels.protocols.stream import Configuration, WrongBytes, walk_of
from labkernels.studies.broadcast import broadcast
from labkernels.studies.crossover import (
    l2_footprint,
    pipeline_counters,
    row_shape,
    stream_counters,
    throughput,
)
from labkernels.studies.experiments import experiment, studies
from labkernels.studies.latency import issue
from labkernels.studies.multicast import cluster_counters, multicast, multicast_requests
from labkernels.studies.run import parameters_of, run

SM_COUNTS = (114, 132, 148)  # H100 PCIe, H100 SXM and H200, B200


@pytest.mark.parametrize("name", studies())
def test_every_experiment_has_the_two_presets(name):
    assert {"quick", "full"} <= set(experiment(name).presets)
    assert experiment(name).question.endswith("?")


@pytest.mark.parametrize("name", studies())
def test_every_experiment_says_in_one_sentence_what_is_missing_here(name):
    try:
        Gpu()
    except NoGpu as missing:
        assert experiment(name).available() == str(missing)
    else:
        assert "\n" not in (experiment(name).available() or "")


def test_the_first_of_its_needs_that_is_missing_is_said():
    def lacking(what):
        def require():
            raise NotInstalled(f"no {what} here")

        return require

    assert needs(list, dict)() is None
    assert needs(list, lacking("ncu"), lacking("torch"))() == "no ncu here"
    with pytest.raises(KeyError):  # a bug is no missing package
        needs(lambda: {}["typo"])()


@pytest.mark.parametrize("preset", ["quick", "full"])
@pytest.mark.parametrize("sm_count", SM_COUNTS)
@pytest.mark.parametrize("module", [throughput, row_shape])
def test_every_configuration_is_legal_and_fits(module, preset, sm_count):
    chosen = list(module.configurations(module.PRESETS[preset], sm_count))
    assert len(chosen) > 20 and len(set(chosen)) == len(chosen)
    for configuration in chosen:
        configuration.require_runnable()
        walk = walk_of(configuration)
        blocks = sm_count * configuration.operand.pipeline.ctas_per_sm
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


def test_bursts_fit_a_barrier_phase():
    for spec, size, train in issue.plan(issue.PRESETS["full"]):
        assert size * train < 1 << 20, spec.name


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("transfer", [16, 128, 2048, 65536])
def test_a_transfer_is_a_legal_box_of_any_rank(rank, transfer):
    if rank == 1 and transfer > 2048:
        pytest.skip("a box has at most 256 elements a side")
    operand = transfer_operand(
        transfer, 10, max(transfer, 128), rank, Pipeline(stages=2, shared_alignment_bytes=128)
    )
    assert operand.rank == rank and operand.tile_bytes == transfer
    assert not violations(operand, "tma_tile")


def test_a_ring_whose_threads_do_not_cover_the_tile_is_refused_with_the_fix():
    operand = linear_operand(1 << 20, 4096, Pipeline(stages=3, threads=100, shared_alignment_bytes=128))
    spec = kernel("cp_async", "stream", completion="group", depth=2, chunks=2)
    with pytest.raises(ValueError, match="3200 bytes, the tile has 4096; give 128 copying threads"):
        Configuration(spec, operand, "hbm").require_runnable()


def test_a_box_wider_than_its_swizzle_is_refused():
    operand = Operand(2, (128, 128), (128, 64), swizzle=Swizzle.B128)
    with pytest.raises(IllegalOperand):
        Configuration(kernel("tma_tile", "stream", rank=2), operand, "hbm").require_runnable()


def test_a_swizzle_over_short_rows_is_refused_because_stages_are_padded():
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
        ("latency", "quick", {"rounds": "3"}, ValueError, "rounds is '3'; give a int like 9"),
        ("throughput", "quick", {"stages": ["4"]}, ValueError, r"stages is \('4',\); give a tuple like \("),
        ("latency", "quick", {"rounds": True}, ValueError, "rounds is True"),
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


def test_bursts_come_with_all_that_a_copy_may_come_with():
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
        pipeline = configuration.operand.pipeline
        needed = 132 * pipeline.ctas_per_sm * walk_of(configuration).outer_unit
        assert needed <= walk_of(configuration).outer_limit


@pytest.mark.parametrize("preset", ["quick", "full"])
def test_every_footprint_is_legal(preset):
    for configuration in l2_footprint.configurations(l2_footprint.PRESETS[preset], 132):
        configuration.require_runnable()


def test_kernels_for_sanitizers_are_not_measured(monkeypatch):
    monkeypatch.setenv(SANITIZER, "1")
    with pytest.raises(LabError, match=f"{SANITIZER} is set.*unset it"):
        run("issue")


def test_every_round_has_every_item_and_rounds_differ_in_their_order():
    rounds = interleaved("abcdefgh", 5)
    assert all(sorted(turn) == list("abcdefgh") for turn in rounds)
    assert len({tuple(turn) for turn in rounds}) == 5


def test_the_random_order_of_rounds_is_written_in_one_place():
    files = [path for path in PACKAGE.rglob("*.py") if ".permutation(len(" in path.read_text("utf8")]
    assert [path.name for path in files] == ["rounds.py"], "use interleaved or timed_rounds"


def test_rounds_number_their_rows():
    called = []
    rows = timed_rounds("abc", lambda item: called.append(item) or {"item": item}, 4, silent)
    assert [row["item"] for row in rows] == called
    assert [row["round"] for row in rows] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


class Bound:
    """Stands for a stream or a pipeline bound to a GPU: says in `log` what is asked of it, in order."""

    log: ClassVar[list[tuple]] = []
    resident_ctas_per_sm = 1
    wrong = False

    def __init__(self, gpu, configuration, memory, seed):
        self.gpu, self.configuration, self.memory = gpu, configuration, memory
        self.kernel = f"kernel of {configuration.spec.name}"

    def __getattr__(self, name):
        def note(*arguments):
            self.log.append((name, self.configuration))
            if self.wrong and len(self.log) == 4:
                raise WrongBytes("byte 0 is wrong")
            return 7

        return note

    def timed(self, tiles):
        self.log.append(("timed", self.configuration))
        return {"tiles": tiles}


class Memory:
    """Stands for a memory."""

    buffer, seed = "the memory", 1

    def __init__(self, gpu, nbytes):
        self.nbytes = nbytes

    evict = close = lambda self: None


@pytest.fixture
def bound(monkeypatch):
    monkeypatch.setattr(Bound, "log", [])
    for name in ("Stream", "ClusterPipeline"):
        monkeypatch.setattr(measure, name, Bound)
    monkeypatch.setattr(measure, "Memory", Memory)
    monkeypatch.setattr(measure, "Buffer", lambda nbytes: nullcontext("made in shared memory"))
    return Bound


class Gpu132:
    class facts:
        sm_count = 132


@pytest.mark.parametrize(
    "module", [throughput, row_shape, l2_footprint, multicast, broadcast], ids=lambda m: m.__name__
)
def test_all_is_checked_before_anything_is_timed_and_sums_are_compared_at_the_end(module, bound):
    result = module.EXPERIMENT.measure(Gpu132(), module.PRESETS["quick"], silent)
    steps = [name for name, _ in bound.log if name in ("check", "timed", "check_sums")]
    count, rounds = steps.count("check"), module.PRESETS["quick"].rounds
    assert steps == ["check"] * count + ["timed"] * count * rounds + ["check_sums"] * count
    assert len({c for name, c in bound.log if name == "check"}) == count > 5
    (rows,) = result.tables.values()
    assert tuple(result.tables) == module.EXPERIMENT.tables
    assert len(rows) == count * rounds and {row["round"] for row in rows} == set(range(rounds))
    assert len(result.kernels) == count


def test_what_delivers_wrong_bytes_ends_the_experiment_before_anything_is_timed(bound, monkeypatch):
    monkeypatch.setattr(bound, "wrong", True)
    with pytest.raises(WrongBytes):
        multicast.EXPERIMENT.measure(Gpu132(), multicast.PRESETS["quick"], silent)
    assert not [name for name, _ in bound.log if name == "timed"]


def test_streams_that_an_sm_does_not_hold_are_left_out(bound):
    preset = replace(throughput.PRESETS["quick"], ctas_per_sm=(1, 2))
    throughput.EXPERIMENT.measure(Gpu132(), preset, silent)
    assert {c.operand.pipeline.ctas_per_sm for name, c in bound.log if name == "timed"} == {1}


@pytest.mark.parametrize("module", [stream_counters, cluster_counters], ids=lambda m: m.__name__)
def test_counters_join_the_rows_of_the_launches_they_were_read_from(module, bound, monkeypatch):
    for name in ("Stream", "ClusterPipeline", "Memory"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, {"Memory": Memory}.get(name, bound))
    monkeypatch.setattr(
        bound, "row", lambda self, tiles: {"mechanism": self.configuration.spec.mechanism}, raising=False
    )
    monkeypatch.setattr(Gpu132, "sync", lambda self: None, raising=False)
    for name in ("begin", "end"):
        monkeypatch.setattr(counted.counters, name, lambda name=name: bound.log.append((name, None)))
    preset = module.PRESETS["quick"]
    chosen = list(module.configurations(preset))

    def count(target, metrics):
        assert target[1:4] == ["-m", "labkernels.protocols.counted", module.__name__]
        assert counted.given(module.EXPERIMENT, target[4]) == preset
        return [dict.fromkeys(metrics.values(), number) for number in range(len(chosen))]

    monkeypatch.setattr(counted.counters, "count", count)
    result = module.EXPERIMENT.measure(Gpu132(), preset, silent)
    (rows,) = result.tables.values()
    assert [row["mechanism"] for row in rows] == [c.spec.mechanism for c in chosen]
    assert [row["dram_read_bytes"] for row in rows] == list(range(len(chosen)))
    names = [name for name, _ in bound.log if name in ("begin", "launch", "end", "check_sums")]
    one = names[names.index("begin") :][:4]
    assert one == ["begin", "launch", "end", "check_sums"]


@pytest.mark.parametrize("module", [stream_counters, pipeline_counters, cluster_counters, multicast_requests])
def test_the_counted_process_finds_what_it_launches(module):
    assert callable(module.ready)
    for preset in module.EXPERIMENT.presets.values():
        assert counted.given(module.EXPERIMENT, json.dumps(asdict(preset))) == preset


def test_a_burst_is_told_by_its_cycles_and_not_by_its_length(monkeypatch):
    class Burst:
        kernel = None

        def __init__(self, *_):
            pass

        def cycles(self, copies, repeats):
            return np.tile([100 * copies, 1000 * copies], (repeats, 1))

    class Memory:
        buffer = None

        def __init__(self, *_):
            pass

        def warm(self, _):
            pass

        def close(self):
            pass

    monkeypatch.setattr(issue, "IssueBurst", Burst)
    monkeypatch.setattr(issue, "Memory", Memory)
    rows = issue.measure(None, issue.PRESETS["quick"], silent).tables["issue_cost"]
    plan = {
        (spec.name, length): dict(spec.constants).get("chunks", length)
        for spec, _, length in issue.plan(issue.PRESETS["quick"])
    }
    for row in rows:
        (length,) = {
            length
            for (name, length), copies in plan.items()
            if name == row["kernel"] and copies == row["train_length"]
        }
        assert row["cycles_median"] == 100 * length and row["arrived_cycles_median"] == 1000 * length
        assert row["n"] == issue.PRESETS["quick"].rounds * (issue.PRESETS["quick"].repeats - 1)
