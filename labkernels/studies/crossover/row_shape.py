"""What do short rows and swizzles cost, when a tile of 16 KiB is cut from a wider tensor?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.kernels.registry import kernel
from labkernels.operand import GIB, KIB, MIB, TMA_THREADS, Operand, Pipeline, Swizzle
from labkernels.protocols.measure import stream_experiment
from labkernels.protocols.stream import Configuration

MAX_BOX_SIDE = 256
COPYING_THREADS = 128  # cp.async: 8 vectors of 16 bytes a thread and tile


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        inner_bytes: row of a tile.
        l2_promotion_bytes: of tensor maps without a swizzle.
        tile_bytes: of every tile.
        stages: of every pipeline.
        hbm_pitch_bytes, l2_pitch_bytes: distance between rows of the tensor that tiles are cut from. A dense tensor,
            whose pitch is the row, is measured beside it.
        hbm_footprint_bytes, l2_footprint_bytes, bytes_moved, rounds: as in `throughput`.
    """

    inner_bytes: tuple[int, ...] = (16, 32, 64, 128, 256)
    l2_promotion_bytes: tuple[int, ...] = (0, 128, 256)
    tile_bytes: int = 16 * KIB
    stages: int = 8
    hbm_pitch_bytes: int = 4 * KIB
    l2_pitch_bytes: int = 512
    hbm_footprint_bytes: int = GIB
    l2_footprint_bytes: int = 20 * MIB
    bytes_moved: int = GIB
    rounds: int = 9


PRESETS = {"quick": Parameters(inner_bytes=(16, 64, 128), l2_promotion_bytes=(0, 256)), "full": Parameters()}


def box_operand(
    footprint: int, inner: int, tile_bytes: int, pitch: int, swizzle: Swizzle, pipeline: Pipeline
) -> Operand:
    """A tile of rows of `inner` bytes from a tensor of rows `pitch` bytes apart; rank 3 above 256 rows a box."""
    rows = tile_bytes // inner
    side = min(rows, MAX_BOX_SIDE)
    if rows == side:
        shape, tile, strides = (pitch // 4, footprint // pitch), (inner // 4, rows), (pitch,)
    else:
        shape = (pitch // 4, side, footprint // (side * pitch))
        tile, strides = (inner // 4, side, rows // side), (pitch, side * pitch)
    return Operand(4, shape, tile, strides, swizzle=swizzle, pipeline=pipeline)


def configurations(parameters: Parameters, sm_count: int) -> Iterator[Configuration]:
    """TMA tiles under every swizzle their row allows, and cp.async over the same rows.

    Left out: tensors of which every block's rows together exceed the footprint.
    """
    places = {
        "hbm": (parameters.hbm_footprint_bytes, parameters.hbm_pitch_bytes),
        "l2": (parameters.l2_footprint_bytes, parameters.l2_pitch_bytes),
    }
    for source, (footprint, wide) in places.items():
        for inner, is_wide in product(parameters.inner_bytes, (False, True)):
            pitch = wide if is_wide else inner
            if sm_count * parameters.tile_bytes // inner * pitch > footprint:
                continue
            for swizzle in Swizzle:
                if swizzle.span_bytes in (0, inner):
                    alignment = max(128, swizzle.repeat_bytes)
                    pipeline = Pipeline(
                        parameters.stages, threads=TMA_THREADS, shared_alignment_bytes=alignment
                    )
                    operand = box_operand(footprint, inner, parameters.tile_bytes, pitch, swizzle, pipeline)
                    for promotion in parameters.l2_promotion_bytes if swizzle is Swizzle.NONE else (0,):
                        spec = kernel("tma_tile", "stream", rank=operand.rank)
                        yield Configuration(spec, operand, source, promotion)
            pipeline = Pipeline(parameters.stages + 1, threads=COPYING_THREADS, shared_alignment_bytes=128)
            operand = box_operand(footprint, inner, parameters.tile_bytes, pitch, Swizzle.NONE, pipeline)
            chunks = parameters.tile_bytes // (COPYING_THREADS * 16)
            spec = kernel("cp_async", "stream", completion="group", depth=parameters.stages, chunks=chunks)
            yield Configuration(spec, operand, source)


def _shape(configuration: Configuration) -> dict[str, int | str]:
    operand = configuration.operand
    return {
        "rank": operand.rank,
        "inner_bytes": operand.inner_row_bytes,
        "pitch_bytes": operand.strides_bytes[0],
        "box_rows": operand.tile_bytes // operand.inner_row_bytes,
        "l2_promotion_bytes": configuration.l2_promotion_bytes,
        "swizzle": f"{operand.swizzle.span_bytes}B" if operand.swizzle.span_bytes else "none",
    }


EXPERIMENT = stream_experiment(
    "row_shape",
    "What do short rows and swizzles cost a TMA tile?",
    PRESETS,
    configurations,
    "row_shape",
    _shape,
)
