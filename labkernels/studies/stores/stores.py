"""How fast does a tile leave: by which stores, from registers or shared memory, in which rows, from how many warps?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from cuda.bindings import driver

from labkernels.device import Buffer, Gpu
from labkernels.kernels.registry import KernelSpec, kernels
from labkernels.operand import GIB, LONGEST_ROW_BYTES, MIB
from labkernels.protocols.drain import FRAGMENT_ROW_BYTES, BoundDrain, Drain
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.rounds import rate, timed_rounds

MECHANISMS = ("stg", "bulk_store", "tma_store")
#: What the driver writes with, beside which a store is judged: a fill, and a copy that reads as much as it writes.
LIBRARY = ("cuMemsetD32Async", "cuMemcpyDtoDAsync")


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        threads: of a CTA, that make tiles and, in stores of threads, send them.
        ctas_per_sm: that share an SM.
        stages: tiles that a CTA's shared memory holds, of the copy engine's stores.
        row_bytes: of tiles that are boxes of a wider matrix.
        pitch_bytes: of that matrix.
        box_stages: as `stages`, of such tiles.
        destinations: where the matrix lies.
        hbm_footprint_bytes: written in turn, at least four times L2.
        l2_footprint_bytes: written again and again.
        bytes_moved: by each timed launch, at least.
        rounds: timed launches of each.
    """

    threads: tuple[int, ...]
    ctas_per_sm: tuple[int, ...]
    stages: tuple[int, ...]
    row_bytes: tuple[int, ...]
    pitch_bytes: int = 8192
    box_stages: tuple[int, ...] = (2,)
    destinations: tuple[str, ...] = ("hbm", "l2")
    hbm_footprint_bytes: int = GIB
    l2_footprint_bytes: int = 16 * MIB
    bytes_moved: int = GIB
    rounds: int = 9


PRESETS = {
    "quick": Parameters((256,), (1, 2, 4), (1, 2, 4), (64, 256, 1024), rounds=5),
    "full": Parameters(
        (128, 256, 512), (1, 2, 4), (1, 2, 4), (32, 64, 128, 256, 512, 1024, 2048), box_stages=(1, 2, 4)
    ),
}


def _is_boxed(spec: KernelSpec) -> bool:
    constants = dict(spec.constants)
    return constants.get("layout") == "fragments" or constants.get("run") == "row"


def drains(parameters: Parameters, sm_count: int) -> Iterator[Drain]:
    """Every kernel at every occupancy: tiles that are one run of memory, then boxes of a wider matrix."""
    specs = [spec for name in MECHANISMS for spec in kernels(name, "drain")]
    axes = (parameters.destinations, specs, parameters.threads, parameters.ctas_per_sm)
    for destination, spec, threads, ctas in product(*axes):
        constants = dict(spec.constants)
        footprint = {"hbm": parameters.hbm_footprint_bytes, "l2": parameters.l2_footprint_bytes}[destination]
        tile_bytes = threads * 16 * constants["chunks"]
        runs = [] if _is_boxed(spec) else [min(tile_bytes, LONGEST_ROW_BYTES)]
        rows = () if constants["chunks"] < 4 or constants.get("run") == "tile" else parameters.row_bytes
        if constants.get("layout") == "fragments":
            rows = (FRAGMENT_ROW_BYTES,)
        shapes = [(run, 1) for run in runs] + [(row, parameters.pitch_bytes // row) for row in rows]
        for row_bytes, columns in shapes:
            drain = Drain(spec, destination, footprint, threads, row_bytes, columns, ctas)
            allowed = parameters.stages if columns == 1 else parameters.box_stages
            if (
                constants.get("stages", allowed[0]) in allowed
                and row_bytes <= tile_bytes
                and tile_bytes // row_bytes <= 256  # rows of a box
                and sm_count * ctas * tile_bytes <= footprint
                and drain.fits
            ):
                yield drain


class LibraryWrite:
    """The driver's fill or copy of as many bytes as a drain writes in one launch.

    Args:
        gpu: where.
        name: of `LIBRARY`.
        destination: `hbm` or `l2`.
        footprint_bytes: written by each call.
        memory: written, from its start on; read behind that.
    """

    def __init__(self, gpu: Gpu, name: str, destination: str, footprint_bytes: int, memory: Buffer) -> None:
        self.gpu, self.name, self.destination = gpu, name, destination
        self.footprint_bytes, self.memory = footprint_bytes, memory

    def _call(self) -> None:
        call: Callable = getattr(driver, self.name)
        size, stream, address = self.footprint_bytes, int(self.gpu.stream.handle), self.memory.address
        given = (0x5A5A5A5A, size // 4) if self.name == LIBRARY[0] else (address + size, size)
        (error,) = call(address, *given, stream)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{self.name}: {error.name}")

    def place(self) -> None:
        """Write once: queued."""
        self._call()

    def timed(self, calls: int) -> dict[str, Any]:
        """The row of as many calls."""
        with self.gpu.timed() as elapsed:
            for _ in range(calls):
                self._call()
        moved = calls * self.footprint_bytes
        return {
            "kernel": self.name,
            "mechanism": "library",
            "destination": self.destination,
            "footprint_bytes": self.footprint_bytes,
            "bytes_moved": moved,
        } | rate(elapsed(), moved)


def _measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    memory = Buffer(2 * max(parameters.hbm_footprint_bytes, parameters.l2_footprint_bytes))
    ready: list[tuple[Any, int]] = []
    for drain in progress(list(drains(parameters, gpu.facts.sm_count)), "check"):
        bound = BoundDrain(gpu, drain, memory)
        if bound.is_resident:
            bound.check()
            ready.append((bound, bound.tiles_for(parameters.bytes_moved)))
    for name, destination in product(LIBRARY, parameters.destinations):
        footprint = {"hbm": parameters.hbm_footprint_bytes, "l2": parameters.l2_footprint_bytes}[destination]
        write = LibraryWrite(gpu, name, destination, footprint, memory)
        ready.append((write, -(-parameters.bytes_moved // footprint)))

    def once(item: tuple[Any, int]) -> dict[str, Any]:
        one, amount = item
        one.place()
        return one.timed(amount)

    rows = timed_rounds(ready, once, parameters.rounds, progress)
    bound = [(one, tiles) for one, tiles in ready if isinstance(one, BoundDrain)]
    for one, tiles in bound:
        one.check_timed(tiles)
        one.close()
    memory.close()
    return Result({"stores": rows}, [one.kernel for one, _ in bound])


EXPERIMENT = Experiment("stores", "How fast does a tile leave?", ("stores",), PRESETS, _measure, needs(Gpu))
