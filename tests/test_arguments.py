"""Arguments of kernels: names, widths and limits come from the PTX, and protocols give their kernels what they take."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from labkernels.errors import BARRIERS, LabError
from labkernels.kernels import entry, numba_side
from labkernels.kernels.build import assemble, is_warp_specialized
from labkernels.kernels.registry import AXES, kernel, kernels
from labkernels.kernels.render import AssemblyError, BadArgument, Parameter, declared, pack, render
from labkernels.operand import KIB, Operand, Pipeline, linear_operand
from labkernels.protocols import (
    burst,
    cell,
    chase,
    cluster_launch,
    cluster_pipeline,
    contiguous,
    drain,
    exchange,
    gather,
    mainloop,
    mixed,
    stream,
    visibility,
)
from labkernels.studies.latency import descriptors

PROTOCOLS = sorted({protocol for protocols in AXES.values() for protocol in protocols})
STAGED = [spec for spec in kernels() if declared(spec).max_stages]
BULK = kernel("tma_bulk", "stream", excess_bytes=0)


def test_names_and_widths_are_those_of_the_header():
    assert declared(kernel("tma_tile", "chase", rank=2, wait="try_wait")).arguments == {
        "source": "uint64",
        "first": "uint64",
        "steps": "int32",
        "transfer_bytes": "int32",
        "log": "uint64",
        "dump": "uint64",
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_kernels_of_a_protocol_take_the_same_arguments(protocol):
    taken = {tuple(declared(spec).arguments.items()) for spec in kernels(protocol=protocol)}
    assert len(taken) == 1


def test_a_protocol_without_an_entry_of_its_own_passes_everything_through():
    spec = kernel("dsm_bulk", "pair")
    assert [one.name for one in assemble(spec).parameters] == [*declared(spec).arguments, "statuses"]


def test_an_entry_computes_what_it_names_and_passes_the_rest_in_the_headers_order():
    text, parameters = numba_side.compiled(
        "ring", (), "f", tuple(declared(cluster_pipeline.unicast_pipeline()).arguments.items()), "sm_90a"
    )
    called = re.search(r"call\.uni \(retval0\),\s+f,\s+\((.*?)\);", text, re.DOTALL)[1]
    assert called.count("param") == len(declared(cluster_pipeline.unicast_pipeline()).arguments)
    assert list(parameters)[:4] == ["source", "memory", "group", "scattered"]
    assert parameters["sums"] == "uint64" and parameters["lag_cycles"] == "int32"


def test_an_entry_that_gives_what_the_header_does_not_take_is_named():
    with pytest.raises(
        AssemblyError, match=r"entry.stream gives 'lane_offset', which the PTX function f does not"
    ):
        numba_side.compiled("stream", (0,), "f", (("source", "uint64"),), "sm_90a")
    with pytest.raises(AssemblyError, match=r"entry.ring takes 'source', which the PTX function does not"):
        numba_side.ptx(entry.ring(), "sm_90a", {})


PARAMETERS = (Parameter("source", "uint64"), Parameter("tiles", "int32"), Parameter("stages", "int32", 32))
GIVEN = {"source": 1 << 40, "tiles": 3, "stages": 4}


def test_arguments_are_packed_in_order_and_width():
    buffer = SimpleNamespace(address=0x7F00)
    packed = pack("k", PARAMETERS, {"stages": np.int64(4), "tiles": True, "source": buffer})
    assert packed == [0x7F00, 1, 4] and [one.dtype.name for one in packed] == ["uint64", "int32", "int32"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"tile": 3}, "k: no argument 'tile'; it takes source, tiles, stages"),
        ({"tiles": None}, "k: tiles is None: give a whole number"),
        ({"tiles": 2.5}, "k: tiles is 2.5: give a whole number"),
        ({"tiles": 1 << 31}, "k: tiles is 2147483648, which no int32 holds: give -2147483648 to 2147483647"),
        ({"source": -1}, "k: source is -1, which no uint64 holds"),
        ({"stages": 33}, "k: stages is 33, its PTX declares barriers for 32: give 1 to 32"),
        ({"stages": 0}, "k: stages is 0, its PTX declares barriers for 32: give 1 to 32"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(changed, says):
    with pytest.raises(BadArgument, match=re.escape(says)):
        pack("k", PARAMETERS, GIVEN | changed)


def test_a_missing_argument_is_named():
    with pytest.raises(LabError, match=re.escape("k: 'tiles' is missing; it takes source, tiles, stages")):
        pack("k", PARAMETERS, {"source": 0, "stages": 1})


def test_stages_have_as_many_barriers_as_the_ptx_declares():
    assert {declared(spec).max_stages for spec in STAGED} == {32}
    assert {spec.protocol for spec in STAGED} == {
        "stream",
        "pipeline",
        "gather",
        "ring",
        "exchange",
        "mainloop",
        "mixed",
        "prefetched",
    }
    unstaged = {(s.mechanism, dict(s.constants).get("completion")) for s in kernels(protocol="stream")} - {
        (s.mechanism, dict(s.constants).get("completion")) for s in STAGED if s.protocol == "stream"
    }
    assert unstaged == {("ldg", None), ("cp_async", "group")}


def test_the_first_warp_of_a_stream_with_barriers_consumes():
    assert is_warp_specialized(BULK)
    assert is_warp_specialized(kernel("cp_async", "stream", completion="mbarrier", chunks=1))
    assert not is_warp_specialized(kernel("cp_async", "stream", completion="group", depth=1, chunks=1))
    assert not is_warp_specialized(kernel("ldg", "stream", chunks=1, policy="nc"))


class Buffer:
    """Memory of no GPU: addresses that differ, zeros to read."""

    used = 0

    def __init__(self, nbytes):
        Buffer.used += 1
        self.nbytes, self.address = nbytes, 0x7F00_0000_0000 + 0x1000 * Buffer.used

    def write(self, *_):
        return self

    write_strided = set_bytes = write

    def read(self, dtype, count=None, offset_bytes=0):
        return np.zeros(self.nbytes // np.dtype(dtype).itemsize if count is None else count, dtype)

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def launched(monkeypatch):
    """A GPU that only writes down what a launch gives each kernel; and what it wrote."""
    found = []

    class Statuses(Buffer):
        def __init__(self, gpu, kernel, blocks):
            super().__init__(4 * blocks)

        def require_arrived(self):
            pass

    class Loaded:
        def __init__(self, built):
            self.built = built

        def config(self, *_):
            return None

        def blocks_per_sm(self, *_):
            return 1

        def resident_clusters(self, threads, shared_bytes, cluster):
            return 132 // cluster

        def launch(self, config, **arguments):
            pack(self.built.spec.name, self.built.parameters, arguments)
            found.append((self.built.spec, arguments))

    for module in (
        burst,
        chase,
        cluster_launch,
        contiguous,
        descriptors,
        drain,
        exchange,
        gather,
        cluster_pipeline,
        mainloop,
        mixed,
        stream,
        visibility,
    ):
        for name, stub in (("Buffer", Buffer), ("Statuses", Statuses), ("place", lambda *_: Buffer(128))):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stub)
    facts = SimpleNamespace(arch="sm_90a", sm_count=132, shared_bytes_per_block=227 * KIB)
    return SimpleNamespace(facts=facts, load=Loaded, launched=found)


MEMORY = Buffer(1 << 30)
PAGES = gather.Cache(256, 2, (700, 300), 64)


def launch_stream(gpu, spec, stages=3):
    constants = dict(spec.constants)
    threads = 160 if constants.get("completion") == "mbarrier" else 128 if spec.traits.by_threads else 64
    tile = 128 * 16 * constants.get("chunks", 2)
    shape = Pipeline(stages, threads=threads, shared_alignment_bytes=128)
    operand = linear_operand(132 * 8 * tile, tile, shape)
    if constants.get("rank", 1) > 1:
        middle = [1] * (constants["rank"] - 2)
        operand = Operand(4, (256, *middle, 1 << 14), (256, *middle, 8), pipeline=shape)
    elif "rank" in constants:
        operand = Operand(4, (1 << 20,), (256,), pipeline=shape)
    stream.Stream(gpu, stream.Configuration(spec, operand, "hbm"), MEMORY, 1).launch(7)


def launch_contiguous(gpu, spec, stages=4):
    constants = dict(spec.constants)
    chunks = constants.get("chunks", 4)
    if spec.protocol == "multistage":
        held = constants.get("depth", 2 * (constants.get("destination") == "shared"))
        shape = (128 * 16 * chunks, held + (constants.get("barriers") == 1), 128)
    else:
        copying = constants["producers"] if constants.get("share") == "together" else 1
        shape = (512 * chunks * copying, stages, 32 * (constants["producers"] + constants["consumers"]))
    one = cell.Cell(spec, "hbm", 1 << 24, *shape)
    contiguous.Contiguous(gpu, one, MEMORY, 1).launch(8)


def launch_mixed(gpu, spec, stages=4):
    one = mixed.MixedCell(spec, "hbm", 1 << 24, 2048, stages, 64, reused_bytes=1 << 20)
    mixed.Mixed(gpu, one, MEMORY, 1).launch(8)


def launch_drain(gpu, spec):
    row_bytes = 128 if dict(spec.constants).get("layout") == "fragments" else 512
    drain.BoundDrain(gpu, drain.Drain(spec, "l2", 1 << 24, 128, row_bytes), MEMORY).launch(3)


def launch_descriptor(gpu, spec):
    maps = np.zeros((4, 128), np.uint8)
    use = descriptors.Use(dict(spec.constants)["use"], "l2", 4)
    with pytest.raises(stream.WrongBytes):  # this GPU moves nothing
        descriptors.Descriptors(gpu, use, SimpleNamespace(buffer=MEMORY, seed=1), maps).cycles(8)


def launch_burst(gpu, spec):
    burst.Burst(gpu, spec, MEMORY, 1, warps=2).cycles(3)


def launch_chase(gpu, spec):
    constants = dict(spec.constants)
    nbytes = 16 if constants.get("destination") == "register" else 512 * constants.get("chunks", 1)
    chase.Chase(gpu, spec, chase.Chain(MEMORY, 20, 8192, 1), min(nbytes, 2048)).cycles(5)


def launch_ring(gpu, spec, stages=4):
    constants = dict(spec.constants)
    source = "computed" if constants.get("origin") == "computed" else "l2"
    c = cluster_pipeline.PipelineConfiguration(
        spec, int(constants.get("group", 4)), source, 32 * KIB, stages, 1 << 24
    )
    cluster_pipeline.ClusterPipeline(gpu, c, MEMORY, 1).launch(9)


def launch_exchange(gpu, spec, stages=2):
    c = exchange.ExchangeConfiguration(spec, 4, "all_to_all", 1024, 512, stages, 64)
    exchange.Exchange(gpu, c).launch(5)


def launch_gather(gpu, spec, stages=2):
    constants = dict(spec.constants)
    cache = gather.Cache(constants["row_bytes"], 1, (700, 300), 64)
    segments = cache.segments(constants["tile_rows"])
    gather.Gather(gpu, spec, cache, MEMORY, lambda at: at, segments, 64, 1, stages).launch()


def launch_visibility(gpu, spec):
    with pytest.raises(stream.WrongBytes):  # this GPU moves nothing
        visibility.sight(gpu, spec, 4, 2, 1024, 3, MEMORY, 1)


def launch_mainloop(gpu, spec, stages=4):
    c = mainloop.MainLoopConfiguration(spec, stages)
    mainloop.MainLoop(gpu, c, mainloop.Operands([c], gpu.facts.sm_count)).launch(32)


LAUNCH = {
    "stream": launch_stream,
    "multistage": launch_contiguous,
    "pipeline": launch_contiguous,
    "prefetched": launch_contiguous,
    "mixed": launch_mixed,
    "drain": launch_drain,
    "descriptor": launch_descriptor,
    "chase": launch_chase,
    "burst": launch_burst,
    "issue": lambda gpu, spec: chase.IssueBurst(gpu, spec, MEMORY, 512).cycles(4, 2),
    "ring": launch_ring,
    "exchange": launch_exchange,
    "gather": launch_gather,
    "mainloop": launch_mainloop,
    "pair": lambda gpu, spec: exchange.pair_cycles(gpu, spec, 4, 1, 2, 64, 5),
    "arrival": lambda gpu, spec: exchange.arrivals(gpu, spec, 4, 15, 1024, 5, MEMORY),
    "visibility": launch_visibility,
}


def test_every_protocol_is_launched_below():
    assert sorted(LAUNCH) == PROTOCOLS


@pytest.mark.parametrize(
    "spec", [kernels(m, p)[0] for m, protocols in AXES.items() for p in protocols], ids=str
)
def test_a_protocol_gives_its_kernels_every_argument_they_take(launched, spec):
    LAUNCH[spec.protocol](launched, spec)
    assert launched.launched and launched.launched[-1][0] == spec


ONE_STAGED_OF_EACH = {spec.protocol: spec for spec in reversed(STAGED)}


@pytest.mark.parametrize("stages", [0, 33, 64])
@pytest.mark.parametrize("spec", ONE_STAGED_OF_EACH.values(), ids=lambda spec: spec.name)
def test_more_stages_than_barriers_are_refused_before_a_launch(launched, spec, stages):
    says = (
        "pipeline.stages|stages is 0"
        if stages == 0
        else f"stages is {stages}, its PTX declares barriers for 32"
    )
    with pytest.raises(ValueError, match=says):
        LAUNCH[spec.protocol](launched, spec, stages=stages)
    assert not launched.launched


def test_without_barriers_stages_have_no_such_limit(launched):
    launch_stream(launched, kernel("ldg", "stream", chunks=1, policy="nc"), stages=64)
    assert launched.launched


KIND = re.compile(r"(?:or|mov)\.b(?:32|64)\s+(?:status|result),\s+(?:stage,\s+)?(0x[0-9a-f]+|[1-9]\d*);")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_kind_of_barrier_that_a_kernel_reports_has_a_name(protocol):
    text = "".join(render(spec, "sm_90a") for spec in kernels(protocol=protocol))
    said = [int(word, 0) for word in KIND.findall(text)]
    found = {(word >> 32 if word >> 32 else word) >> 8 for word in said}
    assert found <= BARRIERS.keys()
    assert bool(found) == ("_wait.parity" in text), "a wait that gives up says of which barrier"


def test_no_two_barriers_have_one_name():
    assert len({*BARRIERS.values()}) == len(BARRIERS)
