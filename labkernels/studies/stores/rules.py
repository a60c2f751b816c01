"""Rules of thumb on stores: who writes, from where, in which rows."""

import pandas as pd

from labkernels.production.practice import Practice
from labkernels.studies.rule import Rules
from labkernels.studies.stores import findings as found

RULES = Rules("stores", "stores")
MATRIX = "tiles of 2 to 32 KiB, 1 GiB written in turn to HBM; 1 to 4 CTAs of 128 to 512 threads per SM"


@RULES.rule(
    "stores_keep_up",
    operands="tiles that leave in rows of 256 bytes and more",
    take="whichever leaves the code simplest: st.global from registers, or a TMA store",
    statement="For tiles in whole rows it does not matter who writes them.",
    scope=f"{MATRIX}; rows of 256 to 2,048 bytes of a matrix 8 KiB wide, and tiles that are one run of memory; each "
    "form in its fastest cell; equal: within 3%",
)
def _stores_keep_up(frame: pd.DataFrame) -> tuple[bool, str]:
    table = found.rates(frame)
    ratios = [found.over(table[found.is_one_run(table)], found.TMA, found.DIRECT, destination="hbm")]
    boxes = table[~found.is_one_run(table)]
    ratios += [
        found.over(boxes, found.TMA, found.DIRECT, destination="hbm", row_bytes=row)
        for row in (256, 512, 1024, 2048)
    ]
    low, high = min(r.low for r in ratios), max(r.high for r in ratios)
    return all(r.within(0.03) for r in ratios), (
        f"TMA store over st.global to HBM: {', '.join(f'{r.ratio:.3f}' for r in ratios)} for runs and rows of 256, "
        f"512, 1,024 and 2,048 bytes; all intervals lie within {low:.3f} to {high:.3f}."
    )


@RULES.rule(
    "fragments_through_shared_memory",
    operands="accumulators of two bytes, as wgmma leaves them",
    take="a trip through shared memory (stmatrix), then a TMA store or whole rows by st.global",
    statement="Do not store wgmma's two-byte fragments as they lie: a trip through shared memory pays.",
    scope=f"tiles of 64 to 256 rows of 128 bytes, {MATRIX.partition('; ')[2]}; four bytes a lane against stmatrix "
    "under the 128-byte swizzle; to HBM and to lines in L2",
    practice=Practice(
        "direction == 'store' and operand in ['O', 'D', 'dK', 'dV', 'dQ, dK, dV'] and phase != 'combine'",
        "mechanism == 'tma_store' or route.str.startswith('s')",
    ),
)
def _fragments_through_shared_memory(frame: pd.DataFrame) -> tuple[bool, str]:
    table = found.rates(frame)
    ratios = [
        found.over(table, form, found.FRAGMENTS, destination=place)
        for place in ("hbm", "l2")
        for form in (found.FRAGMENTS_BY_TMA, found.CARRIED)
    ]
    return min(r.low for r in ratios) > 2, (
        f"Over stores of fragments as they lie: by TMA {ratios[0].times(1)} to HBM and {ratios[2].times(1)} to L2, by "
        f"st.global in whole rows {ratios[1].times(1)} and {ratios[3].times(1)}."
    )


@RULES.rule(
    "rows_by_tensor_map",
    operands="rows shorter than 512 bytes, in a wider matrix",
    take="a TMA store of the tile, or st.global; not a bulk store for each row",
    statement="A bulk store for each row needs rows of 512 bytes; shorter ones leave as a box.",
    scope=f"{MATRIX}; rows of 32 to 512 bytes of a matrix 8 KiB wide, a lane of one warp issues each row",
    practice=Practice("mechanism == 'bulk_store' and variant == variant", "row_bytes_min >= 512"),
)
def _rows_by_tensor_map(frame: pd.DataFrame) -> tuple[bool, str]:
    table = found.rates(frame)
    rows = (32, 64, 128, 256, 512)
    shares = [found.over(table, found.BULK_ROWS, found.TMA, destination="hbm", row_bytes=row) for row in rows]
    return all(r.high < 0.9 for r in shares[:-1]) and shares[-1].low > 0.9, (
        "Bulk stores of rows over TMA stores of tiles: "
        + ", ".join(f"{r.ratio:.2f} ({row} B)" for r, row in zip(shares, rows, strict=True))
        + "."
    )


@RULES.rule(
    "four_warps_fill_memory",
    operands="tiles that leave while nothing else is to be done",
    take="one CTA of 128 threads per SM",
    statement="Four warps of an SM write as fast as memory takes it.",
    scope=f"{MATRIX}; tiles that are one run of memory; at least 97% of the fastest cell",
)
def _four_warps_fill_memory(frame: pd.DataFrame) -> tuple[bool, str]:
    table = found.rates(frame)
    runs = table[found.is_one_run(table)]
    cells = {
        form: found.smallest_cell(runs, 0.97, destination="hbm", form=form)
        for form in (found.DIRECT, found.TMA, found.BULK_TILE)
    }
    shown = ", ".join(
        f"{form}: {cell['threads_per_sm']:.0f} threads, {cell['shared_bytes_per_sm'] / 1024:.0f} KiB"
        for form, cell in cells.items()
    )
    return all(cell["threads_per_sm"] <= 128 for cell in cells.values()), (
        f"Threads and shared memory of an SM that reach 97% of the fastest, {shown}."
    )
