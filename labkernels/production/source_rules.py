"""FlashAttention-3's source rules as checks over its compiled kernels."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from labkernels.production import fa3
from labkernels.production.attention import AttentionCall

Check = Callable[[pd.DataFrame], pd.Series]


@dataclass(frozen=True)
class SourceRule:
    """A statement about FlashAttention-3's kernels that compiled code can refute.

    Attributes:
        id: Short name.
        sentence: The rule.
        source: Where FlashAttention-3's source says so.
        applies: Rows of the census it applies to.
        holds: For those rows, whether the code agrees.
    """

    id: str
    sentence: str
    source: str
    applies: Check
    holds: Check


def verdicts(kernels: pd.DataFrame) -> pd.DataFrame:
    """Each source rule, how many kernels it applies to, and how many contradict it.

    Args:
        kernels: As `catalog.flash_kernels` gives them.
    """
    rows = []
    for rule in RULES:
        spoken_of = kernels[rule.applies(kernels)]
        rows.append(
            {
                "id": rule.id,
                "sentence": rule.sentence,
                "source": rule.source,
                "kernels": len(spoken_of),
                "exceptions": int((~rule.holds(spoken_of)).sum()),
            }
        )
    return pd.DataFrame(rows)


def _dispatched_tile(k: pd.DataFrame) -> pd.Series:
    tiles = [
        fa3.choose(
            AttentionCall(
                **{
                    name: row[name]
                    for name in ("dtype", "head_dim", "head_dim_v", "causal", "local", "softcap")
                },
                heads=1,
                kv_heads=1,
                seqlen_q=1024,
                page_size=1 if row["paged_cp_async"] else None,
            )
        )
        for row in k.to_dict("records")
    ]
    return pd.Series([(tile.tile_m, tile.tile_n) for tile in tiles], index=k.index)


def _every_opcode(prefix: str, modifier: str) -> Check:
    def check(k: pd.DataFrame) -> pd.Series:
        words = k.opcodes.str.findall(rf"\b{prefix}\.[\w.]+")
        return words.map(lambda found: all(modifier in word.split(".") for word in found)).astype(bool)

    return check


def _forward(k: pd.DataFrame) -> pd.Series:
    return k.direction == "forward"


def _backward(k: pd.DataFrame) -> pd.Series:
    return k.direction == "backward"


RULES = (
    SourceRule(
        "paged_gather",
        "Pages that a tile does not fit into: K and V come by cp.async, and nothing comes by TMA.",
        "hopper/flash_api.cpp 374, 415-424",
        lambda k: _forward(k) & k.paged_cp_async & ~k.append,
        lambda k: (k.tma_loads == 0) & (k.cp_async > 0),
    ),
    SourceRule(
        "append_by_tma",
        "New keys and values that are appended come by TMA even there: they lie in one piece.",
        "hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp 1445-1547",
        lambda k: _forward(k) & k.paged_cp_async & k.append,
        lambda k: (k.tma_tile > 0) & (k.cp_async > 0),
    ),
    SourceRule(
        "kv_by_tma",
        "Every other kernel loads K and V by TMA.",
        "hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp 57",
        lambda k: _forward(k) & ~k.paged_cp_async,
        lambda k: k.tma_loads > 0,
    ),
    SourceRule(
        "packed_q",
        "There, cp.async is used exactly when query heads are packed (PackGQA): for Q.",
        "hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp 56, 828-836",
        lambda k: _forward(k) & ~k.paged_cp_async,
        lambda k: (k.cp_async > 0) == k.pack_gqa,
    ),
    SourceRule(
        "output_by_tma",
        "O leaves by TMA exactly when sequences have one length, KV is not split and heads are not packed.",
        "hopper/epilogue_fwd.hpp 37",
        _forward,
        lambda k: (k.tma_store > 0) == ~(k.varlen | k.split | k.pack_gqa),
    ),
    SourceRule(
        "multicast_is_cluster",
        "K and V are multicast exactly when the cluster has two CTAs.",
        "hopper/flash_fwd_launch_template.h 211-218",
        _forward,
        lambda k: (k.tma_multicast > 0) == (k.cluster_m == 2),
    ),
    SourceRule(
        "cluster_conditions",
        "A cluster of two asks for 16-bit data, no mask, no split, no varlen, and no gather by cp.async.",
        "hopper/flash_fwd_launch_template.h 211-218",
        lambda k: _forward(k) & (k.cluster_m == 2),
        lambda k: (k["dtype"] != "fp8") & ~(k.causal | k.local | k.split | k.varlen | k.paged_cp_async),
    ),
    SourceRule(
        "no_multicast_in_serving",
        "No kernel for sequences of different lengths multicasts anything.",
        "follows from cluster_conditions",
        lambda k: _forward(k) & k.varlen,
        lambda k: k.tma_multicast == 0,
    ),
    SourceRule(
        "gather_packs_heads",
        "The gather by cp.async always comes with packed heads.",
        "hopper/flash_api.cpp 379",
        lambda k: _forward(k) & k.paged_cp_async,
        lambda k: k.pack_gqa,
    ),
    SourceRule(
        "append_is_varlen",
        "Kernels that append are kernels for sequences of different lengths, so they never multicast.",
        "hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp 288",
        lambda k: _forward(k) & k.append,
        lambda k: k.varlen & (k.cluster_m == 1),
    ),
    SourceRule(
        "tile_table",
        "Tiles are as in tile_size.h: 16-bit 128 x 176, masked or gathered 128 x 128; fp8 up to 128 x 224.",
        "hopper/tile_size.h 10-52",
        _forward,
        lambda k: _dispatched_tile(k) == pd.Series(zip(k.tile_m, k.tile_n, strict=True), index=k.index),
    ),
    SourceRule(
        "no_power_of_two_page",
        "16-bit, no mask, K and V by TMA: the tile has 176 keys, and no power-of-two page holds whole tiles.",
        "follows from tile_table and hopper/flash_api.cpp 415-424",
        lambda k: _forward(k) & (k["dtype"] != "fp8") & ~(k.causal | k.local | k.paged_cp_async),
        lambda k: (k.tile_n & (k.tile_n - 1)) != 0,
    ),
    SourceRule(
        "no_other_mechanism",
        "No forward kernel uses bulk copies, reductions in flight or distributed shared memory.",
        "hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp, hopper/epilogue_fwd.hpp",
        _forward,
        lambda k: (
            k[["tma_bulk", "bulk_store", "bulk_reduce", "tma_reduce", "dsm_load", "dsm_store", "dsm_bulk"]]
            == 0
        ).all(axis=1),
    ),
    SourceRule(
        "load_rank",
        "Every TMA load is of a 4-D tensor.",
        "hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp 208-267",
        lambda k: _forward(k) & (k.tma_loads > 0),
        _every_opcode("UTMALDG", "4D"),
    ),
    SourceRule(
        "store_rank",
        "Every TMA store is of a 5-D tensor.",
        "hopper/epilogue_fwd.hpp 110-119",
        lambda k: _forward(k) & (k.tma_store > 0),
        _every_opcode("UTMASTG", "5D"),
    ),
    SourceRule(
        "gather_width",
        "Every cp.async moves 16 bytes and bypasses L1.",
        "hopper/paged_kv.h 207-281, hopper/pack_gqa.h 75-122",
        lambda k: _forward(k) & (k.cp_async > 0),
        lambda k: _every_opcode("LDGSTS", "128")(k) & _every_opcode("LDGSTS", "BYPASS")(k),
    ),
    SourceRule(
        "backward_loads",
        "Backward loads tiles by TMA and row statistics by bulk copies, never by cp.async or multicast.",
        "hopper/mainloop_bwd_sm90_tma_gmma_ws.hpp 211-240, 496-553; hopper/flash_bwd_launch_template.h 78",
        _backward,
        lambda k: (k.tma_tile > 0) & (k.tma_bulk > 0) & (k.cp_async == 0) & (k.tma_multicast == 0),
    ),
    SourceRule(
        "backward_reduces",
        "Backward adds up the gradient of Q in flight, by bulk reductions.",
        "hopper/mainloop_bwd_sm90_tma_gmma_ws.hpp 264, 642-650",
        lambda k: _backward(k) & (k.head_dim < 256),
        lambda k: k.bulk_reduce > 0,
    ),
    SourceRule(
        "backward_stores",
        "Gradients of K and V leave by TMA exactly when no heads are shared and sequences have one length.",
        "hopper/epilogue_bwd.hpp 31, 197-262, 330",
        _backward,
        lambda k: (k.tma_store > 0) == ~(k.gqa | k.varlen),
    ),
)
"""Checked for every kernel of the stored census; `make catalog` checks them on a fresh one."""
