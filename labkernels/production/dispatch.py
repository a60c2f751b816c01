"""How FlashAttention-3 and FlashAttention-4 choose, on Hopper, the mechanism for each operand.

FlashAttention-3: `hopper/flash_api.cpp` 415-470 and 578-584, `tile_size.h` 10-52, `heuristics.h` 10-59 and
`flash_fwd_launch_template.h` 211-218, at commit 0251105a. FlashAttention-4: its `interface.py`, same commit.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any

from labkernels.operand import round_up

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}
MAX_SPLITS = 128
L2_SHARE_BYTES = 50 * 2**20  # what FlashAttention-3 takes the L2 of an H100 to hold


@dataclass(frozen=True)
class Dispatch:
    """What a forward pass was chosen to do.

    Attributes:
        k: mechanism that loads K, by its name in this book.
        v: mechanism that loads V.
        q: mechanism that loads Q.
        o: mechanism that stores O.
        tile_m: query rows of a tile.
        tile_n: keys of a tile.
        cluster_m: CTAs of a cluster, along the query rows.
        pack_gqa: whether the query heads of one KV head are packed into the rows of a tile.
        num_splits: parts that the keys are cut into, for CTAs of their own.
        reasons: why, for each of the fields above.
    """

    k: str
    v: str
    q: str
    o: str
    tile_m: int
    tile_n: int
    cluster_m: int
    pack_gqa: bool
    num_splits: int
    reasons: dict[str, str] = field(compare=False)


def fa3(
    *,
    dtype: str,
    head_dim: int,
    head_dim_v: int | None = None,
    causal: bool = False,
    local: bool = False,
    heads: int,
    kv_heads: int,
    seqlen_q: int,
    page_size: int | None = None,
    varlen: bool = False,
    append: bool = False,
    leftpad: bool = False,
    softcap: bool = False,
    num_splits: int = 1,
) -> Dispatch:
    """FlashAttention-3's choice for one forward pass on sm_90.

    Args:
        dtype: `bf16`, `fp16` or `fp8`.
        head_dim: of Q and K.
        head_dim_v: of V; by default that of K.
        causal: causal mask.
        local: sliding window; with `causal`, one that ends at the diagonal.
        heads: query heads.
        kv_heads: KV heads, a divisor of `heads`.
        seqlen_q: query rows of a sequence, the largest when `varlen`.
        page_size: rows of a page of the KV cache; None for a contiguous one.
        varlen: query lengths differ (`cu_seqlens_q` or `seqused_q` is given).
        append: new keys and values are appended; they and their cache need lengths, as `varlen` does.
        leftpad: sequences start part-way into the cache.
        softcap: scores are capped.
        num_splits: parts of the keys; `fa3_num_splits` gives what FlashAttention-3 would choose.

    Raises:
        ValueError: a value that FlashAttention-3 does not take; the message names it, the limit and a fix.
    """
    dv = head_dim if head_dim_v is None else head_dim_v
    _require_shape(dtype, head_dim, dv, heads, kv_heads, seqlen_q, page_size, num_splits)
    _require_head_dim_v(dtype, head_dim, dv)
    ratio, paged, local_mask = heads // kv_heads, page_size is not None, local
    causal_mask = causal and not local
    why: dict[str, str] = {}
    if seqlen_q == 1 and causal_mask and not (paged and 64 < head_dim <= 128):
        causal_mask = False
        why["tile_n"] = "one query row: the causal mask hides nothing and is dropped; "

    def tile(gathered: bool) -> tuple[int, int]:
        return _fa3_tile(ELEMENT_BYTES[dtype], head_dim, dv, causal_mask, local_mask, gathered, softcap)

    tile_m, tile_n = tile(gathered=False)
    gathered, why["k"] = _fa3_gathers(page_size, tile_m, tile_n, seqlen_q, ratio, leftpad, append)
    tile_m, tile_n = tile(gathered)
    why["v"] = why["k"]
    why["tile_m"] = "tile_size.h"
    why["tile_n"] = why.get("tile_n", "") + "tile_size.h" + (", gathered cache" if gathered else "")

    pack_gqa, why["pack_gqa"] = _fa3_packs(gathered, num_splits, ratio, varlen, seqlen_q, tile_m)
    lengths_differ = varlen or leftpad or append
    cluster_m, why["cluster_m"] = _fa3_cluster(
        dtype,
        head_dim,
        {"causal": causal_mask, "local": local_mask, "split": num_splits > 1}
        | {"gathered": gathered, "varlen": lengths_differ},
        ceil(seqlen_q * (ratio if pack_gqa else 1) / tile_m),
    )
    if cluster_m == 2:
        why["k"] = why["v"] = "two CTAs of a cluster take the same keys: " + why["cluster_m"]
    why["q"] = (
        "packed heads are not a box of a tensor: one pointer per row" if pack_gqa else "a box of a tensor"
    )
    plain_store = [
        name
        for name, holds in {"varlen": lengths_differ, "split": num_splits > 1, "packed": pack_gqa}.items()
        if holds
    ]
    why["o"] = f"not a box of a tensor: {', '.join(plain_store)}" if plain_store else "a box of a tensor"
    why["num_splits"] = "as given"
    kv = "cp_async" if gathered else "tma_multicast" if cluster_m == 2 else "tma_tile"
    return Dispatch(
        k=kv,
        v=kv,
        q="cp_async" if pack_gqa else "tma_tile",
        o="stg" if plain_store else "tma_store",
        tile_m=tile_m,
        tile_n=tile_n,
        cluster_m=cluster_m,
        pack_gqa=pack_gqa,
        num_splits=num_splits,
        reasons=why,
    )


def fa3_num_splits(
    choice: Dispatch,
    *,
    batch: int,
    seqlen_k: int,
    seqlen_q: int,
    heads: int,
    kv_heads: int,
    head_bytes: int,
    masked: bool,
    sm_count: int,
) -> int:
    """Parts that FlashAttention-3 cuts the keys into when it may choose.

    Args:
        choice: of the pass with `num_splits=1`; its tile counts.
        batch: sequences; 1 where their lengths differ and the split is decided on the GPU.
        seqlen_k: keys of a sequence that are loaded.
        seqlen_q: query rows of a sequence.
        heads: query heads.
        kv_heads: KV heads.
        head_bytes: bytes of one key and its value in one head.
        masked: whether a causal or local mask is left.
        sm_count: of the GPU.
    """
    m_blocks = ceil(seqlen_q * (heads // kv_heads) / choice.tile_m)
    n_blocks = ceil(seqlen_k / choice.tile_n)
    total = batch * kv_heads * m_blocks
    if total >= 0.8 * sm_count:
        kv_head_bytes = seqlen_k * head_bytes
        if kv_head_bytes > L2_SHARE_BYTES and m_blocks >= 2 * sm_count and not masked:
            return min(ceil(kv_head_bytes / L2_SHARE_BYTES), MAX_SPLITS)
        return 1
    if n_blocks <= 4:
        return 1
    waves = [total * splits / sm_count for splits in range(1, min(MAX_SPLITS, sm_count, n_blocks) + 1)]
    efficiency = [wave / ceil(wave) for wave in waves]
    return 1 + next(at for at, reached in enumerate(efficiency) if reached >= 0.85 * max(efficiency))


def fa4(
    *,
    dtype: str,
    head_dim: int,
    head_dim_v: int | None = None,
    causal: bool = False,
    local: bool = False,
    heads: int,
    kv_heads: int,
    seqlen_q: int,
    page_size: int | None = None,
    varlen: bool = False,
    append: bool = False,
    leftpad: bool = False,
    softcap: bool = False,
    num_splits: int = 1,
) -> Dispatch:
    """FlashAttention-4's choice (CuTe DSL) for one forward pass on sm_90. Arguments as `fa3`.

    `varlen` and `softcap` change nothing here.

    Raises:
        ValueError: a value that FlashAttention-4 does not take; the message names it, the limit and a fix.
    """
    dv = head_dim if head_dim_v is None else head_dim_v
    _require_shape(dtype, head_dim, dv, heads, kv_heads, seqlen_q, page_size, num_splits)
    if dtype == "fp8":
        raise ValueError("dtype is 'fp8', FlashAttention-4 takes bf16 and fp16 on sm_90: choose one, or fa3")
    for name, given in {"append": append, "leftpad": leftpad}.items():
        if given:
            raise ValueError(f"{name} is True, FlashAttention-4 has no {name}: leave it out, or use fa3")
    ratio = heads // kv_heads
    tile_m, tile_n = _fa4_tile(head_dim, dv, causal and not local, local)
    by_tma = page_size in (None, tile_n)
    why = {name: "interface.py 141-174" for name in ("tile_m", "tile_n")}
    why["k"] = why["v"] = (
        "a contiguous cache is a tensor"
        if page_size is None
        else f"a page of {page_size} rows {'is' if by_tma else 'is not'} a tile of {tile_n}"
    )
    pack_gqa = ratio > 1
    boxes = not pack_gqa or tile_m % ratio == 0
    why["pack_gqa"] = f"{ratio} query heads per KV head"
    why["q"] = why["o"] = (
        "a box of a tensor" if boxes else f"{ratio} packed heads do not divide {tile_m} rows: row by row"
    )
    why["cluster_m"] = "no multicast on sm_90"
    why["num_splits"] = "as given"
    kv = "tma_tile" if by_tma else "cp_async"
    return Dispatch(
        k=kv,
        v=kv,
        q="tma_tile" if boxes else "cp_async",
        o="tma_store" if boxes else "stg",
        tile_m=tile_m,
        tile_n=tile_n,
        cluster_m=1,
        pack_gqa=pack_gqa,
        num_splits=num_splits,
        reasons=why,
    )


RULES: dict[str, Callable[..., Dispatch]] = {"fa3": fa3, "fa4": fa4}


def _fa3_tile(
    element_bytes: int, d: int, dv: int, causal: bool, local: bool, gathered: bool, softcap: bool
) -> tuple[int, int]:
    if element_bytes == 2:
        short = causal or local or gathered
        if d <= 64:
            return (64, 64) if dv > 256 else (128, 96) if dv > 64 else (192, 128 if short else 192)
        if d <= 96:
            return 192, 128 if local or gathered else 144
        if d <= 128:
            return 128, 128 if short else 176
        if d <= 192:
            return 128, 96 if local or gathered else 128 if dv <= 128 else 112
        return 128, 64 if local else 80
    if d <= 64:
        return 192, 160
    if d <= 96:
        return 192, 128
    if d <= 128:
        return 128, 160 if gathered else 192 if softcap and local else 224
    if d <= 192:
        return 128, 128 if local and (gathered or softcap) else 160
    return 128, 64 if local else 128


def _fa3_gathers(
    page_size: int | None, tile_m: int, tile_n: int, seqlen_q: int, ratio: int, leftpad: bool, append: bool
) -> tuple[bool, str]:
    if page_size is None:
        return False, "a contiguous cache is a tensor"
    rows = seqlen_q * ratio
    obstacles = {
        "sequences start part-way into a page (leftpad)": leftpad,
        "new keys are appended": append,
        f"pages of {page_size} rows are not a multiple of the tile's {tile_n}": page_size % tile_n != 0,
        f"seqlen_q × ratio = {rows} does not exceed the tile's {tile_m} rows": rows <= tile_m,
    }
    found = [obstacle for obstacle, stands in obstacles.items() if stands]
    if found:
        return True, "; ".join(found)
    return False, f"pages of {page_size} rows are whole tiles of {tile_n}, and {rows} rows exceed {tile_m}"


def _fa3_packs(
    gathered: bool, num_splits: int, ratio: int, varlen: bool, seqlen_q: int, tile_m: int
) -> tuple[bool, str]:
    if gathered or num_splits > 1:
        return True, "always with a gathered cache" if gathered else "always with split keys"
    if ratio == 1:
        return False, "one query head per KV head"
    if varlen:
        return True, "always with query lengths that differ"
    plain = seqlen_q / round_up(seqlen_q, tile_m)
    packed = seqlen_q * ratio / round_up(seqlen_q * ratio, tile_m)
    return plain < 0.9 * packed, f"tiles are full to {plain:.2f} without packing, to {packed:.2f} with it"


def _fa3_cluster(dtype: str, d: int, against: dict[str, bool], m_blocks: int) -> tuple[int, str]:
    if not (128 < d <= 192 if dtype == "fp8" else d > 96):
        return 1, f"not for {dtype} with head dim {d}"
    if found := [name for name, holds in against.items() if holds]:
        return 1, f"not with {', '.join(found)}"
    if m_blocks % 2:
        return 1, f"{m_blocks} tiles of queries are not even"
    return 2, f"{m_blocks} tiles of queries are even"


def _fa4_tile(d: int, dv: int, causal: bool, local: bool) -> tuple[int, int]:
    if d <= 64:
        return 192, 128
    if d <= 96:
        return 192, 128 if causal or local else 144
    if d <= 128:
        return 128, 128
    if d <= 192:
        return 128, 96 if local else 128 if dv <= 128 else 112
    return 128, 64 if local else 80


def _require_shape(
    dtype: str,
    head_dim: int,
    head_dim_v: int,
    heads: int,
    kv_heads: int,
    seqlen_q: int,
    page_size: int | None,
    num_splits: int,
) -> None:
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"dtype is {dtype!r}: choose one of {', '.join(ELEMENT_BYTES)}")
    least = {"heads": heads, "kv_heads": kv_heads, "seqlen_q": seqlen_q, "num_splits": num_splits}
    if page_size is not None:
        least["page_size"] = page_size
    for name, value in least.items():
        if value < 1:
            raise ValueError(f"{name} is {value}, below the limit of 1: give a positive {name}")
    unit = 16 // ELEMENT_BYTES[dtype]
    for name, value, most in (("head_dim", head_dim, 256), ("head_dim_v", head_dim_v, 512)):
        if not 0 < value <= most:
            raise ValueError(f"{name} is {value}, the limits are {unit} and {most}: give one between them")
        if value % unit:
            raise ValueError(
                f"{name} is {value}, not a multiple of {unit}: pad it to {round_up(value, unit)}"
            )
    if heads % kv_heads:
        raise ValueError(f"heads is {heads}, not a multiple of kv_heads {kv_heads}: give one that is")


def _require_head_dim_v(dtype: str, d: int, dv: int) -> None:
    allowed = dv == d or (128 < d <= 192 and 96 < dv <= 128) or (d <= 64 and dtype != "fp8")
    if not allowed:
        also = " or 97 to 128" if 128 < d <= 192 else ""
        raise ValueError(
            f"head_dim_v is {dv} for head_dim {d}: give {d}{also}; a 16-bit head_dim up to 64 takes all"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m labkernels dispatch`: those of `fa3` and `fa4`."""
    parser.add_argument("library", choices=RULES, help="whose rules")
    parser.add_argument("--dtype", choices=ELEMENT_BYTES, default="bf16")
    parser.add_argument("--head-dim", type=int, default=128, help="of Q and K (default 128)")
    parser.add_argument("--head-dim-v", type=int, help="of V (default: that of K)")
    parser.add_argument("--heads", type=int, required=True, help="query heads")
    parser.add_argument("--kv-heads", type=int, required=True, help="KV heads")
    parser.add_argument("--seqlen-q", type=int, required=True, help="query rows of a sequence, at most")
    parser.add_argument("--page-size", type=int, help="rows of a page (default: the cache is contiguous)")
    parser.add_argument("--num-splits", type=int, default=1, help="parts of the keys (default 1)")
    for name, meaning in {
        "causal": "causal mask",
        "local": "sliding window",
        "varlen": "query lengths differ",
        "append": "new keys and values are appended",
        "leftpad": "sequences start part-way into the cache",
        "softcap": "scores are capped",
    }.items():
        parser.add_argument(f"--{name}", action="store_true", help=meaning)
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    """Print the choice of one library, a line for each field, or JSON.

    Raises:
        ValueError: see `fa3` and `fa4`.
    """
    options: dict[str, Any] = {
        name: value for name, value in vars(args).items() if name in fa3.__kwdefaults__ | fa3.__annotations__
    }
    choice = asdict(RULES[args.library](**options))
    if args.json:
        print(json.dumps(choice, indent=2))
        return 0
    reasons = choice.pop("reasons")
    for name, value in choice.items():
        print(f"{name:<11}{value!s:<15}{reasons[name]}")
    return 0
