"""What the chapter says of main loops in its text: values by the name under which the text asks for them."""

import pandas as pd

from labkernels.charts.text import percent
from labkernels.studies.kernel import mainloop_findings as findings
from labkernels.studies.kernel.mainloop_findings import ALONE, CYCLES, SQUARE, WIDE
from labkernels.studies.stats import having, where

NAMES = {ALONE: "alone", "tma_tile": "tma", "tma_multicast": "multicast", "cp_async": "cp", "ldg": "ldg"}


def beside(frame: pd.DataFrame) -> dict[str, str]:
    """Rates of tensor cores beside each producer.

    Args:
        frame: rows of one run of `mainloop`.
    """
    alone = where(findings.best_form(frame, ALONE, SQUARE), **findings.PLACE)
    said = {"alone_square": percent((alone["bound_cycles_per_step"] / alone[CYCLES]).median(), 1)}
    for mechanism, tile, name in (
        ("tma_tile", SQUARE, "tma_square"),
        ("cp_async", SQUARE, "cp_square"),
        ("cp_async", WIDE, "cp_wide"),
        ("ldg", SQUARE, "ldg_square"),
        ("ldg", WIDE, "ldg_wide"),
    ):
        said[name] = percent(findings.beside(frame, mechanism, tile).ratio, 1)
    table = findings.contest(frame).set_index(["tile", "mechanism", "stages"])["share"]
    said |= {
        "two_stages": percent(table["128×128", "tma_tile", 2]),
        "three_stages": percent(table["128×128", "tma_tile", 3]),
        "multicast_three": percent(table["128×128", "tma_multicast", 3]),
        "cp_hbm": percent(findings.beside(frame, "cp_async", source="hbm").ratio, 1),
        "tma_hbm": percent(findings.beside(frame, "tma_tile", source="hbm").ratio, 1),
    }
    return said | _changes(frame)


def _changes(frame: pd.DataFrame) -> dict[str, str]:
    """Cycles of a step of 128×128 with one thing changed at a time."""
    rows = having(frame, tile_m=128, tile_n=128, stages=6, swizzle_bytes=128, source="l2", data="random")

    def cycles(**equal: object) -> str:
        return f"{where(rows, **equal)[CYCLES].median():.0f}"

    copies = {"mechanism": "cp_async", "compute": "wgmma", "wgmma_per_step": 4, "producer_warps": 4}
    plain = copies | {"handover": "mbarrier", "pitch_bytes": 4096, "producer_registers": 40, "tiles": "grid"}
    changed = {
        "cp_plain": {},
        "cp_even": {"producer_registers": 0},
        "cp_unknown": {"pitch_bytes": 0},
        "cp_packed": {"pitch_bytes": 128},
        "cp_one_tile": {"tiles": "one"},
        "cp_one": {"producer_warps": 1},
        "cp_two": {"producer_warps": 2},
        "cp_eight": {"producer_warps": 8},
        "cp_half_one_tile": {"wgmma_per_step": 2, "tiles": "one"},
        "cp_quarter_one_tile": {"wgmma_per_step": 1, "tiles": "one"},
        "cp_alone_one_tile": {"compute": "none", "wgmma_per_step": 0, "tiles": "one"},
        "cp_group": {"handover": "group", "behind": 2},
        "cp_group_4": {"handover": "group", "behind": 4},
    }
    said = {name: cycles(**plain | change) for name, change in changed.items()}
    for name, mechanism in (("cp", "cp_async"), ("ldg", "ldg")):
        registers = findings.best_form(frame, mechanism, SQUARE)["producer_registers"]
        said[f"registers_{name}"] = f"{registers.iloc[0]}"
    engine = {"mechanism": "tma_tile", "producer_registers": 40, "tiles": "grid"}
    bound = where(rows, compute="wgmma", wgmma_per_step=4)["bound_cycles_per_step"].iloc[0]
    return said | {
        "tma_plain": cycles(**engine, compute="wgmma", wgmma_per_step=4),
        "tma_alone": cycles(**engine, compute="none"),
        "tma_half_one_tile": cycles(**engine | {"tiles": "one"}, compute="wgmma", wgmma_per_step=2),
        "tma_quarter_one_tile": cycles(**engine | {"tiles": "one"}, compute="wgmma", wgmma_per_step=1),
        "tma_alone_one_tile": cycles(**engine | {"tiles": "one"}, compute="none"),
        "ldg_plain": cycles(mechanism="ldg", compute="wgmma", turns=2, tiles="grid"),
        "step_bound": f"{bound}",
    }


def swizzles(frame: pd.DataFrame) -> dict[str, str]:
    """Cycles of a step by the width of the tile's columns.

    Args:
        frame: rows of one run of `mainloop`.
    """
    copied = having(findings.by_swizzle(frame), compute="wgmma", lanes="rows")

    def cycles(mechanism: str, width: int) -> str:
        return f"{where(copied, mechanism=mechanism, width=width)['median'].iloc[0]:,.0f}"

    said = {f"cp_width_{width}": cycles("cp_async", width) for width in (64, 32, 16)}
    said |= {f"tma_width_{width}": cycles("tma_tile", width) for width in (64, 16)}
    alone = findings.alone_by_swizzle(frame)
    return said | {"alone_least": f"{alone.min():.0f}", "alone_most": f"{alone.max():.0f}"}


def left_over(frame: pd.DataFrame) -> dict[str, str]:
    """FFMA rates beside each producer over that alone.

    Args:
        frame: rows of one run of `mainloop`.
    """
    table = having(findings.left_over(frame), pitch_bytes=4096)

    def ratio(mechanism: str, warps: int, work: int) -> str:
        kept = where(table, mechanism=mechanism, producer_warps=warps, ffma_per_word=work)
        return percent(kept["ratio"].iloc[0])

    said = {f"ffma_cp_4_{work}": ratio("cp_async", 4, work) for work in (8, 16, 32)}
    said |= {f"ffma_tma_1_{work}": ratio("tma_tile", 1, work) for work in (8, 32)}
    alone = having(frame, compute="fma", mechanism=ALONE)
    share = (alone["bound_cycles_per_step"] / alone[CYCLES]).groupby(alone["ffma_per_word"]).median()
    said |= {f"ffma_alone_{work}": percent(value) for work, value in share.items()}
    return said | {"ffma_cp_1_32": ratio("cp_async", 1, 32)}


def counters(counted: pd.DataFrame) -> dict[str, str]:
    """What a step of 128×128 takes of issue slots, shared memory and L2.

    Args:
        counted: rows of one run of `mainloop_counters`.
    """
    table = per_step(counted).set_index("mechanism")
    issue, pipe, read = (
        (ALONE, "tma_tile", "cp_async"),
        (ALONE, "ldg"),
        ("tma_tile", "cp_async", "ldg"),
    )
    said = {f"issued_{NAMES[one]}": f"{table.loc[one, 'issued']:,.0f}" for one in issue}
    said |= {f"wavefronts_{NAMES[one]}": f"{table.loc[one, 'lsu_wavefronts']:,.0f}" for one in pipe}
    said |= {f"from_l2_{NAMES[one]}": percent(table.loc[one, "from_l2"]) for one in read}
    copies = having(
        counted, mechanism="cp_async", compute="wgmma", swizzle_bytes=128, producer_warps=4, tile_n=128
    )
    copies = having(
        copies, tile_m=128, handover="mbarrier", tiles="grid", wgmma_per_step=4, producer_registers=40
    )
    issued = copies.set_index("pitch_bytes")["issued"] / copies["steps"].iloc[0] / copies["sm_count"].iloc[0]
    return said | {
        "busy_ldg": percent(table.loc["ldg", "busy"]),
        "packed_saves": f"{issued[4096] - issued[128]:.0f}",
    }


def per_step(counted: pd.DataFrame) -> pd.DataFrame:
    """Counters of each producer's best form, of one step of one CTA, tile 128×128.

    Returns:
        Columns mechanism, issued, lsu_wavefronts, wgmma_wavefronts, bank_conflicts, from_l2 (share of the bytes that
        arrived which L2 read), cycles (at the clock of the counted run), busy (share of the LSU's data pipe).
    """
    found = []
    for mechanism in NAMES:
        row = where(findings.best_form(counted, mechanism, SQUARE), tiles="grid").iloc[0]
        steps, cycles = row["steps"] * row["sm_count"], row["cycles"] / row["steps"]
        columns = ("issued", "lsu_wavefronts", "wgmma_wavefronts", "bank_conflicts")
        found.append(
            {"mechanism": mechanism}
            | {name: row[name] / steps for name in columns}
            | {
                "from_l2": row["l2_read_bytes"] / row["sm_ingest_bytes"],
                "cycles": cycles,
                "busy": row["lsu_wavefronts"] / steps / cycles,
            }
        )
    return pd.DataFrame(found)


def power(frame: pd.DataFrame) -> pd.DataFrame:
    """Clock, power, rate and energy of a step once both have settled: medians over windows.

    Args:
        frame: rows of one run of `mainloop_power`.

    Returns:
        Columns tile, data, mechanism, power_w, clock_mhz, tflops, energy_per_step_uj, and `over_alone`, the rate over
        that of tensor cores alone.
    """
    tile = frame["tile_m"].astype(str) + "×" + frame["tile_n"].astype(str)
    columns = ["power_w", "clock_mhz", "tflops", "energy_per_step_uj"]
    table = frame.assign(tile=tile).groupby(["tile", "data", "mechanism"])[columns].median().reset_index()
    alone = having(table, mechanism=ALONE).set_index(["tile", "data"])["tflops"]
    of_each = alone.reindex(table.set_index(["tile", "data"]).index).to_numpy()
    return table.assign(over_alone=table["tflops"] / of_each)


def settled(table: pd.DataFrame) -> dict[str, str]:
    """What clock, power and energy do to each producer's rate.

    Args:
        table: of `power`.
    """
    square, wide, zeros = (
        having(table, tile=tile, data=data).set_index("mechanism")
        for tile, data in (("128×128", "random"), ("128×256", "random"), ("128×128", "zeros"))
    )
    three = (ALONE, "tma_tile", "cp_async")
    said = {f"energy_{name}": f"{square.loc[one, 'energy_per_step_uj']:.2f}" for one, name in NAMES.items()}
    said |= {f"zeros_{NAMES[one]}": f"{zeros.loc[one, 'energy_per_step_uj']:.2f}" for one in three}
    said |= {f"tflops_{NAMES[one]}": f"{square.loc[one, 'tflops']:.0f}" for one in three[:2]}
    for at, rows in (("", square), ("_wide", wide)):
        said[f"tma_over_cp_settled{at}"] = (
            f"{rows.loc['tma_tile', 'tflops'] / rows.loc['cp_async', 'tflops']:.2f}"
        )
    return said | {
        "power_tma": percent(square.loc["tma_tile", "over_alone"]),
        "power_cp": percent(square.loc["cp_async", "over_alone"]),
        "clock_cp": f"{square.loc['cp_async', 'clock_mhz']:,.0f}",
        "watts_tma": f"{square.loc['tma_tile', 'power_w']:.0f}",
        "zeros_watts_alone": f"{zeros.loc[ALONE, 'power_w']:.0f}",
        "zeros_clock_alone": f"{zeros.loc[ALONE, 'clock_mhz']:,.0f}",
    }
