"""What the chapter on GEMM says in its text: values by the name under which the text asks for them."""

import pandas as pd

from labkernels.charts.text import change, span
from labkernels.studies.gemm import findings as found
from labkernels.studies.gemm import heuristic
from labkernels.studies.stats import having, where

BIG, DECODE, BASE = (8192, 8192, 8192), (64, 28672, 8192), "bf16_128x128"


def lead(rounds: found.Rounds, table: pd.DataFrame, shares: pd.DataFrame) -> dict[str, str | float]:
    """What multicast changes, what its order does, and what clusters cost.

    Args:
        rounds: rows of one run of `gemm`.
        table: of `findings.medians`.
        shares: of `findings.multicast_shares`.
    """

    def cycles(kernel: str) -> float:
        rows = where(table, kernel=kernel, swizzle=1, shape=found.label(BIG))
        return float(rows.loc[rows["ctas"].idxmax(), "cycles"])

    compute_bound = shares.loc[shares["least"].ge(2048), "ratio"]
    decode = found.decompose(rounds, DECODE, (128, 128), (1, 4), 1)
    worst = rounds.frame.groupby("dtype")["relative_error"].max()
    return {
        "sms": rounds.resident[1],
        "cases": len(compute_bound),
        "share_median": change(compute_bound.median(), 2),
        "within_one": int((compute_bound - 1).abs().le(0.01).sum()),
        "order_gain": change(cycles(f"{BASE}_2x1") / cycles(f"{BASE}_1x1"), 0),
        "decode_gain": change(decode.total.ratio, 0),
        "decode_share": change(decode.parts[4].ratio, 0),
        "four_idle": rounds.resident[1] - rounds.resident[4],
        "error_bf16": f"{worst['bf16']:.1e}",
        "error_e4m3": f"{worst.get('e4m3', float('nan')):.1e}",
    }


def library(against: pd.DataFrame, table: pd.DataFrame) -> dict[str, str | float]:
    """How the best kernels do against the library.

    Args:
        against: of `findings.over_library`.
        table: of `findings.medians`.
    """
    large = found.large(against)
    fastest = found.fastest_bf16(table)
    return {
        "large": len(large),
        "matched": int(large["ratio"].ge(0.97).sum()),
        "library_median": f"{large['ratio'].median():.3f}",
        "behind": ", ".join(large.loc[large["ratio"].lt(0.97), "shape"]) or "none",
        "best_rate": f"{fastest['tflops']:.0f} TFLOP/s ({fastest['kernel']} at {fastest['shape']})",
    }


def held_out_library(held: found.Rounds) -> str:
    """The same on shapes held out for the rule, in a sentence.

    Args:
        held: rows of a run of `gemm` with preset `held_out`.
    """
    large = found.large(found.over_library(held))["ratio"]
    return (
        f"On the shapes held out for the rule it is less even: {large.ge(0.97).sum()} of {len(large)} large ones are "
        f"within 3% or better, the worst at {large.min():.2f}."
    )


def parts(shares: pd.DataFrame) -> dict[str, str | float]:
    """In how many cases the parts of a cluster's effect add up to it.

    Args:
        shares: of `findings.multicast_shares`.
    """
    missing = having(shares, adds_up=False)
    cases = [f"{o.shape}, {o.tile}, {o.cluster}, swizzle {o.swizzle}" for o in missing.itertuples()]
    return {
        "adds_up": int(shares["adds_up"].sum()),
        "taken_apart": len(shares),
        "not_adding": "; ".join(cases) or "none",
    }


def traffic(table: pd.DataFrame) -> dict[str, str | float]:
    """GiB of one large product that counters saw.

    Args:
        table: of `findings.traffic`.
    """

    def gib(counter: str, cluster: str, transport: str, swizzle: int = 1) -> float:
        way = {"cluster": cluster, "transport": transport, "swizzle": swizzle}
        return where(table, counter=counter, **way)["gib"].iloc[0]

    values = {"into_sms": gib("sm_read_bytes", "1×1", "alone")}
    for name in ("l2", "dram"):
        counter = f"{name}_read_bytes"
        values |= {
            f"{name}_alone": f"{gib(counter, '1×1', 'alone'):.1f}",
            f"{name}_pair": f"{gib(counter, '2×1', 'multicast'):.1f}",
            f"{name}_pair_off": f"{gib(counter, '2×1', 'independent'):.1f}",
            f"{name}_order": f"{gib(counter, '1×1', 'alone', 8):.1f}",
        }
    return values


def power(settled: pd.DataFrame, run: pd.Series) -> dict[str, str | float]:
    """Clocks and rates once power has settled.

    Args:
        settled: of `findings.settled`.
        run: the run's row.
    """
    by_kernel = settled.set_index("kernel")

    def ratio(column: str, first: str, second: str) -> str:
        return change(by_kernel.loc[f"bf16_{first}", column] / by_kernel.loc[f"bf16_{second}", column])

    alone, pair, pair_off = "128x256_1x1", "128x256_2x1", "128x256_2x1_handshake"
    clock = settled["sm_clock_mhz"]
    return {
        "limit": f"{settled['power_w'].median():.0f} W",
        "clock_low": f"{clock.min():.0f}",
        "clock_high": f"{clock.max():.0f}",
        "clock_max": f"{run['sm_clock_mhz_max']:.0f}",
        "clock_multicast": ratio("sm_clock_mhz", pair, pair_off),
        "rate_multicast": ratio("tflops", pair, pair_off),
        "rate_launch": ratio("tflops", pair_off, alone),
        "rate_cluster": ratio("tflops", pair, alone),
        "small_cycles": ratio("megacycles", "128x128_1x1", alone),
        "small_clock": ratio("sm_clock_mhz", "128x128_1x1", alone),
        "narrow_clock": ratio("sm_clock_mhz", "128x256_1x2", alone),
    }


def decode(scan: pd.DataFrame) -> dict[str, float]:
    """Time of a decode product by rows of A, µs.

    Args:
        scan: of `findings.rows_inside_a_tile`.
    """
    alone, cluster = (
        where(scan, transport=transport).set_index("m")["duration_us"] for transport in ("alone", "multicast")
    )
    return {
        "rows_16": alone[16],
        "rows_128": alone[128],
        "cluster_16": cluster[16],
        "cluster_128": cluster[128],
    }


def rule(
    regret: pd.DataFrame, table: pd.DataFrame, held: pd.DataFrame, resident: dict[int, int]
) -> dict[str, str | float]:
    """How the rule for cluster shapes does on shapes it was made without.

    Args:
        regret: of `findings.regret_by_rule`.
        table: of `findings.medians`, of the shapes it was made from.
        held: the same of the shapes held out.
        resident: SMs that clusters of a size keep.
    """
    ours = having(regret, rule=found.THIS_RULE)
    worst = ours.iloc[-1]
    cycles = found.regrets(held, heuristic.choose, resident, by="cycles")["regret"]
    p95 = regret.groupby("rule")["regret"].quantile(0.95)
    others = zip(("alone_p95", "example_p95", "deepgemm_p95"), heuristic.OTHERS, strict=True)
    return {
        "fit_shapes": table.loc[table["group"].ne("ragged"), "shape"].nunique(),
        "held_shapes": held["shape"].nunique(),
        "regret_cases": len(cycles),
        "regret_median": f"{ours['regret'].median():.3f}",
        "regret_p95": f"{ours['regret'].quantile(0.95):.3f}",
        "cycles_p95": f"{cycles.quantile(0.95):.3f}",
        "regret_worst": f"{worst['regret']:.2f} at {worst['shape']}, tile {worst['tile']}",
    } | {name: f"{p95[other]:.2f}" for name, other in others}


def library_clusters(launched: pd.DataFrame, beside: pd.DataFrame) -> dict[str, str | int]:
    """How often the library takes clusters, and who is faster where the rule takes another.

    Args:
        launched: of `library_clusters.launches`.
        beside: of `library_clusters.beside_rule`.
    """
    sizes = launched["cluster_size"]
    differ = beside[~beside["same"]]
    alike = launched.groupby(found.SHAPE)[["tile", "stages", "cluster"]].nunique().eq(1).all(axis=1)
    return {
        "library_shapes": len(alike),
        "library_alike": int(alike.sum()),
        "library_products": len(launched),
        "library_clustered": int(sizes.gt(1).sum()),
        "library_pairs": int(sizes.eq(2).sum()),
        "library_fours": int(sizes.eq(4).sum()),
        "library_eights": int(sizes.eq(8).sum()),
        "library_compared": len(beside),
        "library_same": int(beside["same"].sum()),
        "library_faster": int(differ["high"].lt(1).sum()),
        "library_slower": int(differ["low"].gt(1).sum()),
        "library_ratio": f"{differ['ratio'].median():.3f}",
        "library_span": span(differ["ratio"], 3),
    }
