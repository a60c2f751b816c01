"""Pairs of real kernels that differ in how they load, beside what the isolated main loop says of them."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.model.beside import Product, product_cycles
from labkernels.model.closed_form import Constants, constants
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.gemm import pair_findings
from labkernels.studies.kernel import triton_findings
from labkernels.studies.paged.findings import fa3_cells
from labkernels.studies.stats import Measured

NEAR = 0.10  # predictions nearer than this to what was measured count as right
DIFFERS = 1.05  # pairs that differ by more must not be called equal
SAME = 1.015  # predictions that the advisor calls no difference
HEAD_DIM, TILE_KEYS = 128, 128  # of the cells of `fa3`
RESAMPLES, SEED = 2000, 20260131


def pairs(store: Store, gpu: str) -> pd.DataFrame:
    """Every pair, measured and predicted; no constant is fitted to any of them.

    CUTLASS's GEMMs, ping-pong and cooperative, against cp.async in its best form; Triton's kernels; FlashAttention-3
    on pages.

    Returns:
        Columns `source`, `kernel` (in words), `measured` (time without TMA over that with it), `low`, `high`,
        `predicted`, and `error` (predicted over measured, less 1).

    Raises:
        NotMeasured: there are none, or no constants of this GPU.
    """
    of = constants(gpu, store.root)
    rows: list[dict[str, Any]] = []
    for source, find in (("CUTLASS", _cutlass), ("Triton", _triton), ("FlashAttention-3", _flash_attention)):
        with suppress(NotMeasured):
            rows += [{"source": source} | row for row in find(store, gpu, of)]
    if not rows:
        raise NotMeasured(f"no pairs of real kernels of {gpu}")
    table = pd.DataFrame(rows)
    return table.assign(error=table["predicted"] / table["measured"] - 1)


def _ratio(product: Product, of: Constants) -> float:
    return product_cycles("cp_async", product, of) / product_cycles("tma_tile", product, of)


def _gemm(m: int, n: int, k: int, tile: tuple[int, int], element_bytes: int, of: Constants) -> Product:
    """A tile of a GEMM, with its share of what all SMs' tiles at once move in device memory."""
    tile_m, tile_n = tile
    tiles = -(-m // tile_m) * -(-n // tile_n)
    sms = of["gpu", "sms_at_fan_out_1"]
    waves = -(-tiles // sms)
    moved = (m + n) * k * element_bytes + m * n * 2
    return Product(
        tile_m,
        tile_n,
        k * element_bytes,
        element_bytes=element_bytes,
        memory_bytes=moved / waves,
        stores=True,
    )


def _cutlass(store: Store, gpu: str, of: Constants) -> Iterator[dict[str, Any]]:
    table = pair_findings.over_forms(select.require_rows(store, "gemm_loads", gpu))
    own = pair_findings.FORMS["cp_async"]
    table = table[
        table["form"].ne(own) & table["schedule"].isin([pair_findings.PINGPONG, pair_findings.COOPERATIVE])
    ]
    best = table.loc[table.groupby(["dtype", "schedule", *pair_findings.SHAPE])["ratio"].idxmin()]
    for row in best.itertuples():
        element_bytes = {"bf16": 2, "e4m3": 1}[row.dtype]
        product = _gemm(row.m, row.n, row.k, (row.tile_m, row.tile_n), element_bytes, of)
        name = f"{row.schedule} {row.dtype} {row.m} × {row.n} × {row.k}"
        yield _said(name, row, _ratio(product, of))


def _triton(store: Store, gpu: str, of: Constants) -> Iterator[dict[str, Any]]:
    for row in triton_findings.speedups(select.require_rows(store, "triton_loads", gpu)).itertuples():
        if row.kernel == "gemm":
            product = _gemm(row.m, row.n, int(row.k), (row.tile_m, row.tile_n), 2, of)
            yield _said(
                f"gemm {row.tile_m}×{row.tile_n}, {row.m} × {row.n} × {row.k}", row, _ratio(product, of)
            )
        else:  # bound by memory, whoever loads
            yield _said(f"{row.kernel} {row.tile_m}×{row.tile_n}, {row.m} × {row.n}", row, 1.0)


def _flash_attention(store: Store, gpu: str, of: Constants) -> Iterator[dict[str, Any]]:
    """Decode is bound by memory. In prefill a step brings a tile of keys, or of values; the queries stay."""
    for row in fa3_cells(select.require_rows(store, "fa3", gpu)).itertuples():
        keys = Product(128, TILE_KEYS, 2 * HEAD_DIM, 2 * HEAD_DIM, copied_rows=TILE_KEYS)
        predicted = 1.0 if row.phase == "decode" else _ratio(keys, of)
        yield _said(f"{row.phase}, {row.batch} sequences, pages of {row.page_rows}", row, predicted)


def _said(name: str, row: Any, predicted: float) -> dict[str, Any]:
    low, high = (getattr(row, f"ratio_{end}", getattr(row, end, None)) for end in ("low", "high"))
    return {"kernel": name, "measured": row.ratio, "low": low, "high": high, "predicted": predicted}


def missed(table: pd.DataFrame) -> pd.DataFrame:
    """Pairs that differ by more than 5% where the prediction says no difference."""
    differs = np.maximum(table["measured"], 1 / table["measured"]).gt(DIFFERS)
    same = np.maximum(table["predicted"], 1 / table["predicted"]).le(SAME)
    return table[differs & same]


def error_p90(table: pd.DataFrame) -> Measured:
    """90th percentile of the error's size over all pairs; the interval is over resampled pairs."""
    errors = table["error"].abs().to_numpy()
    rng = np.random.default_rng(SEED)
    drawn = np.quantile(rng.choice(errors, (RESAMPLES, len(errors))), 0.9, axis=1)
    return Measured(float(np.quantile(errors, 0.9)), *map(float, np.quantile(drawn, [0.025, 0.975])))
