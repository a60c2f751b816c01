"""Multicast against unclustered neighbors, idle SMs counted: of each the best pipeline that shared memory holds."""

import pandas as pd

from labkernels.errors import NotMeasured
from labkernels.operand import KIB
from labkernels.studies.cluster_rows import IN_STEP, PIPELINE, transports
from labkernels.studies.stats import Measured, Ratio, having, paired, spread, where

#: Who may bring the tile, by the shares of a pipeline.
RIVALS = {"multicast": ("slices", "leader"), "neighbours": ("alone",)}
PIPELINES_KIB = (16, 32, 48, 64, 96, 128, 192)  # shared memory of a CTA's pipeline, at most
GBPS = "gbps"


def pipelines(fair: pd.DataFrame) -> pd.DataFrame:
    """Rates of the whole GPU of every pipeline in step, with `pipeline_kib`, the shared memory that it takes.

    Args:
        fair: rows of one run of `multicast_fair`.
    """
    table = spread(having(fair, **IN_STEP), PIPELINE, GBPS)
    return table.assign(pipeline_kib=table["tile_bytes"] * table["stages"] // KIB)


def best(table: pd.DataFrame, rival: str, pipeline_kib: int) -> pd.Series:
    """A rival's fastest pipeline.

    Args:
        table: of `pipelines`, one source and fan-out.
        rival: one of `RIVALS`.
        pipeline_kib: shared memory that it takes, at most.

    Raises:
        NotMeasured: no pipeline is so small.
    """
    rows = table[table["share"].isin(RIVALS[rival]) & table["pipeline_kib"].le(pipeline_kib)]
    if rows.empty:
        raise NotMeasured(f"no pipeline of {rival} in {pipeline_kib} KiB")
    return rows.loc[rows["median"].idxmax()]


def _duel(rows: pd.DataFrame, table: pd.DataFrame, pipeline_kib: int) -> tuple[pd.Series, pd.Series, Ratio]:
    first, second = (best(table, rival, pipeline_kib) for rival in RIVALS)
    return first, second, paired(*(where(rows, **pipeline[PIPELINE]) for pipeline in (first, second)), GBPS)


def gain(fair: pd.DataFrame, source: str, fan_out: int, pipeline_kib: int) -> Ratio:
    """What multicast delivers to the whole GPU over what neighbors without a cluster do, in step, each at its best.

    Args:
        fair: rows of one run of `multicast_fair`.
        source: where the data lie.
        fan_out: CTAs that need the same tile.
        pipeline_kib: shared memory of a CTA's pipeline, at most.

    Raises:
        NotMeasured: it has no such rows.
    """
    rows = where(fair, source=source, fan_out=fan_out)
    return _duel(rows, pipelines(rows), pipeline_kib)[2]


def gains(fair: pd.DataFrame) -> pd.DataFrame:
    """`gain` of every source, fan-out and size of the pipeline that was measured.

    Returns:
        Columns gpu, run_id, source, fan_out, pipeline_kib, ratio, low, high, and for `multicast` and `neighbors` their
        rate `…_gbps` and their pipeline `…_ring` in words.
    """
    found = []
    for (source, fan_out), rows in having(fair, **IN_STEP).groupby(["source", "fan_out"]):
        table = pipelines(rows)
        for pipeline_kib in PIPELINES_KIB:
            try:
                *rivals, ratio = _duel(rows, table, pipeline_kib)
            except NotMeasured:
                continue
            found.append(
                rivals[0][["gpu", "run_id"]].to_dict()
                | {"source": source, "fan_out": fan_out, "pipeline_kib": pipeline_kib}
                | ratio._asdict()
                | {f"{name}_gbps": pipeline["median"] for name, pipeline in zip(RIVALS, rivals, strict=True)}
                | {
                    f"{name}_pipeline": _pipeline(pipeline)
                    for name, pipeline in zip(RIVALS, rivals, strict=True)
                }
            )
    columns = ["gpu", "run_id", "source", "fan_out", "pipeline_kib", *Ratio._fields]
    columns += [f"{name}_{what}" for what in ("gbps", "pipeline") for name in RIVALS]
    return pd.DataFrame(found, columns=columns)


def _pipeline(row: pd.Series) -> str:
    return (
        f"{row['tile_bytes'] // KIB} KiB × {row['stages']}, {row['producers']} + {row['consumers']} warps"
        + (", one CTA all" if row["share"] == "leader" else "")
    )


def out_of_step(
    fair: pd.DataFrame, source: str = "l2", pipeline: tuple[int, int, int] = (32, 6, 1)
) -> pd.DataFrame:
    """Rates of the whole GPU of one pipeline by how much later each CTA of a group starts than the one before.

    Args:
        fair: rows of one run of `multicast_fair`.
        source: whose rows.
        pipeline: KiB of a tile, stages and warps that issue copies.

    Returns:
        The columns of `cluster_rows.PIPELINE`, p05, median, p95 (10⁹ bytes per second), transport, and `lag`,
        which has a place for 0 on a logarithmic axis.
    """
    kib, stages, warps = pipeline
    shape = {"tile_bytes": kib * KIB, "stages": stages, "producers": warps}
    table = spread(having(fair, source=source, delay_cycles=0, hold_cycles=0, **shape), PIPELINE, GBPS)
    return table.assign(transport=transports(table), lag=table["lag_cycles"].clip(lower=25))


def multicast_over_unclustered_whole_gpu(fair: pd.DataFrame) -> Measured:
    """`gain` from L2 to 4 CTAs, with pipelines of 192 KiB at most.

    Args:
        fair: rows of one run of `multicast_fair`.

    Raises:
        NotMeasured: it has no such rows.
    """
    return Measured(*gain(fair, "l2", 4, 192))
