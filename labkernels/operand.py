"""What a kernel author holds: a tiled operand in global memory and the shared-memory pipeline for its tiles."""

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import TypeVar

from labkernels.errors import BadArgument

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
WARP = 32
TMA_THREADS = 2 * WARP  # one warp whose elected thread copies, one that consumes
LONGEST_ROW_BYTES = 2048  # 256 elements of 8 bytes: the longest inner row of a box
ELEMENT_BYTES = (1, 2, 4, 8)
BARRIER_BYTES_PER_STAGE = 16  # one full and one empty mbarrier, 8 bytes each

Offsets = TypeVar("Offsets")


class Swizzle(Enum):
    """Bank swizzle of a tile in shared memory: the bytes of the span within which 16-byte chunks move."""

    NONE = 0
    B32 = 32
    B64 = 64
    B128 = 128

    @property
    def span_bytes(self) -> int:
        """Widest inner row a tile may have under this swizzle (0: no swizzle)."""
        return self.value

    @property
    def repeat_bytes(self) -> int:
        """Bytes after which the pattern starts over: 256, 512 or 1024 (0: no swizzle)."""
        return 8 * self.value


def swizzle_offset(offset_bytes: Offsets, swizzle: Swizzle) -> Offsets:
    """Where the byte at `offset_bytes` of a plain tile lies in the swizzled one, and back (its own inverse).

    Address bits 4 and up are XORed with as many bits from bit 7: one bit for 32 B, two for 64 B, three for
    128 B. Holds for a tile that starts on a multiple of `swizzle.repeat_bytes`
    (CUDA programming guide, TMA swizzle modes).

    Args:
        offset_bytes: an integer, or a NumPy array of integers of any shape.
        swizzle: the pattern.
    """
    return offset_bytes ^ ((offset_bytes >> 3) & max(swizzle.span_bytes - 16, 0))


def round_up(value: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


def _positive(name: str, value: object) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, not a whole number: give an integer of at least 1") from None
    if number < 1:
        raise BadArgument(f"{name} is {number}, below the limit of 1: give a positive {name}")
    return number


def _positives(name: str, values: object) -> tuple[int, ...]:
    if not isinstance(values, Iterable):
        raise TypeError(f"{name} is {values!r}, not a sequence: give one integer per dimension")
    return tuple(_positive(f"{name}[{index}]", value) for index, value in enumerate(values))


def _power_of_two(name: str, value: object) -> int:
    number = _positive(name, value)
    if number & (number - 1):
        raise BadArgument(
            f"{name} is {number}, not a power of two: give {number & -number}, which divides it"
        )
    return number


@dataclass(frozen=True)
class Pipeline:
    """The shared-memory pipeline of one CTA and the CTAs that run it.

    Attributes:
        stages: tiles one CTA keeps in flight.
        ctas_per_sm: CTAs meant to be resident on each SM.
        threads: threads per CTA.
        cluster: CTAs per cluster; the fan-out of a multicast. Above 8 needs the non-portable opt-in.
        copy_bytes: bytes one thread moves with one instruction (ldg, stg, cp_async, dsm_load, dsm_store).
        shared_alignment_bytes: alignment of the pipeline's base and of every stage in it, a power of two.

    Raises:
        TypeError: a field is not an integer.
        BadArgument: a field is below 1, or the alignment is not a power of two.
    """

    stages: int = 4
    ctas_per_sm: int = 1
    threads: int = 128
    cluster: int = 1
    copy_bytes: int = 16
    shared_alignment_bytes: int = 1024

    def __post_init__(self) -> None:
        for name in ("stages", "ctas_per_sm", "threads", "cluster", "copy_bytes"):
            object.__setattr__(self, name, _positive(f"pipeline.{name}", getattr(self, name)))
        alignment = _power_of_two("pipeline.shared_alignment_bytes", self.shared_alignment_bytes)
        object.__setattr__(self, "shared_alignment_bytes", alignment)


@dataclass(frozen=True)
class Operand:
    """A tensor in global memory, cut into equal tiles, and the pipeline that holds the tiles.

    Dimension 0 is the innermost and contiguous; element strides are 1 and nothing is interleaved.
    Construction checks form only; what a mechanism asks of the operand is in `labkernels.legality`.

    Attributes:
        element_bytes: 1, 2, 4 or 8.
        shape: elements per dimension, innermost first.
        tile: elements of a tile (box) per dimension, innermost first, same rank as `shape`.
        strides_bytes: distance between neighbors in dimensions 1, 2, …, one less than the rank;
            empty stands for a dense tensor and is filled in.
        base_alignment_bytes: largest power of two that divides the tensor's address (256 from cuMemAlloc).
        tensor_map_alignment_bytes: the same of the tensor map, for the mechanisms that use one.
        swizzle: pattern the tile has in shared memory.
        pipeline: where the tiles go.

    Raises:
        TypeError: a field has the wrong type.
        BadArgument: a number is below 1, a rank differs, an alignment is not a power of two, or the element
            size is unknown.
    """

    element_bytes: int
    shape: tuple[int, ...]
    tile: tuple[int, ...]
    strides_bytes: tuple[int, ...] = ()
    base_alignment_bytes: int = 256
    tensor_map_alignment_bytes: int = 64
    swizzle: Swizzle = Swizzle.NONE
    pipeline: Pipeline = field(default_factory=Pipeline)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "element_bytes", _positive("element_bytes", self.element_bytes))
        if self.element_bytes not in ELEMENT_BYTES:
            raise BadArgument(
                f"element_bytes is {self.element_bytes}, none of {ELEMENT_BYTES}: view it as one"
            )
        for name in ("shape", "tile", "strides_bytes"):
            put(self, name, _positives(name, getattr(self, name)))
        for name in ("base_alignment_bytes", "tensor_map_alignment_bytes"):
            put(self, name, _power_of_two(name, getattr(self, name)))
        if not self.shape:
            raise BadArgument("shape has 0 dimensions, below the limit of 1: give shape=(elements,)")
        if len(self.tile) != self.rank:
            raise BadArgument(f"tile has {len(self.tile)} dimensions, shape {self.rank}: give one side each")
        put(self, "strides_bytes", self.strides_bytes or self._dense_strides_bytes())
        if len(self.strides_bytes) != self.rank - 1:
            raise BadArgument(
                f"strides_bytes has {len(self.strides_bytes)} entries, rank {self.rank} takes "
                f"{self.rank - 1}: give those of dimensions 1 and up, or none for a dense tensor"
            )
        if not isinstance(self.swizzle, Swizzle):
            raise TypeError(
                f"swizzle is {self.swizzle!r}, not a Swizzle: give Swizzle.NONE, B32, B64 or B128"
            )
        if not isinstance(self.pipeline, Pipeline):
            raise TypeError(
                f"pipeline is {self.pipeline!r}, not a Pipeline: give Pipeline(stages=…, threads=…)"
            )

    def _dense_strides_bytes(self) -> tuple[int, ...]:
        return tuple(self.element_bytes * prod(self.shape[:dim]) for dim in range(1, self.rank))

    @property
    def rank(self) -> int:
        """Dimensions of the tensor."""
        return len(self.shape)

    @property
    def inner_row_bytes(self) -> int:
        """Bytes of a tile's innermost row, the longest run that is contiguous for certain."""
        return self.tile[0] * self.element_bytes

    @property
    def tile_bytes(self) -> int:
        """Bytes of data in one tile: what one transfer moves."""
        return prod(self.tile) * self.element_bytes

    @property
    def tile_steps_bytes(self) -> tuple[int, ...]:
        """Distance in memory between neighboring tiles, for each dimension with more than one tile."""
        strides = (self.element_bytes, *self.strides_bytes)
        steps = zip(strides, self.tile, self.shape, strict=True)
        return tuple(stride * side for stride, side, extent in steps if side < extent)

    @property
    def footprint_bytes(self) -> int:
        """Memory of the whole tensor: all steps along its last dimension."""
        return self.shape[-1] * (self.element_bytes, *self.strides_bytes)[-1]

    @property
    def contiguous_bytes(self) -> int:
        """Bytes from a tile's start that lie without a gap in global memory; `tile_bytes` for one block."""
        run = self.inner_row_bytes
        for side, stride in zip(self.tile[1:], self.strides_bytes, strict=True):
            if side > 1 and stride != run:
                break
            run *= side
        return run

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage: the tile, rows padded to the swizzle span, rounded up to alignment."""
        # A row shorter than the span still occupies the full span (CUDA programming guide, TMA swizzle).
        row = max(self.inner_row_bytes, self.swizzle.span_bytes)
        return round_up(row * prod(self.tile[1:]), self.pipeline.shared_alignment_bytes)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one CTA: all stages, then two mbarriers per stage."""
        return self.pipeline.stages * (self.stage_bytes + BARRIER_BYTES_PER_STAGE)

    @property
    def bytes_in_flight_per_sm(self) -> int:
        """Data an SM can have under way at once: tile bytes x stages x CTAs per SM."""
        return self.tile_bytes * self.pipeline.stages * self.pipeline.ctas_per_sm


def linear_operand(footprint_bytes: int, tile_bytes: int, pipeline: Pipeline) -> Operand:
    """Contiguous memory, cut into contiguous tiles."""
    return Operand(8, (footprint_bytes // 8,), (tile_bytes // 8,), pipeline=pipeline)


def boxed_operand(footprint_bytes: int, tile_bytes: int, pipeline: Pipeline) -> Operand:
    """The same memory seen as rows of at most 2 KiB, so that a tile is a 2-D box."""
    row = min(tile_bytes, LONGEST_ROW_BYTES)
    return Operand(8, (row // 8, footprint_bytes // row), (row // 8, tile_bytes // row), pipeline=pipeline)


def column_span(row_bytes: int) -> Swizzle:
    """The widest swizzle whose span divides a row.

    Raises:
        BadArgument: none does.
    """
    for swizzle in (Swizzle.B128, Swizzle.B64, Swizzle.B32):
        if row_bytes % swizzle.span_bytes == 0:
            return swizzle
    raise BadArgument(f"row_bytes is {row_bytes}, not a multiple of 32: pad it to {round_up(row_bytes, 32)}")
