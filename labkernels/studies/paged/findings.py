"""What stored rows say of paged keys: what a page costs, what stays hidden, what FlashAttention-3's rule costs."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.studies.stats import Ratio, having, paired, spread, where

SETTING = ["row_bytes", "kv_heads", "layout", "page_order", "splits"]
PLAIN = dict(zip(SETTING, (256, 8, "nhd", "shuffled", 1), strict=True))  # the main sweep of decode
AS_IN_KERNEL = {"decode": "decode_mma", "prefill": "prefill"}
WAY = ["page_rows", "variant", "piece_rows", "issuers"]
CASE = ["run_id", "gpu", "phase", "mechanism", *WAY, *SETTING]
SHAPE = [
    "run_id",
    "gpu",
    "phase",
    "batch",
    "seqlen_q",
    "seqlen_k",
    "heads",
    "kv_heads",
    "head_dim",
    "head_dim_v",
]
SHAPE += ["num_splits"]
PROBLEM = ["run_id", "gpu", "phase", "batch", "seqlen_q", "seqlen_k", "heads", "kv_heads", "num_splits"]


def best_variant(frame: pd.DataFrame, page_rows: int) -> pd.DataFrame:
    """Rounds of the fastest way to gather pages of one size.

    Args:
        frame: rows of one phase and one cache.
        page_rows: rows of a page.

    Raises:
        NotMeasured: pages of that size have no rows.
    """
    paged = where(frame, page_rows=page_rows)
    medians = paged.groupby(WAY)["duration_us"].median()
    return where(paged, **dict(zip(WAY, medians.idxmin(), strict=True)))


def paged_best_over_contiguous(frame: pd.DataFrame, page_rows: int = 64) -> Ratio:
    """Throughput of the best way to gather pages over that of the contiguous cache, in decode's main sweep.

    Args:
        frame: rows of one run of `paged`.
        page_rows: rows of a page.
    """
    main = where(frame, phase="decode", **PLAIN)
    contiguous = where(main, variant="contiguous")
    return paired(best_variant(main, page_rows), contiguous, "gbps")


def gathers(frame: pd.DataFrame) -> pd.DataFrame:
    """Throughput of every way to gather pages in decode's main sweep.

    Args:
        frame: rows of one run of `paged`; may have none.

    Returns:
        The spread of `gbps` over rounds by `CASE`.
    """
    main = having(frame, phase="decode", **PLAIN)
    return spread(main[main["variant"].isin(["rows", "box", "run"])], CASE, "gbps")


def by_row_length(frame: pd.DataFrame) -> pd.DataFrame:
    """Throughput of decode by length of a row, pages of 64 rows and contiguous: the best number of issuing warps each.

    Args:
        frame: rows of one run of `paged`.
    """
    rows = having(frame, phase="decode", layout="nhd", page_order="shuffled", splits=1)
    wide = rows["kv_heads"].eq(8) | rows["row_bytes"].isin([576, 1152])
    table = spread(rows[wide & rows["page_rows"].isin([0, 64]) & rows["variant"].ne("row")], CASE, "gbps")
    return table.loc[table.groupby(["row_bytes", "variant"])["median"].idxmax()]


def unhidden(frame: pd.DataFrame, phase: str = "prefill") -> pd.DataFrame:
    """Cost of copying that tensor cores do not hide, by way.

    Args:
        frame: rows of one run of `paged`.
        phase: `prefill` or `decode_mma`.

    Returns:
        A row per way: the spread over rounds of its duration over that of the same kernel without copies, and
        `unhidden_us`, the median of their difference.
    """
    rows = where(frame, phase=phase)
    bare = where(rows, variant="no_copy").set_index("round")["duration_us"]
    rows = rows[rows["variant"].ne("no_copy")]
    without = rows["round"].map(bare)
    rows = rows.assign(
        unhidden_us=rows["duration_us"] - without, relative=rows["duration_us"] / bare.median()
    )
    cost = rows.groupby(CASE, dropna=False)["unhidden_us"].median().reset_index()
    return spread(rows, CASE, "relative").merge(cost, on=CASE)


def most_issuers(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows with one issuing warp left out where several were measured of the same case."""
    case = [column for column in ("phase", "page_rows", "variant", "piece_rows", *SETTING) if column in frame]
    return frame[frame["issuers"].eq(frame.groupby(case)["issuers"].transform("max"))]


def isolated_ratio(frame: pd.DataFrame, phase: str, page_rows: int) -> Ratio:
    """Time of cp.async over time of TMA boxes beside tensor cores (`decode_mma`, `prefill`): above 1, TMA is faster."""
    main = most_issuers(where(frame, phase=phase, page_rows=page_rows))
    return paired(where(main, variant="rows"), where(main, variant="box"), "duration_us")


def whole_calls(frame: pd.DataFrame) -> pd.DataFrame:
    """With `call_us`: all that a call causes, preparation and combination of splits beside its attention kernel."""
    return frame.assign(call_us=frame["kernel_us"] + frame["beside_us"])


def fa3_cells(frame: pd.DataFrame, time: str = "call_us") -> pd.DataFrame:
    """FlashAttention-3 problem by problem and page size by page size, where both mechanisms ran.

    Args:
        frame: rows of one run of `fa3`.
        time: `call_us`, the whole call's, or `kernel_us`, that of the attention kernel alone.

    Returns:
        A row per cell: what the rule takes, median microseconds of either, `ratio` (cp.async over TMA)
        with its interval, `best` (empty where they do not differ) and `regret` (time of the rule's choice
        over the best; 1 where they do not differ).

    Raises:
        NotMeasured: there is no such cell.
    """
    cells = []
    frame = whole_calls(frame)
    for key, cell in frame[frame["page_rows"].gt(0)].groupby([*PROBLEM, "page_rows"]):
        ways = {name: rows for name, rows in cell.groupby("mechanism")}
        if len(ways) < 2 or "rule" not in set(cell["route"]):
            continue
        gather, boxes = ways["cp_async"], ways["tma_tile"]
        ratio = paired(gather, boxes, time)
        best = "" if not ratio.differs else "tma_tile" if ratio.ratio > 1 else "cp_async"
        rule = where(cell, route="rule")["mechanism"].iloc[0]
        regret = 1.0 if best in ("", rule) else max(ratio.ratio, 1 / ratio.ratio)
        times = {"cp_async_us": gather[time].median(), "tma_tile_us": boxes[time].median()}
        cells.append(
            dict(zip([*PROBLEM, "page_rows"], key, strict=True))
            | {"rule": rule, "best": best, "regret": regret, **times}
            | {"ratio": ratio.ratio, "ratio_low": ratio.low, "ratio_high": ratio.high}
        )
    if not cells:
        raise NotMeasured("no problem that ran by cp.async and by TMA over the same pages")
    return pd.DataFrame(cells)


def shape_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """FlashAttention-3 at one model shape after another: whole calls by cp.async over whole calls by TMA.

    Args:
        frame: rows of one run of `fa3_shapes`.

    Returns:
        A row per shape and page size: `ratio` with its interval, of calls that differ in a left padding of zero rows
        alone; `best`, empty where it lies within its noise; `rule`, what the library takes, and `chosen` with its
        interval, its whole call over that by TMA (1 where it takes TMA itself); median microseconds of each, and their
        tiles (query rows × keys).

    Raises:
        NotMeasured: there is no such cell.
    """
    cells = []
    for key, shape in whole_calls(frame).groupby(SHAPE, sort=False):
        for page_rows, pages in shape.groupby("page_rows"):
            routes = dict(iter(pages.groupby("route")))
            rule, gather = routes.get("rule"), routes.get("leftpad")
            boxes = routes.get("bound", rule)
            if rule is None or gather is None or set(boxes["mechanism"]) != {"tma_tile"}:
                continue
            ratio, chosen = paired(gather, boxes, "call_us"), paired(rule, boxes, "call_us")
            ways = {"rule": rule, "tma": boxes, "gather": gather}
            cells.append(
                dict(zip(SHAPE, key, strict=True))
                | {"page_rows": page_rows, "rule": rule["mechanism"].iloc[0]}
                | {"best": "" if not ratio.differs else "tma_tile" if ratio.ratio > 1 else "cp_async"}
                | {"ratio": ratio.ratio, "ratio_low": ratio.low, "ratio_high": ratio.high}
                | {"chosen": chosen.ratio, "chosen_low": chosen.low, "chosen_high": chosen.high}
                | {f"{name}_us": rows["call_us"].median() for name, rows in ways.items()}
                | {f"{name}_tile": _tile(rows) for name, rows in ways.items()}
            )
    if not cells:
        raise NotMeasured("no shape that ran by cp.async and by TMA in the same call")
    return pd.DataFrame(cells)


def _tile(rows: pd.DataFrame) -> str:
    """Query rows and keys of a kernel's tile, in words."""
    return f"{rows['tile_m'].iloc[0]} × {rows['tile_n'].iloc[0]}"


@dataclass(frozen=True)
class Regret:
    """Time of a rule's choices over the best, over some cells.

    Attributes:
        mean: geometric mean.
        worst: largest.
        cells: how many.
        wrong: in how many the other choice was faster.
    """

    mean: float
    worst: float
    cells: int
    wrong: int


def fa3_rule_regret(frame: pd.DataFrame) -> Regret:
    """What FlashAttention-3's rule costs over the cells in which both mechanisms ran.

    Args:
        frame: rows of one run of `fa3`.
    """
    regret = fa3_cells(frame)["regret"]
    return Regret(
        float(np.exp(np.log(regret).mean())), float(regret.max()), len(regret), int((regret > 1).sum())
    )


def page_table_cost(frame: pd.DataFrame) -> pd.DataFrame:
    """Time of FlashAttention-3 with a page table over that without, where TMA loads both.

    Args:
        frame: rows of one run of `fa3_fwd`.

    Returns:
        A row per problem, dtype, head dim and page size: `page_tiles` (tiles of keys in a page), `route`, median
        microseconds of either (`contiguous_us`, `paged_us`), and `ratio` with its interval (above 1: the page table
        costs). No rows where no page was measured.
    """
    case = [*PROBLEM, "dtype", "head_dim", "tile_n"]
    cells = []
    for key, problem in frame[frame["mechanism"].eq("tma_tile")].groupby(case):
        contiguous = having(problem, page_rows=0)
        for page_rows, paged in problem[problem["page_rows"].gt(0)].groupby("page_rows"):
            if contiguous.empty:
                continue
            ratio = paired(paged, contiguous, "kernel_us")
            named = dict(zip(case, key, strict=True))
            cells.append(
                named
                | {"page_rows": page_rows, "page_tiles": page_rows // named["tile_n"]}
                | {"route": paged["route"].iloc[0], "mechanism": "tma_tile"}
                | {"contiguous_us": contiguous["kernel_us"].median(), "paged_us": paged["kernel_us"].median()}
                | {"ratio": ratio.ratio, "ratio_low": ratio.low, "ratio_high": ratio.high}
            )
    columns = [*case, "page_rows", "page_tiles", "route", "mechanism", "contiguous_us", "paged_us"]
    return pd.DataFrame(cells, columns=[*columns, "ratio", "ratio_low", "ratio_high"])


def over_contiguous(frame: pd.DataFrame) -> pd.DataFrame:
    """Time of FlashAttention-3 on pages over that on a contiguous cache; 8 sequences left out, which it splits.

    Args:
        frame: rows of one run of `fa3`.
    """
    contiguous = where(frame, route="contiguous").groupby(PROBLEM)["kernel_us"].median()
    paged = frame[frame["page_rows"].gt(0) & frame["batch"].ne(8)]
    paged = paged.join(contiguous.rename("contiguous_us"), on=PROBLEM)
    relative = paged.assign(relative=paged["kernel_us"] / paged["contiguous_us"])
    return spread(relative, [*PROBLEM, "page_rows", "route", "mechanism"], "relative")


def predicted_signs(paged: pd.DataFrame, fa3: pd.DataFrame) -> pd.DataFrame:
    """FlashAttention-3's cells beside what the isolated kernels say of the same page size and phase.

    Args:
        paged: rows of one run of `paged`.
        fa3: rows of one run of `fa3`, of the same GPU.

    Returns:
        The cells with `isolated`, the isolated ratio, and `agrees`: whether the signs are the same; empty where the
        real kernel's difference lies within its interval.
    """
    cells = fa3_cells(fa3)
    ratios = {
        key: isolated_ratio(paged, AS_IN_KERNEL[key[0]], key[1])
        for key in {(phase, page) for phase, page in zip(cells["phase"], cells["page_rows"], strict=True)}
    }
    isolated = [ratios[key] for key in zip(cells["phase"], cells["page_rows"], strict=True)]
    agrees = [
        pd.NA if not best else (ratio > 1) == (alone.ratio > 1)
        for best, ratio, alone in zip(cells["best"], cells["ratio"], isolated, strict=True)
    ]
    return cells.assign(
        isolated=[one.ratio for one in isolated],
        isolated_low=[one.low for one in isolated],
        isolated_high=[one.high for one in isolated],
        agrees=pd.array(agrees, dtype="boolean"),
    )
