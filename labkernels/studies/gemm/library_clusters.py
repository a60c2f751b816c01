"""Clusters that cuBLAS takes, read from the names of the kernels it ran, beside the book's rule for clusters."""

import pandas as pd

from labkernels.production import nvjet
from labkernels.studies.gemm.bench import LIBRARY
from labkernels.studies.gemm.family import TILES
from labkernels.studies.gemm.findings import SHAPE, Rounds, label, medians, own
from labkernels.studies.gemm.heuristic import choose
from labkernels.studies.stats import bootstrap_ratio

_PRODUCT = ["dtype", *SHAPE]


def launches(names: pd.DataFrame) -> pd.DataFrame:
    """One row for each product: the kernel that multiplied, in the axes of D[M,N].

    Args:
        names: rows of table `gemm_library_kernels`.

    Returns:
        The rows whose kernel is an nvjet, with `shape`, `tile` and `cluster` (along M and N, as in `2×1`),
        `cluster_size`, `stages` and `split_k`.
    """
    kernels = {name: nvjet.parse(name) for name in names["library_kernel"].unique()}
    rows = names[names["library_kernel"].map(kernels).notna()].reset_index(drop=True)
    parsed = rows["library_kernel"].map(kernels)
    return rows.assign(
        shape=[label(mnk) for mnk in rows[SHAPE].itertuples(index=False, name=None)],
        tile=[_times(one.tile) for one in parsed],
        cluster=[_times(one.cluster) for one in parsed],
        cluster_size=[one.cluster_size for one in parsed],
        stages=[one.stages for one in parsed],
        split_k=[one.split_k for one in parsed],
    )


def beside_rule(launched: pd.DataFrame, rounds: Rounds) -> pd.DataFrame:
    """The library's cluster against the rule's, both in CUTLASS's kernel of the same tile.

    Args:
        launched: of `launches`.
        rounds: rows of one run of table `gemm`; products, tiles and clusters that it does not have are left out.

    Returns:
        One row a product: `dtype`, `shape`, `group`, `tile`, `library` and `rule` (clusters), `same` (they are),
        `ratio`, `low`, `high` (time of the library's cluster, at its faster swizzle, over time of the rule's; 95% of
        paired rounds) and `cublas` (cuBLAS's own time over that of the rule's).
    """
    table = own(medians(rounds.frame))
    candidates = {key: group for key, group in table.groupby([*_PRODUCT, "tile", "cluster"])}
    tiles = {_times(tile): tile for tile in TILES}
    rows = []
    for one in launched[launched["tile"].isin(list(tiles))].itertuples():
        mnk = (one.m, one.n, one.k)
        rule = choose(mnk, tiles[one.tile], rounds.resident)
        theirs = candidates.get((one.dtype, *mnk, one.tile, one.cluster))
        ours = candidates.get((one.dtype, *mnk, one.tile, _times(rule.cluster)))
        if theirs is None or ours is None:
            continue
        picked = (theirs.loc[theirs["duration_us"].idxmin()], ours[ours["swizzle"].eq(rule.swizzle)].iloc[0])
        times = [
            rounds.of(mnk, each.kernel, "duration_us", each.swizzle, each.ctas, one.dtype) for each in picked
        ]
        cublas = rounds.of(mnk, LIBRARY, "duration_us", dtype=one.dtype)
        rows.append(
            {
                "dtype": one.dtype,
                "shape": one.shape,
                "group": picked[0]["group"],
                "tile": one.tile,
                "library": one.cluster,
                "rule": _times(rule.cluster),
                "same": one.cluster == _times(rule.cluster),
                **bootstrap_ratio(*times)._asdict(),
                "cublas": bootstrap_ratio(cublas, times[1]).ratio,
            }
        )
    return pd.DataFrame(rows)


def _times(pair: tuple[int, int]) -> str:
    return "×".join(map(str, pair))
