"""Experiments that time streams or rings: axes and configurations in, every byte checked, all timed in every round."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from labkernels.device import Buffer, Gpu
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.memory import Memory
from labkernels.protocols.ring import ClusterRing, RingConfiguration
from labkernels.protocols.rounds import timed_rounds
from labkernels.protocols.stream import Configuration, Stream


def stream_experiment(
    name: str,
    question: str,
    presets: Mapping[str, Any],
    configurations: Callable[[Any, int], Iterable[Configuration]],
    table: str = "throughput",
    describe: Callable[[Configuration], dict[str, Any]] = lambda configuration: {},
) -> Experiment:
    """Streams timed side by side.

    Configurations of which an SM cannot hold `ctas_per_sm` blocks are left out: they would measure another number.

    Args:
        name: as in `Experiment`.
        question: as in `Experiment`.
        presets: parameter sets with `bytes_moved` by each timed launch, at least, and `rounds`.
        configurations: what to run, of a parameter set and a number of SMs.
        table: where the rows go.
        describe: further columns of a configuration's rows.
    """

    def measure(gpu: Gpu, parameters: Any, progress: Progress) -> Result:
        chosen = list(configurations(parameters, gpu.facts.sm_count))
        memory = Memory(gpu, max(c.operand.footprint_bytes for c in chosen))
        bound = (Stream(gpu, c, memory.buffer, memory.seed) for c in progress(chosen, "check"))
        streams = [
            _checked(one)
            for one in bound
            if one.resident_ctas_per_sm >= one.configuration.operand.ring.ctas_per_sm
        ]

        def once(stream: Stream) -> dict[str, Any]:
            if stream.configuration.source == "l2":
                stream.warm()
            return stream.timed(stream.tiles_for(parameters.bytes_moved)) | describe(stream.configuration)

        rows = timed_rounds(streams, once, parameters.rounds, progress)
        return _finished(table, rows, streams, parameters.bytes_moved, memory)

    return Experiment(name, question, (table,), presets, measure, needs(Gpu))


def ring_experiment(
    name: str,
    question: str,
    presets: Mapping[str, Any],
    configurations: Callable[[Any], Iterable[RingConfiguration]],
) -> Experiment:
    """Rings timed side by side.

    Args:
        name: as in `Experiment`.
        question: as in `Experiment`.
        presets: parameter sets with `bytes_per_cta` brought by each timed launch, at least, and `rounds`.
        configurations: what to run, of a parameter set.
    """

    def measure(gpu: Gpu, parameters: Any, progress: Progress) -> Result:
        chosen = list(configurations(parameters))
        memory = Memory(gpu, max(c.footprint_bytes for c in chosen))
        made = max((c.footprint_bytes for c in chosen if c.source == "computed"), default=16)
        with Buffer(made) as scratch:
            rings = [
                _checked(
                    ClusterRing(gpu, c, scratch if c.source == "computed" else memory.buffer, memory.seed)
                )
                for c in progress(chosen, "check")
            ]

            def once(ring: ClusterRing) -> dict[str, Any]:
                ring.place_source(memory)
                return ring.timed(ring.tiles_for(parameters.bytes_per_cta))

            rows = timed_rounds(rings, once, parameters.rounds, progress)
            return _finished("cluster_ring", rows, rings, parameters.bytes_per_cta, memory)

    return Experiment(name, question, ("cluster_ring",), presets, measure, needs(Gpu))


def rings_ready(
    gpu: Gpu, configurations: Iterable[RingConfiguration], bytes_per_cta: int
) -> Iterator[tuple[ClusterRing, int]]:
    """Rings one after the other, each with the tiles to launch, over memory that is where it is to be."""
    chosen = list(configurations)
    memory = Memory(gpu, max(c.footprint_bytes for c in chosen))
    for configuration in chosen:
        ring = ClusterRing(gpu, configuration, memory.buffer, memory.seed)
        ring.place_source(memory)
        yield ring, ring.tiles_for(bytes_per_cta)
    memory.close()


def _checked(bound: Any) -> Any:
    bound.check()
    return bound


def _finished(
    table: str, rows: list[dict[str, Any]], bound: list[Any], amount: int, memory: Memory
) -> Result:
    """A last launch of each, as timed, with what its threads read compared; then all is freed."""
    for one in bound:
        one.require_arrived()
        one.launch(tiles := one.tiles_for(amount))
        one.require_arrived()
        one.check_sums(tiles)
        one.close()
    memory.close()
    return Result({table: rows}, [one.kernel for one in bound])
