"""Rules of thumb on loads inside a kernel: what tensor cores and arithmetic lose beside each producer."""

import pandas as pd

from labkernels.charts.text import span
from labkernels.errors import NotMeasured
from labkernels.production.practice import TMA, Practice
from labkernels.studies.kernel import mainloop_findings as findings
from labkernels.studies.kernel import triton_findings as triton
from labkernels.studies.kernel.mainloop_findings import SQUARE, TALL, WIDE
from labkernels.studies.rule import Rules
from labkernels.studies.stats import where

RULES = Rules("kernel", "mainloop")
TILES = (SQUARE, WIDE, TALL)
OWN = "our own main loop of bf16 products, K 64 a step, one CTA per SM, all its tiles in L2, pipelines of 192 KiB"


def _times(tile: tuple[int, int]) -> str:
    return "×".join(map(str, tile))


@RULES.rule(
    "tma_beside_tensor_cores",
    operands="A and B of a product on tensor cores",
    take="TMA: one thread, and tensor cores lose nothing",
    statement="TMA keeps tensor cores busy to the last cycle, beside everything else they need.",
    scope=f"{OWN}; tiles of 128×128, 128×256 and 256×128; equal: within 1% of the cycles alone",
    practice=Practice(
        "direction == 'load' and operand in ['A', 'B', 'A, B'] and phase == 'mainloop' and consumer == 'shared'",
        TMA,
    ),
)
def _tma_beside_tensor_cores(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = {tile: findings.beside(frame, "tma_tile", tile) for tile in TILES}
    shown = ", ".join(f"{ratio.ratio:.3f} at {_times(tile)}" for tile, ratio in ratios.items())
    return all(ratio.within(0.01) for ratio in ratios.values()), (
        f"Rate of tensor cores beside TMA over that alone, in cycles: {shown}."
    )


@RULES.rule(
    "cp_async_beside_tensor_cores",
    operands="A and B of a product on tensor cores, copied by threads",
    take="a tile of 128×256, or TMA",
    statement="cp.async costs tensor cores nothing at 128×256 and 256×128, and a tenth of their rate at 128×128.",
    scope=f"{OWN}; four warps copy, each tile handed over by the copies' own arrival",
    applies_to="compute_cycles > 0 and consumer == 'shared' and source != 'computed'",
)
def _cp_async_beside_tensor_cores(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = {tile: findings.beside(frame, "cp_async", tile) for tile in TILES}
    shown = ", ".join(f"{ratio.times(3)} at {_times(tile)}" for tile, ratio in ratios.items())
    large = all(ratios[tile].within(0.01) for tile in (WIDE, TALL))
    return large and ratios[SQUARE].high < 0.95, f"Rate beside cp.async over that alone, in cycles: {shown}."


@RULES.rule(
    "plain_loads_beside_tensor_cores",
    operands="A and B of a product on tensor cores, loaded through registers",
    take="a copy that goes past the registers",
    statement="Through registers, tensor cores fall to two thirds of their rate and below.",
    scope=f"{OWN}; four or eight warps, as the registers of the tile allow, a whole tile of each in flight",
)
def _plain_loads_beside_tensor_cores(frame: pd.DataFrame) -> tuple[bool, str]:
    ratios = {tile: findings.beside(frame, "ldg", tile) for tile in TILES}
    shown = ", ".join(f"{ratio.times(3)} at {_times(tile)}" for tile, ratio in ratios.items())
    return all(ratio.high < 0.67 for ratio in ratios.values()), (
        f"Rate beside ld.global and st.shared over that alone, in cycles: {shown}."
    )


@RULES.rule(
    "three_stages_for_tensor_cores",
    operands="the pipeline of a product on tensor cores",
    take="three stages of 48 KiB, four of 32 KiB",
    statement="Two stages are too few: one is held by the product under way until the next is started.",
    scope=f"{OWN}, but of two stages and more; TMA",
)
def _three_stages_for_tensor_cores(frame: pd.DataFrame) -> tuple[bool, str]:
    table = findings.contest(frame)

    def share(tile: tuple[int, int], stages: int) -> float:
        return where(table, mechanism="tma_tile", tile=_times(tile), stages=stages)["share"].iloc[0]

    two = [share(tile, 2) for tile in TILES]
    enough = [share(tile, stages) for tile, stages in ((SQUARE, 4), (WIDE, 3), (TALL, 3))]
    return bool(max(two) < 0.95 and min(enough) > 0.98), (
        f"With two stages tensor cores reach {100 * min(two):.0f} to {100 * max(two):.0f}% of their peak beside TMA, "
        f"with four of 32 KiB or three of 48 KiB {100 * min(enough):.1f}%."
    )


@RULES.rule(
    "warps_of_cp_async",
    operands="A and B of a product on tensor cores, copied by threads",
    take="two warps at 128×256, four at 128×128",
    statement="One thread of TMA does the work of two to four warps of cp.async.",
    scope=f"{OWN}; 1, 2, 4 and, where registers allow it, 8 warps",
)
def _warps_of_cp_async(frame: pd.DataFrame) -> tuple[bool, str]:
    table = findings.by_warps(frame)

    def share(tile: tuple[int, int], warps: int) -> float:
        return where(table, mechanism="cp_async", tile=_times(tile), producer_warps=warps)["share"].iloc[0]

    square, wide = ({warps: share(tile, warps) for warps in (1, 2, 4)} for tile in (SQUARE, WIDE))
    return bool(square[2] < 0.95 * square[4] and wide[1] < 0.9 and wide[2] > 0.99), (
        f"Share of the peak by 1, 2, 4 warps: {', '.join(f'{100 * square[n]:.0f}' for n in square)}% at 128×128, "
        f"{', '.join(f'{100 * wide[n]:.0f}' for n in wide)}% at 128×256."
    )


@RULES.rule(
    "swizzle_of_128_bytes",
    operands="tiles that tensor cores read",
    take="the 128-byte swizzle",
    statement="A tile in narrower columns costs its reader nothing, and whoever brings it up to five times the time.",
    scope=f"{OWN}; tile 128×128; columns of 64 and 32 bytes swizzled, of 16 not; TMA and four warps of cp.async",
)
def _swizzle_of_128_bytes(frame: pd.DataFrame) -> tuple[bool, str]:
    alone, table = findings.alone_by_swizzle(frame), findings.by_swizzle(frame)

    def cycles(mechanism: str, width: int) -> float:
        beside = {"compute": "wgmma", "lanes": "rows", "mechanism": mechanism, "width": width}
        return where(table, **beside)["median"].iloc[0]

    brought = ("tma_tile", "cp_async")
    full, half, least = ([cycles(name, width) for name in brought] for width in (128, 64, 16))
    slower = all(b > 1.3 * a and c > 3 * a for a, b, c in zip(full, half, least, strict=True))
    return bool(alone.max() / alone.min() < 1.02 and slower), (
        f"Alone, tensor cores take {alone.min():.0f} to {alone.max():.0f} cycles a step in every layout. Columns of 64 "
        f"bytes make them {half[0]:.0f} beside TMA and {half[1]:.0f} beside cp.async, of 16 bytes {least[0]:.0f} and "
        f"{least[1]:.0f}."
    )


@RULES.rule(
    "arithmetic_left_over",
    operands="tiles on which threads do arithmetic of their own",
    take="TMA, or four warps of cp.async",
    statement="Beside TMA threads keep their arithmetic; beside cp.async they lose some, more if few warps copy.",
    scope="eight warps that read each word once and do 8, 16 or 32 FFMA with it; 32 KiB a step from L2, six stages; "
    "one, two or four warps of cp.async",
)
def _arithmetic_left_over(frame: pd.DataFrame) -> tuple[bool, str]:
    table = findings.left_over(frame)

    def ratio(mechanism: str, warps: int) -> float:
        most = {"ffma_per_word": 32, "pitch_bytes": 4096, "mechanism": mechanism, "producer_warps": warps}
        return where(table, **most)["ratio"].iloc[0]

    tma, four, one = (ratio(*of) for of in (("tma_tile", 1), ("cp_async", 4), ("cp_async", 1)))
    low = table[table["mechanism"].eq("tma_tile")]["low"].min()
    return bool(low > 0.98 and four < 0.97 and one < 0.9), (
        f"FFMA rate over that alone, 32 FFMA a word: {tma:.3f} beside TMA, {four:.3f} beside four warps of cp.async, "
        f"{one:.3f} beside one."
    )


@RULES.rule(
    "triton_descriptors",
    operands="operands of Triton kernels",
    take="tensor descriptors where tensor cores are busy; elsewhere either",
    statement="Tensor descriptors make compute-bound Triton GEMMs 10 to 40% faster than pointers; kernels "
    "that memory bounds change by a tenth at most, either way.",
    scope="Triton 3.6, same tile, warps and stages; GEMMs in bf16 of 128×128 and 128×256, M, N and K of at least 1024; "
    "row sums, scaling and softmax of 16,384 rows and more",
    experiments=("triton_loads",),
)
def _triton_descriptors(frame: pd.DataFrame) -> tuple[bool, str]:
    table = triton.speedups(frame)
    large = table[table["kernel"].eq("gemm") & table["least"].ge(triton.COMPUTE_BOUND)]["ratio"]
    others = table[table["kernel"].ne("gemm")]["ratio"]
    if large.empty or others.empty:
        raise NotMeasured("no pairs of compute-bound and of memory-bound Triton kernels")
    return bool(large.min() > 1.05 and others.between(0.88, 1.12).all()), (
        f"Time with pointers over that with descriptors: {span(large, 2)} in compute-bound products, {span(others, 2)} "
        "in kernels that memory bounds."
    )
