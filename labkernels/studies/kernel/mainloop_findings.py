"""What stored rows of main loops say: how far each producer lets tensor cores, or FFMA, come to their rate alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.mechanisms import MECHANISMS
from labkernels.studies.stats import Measured, Ratio, having, paired, spread, where

CYCLES = "cycles_per_step"
ALONE = "none"
#: Columns that tell main loops apart.
LOOP = [
    "gpu",
    "run_id",
    "kernel",
    "mechanism",
    "compute",
    "ffma_per_word",
    "wgmma_per_step",
    "tile_m",
    "tile_n",
    "swizzle_bytes",
    "stages",
    "stage_bytes",
    "producer_warps",
    "turns",
    "handover",
    "lanes",
    "behind",
    "pitch_bytes",
    "producer_registers",
    "consumer_registers",
    "threads",
    "cluster",
    "source",
    "data",
    "tiles",
    "bound_cycles_per_step",
]
USUAL_STAGE_BYTES = 192 << 10
SQUARE, WIDE, TALL = (128, 128), (128, 256), (256, 128)
#: What is held fixed, if nothing else is said: the form of a main loop, and where it works.
FORM = {"compute": "wgmma", "wgmma_per_step": 4, "swizzle_bytes": 128, "behind": 0, "pitch_bytes": 4096}
PLACE = {"source": "l2", "data": "random", "tiles": "grid"}


def shares(frame: pd.DataFrame) -> pd.DataFrame:
    """Every main loop with its cycles of a step over the rounds, and the share of its arithmetic's own rate.

    Returns:
        The columns of `LOOP`; `p05`, `median`, `p95` (cycles); `share`, `share_low`, `share_high`; `tile` in words.
    """
    table = spread(frame, LOOP, CYCLES)
    bound = table["bound_cycles_per_step"]
    return table.assign(
        share=bound / table["median"],
        share_low=bound / table["p95"],
        share_high=bound / table["p05"],
        tile=table["tile_m"].astype(str) + "×" + table["tile_n"].astype(str),
    )


def best_form(frame: pd.DataFrame, mechanism: str, tile: tuple[int, int]) -> pd.DataFrame:
    """Rows of a producer in its best form beside tensor cores, at every depth and source.

    cp.async by four warps; plain loads by as many as the registers of that tile allow, in turns where they do.

    Raises:
        NotMeasured: there are none.
    """
    m, n = tile
    rows = where(frame, mechanism=mechanism, tile_m=m, tile_n=n, **FORM)
    rows = rows[rows["producer_registers"].gt(0)]
    if mechanism == "cp_async":
        return where(rows, producer_warps=4)
    if mechanism == "ldg":
        return where(rows, producer_warps=4 if n > m else 8, turns=2 if m == n else 1)
    return rows


def beside(frame: pd.DataFrame, mechanism: str, tile: tuple[int, int] = SQUARE, **equal: Any) -> Ratio:
    """Rate of tensor cores beside a producer over their rate alone, in cycles, so that the clock cancels.

    Args:
        frame: rows of one run of `mainloop`.
        mechanism: of the producer.
        tile: rows of A and of B.
        equal: further columns of both; by default random tiles of a grid from L2, in a pipeline of 192 KiB.

    Raises:
        NotMeasured: it has no such rows.
    """
    held = PLACE | equal
    loaded = where(best_form(frame, mechanism, tile), **held)
    loaded = _usual(loaded)
    alone = _usual(where(best_form(frame, ALONE, tile), **held | {"source": "l2"}))
    return paired(alone, loaded, CYCLES)


def _usual(frame: pd.DataFrame) -> pd.DataFrame:
    rows = frame[frame["stages"].mul(frame["stage_bytes"]).eq(USUAL_STAGE_BYTES)]
    if rows.empty:
        raise NotMeasured("no rows of a pipeline of 192 KiB")
    return rows


def wgmma_beside(mechanism: str) -> Callable[[pd.DataFrame], Measured]:
    """A headline figure: see `beside`."""
    return lambda frame: Measured(*beside(frame, mechanism))


def contest(frame: pd.DataFrame, source: str = "l2") -> pd.DataFrame:
    """`shares` of each producer in its best form, of every tile and depth; the consumer alone left out."""
    found = []
    for tile in (SQUARE, WIDE, TALL):
        for mechanism in having(frame, tile_m=tile[0], tile_n=tile[1])["mechanism"].unique():
            if mechanism != ALONE:
                found.append(best_form(frame, mechanism, tile))
    if not found:
        raise NotMeasured("no rows of a producer beside tensor cores")
    rows = where(pd.concat(found), **PLACE | {"source": source})
    return shares(rows).sort_values(["tile", "mechanism", "stages"])


def by_warps(frame: pd.DataFrame) -> pd.DataFrame:
    """`shares` of cp.async by one to eight warps, and of TMA, in pipelines of 192 KiB."""
    rows = _usual(having(frame, **FORM, **PLACE))
    rows = rows[rows["producer_registers"].gt(0) & rows["mechanism"].isin(["cp_async", "tma_tile"])]
    return shares(rows).sort_values(["tile", "mechanism", "producer_warps"])


def titles(mechanisms: pd.Series) -> pd.Series:
    """Producers in words."""
    return mechanisms.map(lambda name: MECHANISMS[name].title if name in MECHANISMS else "nobody")


def ways(table: pd.DataFrame) -> pd.Series:
    """Each producer in words, with its warps where threads copy."""
    title = titles(table["mechanism"])
    by_threads = table["mechanism"].map(lambda name: name in MECHANISMS and MECHANISMS[name].by_threads)
    warps = table["producer_warps"].map(lambda count: f", {count} warps" if count > 1 else ", 1 warp")
    return title + warps.where(by_threads, "")


def by_swizzle(frame: pd.DataFrame) -> pd.DataFrame:
    """`shares` of TMA and cp.async by width of the tile's columns, beside tensor cores and without a consumer.

    Returns:
        With `columns` (bytes, in words), `consumer` and `way` in words.
    """
    rows = _usual(having(frame, tile_m=128, tile_n=128, behind=0, pitch_bytes=4096, **PLACE))
    rows = rows[rows["producer_registers"].gt(0) & rows["wgmma_per_step"].isin([0, 4])]
    threads = rows["mechanism"].eq("cp_async") & rows["producer_warps"].eq(4)
    table = shares(rows[threads | rows["mechanism"].isin(["tma_tile", ALONE])])
    width = table["swizzle_bytes"].replace(0, 16)
    both = table.assign(
        columns=width.astype(str),
        width=width,
        consumer=table["compute"].map({"wgmma": "Beside tensor cores", "none": "Copies alone"}),
        way=ways(table) + table["lanes"].map({"rows": "", "banks": ", lanes by banks"}),
    )
    full = both[both["width"].eq(128) & both["mechanism"].eq("cp_async")]
    both = pd.concat([both, full.assign(way=full["way"] + ", lanes by banks")])
    return both[both["mechanism"].ne(ALONE)].sort_values(
        ["consumer", "way", "width"], ascending=[True, False, False]
    )


def alone_by_swizzle(frame: pd.DataFrame) -> pd.Series:
    """Cycles of a step of tensor cores alone, by width of the tile's columns."""
    rows = _usual(having(frame, mechanism=ALONE, compute="wgmma", tile_m=128, tile_n=128, **PLACE))
    rows = rows[rows["producer_registers"].gt(0)]
    return rows.groupby("swizzle_bytes")[CYCLES].median()


def left_over(frame: pd.DataFrame) -> pd.DataFrame:
    """FFMA rate beside each producer over that alone, by FFMA for each word.

    Returns:
        Columns gpu, run_id, mechanism, producer_warps, pitch_bytes, ffma_per_word, way, ratio, low, high.
    """
    rows = _usual(where(frame, compute="fma", **PLACE))
    keys = ["gpu", "run_id", "mechanism", "producer_warps", "pitch_bytes", "ffma_per_word"]
    found = []
    for names, loaded in rows[rows["mechanism"].ne(ALONE)].groupby(keys):
        of = dict(zip(keys, names, strict=True))
        alone = where(rows, mechanism=ALONE, ffma_per_word=of["ffma_per_word"])
        found.append(of | paired(alone, loaded, CYCLES)._asdict())
    if not found:
        raise NotMeasured("no rows of FFMA beside a producer")
    table = pd.DataFrame(found)
    packed = table["pitch_bytes"].eq(128).map({True: ", packed tiles", False: ""})
    return table.assign(way=ways(table) + packed)
