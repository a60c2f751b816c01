"""What the chapter on streams says in its text: values by the name under which the text asks for them."""

import numpy as np
import pandas as pd

from labkernels.charts import bytes_label
from labkernels.charts.text import kib, percent, tbps
from labkernels.operand import KIB, MIB
from labkernels.studies.crossover import findings, prices
from labkernels.studies.stats import having, paired, where


def at_each_price(cells: pd.DataFrame, panels: pd.DataFrame) -> dict[str, str]:
    """Who is ahead, in the same pipeline and at equal cost.

    Args:
        cells: rows of one run of `pipelines`.
        panels: of `prices.panels`.
    """
    same = {source: prices.same_pipeline(cells, source) for source in ("hbm", "l2")}
    small, large = (having(same["hbm"], tile_bytes=size)["ratio"] for size in (2 * KIB, 32 * KIB))
    in_flight, shared = (
        {
            source: having(panels, source=source, price=price).set_index("bytes")["ratio"]
            for source in ("hbm", "l2")
        }
        for price in (prices.IN_FLIGHT, prices.SHARED)
    )
    apart = (in_flight["hbm"] - 1).abs()
    ties = [size for size in apart.index if apart[apart.index >= size].max() <= 0.01]
    hbm = where(cells, source="hbm")
    best = prices.rates(hbm).groupby("bytes_in_flight_per_sm")["median"].max()
    few = where(cells, mechanism="tma_tile", tile_bytes=2 * KIB, stages=12, ctas_per_sm=1)
    warps = {
        source: paired(*(where(few, source=source, producer_warps=count) for count in (4, 1)), "gbps").ratio
        for source in ("hbm", "l2")
    }
    return {
        "same": f"{same['hbm']['ratio'].median():.3f}",
        "same_cells": f"{len(same['hbm'])}",
        "same_2": f"{small.median():.3f}",
        "same_2_most": f"{small.max():.2f}",
        "same_32": f"{large.median():.3f}",
        "same_l2": f"{same['l2']['ratio'].median():.3f}",
        "lead_hbm": percent(1 / in_flight["hbm"].min() - 1),
        "lead_l2": percent(1 / in_flight["l2"].min() - 1),
        "tie_hbm": bytes_label(ties[0]) if ties else "no size measured",
        "equal_worst": percent((shared["hbm"] - 1).abs().max(), 1),
        "equal_l2_low": f"{shared['l2'].min():.2f}",
        "equal_l2_high": f"{shared['l2'].max():.2f}",
        "warps_hbm": f"{warps['hbm']:.1f}",
        "warps_l2": f"{warps['l2']:.1f}",
        "hbm_best": tbps(best.max(), 2),
    } | {f"hbm_at_{size // KIB}": percent(best[size] / best.max()) for size in (8 * KIB, 32 * KIB, 64 * KIB)}


def bandwidth(streams: pd.DataFrame) -> dict[str, str]:
    """What the fastest streams from L2 get.

    Args:
        streams: rows of one run of `throughput`.
    """
    l2 = findings.best(streams, "l2")["median"]
    return {
        "l2_best": tbps(l2),
        "l2_per_clock": f"{l2 / _gbps_per_clock(streams):.0f}",
        "l2_size": bytes_label(int(streams["l2_bytes"].iloc[0])),
    }


def forms_of_loads(loads: pd.DataFrame, streams: pd.DataFrame) -> pd.DataFrame:
    """The fastest plain loads at each number of bytes in flight, in each form: `form` and `place` in words.

    Args:
        loads: rows of one run of `plain_loads`.
        streams: rows of one run of `throughput`, whose `ldg.stream` waits for all its loads at once.
    """
    words = {"register": "to registers", "shared": "to shared memory"}
    new = prices.rates(loads).assign(form=lambda table: table["destination"].map(words))
    new = new[new["source"].eq("hbm") | new["order"].eq("moving")]
    old = findings.rates(where(streams, mechanism="ldg")).assign(form="two sets, one scoreboard")
    both = pd.concat([new, old])
    best = both.loc[
        both.groupby(["form", "source", "bytes_in_flight_per_sm"])["median"].idxmax().sort_index()
    ]
    columns = [
        "form",
        "source",
        "bytes_in_flight_per_sm",
        "median",
        "kernel",
        "threads",
        "ctas_per_sm",
        "gpu",
        "run_id",
    ]
    return best.loc[best["bytes_in_flight_per_sm"].ge(4 * KIB), columns].assign(
        place=lambda table: table["source"].map({"hbm": "HBM", "l2": "L2"})
    )


def plain_loads(loads: pd.DataFrame, streams: pd.DataFrame, counted: pd.DataFrame) -> dict[str, str]:
    """What plain loads get, what the coalescer adds to it, and what two of their policies do.

    Args:
        loads: rows of one run of `plain_loads`.
        streams: rows of one run of `throughput`.
        counted: rows of one run of `pipeline_counters`.
    """
    forms = forms_of_loads(loads, streams)
    old = where(forms, form="two sets, one scoreboard", source="hbm", bytes_in_flight_per_sm=32 * KIB)[
        "median"
    ].iloc[0]
    few = where(
        loads,
        source="hbm",
        destination="shared",
        sets=1,
        chunks=2,
        prefetch="none",
        threads=256,
        ctas_per_sm=1,
    )
    nc = paired(where(few, policy="nc"), where(few, policy="cg"), "gbps")
    lost = counted[counted["kernel"].str.contains("no_allocate")]
    lost = where(lost, source="l2", order="moving", footprint_bytes=16 * MIB).iloc[0]
    in_flight = {"mechanism": "ldg", prices.IN_FLIGHT: 32 * KIB}
    return {
        "ldg_old": tbps(old, 2),
        "ldg_hbm": tbps(prices.plain_loads(loads, "hbm").value, 2),
        "ldg_l2": tbps(prices.plain_loads(loads, "l2").value),
        "ldg_l2_share": f"{prices.from_l2_itself(counted, **in_flight):.2f}",
        "nc_loss": percent(1 - nc.ratio),
        "no_allocate_memory": percent(lost["dram_read_bytes"] / lost["bytes_moved"]),
    }


def _gbps_per_clock(frame: pd.DataFrame) -> float:
    """GB/s of a byte per clock on every SM."""
    return frame["sm_count"].iloc[0] * frame["sm_clock_mhz_median"].iloc[0] / 1e3


def pipelines(streams: pd.DataFrame) -> pd.DataFrame:
    """Pipelines with a consumer of their own (TMA, or cp.async on an mbarrier), one block on each SM, from L2."""
    table = findings.rates(where(streams, source="l2", ctas_per_sm=1))
    table = table[table["kernel"].str.contains("tma|mbarrier")]
    return findings.with_cycles_per_tile(
        table, streams["sm_count"].iloc[0], streams["sm_clock_mhz_median"].iloc[0]
    )


def handover(pipelines: pd.DataFrame, bytes_per_clock: float) -> dict[str, str]:
    """Cycles that a pipeline takes for a small tile, and the tile from which L2's rate takes longer."""
    few = pipelines[pipelines["tile_bytes"].le(4 * KIB) & pipelines["stages"].ge(4)]["cycles_per_tile"]
    return {
        "cycles_per_tile": f"{few.median():.0f}",
        "cycles_low": f"{few.min():.0f}",
        "cycles_high": f"{few.max():.0f}",
        "small_tile": kib(2 ** round(np.log2(bytes_per_clock * few.median()))),
    }


def l2_bytes_per_clock(counted: pd.DataFrame) -> float:
    """The most that L2 itself gave to resident streams, bytes per clock and SM.

    Args:
        counted: of `findings.l2_share`.
    """
    resident = _resident(counted)
    return float((resident["per_clock"] * resident["from_l2"]).max())


def _resident(counted: pd.DataFrame) -> pd.DataFrame:
    return where(counted, source="l2", footprint_bytes=16 * MIB)


def counters(counted: pd.DataFrame) -> dict[str, str]:
    """What counters say of L2: how much of the delivered bytes it reads, and what it could.

    Args:
        counted: of `findings.l2_share`.
    """
    resident = _resident(counted)
    merged = resident.loc[resident["from_l2"].idxmin()]
    l2_clock = resident["l2_cycles"] / resident["cycles"] * resident["sm_clock_mhz_median"]
    l2_read = resident["l2_read_bytes"] / resident["l2_cycles"] / resident["l2_peak_bytes_per_l2_cycle"]
    engine = where(counted, mechanism="tma_tile", tile_bytes=16 * KIB).set_index("footprint_bytes")
    from_memory = engine["dram_read_bytes"] / engine["bytes_moved"]
    own = l2_bytes_per_clock(counted)
    return {
        "merged_l2": f"{merged['from_l2']:.2f}",
        "merged_own": f"{merged['per_clock'] * merged['from_l2']:.1f}",
        "own_ceiling": f"{own:.1f}",
        "own_tbps": tbps(own * _gbps_per_clock(resident)),
        "l2_mhz": f"{l2_clock.median():,.0f} MHz",
        "l2_peak": tbps((resident["l2_peak_bytes_per_l2_cycle"] * l2_clock).median() / 1e3),
        "l2_of_peak": percent(l2_read.max()),
        "at_64": f"{engine['from_l2'][64 * MIB]:.2f}",
        "most_l2": f"{counted['from_l2'].min():.2f}",
        "least_l2": f"{counted['from_l2'].max():.2f}",
    } | {f"memory_{size}": percent(from_memory[size * MIB]) for size in (32, 48, 56)}


def short_rows(shapes: pd.DataFrame) -> dict[str, str]:
    """What short rows cost TMA tiles, and what L2 promotion and a swizzle change.

    Args:
        shapes: rows of one run of `row_shape`.
    """
    plain = {"mechanism": "tma_tile", "swizzle": "none", "l2_promotion_bytes": 0}
    table, clock = findings.by_row_shape(shapes), _gbps_per_clock(shapes)

    def gbps(source: str, inner: int, pitch: int, **changed: object) -> float:
        rows = where(table, source=source, inner_bytes=inner, pitch_bytes=pitch, **plain | changed)
        return rows["median"].iloc[0]

    return {
        "cycles_per_row": f"{16 * clock / gbps('l2', 16, 16):.1f}",
        "row32": f"{32 * clock / gbps('l2', 32, 32):.1f}",
        "row64_none": tbps(gbps("hbm", 64, 64)),
        "row64_128": tbps(gbps("hbm", 64, 64, l2_promotion_bytes=128)),
        "wide32_none": f"{gbps('hbm', 32, 4096) / 1e3:.1f}",
        "wide32_128": tbps(gbps("hbm", 32, 4096, l2_promotion_bytes=128)),
        "row128_none": f"{gbps('hbm', 128, 128) / 1e3:.1f}",
        "row128_256": tbps(gbps("hbm", 128, 128, l2_promotion_bytes=256)),
        "swizzle128": f"{gbps('hbm', 128, 128, swizzle='128B') / gbps('hbm', 128, 128):.3f}",
    }
