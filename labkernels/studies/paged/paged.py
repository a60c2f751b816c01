"""What does a page table cost a load of keys and values, by page size and by who copies?"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkernels.device import Gpu
from labkernels.device.random_fill import random_words
from labkernels.kernels.build import assemble_all
from labkernels.kernels.registry import GATHER_SHAPES, WGMMA_SHAPE, KernelSpec, kernel
from labkernels.operand import GIB, KIB, column_span
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.gather import EVERY_TILE, Cache, Gather, check_products
from labkernels.protocols.memory import Memory
from labkernels.protocols.rounds import timed_rounds
from labkernels.studies.stats import summarize

PIPELINE_BYTES = 192 * KIB  # of all CTAs of an SM
WGMMA_DECODE_HEADS = 4  # one block for each head on each SM of 132
WGMMA_STAGES = 4  # two for K and two for V, as in FlashAttention-3
PLAIN_ROW_BYTES, PLAIN_HEADS = 256, 8  # head dim 128 in bf16
FIRST_TILE_BLOCKS = 8
LONGEST_PAGE = 512  # sequences are whole pages of every size
CHECKED_LENGTHS = (0, 1, 700, 129, 0, 2048)


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        page_rows: rows of a page, in the main sweep over page sizes.
        row_bytes: bytes of a row, in the sweep over head dims and element sizes.
        kv_heads: KV heads, in the sweep over them.
        short_page_rows: page sizes of the sweeps other than the main one.
        pool_bytes: of the decode pools, read once by each launch.
        prefill_rows: keys of the sequence that prefill's blocks share.
        rounds: timed launches of each configuration.
    """

    page_rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    row_bytes: tuple[int, ...] = tuple(row for _, row in GATHER_SHAPES)
    kv_heads: tuple[int, ...] = (1, 2, 8)
    short_page_rows: tuple[int, ...] = (1, 16, 64)
    pool_bytes: int = 2 * GIB
    prefill_rows: int = 65536
    rounds: int = 15


PRESETS = {
    "quick": Parameters(
        page_rows=(1, 16, 64, 128, 512), row_bytes=(128, 256), kv_heads=(8,), short_page_rows=(16,), rounds=9
    ),
    "full": Parameters(),
}


@dataclass(frozen=True)
class Case:
    """One configuration.

    Attributes:
        phase: `decode` (keys of a block's own, from HBM), `decode_mma` (the same with tensor cores at work, as in an
            attention kernel) or `prefill` (keys that others read too, tensor cores at work).
        variant: `contiguous`, `rows` (cp.async), `box` (TMA, a page or a part of one), `row` (TMA, one row),
            `run` (TMA bulk), or `no_copy`: the pipeline turns, nothing is copied.
        spec: the kernel.
        cache: what is gathered.
        piece_rows: rows of one TMA copy; of cp.async 1.
        issuers: warps that share the TMA copies of a tile.
        splits: blocks that share a head's keys.
        stages: of the pipeline.
        ctas_per_sm: blocks meant to be resident on an SM.
    """

    phase: str
    variant: str
    spec: KernelSpec
    cache: Cache
    piece_rows: int
    issuers: int
    splits: int
    stages: int
    ctas_per_sm: int

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return int(dict(self.spec.constants)["tile_rows"])

    @property
    def is_plain(self) -> bool:
        """Whether it belongs to the main sweep, over page sizes in decode."""
        cache = self.cache
        shape = (cache.row_bytes, cache.kv_heads, cache.layout, cache.shuffled, self.splits)
        return self.phase == "decode" and shape == (PLAIN_ROW_BYTES, PLAIN_HEADS, "nhd", True, 1)


def _spec(variant: str, tile_rows: int, row_bytes: int, compute: str) -> KernelSpec:
    shape = {"tile_rows": tile_rows, "row_bytes": row_bytes}
    if variant == "run":
        return kernel("tma_bulk", "gather", **shape)
    if variant == "rows":
        return kernel("cp_async", "gather", compute=compute, **shape)
    table = "none" if variant in ("contiguous", "no_copy") else "global"
    return kernel("tma_tile", "gather", compute=compute, table=table, **shape)


def _variants(
    cache: Cache, tile_rows: int, phase: str, thorough: bool = True
) -> Iterator[tuple[str, int, int]]:
    """Ways to gather from a cache, the rows of one copy and the warps that issue copies.

    Unless `thorough`, without the slow ones: a TMA copy for each row of a longer page, short runs by one warp.
    """
    if not cache.page_rows:
        yield "contiguous", tile_rows, 1
        if phase != "decode":
            yield "no_copy", tile_rows, 1
        return
    span = column_span(cache.row_bytes).span_bytes
    fewest = max(1, 128 // span)  # a box starts on a multiple of 128 bytes
    box = min(tile_rows, cache.page_rows)
    yield "rows", 1, 1
    ways = {"box": box if box >= fewest else 0, "row": fewest if fewest < box else 0}
    if phase == "decode":
        ways["run"] = min(tile_rows, cache.run_rows)
    if not thorough:
        del ways["row"]
    for variant, piece in ways.items():
        for issuers in (1, 4):
            slow = variant == "run" and issuers == 1 and piece < 16
            if piece and tile_rows // piece >= issuers and (thorough or not slow):
                yield variant, piece, issuers


def decode_cases(parameters: Parameters, sm_count: int) -> Iterator[Case]:
    """Every block streams keys of its own; together they read the pool once."""
    rows_of = {row: rows for rows, row in GATHER_SHAPES}
    plain, plain_heads = PLAIN_ROW_BYTES, PLAIN_HEADS

    def cases(
        row_bytes: int,
        heads: int,
        pages: tuple[int, ...],
        splits: int = 1,
        thorough: bool = False,
        **cache: Any,
    ) -> Iterator[Case]:
        tile_rows = rows_of[row_bytes]
        tile_bytes = tile_rows * row_bytes
        ctas = 2 if 2 * tile_bytes <= PIPELINE_BYTES // 2 else 1
        stages = min(32, PIPELINE_BYTES // ctas // tile_bytes)
        sequences = sm_count * ctas // (heads * splits)
        rows = parameters.pool_bytes // (sequences * heads * row_bytes) // LONGEST_PAGE * LONGEST_PAGE
        paged = Cache(row_bytes, heads, (rows,) * sequences, 1, **cache)
        pipeline = {"splits": splits, "stages": stages, "ctas_per_sm": ctas}
        for page in (0, *pages):
            each = replace(paged, page_rows=page)
            for variant, piece, issuers in _variants(each, tile_rows, "decode", thorough):
                spec = _spec(variant, tile_rows, row_bytes, "none")
                yield Case("decode", variant, spec, each, piece, issuers, **pipeline)

    short = parameters.short_page_rows
    yield from cases(plain, plain_heads, parameters.page_rows, thorough=True)
    yield from cases(plain, plain_heads, parameters.page_rows, layout="hnd")
    yield from cases(plain, plain_heads, short, shuffled=False)
    yield from cases(plain, plain_heads, short, splits=11)
    for row_bytes in parameters.row_bytes:
        if row_bytes != plain:
            yield from cases(row_bytes, 1 if row_bytes in (576, 1152) else plain_heads, short)
    for heads in parameters.kv_heads:
        if heads != plain_heads:
            yield from cases(plain, heads, short)


def wgmma_cases(parameters: Parameters, sm_count: int) -> Iterator[Case]:
    """Every block multiplies its queries with keys: of its own in decode, shared with other blocks in prefill."""
    tile_rows, row_bytes = WGMMA_SHAPE
    sequences = sm_count // WGMMA_DECODE_HEADS
    rows = (
        parameters.pool_bytes // (sequences * WGMMA_DECODE_HEADS * row_bytes) // LONGEST_PAGE * LONGEST_PAGE
    )
    caches = {
        "decode_mma": Cache(row_bytes, WGMMA_DECODE_HEADS, (rows,) * sequences, 1),
        "prefill": Cache(row_bytes, PLAIN_HEADS, (parameters.prefill_rows,), 1),
    }
    for phase, cache in caches.items():
        for page in (0, *parameters.page_rows):
            each = replace(cache, page_rows=page)
            for variant, piece, issuers in _variants(each, tile_rows, phase, phase == "prefill"):
                spec = _spec(variant, tile_rows, row_bytes, "wgmma")
                yield Case(phase, variant, spec, each, piece, issuers, 1, WGMMA_STAGES, 1)


def work(case: Case, sm_count: int) -> np.ndarray:
    """The segments of a case; prefill's blocks take one head after the other, one block on each SM."""
    segments = case.cache.segments(case.tile_rows, case.splits)
    return segments[np.arange(sm_count) % len(segments)] if case.phase == "prefill" else segments


def ready(gpu: Gpu, memory: Memory, case: Case, segments: np.ndarray) -> Gather:
    """The gather of a case over some segments."""
    return Gather(
        gpu,
        case.spec,
        case.cache,
        memory.buffer,
        lambda at: random_words(at, memory.seed),
        segments,
        case.piece_rows,
        case.issuers,
        case.stages,
    )


def check_ragged(gpu: Gpu, memory: Memory, case: Case) -> None:
    """The case's kernel over sequences that are empty, short, and end part-way into a tile and a page.

    Raises:
        WrongBytes, StalledWait: see `Gather.check`.
    """
    cache = replace(case.cache, lengths=CHECKED_LENGTHS)
    gather = ready(gpu, memory, replace(case, cache=cache), cache.segments(case.tile_rows))
    gather.check()
    gather.close()


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Check every configuration and time all of them in every round; then the first tile, table cold and warm."""
    memory = Memory(gpu, parameters.pool_bytes)
    cases = [*decode_cases(parameters, gpu.facts.sm_count), *wgmma_cases(parameters, gpu.facts.sm_count)]
    gathers = []
    list(progress(assemble_all({case.spec for case in cases}, gpu.facts.arch), "assemble"))
    for case in progress(cases, "check"):
        if case.phase == "decode":
            check_ragged(gpu, memory, case)
        elif case.variant != "no_copy":
            check_products(gpu, case.spec, case.cache.page_rows, case.piece_rows, case.issuers, case.stages)
        gather = ready(gpu, memory, case, work(case, gpu.facts.sm_count))
        if case.phase == "decode":
            gather.check()
        gathers.append(gather)
    prepared = list(zip(cases, gathers, strict=True))
    timed_rounds(prepared, _timed, 1, progress)  # a warm-up
    rows = timed_rounds(prepared, _timed, parameters.rounds, progress)
    for case, gather in prepared:
        gather.require_arrived()
        if case.phase == "decode":
            gather.check_sums()
    first = first_tiles(gpu, memory, [case for case in cases if case.is_plain], parameters.rounds)
    kernels = [gather.kernel for gather in gathers]
    for gather in gathers:
        gather.close()
    memory.close()
    return Result({"paged": rows, "paged_first_tile": first}, kernels)


def first_tiles(gpu: Gpu, memory: Memory, cases: list[Case], rounds: int) -> list[dict[str, Any]]:
    """Cycles until a block's first tile is there, few blocks at once: pool in HBM, page table there or in L2."""
    rows = []
    for case in cases:
        cache = replace(case.cache, lengths=(LONGEST_PAGE,) * FIRST_TILE_BLOCKS)
        segments = cache.segments(case.tile_rows, LONGEST_PAGE // case.tile_rows)
        few = segments[:: len(segments) // FIRST_TILE_BLOCKS]
        gather = ready(gpu, memory, replace(case, cache=cache), few)
        for state in ("hbm", "l2"):
            cycles = []
            for _ in range(rounds):
                memory.evict()
                if state == "l2":
                    gather.refresh_table()
                gather.launch()
                cycles.extend(gather.first_tile_cycles())
            rows.append({**_describe(case), "table_source": state, **summarize(cycles).cycles()})
        gather.close()
    return rows


def _describe(case: Case) -> dict[str, Any]:
    cache = case.cache
    return {
        "kernel": case.spec.name,
        "mechanism": case.spec.mechanism,
        "variant": case.variant,
        "layout": cache.layout,
        "page_order": "shuffled" if cache.shuffled else "ordered",
        "page_rows": cache.page_rows,
        "piece_rows": case.piece_rows,
        "issuers": case.issuers,
        "row_bytes": cache.row_bytes,
        "tile_rows": case.tile_rows,
        "kv_heads": cache.kv_heads,
        "sequences": len(cache.lengths),
        "sequence_rows": cache.lengths[0],
        "splits": case.splits,
        "stages": case.stages,
        "ctas_per_sm": case.ctas_per_sm,
    }


def _timed(prepared: tuple[Case, Gather]) -> dict[str, Any]:
    case, gather = prepared
    copied = case.stages if case.variant == "no_copy" else EVERY_TILE
    if case.phase == "prefill":
        gather.launch(copied)  # L2 holds what it would in the middle of a layer
    duration_us = gather.time_us(copied)
    moved = 0 if case.variant == "no_copy" else gather.bytes_moved
    return {
        "phase": case.phase,
        **_describe(case),
        "blocks": gather.blocks,
        "bytes_moved": moved,
        "duration_us": round(duration_us, 3),
        "gbps": round(moved / duration_us / 1e3, 2),
    }


EXPERIMENT = Experiment(
    "paged",
    "What does a page table cost a load of keys and values, by page size and by who copies?",
    ("paged", "paged_first_tile"),
    PRESETS,
    measure,
    needs(Gpu),
)
