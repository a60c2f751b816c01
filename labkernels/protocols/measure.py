"""Experiments that time streams or cluster pipelines: configurations in, every byte checked, interleaved rounds."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from labkernels.device import Buffer, Gpu
from labkernels.protocols.cell import Cell
from labkernels.protocols.cluster_pipeline import ClusterPipeline, PipelineConfiguration
from labkernels.protocols.contiguous import Contiguous
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.memory import Memory
from labkernels.protocols.rounds import timed_rounds
from labkernels.protocols.stream import Configuration, Stream

Columns = dict[str, Any]


def stream_experiment(
    name: str,
    question: str,
    presets: Mapping[str, Any],
    configurations: Callable[[Any, int], Iterable[Configuration | Cell]],
    table: str = "throughput",
    describe: Callable[[Any], Columns] = lambda configuration: {},
    bind: Callable[[Gpu, Any, Buffer, int], Stream | Contiguous] | None = None,
) -> Experiment:
    """Streams side by side, of a parameter set (with `bytes_moved` by a launch, at least, and `rounds`) and SMs.

    A launch with `bytes_moved` of 0 reads its footprint once.

    Configurations of which an SM cannot hold `ctas_per_sm` blocks are left out: they would measure another number.
    `describe` gives further columns of a configuration, `bind` makes one ready to run (a `Stream` by default).
    """

    def measure(gpu: Gpu, parameters: Any, progress: Progress) -> Result:
        chosen = list(configurations(parameters, gpu.facts.sm_count))
        memory = Memory(gpu, max(c.operand.footprint_bytes for c in chosen))
        bound = ((bind or Stream)(gpu, c, memory.buffer, memory.seed) for c in progress(chosen, "check"))
        held = (s for s in bound if s.resident_ctas_per_sm >= s.configuration.operand.pipeline.ctas_per_sm)
        return _timed(table, held, memory, parameters.bytes_moved, parameters.rounds, progress, describe)

    return Experiment(name, question, (table,), presets, measure, needs(Gpu))


def pipeline_experiment(
    name: str,
    question: str,
    presets: Mapping[str, Any],
    configurations: Callable[[Any], Iterable[PipelineConfiguration]],
) -> Experiment:
    """Pipelines side by side, of a parameter set (with `bytes_per_cta` brought by a launch, at least, and `rounds`)."""

    def measure(gpu: Gpu, parameters: Any, progress: Progress) -> Result:
        chosen = list(configurations(parameters))
        memory = Memory(gpu, max(c.footprint_bytes for c in chosen))
        with Buffer(max((c.footprint_bytes for c in chosen if c.source == "computed"), default=16)) as made:
            pipelines = (
                ClusterPipeline(gpu, c, made if c.source == "computed" else memory.buffer, memory.seed)
                for c in progress(chosen, "check")
            )
            amount, rounds = parameters.bytes_per_cta, parameters.rounds
            return _timed("cluster_ring", pipelines, memory, amount, rounds, progress)

    return Experiment(name, question, ("cluster_ring",), presets, measure, needs(Gpu))


def pipelines_ready(
    configurations: Callable[[Any], Iterable[PipelineConfiguration]],
) -> Callable[[Gpu, Any], Iterator[tuple[ClusterPipeline, int]]]:
    """For `counted_experiment`: pipelines one by one, with the tiles to launch, the source where it is to be."""

    def ready(gpu: Gpu, parameters: Any) -> Iterator[tuple[ClusterPipeline, int]]:
        chosen = list(configurations(parameters))
        memory = Memory(gpu, max(c.footprint_bytes for c in chosen))
        for configuration in chosen:
            pipeline = ClusterPipeline(gpu, configuration, memory.buffer, memory.seed)
            pipeline.place_source(memory)
            yield pipeline, pipeline.tiles_for(parameters.bytes_per_cta)
        memory.close()

    return ready


def _timed(
    table: str,
    bound: Iterable[Stream] | Iterable[ClusterPipeline],
    memory: Memory,
    amount: int,
    rounds: int,
    progress: Progress,
    describe: Callable[[Any], Columns] = lambda configuration: {},
) -> Result:
    """All are checked; then timed in every round; then launched once more, what their threads read compared."""
    ready = []
    for one in bound:
        one.check()
        ready.append(one)

    def tiles_of(one: Any) -> int:
        return one.tiles_for(amount or one.configuration.footprint_bytes)

    def once(one: Any) -> Columns:
        one.place_source(memory)
        return one.timed(tiles_of(one)) | describe(one.configuration)

    rows = timed_rounds(ready, once, rounds, progress)
    for one in ready:
        one.require_arrived()
        one.launch(tiles := tiles_of(one))
        one.require_arrived()
        one.check_sums(tiles)
        one.close()
    memory.close()
    return Result({table: rows}, [one.kernel for one in ready])
