"""Pipelines that bring the same tiles to every CTA of a group: every byte of every block checked, then timed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.device import Buffer, Gpu, Statuses
from labkernels.device.random_fill import random_words
from labkernels.device.tensor_map import place
from labkernels.errors import BadArgument
from labkernels.kernels.registry import KernelSpec, kernel
from labkernels.kernels.render import declared
from labkernels.operand import WARP, Pipeline, boxed_operand
from labkernels.protocols.cluster_launch import ClusterLaunch
from labkernels.protocols.memory import Memory
from labkernels.protocols.rounds import rate
from labkernels.protocols.stream import POISON, STAGE_ALIGNMENT_BYTES, WrongBytes

COMPUTING_THREADS = 128  # threads that compute a tile
PULLERS = 256  # threads that fetch from another CTA
SMALLEST_SLICE_BYTES = 256
SKEWS = ("lag_cycles", "delay_cycles", "hold_cycles")  # of a pipeline whose CTAs are out of step
HASH = np.uint32(0x9E3779B1)


def unicast_pipeline(producers: int = 1, consumers: int = 1) -> KernelSpec:
    """The unicast pipeline: every CTA loads the whole tile."""
    return kernel("tma_tile", "ring", producers=producers, consumers=consumers)


def multicast_pipeline(**constants: int | str) -> KernelSpec:
    """The plain multicast pipeline, with some constants replaced."""
    plain = dict(
        share="slices",
        origin="global",
        producers=1,
        consumers=1,
        arrivers="lanes",
        scope="default",
        fault="none",
    )
    return kernel("tma_multicast", "ring", **{**plain, **constants})


@dataclass(frozen=True)
class PipelineConfiguration:
    """The same tiles to every CTA of a group.

    Attributes:
        spec: a kernel of protocol `ring`.
        fan_out: CTAs of a group.
        source: `l2` or `hbm`; `computed` for tiles computed in shared memory.
        tile_bytes: of one tile.
        stages: of each CTA's pipeline.
        footprint_bytes: memory that the groups walk over.
        clusters: groups at once; by default, and at most, as many as the GPU holds.
        groups_per_cluster: groups that live in one cluster, each with tiles of its own: a kernel with constant `group`.
        clustered: whether a group is a cluster; if not, every CTA is alone.
        scattered: of CTAs alone, whether those of a group are as far apart in the grid as they can be.
        lag_cycles: each CTA of a group starts so much later than the one before.
        delay_cycles: the group's last CTA spends so much before each copy.
        hold_cycles: every CTA keeps a tile for so long.
    """

    spec: KernelSpec
    fan_out: int
    source: str
    tile_bytes: int
    stages: int
    footprint_bytes: int
    clustered: bool = True
    scattered: bool = False
    clusters: int | None = None
    groups_per_cluster: int = 1
    lag_cycles: int = 0
    delay_cycles: int = 0
    hold_cycles: int = 0

    @property
    def constants(self) -> dict[str, int | str]:
        """Compile-time constants of the kernel."""
        return dict(self.spec.constants)

    @property
    def share(self) -> str:
        """Who brings a tile: `slices`, `leader`, `everyone` (of a cluster), `alone` (no cluster) or `scattered`."""
        alone = "scattered" if self.scattered else "alone"
        return str(self.constants.get("share", "everyone" if self.clustered else alone))

    @property
    def cluster(self) -> int:
        """CTAs of a cluster; 1 without clusters."""
        return self.fan_out * self.groups_per_cluster if self.clustered else 1

    @property
    def threads(self) -> int:
        """Threads of a CTA: its roles."""
        if self.constants.get("arrivers") == "barrier":
            return WARP
        computing = COMPUTING_THREADS if self.constants.get("origin") == "computed" else 0
        if not self.spec.traits.touches_global:
            return 3 * WARP + computing + (PULLERS if self.spec.traits.by_threads else 0)
        return 3 * WARP + computing if computing else WARP * sum(self.roles.values())

    @property
    def roles(self) -> dict[str, int]:
        """Warps that issue copies and warps that read tiles."""
        return {role: int(self.constants.get(role, 1)) for role in ("producers", "consumers")}

    def require_runnable(self) -> None:
        """Check the numbers before anything is launched.

        Raises:
            BadArgument: names the value, the limit and the fix.
        """
        name = self.spec.name
        parts = self.fan_out if self.share == "slices" else 1
        if self.tile_bytes % (parts * 128):
            raise BadArgument(
                f"{name}: {self.tile_bytes} bytes in {parts} parts are not multiples of 128; give a tile of "
                f"{max(1, self.tile_bytes // (128 * parts)) * 128 * parts} bytes"
            )
        declared(self.spec).require(stages=self.stages)
        for role, warps in self.roles.items():
            if self.stages % warps:
                raise BadArgument(
                    f"{name}: {self.stages} stages are no multiple of {warps} {role}; give {warps}"
                )
        if self.groups_per_cluster > 1 and self.constants.get("group") != self.fan_out:
            raise BadArgument(
                f"{name}: {self.groups_per_cluster} groups of {self.fan_out} CTAs in a cluster; give a kernel with "
                f"group={self.fan_out}"
            )
        if self.clustered and self.scattered:
            raise BadArgument(f"{name}: CTAs of a cluster are not scattered; give clustered=False")
        if self.footprint_bytes % self.tile_bytes:
            raise BadArgument(
                f"{name}: a footprint of {self.footprint_bytes} bytes does not hold whole tiles of {self.tile_bytes}"
            )


def four_transports(
    fan_out: int, source: str, tile_bytes: int, stages: int, footprint_bytes: int, warps: int = 1, **skew: int
) -> Iterator[PipelineConfiguration]:
    """Sliced multicast (if the slices are long enough) and leader multicast; unicast, in a cluster and without.

    Args:
        fan_out: as in `PipelineConfiguration`.
        source: the same.
        tile_bytes: the same.
        stages: the same.
        footprint_bytes: the same.
        warps: that issue copies; as many read tiles.
        skew: fields of `SKEWS`.
    """
    shape = (fan_out, source, tile_bytes, stages, footprint_bytes)
    roles = {"producers": warps, "consumers": warps}
    if tile_bytes // fan_out >= SMALLEST_SLICE_BYTES:
        yield PipelineConfiguration(multicast_pipeline(**roles), *shape, **skew)
    yield PipelineConfiguration(multicast_pipeline(share="leader", **roles), *shape, **skew)
    yield PipelineConfiguration(unicast_pipeline(**roles), *shape, **skew)
    yield PipelineConfiguration(unicast_pipeline(**roles), *shape, clustered=False, **skew)


def skews(parameters: Any) -> list[dict[str, int]]:
    """One skew at a time, from the fields of a parameter set that are named as in `SKEWS`."""
    return [{name: cycles} for name in SKEWS for cycles in getattr(parameters, name)]


class ClusterPipeline:
    """A pipeline configuration ready to run.

    Args:
        gpu: where.
        configuration: what.
        memory: filled by `labkernels.device.random_fill.fill` with `seed`; of computed tiles, memory to overwrite.
        seed: of the words.
        clusters: groups to launch, resident at once or not; by default what the configuration says.
        alone: see `ClusterLaunch`.

    Raises:
        BadArgument: see `PipelineConfiguration.require_runnable`; or it does not fit the GPU.
    """

    def __init__(
        self,
        gpu: Gpu,
        configuration: PipelineConfiguration,
        memory: Buffer,
        seed: int,
        clusters: int | None = None,
        alone: bool = True,
    ) -> None:
        configuration.require_runnable()
        self.gpu, self.configuration, self.seed = gpu, configuration, seed
        c = configuration
        shared_bytes = c.stages * c.tile_bytes + STAGE_ALIGNMENT_BYTES
        self.clusters = ClusterLaunch(gpu, c.spec, c.threads, shared_bytes, c.cluster, alone)
        self.kernel = self.clusters.kernel
        resident = self.clusters.resident_clusters * c.cluster // c.fan_out
        groups = clusters or min(c.clusters or resident, resident)
        self.groups = groups // c.groups_per_cluster * c.groups_per_cluster
        self.blocks = self.groups * c.fan_out
        part = c.tile_bytes // (c.fan_out if c.share == "slices" else 1)
        pipeline = Pipeline(stages=c.stages, threads=c.threads, cluster=c.cluster, shared_alignment_bytes=128)
        operand = boxed_operand(c.footprint_bytes, part, pipeline)
        self.tile_rows = c.tile_bytes // operand.inner_row_bytes
        if (needed := self.groups * c.tile_bytes * 4) > c.footprint_bytes:
            raise BadArgument(
                f"{c.spec.name}: {self.groups} groups need a footprint of {needed} bytes, it has "
                f"{c.footprint_bytes}; give a larger one or smaller tiles"
            )
        self._map = place(operand, memory.address)
        self._memory = memory
        self._config = self.clusters.config(self.blocks)
        self._sums = Buffer(4 * self.blocks * c.threads)
        self._log = Buffer(4 * self.blocks)
        self._statuses = Statuses(gpu, c.spec.name, self.blocks)

    def tiles_for(self, bytes_per_cta: int) -> int:
        """Tiles that bring each CTA at least this many bytes, and fill the pipeline."""
        return max(-(-bytes_per_cta // self.configuration.tile_bytes), self.configuration.stages)

    def launch(self, tiles: int, dump: int = 0) -> None:
        """Queue one launch; `dump` is the address for checked copies, or 0."""
        c = self.configuration
        self.clusters.launch(
            self._config,
            source=self._map,
            memory=self._memory,
            group=c.fan_out,
            scattered=c.scattered,
            row_limit=c.footprint_bytes // c.tile_bytes * self.tile_rows,
            tile_rows=self.tile_rows,
            tiles=tiles,
            tile_bytes=c.tile_bytes,
            stages=c.stages,
            lag_cycles=c.lag_cycles,
            delay=c.delay_cycles,
            delayed_rank=c.fan_out - 1,
            hold=c.hold_cycles,
            dump=dump,
            log=self._log,
            sums=self._sums,
            statuses=self._statuses,
        )

    def require_arrived(self) -> None:
        """Wait for the launches; see `Statuses.require_arrived`."""
        self._statuses.require_arrived()

    def time(self, tiles: int) -> tuple[float, int]:
        """Microseconds of one launch between events, and SM cycles of its slowest block."""
        with self.gpu.timed() as elapsed:
            self.launch(tiles)
        duration_us = elapsed()
        return duration_us, int(self._log.read(np.uint32).max())

    def timed(self, tiles: int) -> dict[str, Any]:
        """The row of one timed launch."""
        duration_us, cycles = self.time(tiles)
        delivered = tiles * self.configuration.tile_bytes
        return self.row(tiles) | {
            **rate(duration_us, self.blocks * delivered),
            "cycles": cycles,
            "bytes_per_clock_per_sm": round(delivered / cycles, 3),
        }

    def place_source(self, memory: Memory) -> None:
        """Push its source out of L2 or bring it in, as the configuration has it: queued."""
        if self.configuration.source == "hbm":
            memory.evict()
        else:
            self.warm()

    def warm(self) -> None:
        """Bring the footprint into L2, or out of the way of the others: queued."""
        c = self.configuration
        self.launch(max(2 * c.footprint_bytes // (self.groups * c.tile_bytes), c.stages))

    def check(self, tiles: int | None = None) -> None:
        """Run with a poisoned destination and compare every byte that arrived in every block.

        Raises:
            WrongBytes: with block, tile and offset of the first difference.
            StalledWait: a barrier was never completed.
        """
        c = self.configuration
        tiles = tiles or c.stages + 3
        with Buffer(self.blocks * tiles * c.tile_bytes) as dump:
            dump.set_bytes(POISON)
            self.launch(tiles, dump.address)
            self.require_arrived()
            arrived = self._by_group(dump.read(np.uint32)).reshape(self.groups, c.fan_out, tiles, -1)
        expected = self.expected_words(np.arange(self.groups), tiles, np.arange(c.tile_bytes // 4))
        wrong = arrived != expected[:, None]
        if wrong.any():
            group, rank, tile, word = np.argwhere(wrong)[0]
            raise WrongBytes(
                f"{c.spec.name}: group {group}, CTA {rank} of {c.fan_out}, tile {tile}, byte {4 * word}: "
                f"{arrived[group, rank, tile, word]:#010x} arrived instead of {expected[group, tile, word]:#010x}"
            )

    def check_sums(self, tiles: int) -> None:
        """Compare what the consumers of two groups read during the last launch; cheap, for timed launches.

        Raises:
            WrongBytes: a timed launch read wrong words.
        """
        c = self.configuration
        chosen = np.random.default_rng(self.seed).choice(self.groups, min(2, self.groups), replace=False)
        lanes = np.arange(min(WARP, c.tile_bytes // 16))
        expected = self.expected_words(chosen, tiles, 4 * lanes).sum(axis=1, dtype=np.uint32)
        sums = self._by_group(self._sums.read(np.uint32))[chosen]
        sums = sums.reshape(*sums.shape[:2], -1, WARP)[:, :, : c.roles["consumers"], lanes].sum(
            axis=2, dtype=np.uint32
        )
        if not np.array_equal(sums, np.broadcast_to(expected[:, None], sums.shape)):
            raise WrongBytes(f"{c.spec.name}: a timed launch read wrong words")

    def _by_group(self, words: np.ndarray) -> np.ndarray:
        """What the blocks left in order of blocks, as (groups, CTAs of a group, rest)."""
        if self.configuration.scattered:
            return words.reshape(self.configuration.fan_out, self.groups, -1).swapaxes(0, 1)
        return words.reshape(self.groups, self.configuration.fan_out, -1)

    def expected_words(self, groups: np.ndarray, tiles: int, words: np.ndarray) -> np.ndarray:
        """Words of the groups' tiles, shape (groups, tiles, words)."""
        c = self.configuration
        turn = groups[:, None] + np.arange(tiles)[None, :] * self.groups
        start = turn % (c.footprint_bytes // c.tile_bytes) * (c.tile_bytes // 4)
        index = start[:, :, None] + words
        if c.source == "computed":
            return index.astype(np.uint32) * HASH
        return random_words(index, self.seed)

    def row(self, tiles: int) -> dict[str, Any]:
        """What describes this configuration in a table."""
        c = self.configuration
        return {
            "kernel": c.spec.name,
            "mechanism": c.spec.mechanism,
            "share": c.share,
            "source": c.source,
            "fan_out": c.fan_out,
            "cluster": c.cluster,
            **c.roles,
            "scope": str(c.constants.get("scope", "default")),
            "arrivers": str(c.constants.get("arrivers", "lanes")),
            "tile_bytes": c.tile_bytes,
            "stages": c.stages,
            "footprint_bytes": c.footprint_bytes,
            "lag_cycles": c.lag_cycles,
            "delay_cycles": c.delay_cycles,
            "hold_cycles": c.hold_cycles,
            "ctas": self.blocks,
            "bytes_delivered": self.blocks * tiles * c.tile_bytes,
        }

    def close(self) -> None:
        """Free what the configuration holds on the GPU."""
        for buffer in (self._map, self._sums, self._log, self._statuses):
            buffer.close()
