"""What the chapter on streams says in its text: values by the name under which the text asks for them."""

import numpy as np
import pandas as pd

from labkernels.charts import bytes_label
from labkernels.charts.text import kib, percent, tbps
from labkernels.operand import KIB, MIB
from labkernels.studies.crossover import findings
from labkernels.studies.stats import having, where

SIZES = [4 * KIB << power for power in range(6)]


def bandwidth(streams: pd.DataFrame, ratios: pd.DataFrame) -> dict[str, str]:
    """How much arrives, and who is ahead.

    Args:
        streams: rows of one run of `throughput`.
        ratios: TMA tiles over cp.async, of `findings.ratios_by_size`.
    """
    worst = 1 / ratios.groupby("source")["ratio"].min() - 1
    ties = having(ratios, source="hbm", differs=False)["bytes_in_flight_per_sm"]
    meeting = findings.overtaking(streams, "hbm", "cp_async", ("tma_bulk", "tma_tile"))
    hbm, l2 = (findings.best(streams, source)["median"] for source in ("hbm", "l2"))
    best = where(findings.frontier(streams), source="hbm").groupby("bytes_in_flight_per_sm")["median"].max()
    return {
        "worst_hbm": percent(worst["hbm"]),
        "worst_l2": percent(worst["l2"]),
        "tie_hbm": bytes_label(ties.iloc[0]) if len(ties) else "no size measured",
        "meeting": kib(meeting.x) if meeting.x else "no point",
        "meeting_low": kib(meeting.low),
        "meeting_high": kib(meeting.high) if np.isfinite(meeting.high) else "no upper end",
        "hbm_best": tbps(hbm, 2),
        "l2_best": tbps(l2),
        "l2_per_clock": f"{l2 / _gbps_per_clock(streams):.0f}",
        "l2_size": bytes_label(int(streams["l2_bytes"].iloc[0])),
    } | {f"hbm_at_{size // KIB}": percent(best[size] / hbm) for size in (8 * KIB, 32 * KIB, 64 * KIB)}


def _gbps_per_clock(frame: pd.DataFrame) -> float:
    """GB/s of a byte per clock on every SM."""
    return frame["sm_count"].iloc[0] * frame["sm_clock_mhz_median"].iloc[0] / 1e3


def rings(streams: pd.DataFrame) -> pd.DataFrame:
    """Rings with a consumer of their own (TMA, or cp.async on an mbarrier), one block on each SM, from L2."""
    table = findings.rates(where(streams, source="l2", ctas_per_sm=1))
    table = table[table["kernel"].str.contains("tma|mbarrier")]
    return findings.with_cycles_per_tile(
        table, streams["sm_count"].iloc[0], streams["sm_clock_mhz_median"].iloc[0]
    )


def handover(rings: pd.DataFrame, bytes_per_clock: float) -> dict[str, str]:
    """Cycles that a ring takes for a small tile, and the tile from which L2's rate takes longer."""
    few = rings[rings["tile_bytes"].le(4 * KIB) & rings["stages"].ge(4)]["cycles_per_tile"]
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
