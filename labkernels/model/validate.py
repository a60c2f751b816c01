"""How good model and advisor are: on another card, in other experiments, in real kernels, beside production."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.model import choosing
from labkernels.model.advisor import Question, advise, choose
from labkernels.model.choosing import ADVISOR, Policy, always, by_prediction, three_lines
from labkernels.model.closed_form import (
    DSM,
    MULTISTAGE,
    SPECIALIZED,
    Constants,
    Load,
    constants,
    instructions,
    predict,
    time_us,
)
from labkernels.model.configurations import CELL, contiguous, pipelines, predicted
from labkernels.model.fit import starts
from labkernels.operand import KIB, LONGEST_ROW_BYTES, column_span
from labkernels.store import RUNS, Store
from labkernels.studies import select
from labkernels.studies.paged import findings as paged_findings
from labkernels.studies.stats import having, spread, where

SETS = {
    "another card": "pipelines of one CTA and of clusters on a GPU of the same name",
    "broadcast": "pipelines of clusters that share a tile, DSM among them, four stages",
    "paged decode": "gathering pages from HBM",
    "paged prefill": "gathering pages beside busy tensor cores",
    "FlashAttention-3": "the real kernel, where it ran by TMA and by cp.async",
}

#: The advisor, and beside it what takes one mechanism blindly, or goes by three lines written with the rows known.
POLICIES: dict[str, Policy] = {
    ADVISOR: by_prediction,
    "always cp.async": always("cp_async", "tma_tile"),
    "always TMA": always("tma_tile", "tma_multicast"),
    "three lines": three_lines,
}


def another_card(store: Store, gpu: str) -> pd.DataFrame:
    """The newest quick runs of `pipelines` and `multicast_fair` with predictions, where another card ran them.

    Returns:
        The columns of `configurations.predicted`, `set` and `cell`.

    Raises:
        NotMeasured: there are no such runs of another card than that of the fit.
    """
    of = _constants(store, gpu)
    cards = store.read(RUNS).set_index("run_id")["gpu_uuid_hash"]
    runs = {}
    for name in ("pipelines", "multicast_fair"):
        quick, full = (select.latest_run(store, name, gpu, preset=preset) for preset in ("quick", "full"))
        if quick and full and cards[quick] != cards[full]:
            runs[name] = quick
    if not runs:
        raise NotMeasured(f"no quick runs of another {gpu} than that of the fit")
    return beside(store, runs, of, "another card")


def beside(store: Store, runs: Mapping[str, str], of: Constants, name: str) -> pd.DataFrame:
    """One run each of `pipelines` and `multicast_fair`, by the experiment's name, with predictions.

    Columns as `another_card`; `name` is that of the set.
    """
    parts = []
    for experiment, run_id in runs.items():
        frame = select.rows(store, experiment, [run_id])
        parts.append(
            contiguous(frame, experiment, starts(of))
            if experiment == "pipelines"
            else pipelines(frame, experiment)
        )
    return _cells(predicted(pd.concat(parts, ignore_index=True), of), name)


def broadcast(store: Store, gpu: str) -> pd.DataFrame:
    """Pipelines of `broadcast`, of which no row was fitted: loads, DSM, computed; columns as `another_card`."""
    of = _constants(store, gpu)
    table = pipelines(select.require_rows(store, "broadcast", gpu), "broadcast")
    return _cells(predicted(table, of), "broadcast")


def _cells(table: pd.DataFrame, name: str) -> pd.DataFrame:
    labels = [
        f"{row.source}, {row.tile_bytes} B × {row.slots} × {row.ctas_per_sm}"
        + (f", rows of {row.row_bytes} B{'' if row.is_dense else ' apart'}" if row.row_bytes < KIB else "")
        + (f", fan-out {row.fan_out}" if row.fan_out > 1 else "")
        for row in table[CELL].itertuples(index=False)
    ]
    return table.assign(set=name, cell=labels, piece_rows=0)


def paged(store: Store, gpu: str, phase: str = "decode") -> pd.DataFrame:
    """Gathered pages with predictions; columns as `another_card`.

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
            threads=128,
            source="l2" if phase == "prefill" else "hbm",
            copies=max(1, row.tile_rows // row.piece_rows) * (row.row_bytes // run_bytes),
            lookups=max(1, row.tile_rows // row.piece_rows),
            issuers=row.issuers,
            compute_cycles=compute,
        )
        found.append((predict(row.mechanism, load, of), load))
    cells = [
        f"pages of {row.page_rows}, rows of {row.row_bytes} B, {row.kv_heads} heads, {row.layout}, {row.page_order}"
        + (f", {row.splits} splits" if row.splits > 1 else "")
        for row in table.itertuples(index=False)
    ]
    return table.assign(
        set=f"paged {phase}",
        cell=cells,
        predicted_gbps=[one.gbps for one, _ in found],
        instructions=[
            instructions(row.mechanism, load)
            for row, (_, load) in zip(table.itertuples(), found, strict=True)
        ],
        ratio=[one.gbps for one, _ in found] / table["median"],
        warps=1,
        tile_bytes=[load.tile_bytes for _, load in found],
        **{name: [getattr(load, name) for _, load in found] for name in ("is_dense", "source", "fan_out")},
        slots=table["stages"],
    )


def short_launches(store: Store, gpu: str) -> pd.DataFrame:
    """Launches of `short_kernels` with predicted times: the start, and the bytes at the full rate.

    Returns:
        Spread of `duration_us` by configuration, `predicted_us` and `ratio` (predicted over measured).

    Raises:
        NotMeasured: there are none.
    """
    frame, of = select.require_rows(store, "short_kernels", gpu), _constants(store, gpu)
    shape = [
        "mechanism",
        "pipeline",
        "source",
        "tile_bytes",
        "ctas_per_sm",
        "threads",
        "footprint_bytes",
        "bytes_moved",
    ]
    table = spread(
        frame.assign(flight=frame["bytes_in_flight_per_sm"] // frame["tile_bytes"]),
        [*shape, "flight"],
        "duration_us",
    )

    def predicted_us(row: object) -> float:
        load = Load(
            tile_bytes=row.tile_bytes,
            row_bytes=min(row.tile_bytes, LONGEST_ROW_BYTES),
            tiles_in_flight=row.flight // row.ctas_per_sm,
            ctas_per_sm=row.ctas_per_sm,
            threads=row.threads,
            pipeline=MULTISTAGE if row.pipeline == MULTISTAGE else SPECIALIZED,
            source=row.source,
        )
        return time_us(predict(row.mechanism, load, of), row.bytes_moved, row.source, of)

    table = table.assign(predicted_us=[predicted_us(row) for row in table.itertuples()])
    return table.assign(ratio=table["predicted_us"] / table["median"])


def single_runs(table: pd.DataFrame) -> pd.Series:
    """Which rows of `paged` are bulk copies of one row each: an address for every row."""
    return table["mechanism"].eq("tma_bulk") & table["piece_rows"].eq(1)


def forwarded(table: pd.DataFrame) -> pd.Series:
    """Which rows of `broadcast` pass from shared memory to shared memory: all of DSM, and computed tiles."""
    return table["mechanism"].isin(DSM) | table["source"].eq("computed")


def choices(table: pd.DataFrame, policies: Mapping[str, Policy] = POLICIES) -> pd.DataFrame:
    """`choosing.choices` in the cells of `another_card`, `broadcast` or `paged`.

    Raises:
        NotMeasured: there is no cell in which several mechanisms were measured.
    """
    found = choosing.choices(table, ["set", "cell"], policies)
    if found.empty:
        raise NotMeasured("no cell in which several mechanisms were measured")
    return found


def flash_attention(store: Store, gpu: str) -> pd.DataFrame:
    """FlashAttention-3's cells: the advisor's choice for K and V beside what its own kernel measured; as `choices`.

    The attention kernel alone: what is beside it pays for rows of our way to force the other choice, not for loads.

    Raises:
        NotMeasured: no rows of fa3.
    """
    frame = select.require_rows(store, "fa3", gpu)
    cells = paged_findings.fa3_cells(frame, "kernel_us")
    of, found = _constants(store, gpu), []
    for cell in cells.itertuples(index=False):
        shape = frame[frame["page_rows"].eq(cell.page_rows) & frame["phase"].eq(cell.phase)].iloc[0]
        load = _keys(shape, cell.page_rows)
        rivals = (predict(name, load, of) for name in ("tma_tile", "cp_async"))
        choice, near = choose(sorted(rivals, key=lambda one: one.cycles_per_tile))
        taken = {ADVISOR: choice, "always cp.async": "cp_async", "always TMA": "tma_tile"}
        for policy, mechanism in taken.items():
            ratio = cell.ratio if mechanism == "cp_async" else 1 / cell.ratio
            found.append(
                {
                    "set": "FlashAttention-3",
                    "cell": f"{cell.phase}, batch {cell.batch}, {cell.seqlen_k} keys, {cell.kv_heads} KV heads, "
                    f"pages of {cell.page_rows}",
                    "policy": policy,
                    "choice": mechanism,
                    "best": cell.best or mechanism,
                    "regret": max(1.0, ratio),
                    "agrees": cell.best in ("", mechanism),
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
        threads=128,
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
        `agrees` (the expert's is within 1.5% of the advisor's) and `why` it is not.
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
    """`choices` over every set of `SETS` that this GPU has rows of, of the advisor and of the policies beside it.

    Raises:
        NotMeasured: it has rows of none, or no model.
    """
    parts = []
    for table in (another_card, broadcast, paged, lambda store, gpu: paged(store, gpu, "prefill")):
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
    return f"predicted within 1.5%, {100 * (row.regret - 1):.1f}% apart" if row.tied else ""


def explanations(store: Store, gpu: str) -> pd.DataFrame:
    """What is known of single cells of a GPU in which the choice was not the best: `set`, `cell`, `why`."""
    return having(store.read("explanations"), gpu=gpu)


def _constants(store: Store, gpu: str) -> Constants:
    return constants(gpu, store.root)
