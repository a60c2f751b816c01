"""How good model and advisor are: on held-out configurations, other experiments, real kernels, production's choices."""

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.model.advisor import NO_DIFFERENCE, PREFERENCE, Question, advise, choose
from labkernels.model.closed_form import ALONE, DSM, UNICAST, Constants, Load, constants, predict
from labkernels.model.configurations import (
    CELL,
    LOAD,
    configurations,
    divided,
    fastest_pipelines,
    frames,
    predicted,
)
from labkernels.operand import KIB, column_span
from labkernels.store import Store
from labkernels.studies import select
from labkernels.studies.paged import findings as paged_findings
from labkernels.studies.stats import having, spread, where

LOADS = ("throughput", "row_shape", "multicast_fair")  # experiments whose rows are fitted, and held out
SETS = {
    "held out": "microbenchmarks that were not fitted",
    "broadcast": "pipelines of clusters that share a tile, DSM among them, four stages",
    "paged decode": "gathering pages from HBM",
    "paged prefill": "gathering pages beside busy tensor cores",
    "FlashAttention-3": "the real kernel, where it ran by TMA and by cp.async",
}


@dataclass(frozen=True)
class Score:
    """Choices over some cells.

    Attributes:
        cells: how many.
        agreement: share in which the choice is the measured best or within its noise.
        regret_median: time of the choice over time of the best.
        regret_p95: 95th percentile.
        regret_worst: largest.
    """

    cells: int
    agreement: float
    regret_median: float
    regret_p95: float
    regret_worst: float


def score(cells: pd.DataFrame) -> Score:
    """Agreement and regret of the rows of `choices`."""
    regret = cells["regret"]
    return Score(
        len(cells),
        float(cells["agrees"].mean()),
        float(regret.median()),
        float(regret.quantile(0.95)),
        float(regret.max()),
    )


def held_out(store: Store, gpu: str) -> pd.DataFrame:
    """Held-out configurations with predictions: the columns of `fit.predicted`, `set` and `cell`."""
    of = _constants(store, gpu)
    table = configurations(frames(store, gpu, LOADS))
    return _cells(predicted(table[table["held_out"]], of), "held out")


def forecast(store: Store, gpu: str) -> pd.DataFrame:
    """Held-out configurations beside what an earlier model said of them before these rows were measured.

    Its predictions are stored (`data/model/forecast.csv`); columns as `held_out` without `binding`, and `commit`.

    Raises:
        NotMeasured: there are none of this GPU.
    """
    stored = where(store.read("forecast"), gpu=gpu).drop(columns="gpu")
    table = configurations(frames(store, gpu, LOADS)).merge(stored, on=["mechanism", *LOAD])
    # Its ties went by `PREFERENCE` alone.
    table = table.assign(ratio=table["predicted_gbps"] / table["median"], instructions=1.0)
    return _cells(table, "held out")


def broadcast(store: Store, gpu: str) -> pd.DataFrame:
    """Pipelines of `broadcast`, of which no row was fitted: loads, DSM, computed; columns as `held_out`."""
    of = _constants(store, gpu)
    table = fastest_pipelines(select.require_rows(store, "broadcast", gpu), "broadcast")
    return _cells(predicted(table, of), "broadcast")


def _cells(table: pd.DataFrame, name: str) -> pd.DataFrame:
    labels = [
        f"{row.source}, {row.tile_bytes} B × {row.tiles_in_flight} × {row.ctas_per_sm}"
        + (f", rows of {row.row_bytes} B{'' if row.is_dense else ' apart'}" if row.row_bytes < KIB else "")
        + (f", fan-out {row.fan_out}" if row.fan_out > 1 else "")
        for row in table[CELL].itertuples(index=False)
    ]
    return table.assign(set=name, cell=labels)


def paged(store: Store, gpu: str, phase: str = "decode") -> pd.DataFrame:
    """Gathered pages with predictions; columns as `held_out`.

    A row takes as many boxes as its swizzle has spans in it, and a tile so many copies for each piece; beside tensor
    cores (`prefill`) keys lie in L2 and the kernel without copies says what one tile's work takes.

    Args:
        store: the rows.
        gpu: whose.
        phase: `decode` or `prefill`.

    Raises:
        NotMeasured: no rows of this phase.
    """
    frame = where(select.require_rows(store, "paged", gpu), phase=phase)
    shape = ["tile_rows", "stages", "ctas_per_sm", "blocks", "bytes_moved"]
    by = [*paged_findings.CASE, *shape]
    table = spread(frame, by, "gbps")
    compute = 0.0
    of = _constants(store, gpu)
    if phase == "prefill":
        bare = where(frame, variant="no_copy")
        tiles = bare["sequence_rows"].iloc[0] / bare["tile_rows"].iloc[0]
        compute = float(bare["duration_us"].median() * of["gpu", "sm_clock_mhz"] / tiles)
    table = table[table["page_rows"].gt(0) & table["variant"].isin(["rows", "box", "run"])]
    found = []
    for row in table.itertuples(index=False):
        run_bytes = column_span(row.row_bytes).span_bytes if row.mechanism == "tma_tile" else row.row_bytes
        load = Load(
            tile_bytes=row.tile_rows * row.row_bytes,
            row_bytes=run_bytes,
            is_dense=row.kv_heads == 1 or row.layout == "hnd",
            tiles_in_flight=row.stages,
            ctas_per_sm=row.ctas_per_sm,
            source="l2" if phase == "prefill" else "hbm",
            copies=max(1, row.tile_rows // row.piece_rows) * (row.row_bytes // run_bytes),
            lookups=max(1, row.tile_rows // row.piece_rows),
            issuers=row.issuers,
            compute_cycles=compute,
        )
        found.append(predict(row.mechanism, load, of))
    cells = [
        f"pages of {row.page_rows}, rows of {row.row_bytes} B, {row.kv_heads} heads, {row.layout}, {row.page_order}"
        + (f", {row.splits} splits" if row.splits > 1 else "")
        for row in table.itertuples(index=False)
    ]
    return table.assign(
        set=f"paged {phase}",
        cell=cells,
        predicted_gbps=[one.gbps for one in found],
        binding=[one.binding for one in found],
        instructions=[one.instructions for one in found],
        ratio=[one.gbps for one in found] / table["median"],
    )


def single_runs(table: pd.DataFrame) -> pd.Series:
    """Which rows of `paged` are bulk copies of one row each: an address for every row."""
    return table["mechanism"].eq("tma_bulk") & table["piece_rows"].eq(1)


def forwarded(table: pd.DataFrame) -> pd.Series:
    """Which rows of `broadcast` pass from shared memory to shared memory: all of DSM, and computed tiles."""
    return table["mechanism"].isin(DSM) | table["source"].eq("computed")


def choices(table: pd.DataFrame) -> pd.DataFrame:
    """What the advisor takes in each cell in which several mechanisms were measured, and what it costs.

    Args:
        table: rows of `held_out`, `broadcast` or `paged`; of a mechanism, its best variant counts.

    Returns:
        Columns `set`, `cell`, `choice`, `best`, `regret` (time of the choice over time of the best), `agrees` (the
        choice is the best, or their 5 % to 95 % intervals of rounds overlap) and `tied` (predictions of the two do not
        differ).

    Raises:
        NotMeasured: there is no such cell.
    """
    found = []
    for (name, cell), rows in table.groupby(["set", "cell"], sort=False):
        if rows["mechanism"].nunique() < 2:
            continue
        best_rows = rows.loc[rows.groupby("mechanism")["median"].idxmax()].set_index("mechanism")
        best = rows.loc[rows.groupby("mechanism")["predicted_gbps"].idxmax()].set_index("mechanism")
        near = best.index[best["predicted_gbps"] * NO_DIFFERENCE >= best["predicted_gbps"].max()]
        choice = min(near, key=lambda one: (best.loc[one, "instructions"], PREFERENCE.index(one)))
        best = best_rows["median"].idxmax()
        regret = best_rows.loc[best, "median"] / best_rows.loc[choice, "median"]
        agrees = bool(best_rows.loc[choice, "p95"] >= best_rows.loc[best, "p05"])
        found.append(
            {"set": name, "cell": cell, "choice": choice, "best": best, "regret": regret, "agrees": agrees}
            | {"tied": best in set(near)}
        )
    if not found:
        raise NotMeasured("no cell in which several mechanisms were measured")
    return pd.DataFrame(found)


#: Constant policies and a rule of one line, for CTAs that share a tile: what each takes.
POLICIES = {
    "always neighbours": lambda cell: "neighbours",
    "always multicast": lambda cell: "multicast",
    "one line": lambda cell: (
        "multicast"
        if cell.source == "l2"
        and cell.fan_out in (4, 8)
        and cell.tile_bytes * cell.tiles_in_flight >= 48 * KIB
        else "neighbours"
    ),
}


def sharing(store: Store, gpu: str, held_out: bool = True) -> pd.DataFrame:
    """What CTAs that need the same tile should do: the model's choice against policies, pipelines of `multicast_fair`.

    Args:
        store: the rows.
        gpu: whose.
        held_out: only cells that were not fitted.

    Returns:
        A row for each cell: `CELL`, `best`, and the regret of `model` and of each of `POLICIES`.

    Raises:
        NotMeasured: no rows of multicast_fair.
    """
    rows = fastest_pipelines(select.require_rows(store, "multicast_fair", gpu), "multicast_fair")
    table = divided(predicted(rows, _constants(store, gpu)))
    names = {ALONE: "neighbours", UNICAST[0]: "cluster"}
    table = table.assign(who=table["variant"].map(names).fillna("multicast"))
    found = []
    for cell, ways in table[table["held_out"] | (not held_out)].groupby(CELL):
        by_who = ways.set_index("who")
        time = by_who["median"].max() / by_who["median"]
        taken = {"model": by_who["predicted_gbps"].idxmax()}
        one = ways.iloc[0]
        taken |= {name: take(one) for name, take in POLICIES.items()}
        found.append(
            dict(zip(CELL, cell, strict=True))
            | {"best": time.idxmin()}
            | {name: time[who] for name, who in taken.items()}
        )
    return pd.DataFrame(found)


def flash_attention(store: Store, gpu: str) -> pd.DataFrame:
    """FlashAttention-3's cells: the advisor's choice for K and V beside what its own kernel measured; as `choices`.

    Raises:
        NotMeasured: no rows of fa3.
    """
    frame = select.require_rows(store, "fa3", gpu)
    cells = paged_findings.fa3_cells(frame)
    of, found = _constants(store, gpu), []
    for cell in cells.itertuples(index=False):
        shape = frame[frame["page_rows"].eq(cell.page_rows) & frame["phase"].eq(cell.phase)].iloc[0]
        load = _keys(shape, cell.page_rows)
        ranked = sorted(
            (predict(name, load, of) for name in ("tma_tile", "cp_async")),
            key=lambda one: one.cycles_per_tile,
        )
        choice, near = choose(ranked)
        ratio = cell.ratio if choice == "cp_async" else 1 / cell.ratio
        found.append(
            {
                "set": "FlashAttention-3",
                "cell": f"{cell.phase}, batch {cell.batch}, {cell.seqlen_k} keys, {cell.kv_heads} KV heads, "
                f"pages of {cell.page_rows}",
                "choice": choice,
                "best": cell.best or choice,
                "regret": max(1.0, ratio),
                "agrees": cell.best in ("", choice),
                "tied": cell.best in near,
            }
        )
    return pd.DataFrame(found)


def _keys(shape: object, page_rows: int) -> Load:
    """A tile of keys of FlashAttention-3 (of an object with fields of `fa3`): two in flight, boxes one span wide."""
    row_bytes = int(shape.head_dim) * (1 if shape.dtype == "fp8" else 2)
    rows, span = int(shape.tile_n), column_span(row_bytes).span_bytes
    segments = max(1, rows // page_rows) if page_rows else 1
    return Load(
        tile_bytes=rows * row_bytes,
        row_bytes=span,
        is_dense=False,
        tiles_in_flight=2,
        source="hbm" if shape.phase == "decode" else "l2",
        copies=row_bytes // span * segments,
        lookups=segments if page_rows else 0,
    )


def page_table(store: Store, gpu: str) -> pd.DataFrame:
    """FlashAttention-3 with a page table of whole tiles over that without, TMA on both sides, and the model's ratio.

    Returns:
        Rows of `paged.findings.page_table_cost` with `predicted`.

    Raises:
        NotMeasured: no rows of fa3_fwd.
    """
    frame = select.require_rows(store, "fa3_fwd", gpu)
    cells, of = paged_findings.page_table_cost(frame), _constants(store, gpu)

    def cycles(cell: object, page_rows: int) -> float:
        return predict("tma_tile", _keys(cell, page_rows), of).cycles_per_tile

    return cells.assign(
        predicted=[cycles(cell, cell.page_rows) / cycles(cell, 0) for cell in cells.itertuples()]
    )


def production(gpu: str) -> pd.DataFrame:
    """The catalog's loads with known features: the expert's mechanism and the advisor's.

    What the catalog does not say is taken as is common: 16 KiB tiles, four stages. Operands that several CTAs
    use come from L2, where the first of them brought them, others from HBM. An operand that one index for every row
    addresses has `index_rows` 1, rows that are copied whole follow each other; a cluster is what the catalog gives as
    fan-out. Loads that are TMA tiles or multicasts by the cluster's shape are left out.

    Returns:
        Columns `system`, `operand`, `kernel`, `expert`, `advisor`, `no_difference`, `exact` (the same mechanism),
        `agrees` (the expert's is within 1.5 % of the advisor's) and `why` it is not.
    """
    loads = Store().read("operands").query("direction == 'load' and arch == 'sm_90' and access == access")
    loads = loads[loads["alignment_bytes"].notna() & loads["mechanism"].notna()]
    # Where the cluster's shape decides and TMA is named, it may be one CTA or several: not known.
    loads = loads[loads["fan_out"].notna() | loads["mechanism"].ne("tma_tile")]
    found = []
    for row in loads.itertuples(index=False):
        width = int(row.row_bytes_min) if pd.notna(row.row_bytes_min) else 128
        fan_out = int(row.fan_out) if pd.notna(row.fan_out) else 2  # empty: a cluster of two or more
        whole = pd.notna(row.row_bytes_min) and pd.notna(row.transfer_bytes_min)
        is_run = whole and row.transfer_bytes_min == row.row_bytes_min
        indexed = {"row": 1, "tile": 16384 // width}.get(row.index_granularity, 0)
        question = Question(
            row_bytes=width,
            rows=16384 // width,
            pitch_bytes=width if is_run else 8 * width,
            alignment_bytes=int(row.alignment_bytes),
            index_rows=indexed,
            cluster=fan_out if fan_out in (1, 2, 4, 8, 16) else 1,
            tensor_mib=32,
            source="l2" if row.reuse == "across_ctas" else "hbm",
            consumer="registers" if row.consumer == "registers" else "shared",
        )
        found.append(_beside(row, question, gpu))
    return pd.DataFrame(found)


def _beside(row: object, question: Question, gpu: str) -> dict[str, object]:
    choice = {"system": row.system, "kernel": row.kernel, "operand": row.operand, "expert": row.mechanism}
    advice = advise(question, gpu)
    exact = advice.choice == row.mechanism
    agrees = exact or row.mechanism in advice.no_difference
    why = ""
    if not agrees:
        why = "; ".join(advice.excluded.get(row.mechanism, ()))
        if not why:
            times = {one.mechanism: one.time_us for one in advice.ranked}
            ratio = times[row.mechanism] / times[advice.ranked[0].mechanism]
            why = f"predicted {ratio:.2f} times the time of {advice.ranked[0].mechanism}"
        elif (
            row.mechanism == "tma_bulk"
            and "tma_bulk" in advise(replace(question, pitch_bytes=0), gpu).no_difference
        ):
            why = "the catalog does not say that the rows are one run; if they are, the advisor finds no difference"
    return choice | {
        "advisor": advice.choice,
        "no_difference": ", ".join(advice.no_difference),
        "exact": exact,
        "agrees": agrees,
        "why": why,
    }


def all_choices(store: Store, gpu: str) -> pd.DataFrame:
    """`choices` over every set of `SETS` that this GPU has rows of.

    Raises:
        NotMeasured: it has rows of none, or no model.
    """
    parts = []
    for table in (held_out, broadcast, paged, lambda store, gpu: paged(store, gpu, "prefill")):
        with suppress(NotMeasured):
            parts.append(choices(table(store, gpu)))
    with suppress(NotMeasured):
        parts.append(flash_attention(store, gpu))
    if not parts:
        raise NotMeasured(f"no rows of {gpu} that its model can be tested on, or no model")
    return pd.concat(parts, ignore_index=True)


def within(ratio: pd.Series, bound: float = 0.15) -> float:
    """Share of measured over predicted time that is within a bound of 1."""
    return float(np.mean(np.abs(ratio - 1) <= bound))


def explain(row: object, reasons: pd.DataFrame) -> str:
    """Why a choice differs from the measured best.

    Args:
        row: a named tuple with the columns of `choices`.
        reasons: of `explanations`; cells that nobody looked into have none.
    """
    if row.agrees:
        return "within the rounds' spread"
    found = having(reasons, set=row.set, cell=row.cell)["why"]
    if len(found):
        return found.iloc[0]
    return f"predicted within 1.5 %, {100 * (row.regret - 1):.1f} % apart" if row.tied else ""


def explanations(store: Store, gpu: str) -> pd.DataFrame:
    """What is known of single cells of a GPU in which the choice was not the best: `set`, `cell`, `why`."""
    return having(store.read("explanations"), gpu=gpu)


def _constants(store: Store, gpu: str) -> Constants:
    return constants(gpu, store.root)
