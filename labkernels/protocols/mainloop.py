"""The main loop of a matrix product on the GPU: whoever brings its tiles, every accumulator checked, then timed."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from labkernels.device import Buffer, Gpu, Statuses
from labkernels.device.tensor_map import place
from labkernels.errors import BadArgument
from labkernels.kernels.registry import KernelSpec
from labkernels.kernels.render import declared
from labkernels.operand import Operand, Pipeline, Swizzle
from labkernels.protocols.cluster_launch import ClusterLaunch
from labkernels.protocols.stream import POISON, STAGE_ALIGNMENT_BYTES, WrongBytes

STEP_BYTES = 128  # of a row, along K
WGMMA_STEPS = 4  # of 16 bf16 each
LAP = 32  # steps of a product
PITCH_BYTES = LAP * STEP_BYTES
CONSUMERS = 256  # threads
USUAL_BYTES = 192 << 10  # of a pipeline: all have it, if no other is asked for
HBM_BYTES = 240 << 20  # four times the largest L2 (60 MB)
FLOP_PER_CLOCK_PER_SM = {"wgmma": 4096, "fma": 256}  # dense bf16 of tensor cores; FFMA
TOLERANCE = 0.05  # of sums of 2,048 products of 0.56 on average, in float32


@cache
def operands(rows: int, seed: int, zeros: bool = False) -> np.ndarray:
    """Rows of 2,048 random bf16 of magnitude 0.5 to 1 and either sign, as uint16; or zeros."""
    if zeros:
        return np.zeros((rows, PITCH_BYTES // 2), np.uint16)
    words = np.random.default_rng(seed).integers(0, 1 << 16, (rows, PITCH_BYTES // 2), np.uint16)
    return words & np.uint16(0x807F) | np.uint16(0x3F00)


def as_float32(bf16: np.ndarray) -> np.ndarray:
    """What bf16 in uint16 stand for."""
    return (bf16.astype(np.uint32) << 16).view(np.float32)


def grid(sm_count: int) -> tuple[int, int]:
    """Tiles of A and of B for a block per SM: as square as can be, A's even, so that clusters share a tile of B."""
    rows = min(
        (n for n in range(2, sm_count + 1, 2) if sm_count % n == 0), key=lambda n: abs(n * n - sm_count)
    )
    return rows, sm_count // rows


@dataclass(frozen=True)
class MainLoopConfiguration:
    """A kernel of protocol `mainloop` and what it reads.

    Attributes:
        spec: the kernel.
        stages: of its pipeline.
        source: `l2`: all products are of the same panel of A and B; `hbm`: of panels that L2 cannot hold.
        data: `random` or `zeros`.
        is_one_tile: whether all CTAs multiply the same tiles, those of the first.
    """

    spec: KernelSpec
    stages: int
    source: str = "l2"
    data: str = "random"
    is_one_tile: bool = False

    @cached_property
    def constants(self) -> dict[str, Any]:
        """The kernel's compile-time constants."""
        return dict(self.spec.constants)

    @property
    def stage_bytes(self) -> int:
        """Bytes of A and B that a step takes."""
        return (self.constants["m"] + self.constants["n"]) * STEP_BYTES

    @property
    def is_packed(self) -> bool:
        """Whether the tile of each step is one run of memory."""
        return self.constants.get("pitch_bytes") == STEP_BYTES

    @property
    def memory(self) -> tuple[str, int]:
        """What memory it reads, as `Operands` has it: the data, and rows of a packed tile, or 0."""
        return self.data, self.constants["m"] if self.is_packed else 0

    @property
    def turns(self) -> int:
        """Groups of producers that bring whole tiles in turn."""
        return self.constants.get("turns", 1)

    @property
    def least_stages(self) -> int:
        """Stages without which it would stand still: a tile is brought, one is read, some are handed over late."""
        return 2 + self.constants.get("behind", 0)

    @property
    def is_usual(self) -> bool:
        """Whether its pipeline takes the shared memory that all of them take."""
        return self.stages * self.stage_bytes == USUAL_BYTES

    @property
    def is_alone(self) -> bool:
        """Whether the consumer works on tiles that stay where they are."""
        return self.constants.get("copies") == "first"

    @property
    def cluster(self) -> int:
        """CTAs that share a tile of B."""
        return 2 if self.spec.traits.crosses_ctas else 1

    @property
    def depth(self) -> int:
        """Of the wgmma that a step has along K, those that are computed."""
        return self.constants["work"] or WGMMA_STEPS

    @property
    def flop_per_step(self) -> int:
        """Of a CTA; an FFMA is two."""
        of = self.constants
        per_word = {"fma": 2 * of["work"], "none": 0}
        if of["compute"] in per_word:
            return self.stage_bytes // 4 * per_word[of["compute"]]
        return of["m"] * of["n"] * STEP_BYTES * self.depth // WGMMA_STEPS

    @property
    def bound_cycles(self) -> int:
        """Cycles of a step, if the SM did nothing but compute."""
        return self.flop_per_step // FLOP_PER_CLOCK_PER_SM.get(self.constants["compute"], 1)

    def panel_rows(self, sm_count: int) -> tuple[int, int]:
        """Rows of A and of B that a product of the whole grid reads."""
        return tuple(n * self.constants[side] for n, side in zip(grid(sm_count), "mn", strict=True))

    def panels(self, sm_count: int) -> int:
        """Products of different rows, one after the other."""
        panel_bytes = sum(self.panel_rows(sm_count)) * PITCH_BYTES
        return -(-HBM_BYTES // panel_bytes) if self.source == "hbm" else 1

    def require_runnable(self) -> None:
        """Check the numbers before anything is launched.

        Raises:
            BadArgument: names the value, the limit and the fix.
        """
        declared(self.spec).require(stages=self.stages)
        if self.stages < self.least_stages or self.stages % self.turns:
            raise BadArgument(
                f"{self.spec.name}: {self.stages} stages for {self.turns} producers in turn; give a multiple of that, "
                f"and at least {self.least_stages}"
            )


class MainLoop:
    """A configuration ready to run.

    Args:
        gpu: where.
        configuration: what.
        memory: A and B.

    Raises:
        BadArgument: it does not fit the GPU; see also `MainLoopConfiguration.require_runnable`.
    """

    def __init__(self, gpu: Gpu, configuration: MainLoopConfiguration, memory: "Operands") -> None:
        configuration.require_runnable()
        self.gpu, self.configuration, self.memory = gpu, configuration, memory
        c, of = configuration, configuration.constants
        shared_bytes = c.stages * c.stage_bytes + STAGE_ALIGNMENT_BYTES
        self._launch = ClusterLaunch(gpu, c.spec, c.spec.mainloop_threads, shared_bytes, c.cluster)
        self.kernel = self._launch.kernel
        self.blocks = gpu.facts.sm_count
        if self._launch.resident_clusters * c.cluster < self.blocks:
            raise BadArgument(
                f"{c.spec.name}: this GPU holds {self._launch.resident_clusters} clusters of {c.cluster} at once, "
                f"{self.blocks // c.cluster} are needed; give a smaller cluster"
            )
        self.grid, self.panels = grid(self.blocks), c.panels(self.blocks)
        self._panel_rows = c.panel_rows(self.blocks)
        self._maps = []
        if c.spec.traits.takes_tensor_map:
            swizzle = Swizzle(of["span"] if of["span"] > 16 else 0)
            boxes = (of["m"], of["n"] // c.cluster)
            for rows, box, buffer in zip(self._panel_rows, boxes, memory.buffers[c.memory], strict=True):
                shape = (PITCH_BYTES // 2, rows * self.panels)
                pipeline = Pipeline(c.stages, threads=c.spec.mainloop_threads)
                operand = Operand(2, shape, (of["span"] // 2, box), swizzle=swizzle, pipeline=pipeline)
                self._maps.append(place(operand, buffer.address))
        self._log = Buffer(4 * self.blocks)
        self._statuses = Statuses(gpu, c.spec.name, self.blocks)
        self._config = self._launch.config(self.blocks)

    @property
    def accumulators(self) -> int:
        """Of a consuming thread."""
        of = self.configuration.constants
        return {"wgmma": of["m"] * of["n"] // CONSUMERS}.get(of["compute"], of["work"])

    def launch(self, tiles: int, dump: int = 0) -> None:
        """Queue one launch of so many steps, a multiple of `LAP`; `dump` is the address for the accumulators, or 0."""
        a, b = self._maps or self.memory.buffers[self.configuration.memory]
        unit = 1 if self._maps else PITCH_BYTES
        self._launch.launch(
            self._config,
            a=a,
            b=b,
            grid_rows=1 if self.configuration.is_one_tile else self.grid[0],
            grid_columns=1 if self.configuration.is_one_tile else self.grid[1],
            lap=LAP,
            panels=self.panels,
            a_panel=self._panel_rows[0] * unit,
            b_panel=self._panel_rows[1] * unit,
            pitch=STEP_BYTES if self.configuration.is_packed else PITCH_BYTES,
            tiles=tiles,
            stages=self.configuration.stages,
            dump=dump,
            log=self._log,
            statuses=self._statuses,
        )

    def require_arrived(self) -> None:
        """Wait for the launches; see `Statuses.require_arrived`."""
        self._statuses.require_arrived()

    def check(self, laps: int = 3) -> None:
        """Run with poisoned memory for the accumulators and compare all of them, of every block; without, only run.

        Raises:
            WrongBytes: with the block of the first difference.
            StalledWait: a barrier was never completed.
        """
        shape = (self.blocks, CONSUMERS, self.accumulators)
        if not self.accumulators:
            self.launch(laps * LAP)
            return self.require_arrived()
        with Buffer(4 * int(np.prod(shape))) as dump:
            dump.set_bytes(POISON)
            self.launch(laps * LAP, dump.address)
            self.require_arrived()
            found = dump.read(np.float32).reshape(shape)
        of = self.configuration.constants
        if of["compute"] == "wgmma":
            found, expected, tolerance = self._by_rows(found), self._products(laps), TOLERANCE
        else:
            found, expected = found.sum(axis=1, dtype=np.float64), self._sums(laps)
            tolerance = TOLERANCE * 10 * laps
        wrong = ~(np.abs(found - expected) <= tolerance)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            raise WrongBytes(
                f"{self.configuration.spec.name}: {wrong.mean():.1%} of the accumulators are wrong; block {at[0]}, "
                f"{at[1:]}: {found[at]}, NumPy has {expected[at]}"
            )

    def check_sums(self, tiles: int) -> None:
        """Check launches of that length; see `check`."""
        self.check(tiles // LAP)

    def _by_rows(self, found: np.ndarray) -> np.ndarray:
        """Accumulators as matrices, shape (blocks, m, n): PTX ISA, wgmma's fragment of D."""
        of = self.configuration.constants
        parts = found.reshape(self.blocks, 2, 4, 8, 4, of["m"] // 128, of["n"] // 8, 2, 2)
        # warpgroup, warp, row of 8, pair of columns, instruction, 8 columns, 8 rows lower, column of the pair
        return parts.transpose(0, 1, 5, 2, 7, 3, 6, 4, 8).reshape(self.blocks, of["m"], of["n"])

    def _products(self, laps: int) -> np.ndarray:
        """The last product of each block, shape (blocks, m, n)."""
        of = self.configuration.constants
        product = self.memory.product(self._panel_rows, self.configuration.depth, *self._last(laps))
        tiled = product.reshape(self.grid[0], of["m"], self.grid[1], of["n"])
        blocks = tiled.transpose(2, 0, 1, 3).reshape(self.blocks, of["m"], of["n"])
        return np.broadcast_to(blocks[:1], blocks.shape) if self.configuration.is_one_tile else blocks

    def _sums(self, laps: int) -> np.ndarray:
        """What FFMA add up to in each block over all products, by weight, shape (blocks, weights)."""
        total = np.zeros(self.grid[::-1])
        for lap in range(1, laps + 1):
            a, b = (
                self.memory.words(operand, self._panel_rows[operand], *self._last(lap))
                .reshape(self.grid[operand], -1)
                .sum(axis=1, dtype=np.float64)
                for operand in (0, 1)
            )
            total += b[:, None] + a[None, :]
        return total.reshape(-1, 1) * (1 + np.arange(self.configuration.constants["work"]) / 64)

    def _last(self, laps: int) -> tuple[str, int, tuple[int, ...]]:
        """Of the last of so many products: the data, the panel and the steps along K that its tiles are of."""
        c = self.configuration
        steps = np.arange((laps - 1) * LAP, laps * LAP) % c.stages if c.is_alone else np.arange(LAP)
        return c.data, 0 if c.is_alone else (laps - 1) % self.panels, tuple(steps.tolist())

    def timed(self, tiles: int) -> dict[str, Any]:
        """The row of one timed launch."""
        with self.gpu.timed() as elapsed:
            self.launch(tiles)
        return self.row(tiles) | self.rates(elapsed(), tiles)

    def rates(self, duration_us: float, tiles: int) -> dict[str, Any]:
        """Columns of launches of that length: rate and clock; cycles are those of the last."""
        cycles = self._log.read(np.uint32)
        flop = self.blocks * tiles * self.configuration.flop_per_step
        return {
            "duration_us": round(duration_us, 3),
            "tflops": round(flop / duration_us / 1e6, 2),
            "cycles_per_step": round(float(np.median(cycles)) / tiles, 2),
            "slowest_cycles_per_step": round(int(cycles.max()) / tiles, 2),
            "clock_mhz": round(int(cycles.max()) / duration_us, 1),
        }

    def row(self, tiles: int) -> dict[str, Any]:
        """What describes this configuration in a table."""
        c, of = self.configuration, self.configuration.constants
        return {
            "kernel": c.spec.name,
            "mechanism": "none" if c.is_alone else c.spec.mechanism,
            "compute": of["compute"],
            "ffma_per_word": of["work"] if of["compute"] == "fma" else 0,
            "wgmma_per_step": c.depth if of["compute"] == "wgmma" else 0,
            "tile_m": of["m"],
            "tile_n": of["n"],
            "swizzle_bytes": of["span"] if of["span"] > 16 else 0,
            "stages": c.stages,
            "stage_bytes": c.stage_bytes,
            "producer_warps": of["producers"],
            "turns": c.turns,
            "handover": of.get("handover", "bytes" if self._maps else "store"),
            "lanes": of.get("lanes", "rows"),
            "behind": of.get("behind", 0),
            "pitch_bytes": of.get("pitch_bytes", PITCH_BYTES),
            "producer_registers": of["producer_registers"],
            "consumer_registers": of["consumer_registers"],
            "threads": c.spec.mainloop_threads,
            "registers": self.kernel.registers,
            "cluster": c.cluster,
            "source": c.source,
            "data": c.data,
            "tiles": "one" if c.is_one_tile else "grid",
            "footprint_bytes": self.panels * sum(self._panel_rows) * PITCH_BYTES,
            "steps": tiles,
            "flop_per_step": c.flop_per_step,
            "bound_cycles_per_step": c.bound_cycles,
        }

    def close(self) -> None:
        """Free what the configuration holds on the GPU."""
        for buffer in (*self._maps, self._log, self._statuses):
            buffer.close()


class Operands:
    """A and B in device memory, as many rows as any of some configurations reads; the first rows repeat in the rest.

    Args:
        configurations: who reads.
        sm_count: of the GPU.
    """

    SEED_ROWS = 8192

    def __init__(self, configurations: Iterable[MainLoopConfiguration], sm_count: int) -> None:
        self.buffers: dict[tuple[str, int], tuple[Buffer, ...]] = {}
        self._products: dict[tuple, np.ndarray] = {}
        needed: dict[tuple[str, int], np.ndarray] = {}
        for one in configurations:
            rows = np.array(one.panel_rows(sm_count)) * one.panels(sm_count)
            needed[one.memory] = np.maximum(needed.get(one.memory, 0), rows)
        for (data, packed), rows in needed.items():
            self.buffers[data, packed] = tuple(Buffer(int(n) * PITCH_BYTES) for n in rows)
            for operand, n in enumerate(rows.tolist()):
                for at in range(0, n, self.SEED_ROWS):
                    block = self.rows(operand, data, at, min(self.SEED_ROWS, n - at))
                    if packed:
                        block = block.reshape(-1, packed, LAP, STEP_BYTES // 2).swapaxes(1, 2)
                    self.buffers[data, packed][operand].write(block, at * PITCH_BYTES)

    def rows(self, operand: int, data: str, first: int, count: int) -> np.ndarray:
        """Rows of A (0) or B (1), as NumPy has them: bf16 in uint16, shape (count, elements)."""
        block = operands(self.SEED_ROWS, operand + 1, data == "zeros")
        return block[np.arange(first, first + count) % self.SEED_ROWS]

    def words(self, operand: int, count: int, data: str, panel: int, steps: tuple[int, ...]) -> np.ndarray:
        """Rows of a panel as FFMA take them, some steps of each: float32, shape (count, words)."""
        rows = self.rows(operand, data, panel * count, count).reshape(count, LAP, -1)[:, list(steps)]
        return np.ascontiguousarray(rows.reshape(count, -1)).view(np.float32)

    def product(
        self, count: tuple[int, int], depth: int, data: str, panel: int, steps: tuple[int, ...]
    ) -> np.ndarray:
        """A panel of A times one of B transposed, of some steps along K the first wgmma: float32."""
        key = (count, depth, data, panel, steps)
        if key not in self._products:
            a, b = (
                as_float32(
                    self.rows(operand, data, panel * n, n).reshape(n, LAP, -1)[:, list(steps), : 16 * depth]
                ).reshape(n, -1)
                for operand, n in enumerate(count)
            )
            self._products[key] = a @ b.T
        return self._products[key]

    def close(self) -> None:
        """Free the memory."""
        for buffer in (one for both in self.buffers.values() for one in both):
            buffer.close()
