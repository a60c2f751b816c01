"""What the chapter on single transfers says in its text: cycles by the name under which the text asks for them."""

import pandas as pd

from labkernels.operand import KIB
from labkernels.studies.latency.findings import (
    burst_cycles,
    issue_slope_cycles,
    latency,
    map_cycles,
    most_maps,
)
from labkernels.studies.stats import where

BULK, TILE, LOAD = ("tma_bulk", "try_wait"), ("tma_tile", "2d"), ("ldg", "register nc")
GROUP, STORED = ("cp_async", "group"), ("ldg", "shared nc")


def transfers(frame: pd.DataFrame) -> dict[str, float]:
    """Latencies and what they differ by.

    Args:
        frame: rows of one run of `latency`.
    """

    def cycles(
        way: tuple[str, str],
        source: str = "l2_near",
        size: int = 16,
        protocol: str = "chain",
        quantile: str = "median",
    ) -> float:
        return latency(frame, *way, source, size, protocol)[f"cycles_{quantile}"]

    def premium(way: tuple[str, str], source: str = "l2_near", protocol: str = "chain") -> float:
        return cycles(way, source, protocol=protocol) - cycles(LOAD, source, protocol=protocol)

    first = {"protocol": "first"}
    cold = {"source": "hbm", "protocol": "first_cold_page"}
    polled = ("tma_bulk", "test_wait")
    third = {"source": "l2", "protocol": "third_pass_after_writes"}
    found = {
        "bulk": cycles(BULK),
        "cp": cycles(GROUP),
        "lds": cycles(STORED),
        "ldg": cycles(LOAD),
        "premium": premium(BULK),
        "hbm": cycles(LOAD, "hbm"),
        "hbm_p05": cycles(LOAD, "hbm", quantile="p05"),
        "hbm_p95": cycles(LOAD, "hbm", quantile="p95"),
        "far_extra": cycles(BULK, "l2_far") - cycles(BULK),
        "far_extra_ldg": cycles(LOAD, "l2_far") - cycles(LOAD),
        "whole_ldg": cycles(LOAD, protocol="whole_chain"),
        "cold_bulk_p05": cycles(BULK, quantile="p05", **cold),
        "cold_ldg": cycles(LOAD, **cold),
        "cold_ldg_p05": cycles(LOAD, quantile="p05", **cold),
        "third_kept": cycles(LOAD, **third),
        "third_not_kept": cycles(("ldg", "register L1::no_allocate"), **third),
        "first_tile": cycles(TILE, **first),
        "first_tile_hbm": cycles(TILE, "hbm", **first),
        "first_bulk": cycles(BULK, **first),
        "first_bulk_hbm": cycles(BULK, "hbm", **first),
        "descriptor": cycles(TILE, **first) - cycles(TILE),
        "descriptor_hbm": cycles(TILE, "hbm", **first) - cycles(TILE, "hbm"),
        "poll": cycles(polled, quantile="p95") - cycles(polled),
        "tile_16k": cycles(TILE, size=16 * KIB),
        "cp_16k": cycles(GROUP, size=16 * KIB),
        "lds_64k": cycles(STORED, size=64 * KIB),
        "tile_64k": cycles(TILE, size=64 * KIB),
    }
    for place in ("l2_near", "l2_far", "hbm"):
        found |= {f"premium_{place}": premium(BULK, place), f"premium_tile_{place}": premium(TILE, place)}
    for name, way in {"bulk": BULK, "tile": TILE}.items():
        found |= {
            f"whole_{name}": cycles(way, protocol="whole_chain"),
            f"whole_premium_{name}": premium(way, protocol="whole_chain"),
            f"cold_{name}": cycles(way, **cold),
        }
    return found


def tensor_maps(frame: pd.DataFrame) -> dict[str, float]:
    """What a tensor map costs its copy.

    Args:
        frame: rows of one run of `descriptors`.
    """
    many = most_maps(frame)
    at_hand = map_cycles(frame, "plain", maps=1)
    everywhere = int(where(frame, use="replace")["blocks"].max())
    return {
        "map_at_hand": at_hand,
        "map_thousand": map_cycles(frame, "plain", maps=1024),
        "map_from_l2": map_cycles(frame, "plain", maps=many) - at_hand,
        "map_from_hbm": map_cycles(frame, "plain", "hbm", maps=many) - at_hand,
        "map_late": map_cycles(frame, "prefetch", "hbm", ahead_cycles=400) - at_hand,
        "map_replaced": map_cycles(frame, "replace", column="replaced_cycles"),
        "map_published": map_cycles(frame, "replace", column="published_cycles"),
        "map_replace": map_cycles(frame, "replace") - at_hand,
        "map_replace_all": map_cycles(frame, "replace", blocks=everywhere) - at_hand,
    }


def issue(frame: pd.DataFrame) -> dict[str, float]:
    """What starting a copy costs the thread that does, alone and with what comes with it.

    Args:
        frame: rows of one run of `issue`.
    """

    def bursts(mechanism: str, size: int, per_copy: str = "copy") -> pd.Series:
        rows = where(frame, mechanism=mechanism, transfer_bytes=size, variant=per_copy)
        return rows.set_index("train_length")["cycles_median"]

    def lookup(mechanism: str) -> float:
        """What a page-table load adds to each copy, between bursts of 8 and 64."""
        with_lookup, alone = bursts(mechanism, KIB, "lookup"), bursts(mechanism, KIB)
        return (with_lookup[64] - with_lookup[8] - alone[64] + alone[8]) / 56

    copy, expect, wait = (
        issue_slope_cycles(frame, "tma_bulk", KIB, per_copy=step) for step in ("copy", "expect", "wait")
    )
    full = bursts("tma_bulk", 16 * KIB)
    backed_up = (full[48] - full[32]) / 16
    return {
        "issue": copy,
        "issue_tile": issue_slope_cycles(frame, "tma_tile", KIB),
        "issue_one": bursts("tma_bulk", KIB)[1],
        "issue_cp": issue_slope_cycles(frame, "cp_async", 512),
        "expect": max(expect - copy, 0),
        "wait": wait - expect,
        "turn": wait,
        "lookup_bulk": lookup("tma_bulk"),
        "lookup_tile": lookup("tma_tile"),
        "backed_up": backed_up,
        "backed_up_rate": 16 * KIB / backed_up,
    }


def written_out(frame: pd.DataFrame) -> dict[str, float | str]:
    """What a copy costs the warp that issues it, as unrolled code has it.

    Args:
        frame: rows of one run of `issue_inline`.
    """
    tile, bulk = (burst_cycles(frame, name, 16, 2 * KIB) / 16 for name in ("tma_tile", "tma_bulk"))
    many = burst_cycles(frame, "cp_async", 64) / 64
    four = {
        "burst_sm_cp": 4 * 64 * 512 / burst_cycles(frame, "cp_async", 64, warps=4),
        "burst_sm_tma": 4 * 16 * 2 * KIB / burst_cycles(frame, "tma_tile", 16, 2 * KIB, warps=4),
    }
    return {
        "burst_ldg": f"{burst_cycles(frame, 'ldg', 16) / 16:.1f}",
        "burst_cp_few": f"{burst_cycles(frame, 'cp_async', 4) / 4:.1f}",
        "burst_cp": f"{many:.1f}",
        "burst_tma": tile,
        "burst_bulk": bulk,
        "burst_one": burst_cycles(frame, "tma_tile", 1, 2 * KIB),
        "burst_even": f"{512 * tile / many:,.0f}",
    } | four
