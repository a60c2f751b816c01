"""What does a tensor map cost: where it lies, how many there are, prefetched rewritten on the device?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from labkernels.device import Buffer, Gpu, Statuses
from labkernels.device.random_fill import random_words
from labkernels.device.tensor_map import encode
from labkernels.kernels.build import assemble
from labkernels.kernels.registry import kernel
from labkernels.operand import WARP, Operand, Pipeline
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.memory import Memory
from labkernels.protocols.rounds import timed_rounds
from labkernels.protocols.stream import STAGE_ALIGNMENT_BYTES, WrongBytes

ROW_BYTES = 128  # of a copy
STRIDE = 1237  # from a map to the next that is used: odd, so that all are used, and no prefetcher guesses it
WARM_UP_STEPS = 8


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        maps: tensor maps that a block uses in turns, powers of two.
        many: of which block and copy engine have none at hand: for prefetches, and maps from memory.
        ahead_cycles: from a prefetch to the copy.
        steps: copies of a block in a launch.
        rounds: launches of each.
    """

    maps: tuple[int, ...]
    many: int = 4096
    ahead_cycles: tuple[int, ...] = (0, 100, 200, 300, 400, 600, 800, 1200)
    steps: int = 4096
    rounds: int = 9


PRESETS = {
    "quick": Parameters((1, 8, 16, 32, 64, 4096), ahead_cycles=(0, 400, 1200), rounds=5),
    "full": Parameters(tuple(2**n for n in range(13))),
}


@dataclass(frozen=True)
class Use:
    """How maps are used.

    Attributes:
        use: constant of the kernel.
        source: where the maps lie when the timed part begins, `l2` or `hbm`; the rows lie in L2.
        maps: of a block.
        ahead_cycles: from a prefetch to its copy; as long a pause without one.
        blocks: that work at once, each with maps of its own.
    """

    use: str
    source: str
    maps: int
    ahead_cycles: int = 0
    blocks: int = 1


def uses(parameters: Parameters, sm_count: int) -> Iterator[Use]:
    """All that is compared."""
    for maps in parameters.maps:
        yield Use("plain", "l2", maps)
    yield Use("plain", "hbm", parameters.many)
    for source, ahead in product(("l2", "hbm"), parameters.ahead_cycles):
        yield Use("prefetch", source, parameters.many, ahead)
    yield from (Use("replace", "l2", parameters.many, blocks=blocks) for blocks in (1, sm_count))


class Descriptors:
    """A use of maps ready to run.

    Args:
        gpu: where.
        use: what.
        memory: its first bytes are the rows.
        maps: the maps of the rows, in turn.
    """

    def __init__(self, gpu: Gpu, use: Use, memory: Memory, maps: np.ndarray) -> None:
        self.gpu, self.use, self.memory = gpu, use, memory
        self.kernel = assemble(kernel("tma_tile", "descriptor", use=use.use), gpu.facts.arch)
        self._loaded = gpu.load(self.kernel)
        self._host = np.tile(maps[: use.maps], (use.blocks, 1))
        self._maps = Buffer(self._host.nbytes).write(self._host)
        self._statuses = Statuses(gpu, self.kernel.spec.name, use.blocks)
        self._config = self._loaded.config(use.blocks, WARP, ROW_BYTES + STAGE_ALIGNMENT_BYTES)

    def cycles(self, steps: int) -> np.ndarray:
        """Cycles of every copy: shape (blocks, steps, 3), until replaced, published, arrived.

        Raises:
            WrongBytes: a copy brought another row than its map's.
            StalledWait: a copy never arrived.
        """
        use = self.use
        with Buffer(16 * use.blocks * steps) as log:
            log.set_bytes(0xFF)
            self._loaded.launch(
                self._config,
                source=self._maps,
                rows=self.memory.buffer,
                maps=use.maps,
                stride=STRIDE,
                steps=steps,
                ahead=use.ahead_cycles,
                log=log,
                statuses=self._statuses,
            )
            self._statuses.require_arrived()
            logged = log.read(np.uint32).reshape(use.blocks, steps, 4)
        number = np.arange(steps) * STRIDE % use.maps
        expected = random_words(number * (ROW_BYTES // 4), self.memory.seed)
        if not np.array_equal(logged[:, :, 3], np.broadcast_to(expected, logged.shape[:2])):
            block, step = np.argwhere(logged[:, :, 3] != expected)[0]
            raise WrongBytes(
                f"{self.kernel.spec.name}: copy {step} of block {block} brought the row of another map"
            )
        return logged[:, :, :3]

    def row(self, steps: int) -> dict[str, Any]:
        """The row of one launch, its maps and rows brought to where they are to be."""
        if self.use.source == "hbm":
            self.memory.evict()
            self.memory.warm(max(self.use.maps * ROW_BYTES, 1 << 20))
            steps = min(steps, self.use.maps)
        else:
            self.cycles(steps)
        cycles = self.cycles(steps)[:, WARM_UP_STEPS:].reshape(-1, 3)
        replaced, published, arrived = np.median(cycles, axis=0)
        low, high = np.quantile(cycles[:, 2], (0.05, 0.95))
        return {
            "kernel": self.kernel.spec.name,
            **vars(self.use),
            "samples": len(cycles),
            "replaced_cycles": replaced,
            "published_cycles": published,
            "arrived_cycles": arrived,
            "arrived_cycles_p05": low,
            "arrived_cycles_p95": high,
        }

    def close(self) -> None:
        """Free what it holds on the GPU."""
        self._maps.close()
        self._statuses.close()


def _maps(memory: Memory, count: int) -> np.ndarray:
    """A tensor map of each row of memory, shape (count, 128)."""
    pipeline = Pipeline(shared_alignment_bytes=128)
    one = Operand(
        8, (ROW_BYTES // 8, 1), (ROW_BYTES // 8, 1), base_alignment_bytes=ROW_BYTES, pipeline=pipeline
    )
    return np.stack([encode(one, memory.buffer.address + n * ROW_BYTES) for n in range(count)])


def _measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    most = max(*parameters.maps, parameters.many)
    memory = Memory(gpu, max(most * ROW_BYTES, 1 << 20))
    maps = _maps(memory, most)
    ready = [Descriptors(gpu, use, memory, maps) for use in uses(parameters, gpu.facts.sm_count)]
    for one in progress(ready, "check"):
        one.cycles(parameters.steps)
    rows = timed_rounds(ready, lambda one: one.row(parameters.steps), parameters.rounds, progress)
    for one in ready:
        one.close()
    memory.close()
    return Result({"descriptors": rows}, [one.kernel for one in ready])


EXPERIMENT = Experiment(
    "descriptors", "What does a tensor map cost?", ("descriptors",), PRESETS, _measure, needs(Gpu)
)
