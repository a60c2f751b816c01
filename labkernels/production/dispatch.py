"""How FlashAttention-3 and FlashAttention-4 choose, on Hopper, the mechanism for each operand.

FlashAttention-3: `hopper/flash_api.cpp` 415-470 and 578-584, `tile_size.h` 10-52, `heuristics.h` 10-59 and
`flash_fwd_launch_template.h` 211-218, at commit 0251105a. FlashAttention-4: its `interface.py`, same commit.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from labkernels import forms
from labkernels.errors import BadArgument
from labkernels.forms import entry
from labkernels.operand import round_up

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}
MAX_SPLITS = 128  # that it chooses itself
INT = 2**31 - 1  # what both libraries count with
FA3_SPLIT_LIMIT = 256  # hopper/flash_api.cpp: "num_splits > 256 not supported"
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


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """One forward pass, as it is asked for.

    Raises:
        BadArgument: a value that neither library takes; the message names it, the limit and a fix.
    """

    dtype: str = entry("bf16", help="type of Q, K and V", choices=tuple(ELEMENT_BYTES))
    head_dim: int = entry(128, help="head dim of Q and K", least=1, most=256)
    head_dim_v: int | None = entry(None, help="head dim of V (default: that of K)", least=1, most=512)
    heads: int = entry(help="query heads", least=1, most=INT)
    kv_heads: int = entry(help="KV heads, a divisor of the query heads", least=1, most=INT)
    seqlen_q: int = entry(
        help="query rows of a sequence, of the longest where they differ", least=1, most=INT
    )
    page_size: int | None = entry(
        None, help="rows of a page (default: the cache is contiguous)", least=1, most=INT
    )
    num_splits: int = entry(1, help="parts that the keys are cut into", least=1, most=INT)
    causal: bool = entry(False, help="causal mask")
    local: bool = entry(False, help="sliding window; with a causal mask, one that ends at the diagonal")
    varlen: bool = entry(False, help="query lengths differ (cu_seqlens_q or seqused_q is given)")
    append: bool = entry(False, help="new keys and values are appended; they and their cache need lengths")
    leftpad: bool = entry(False, help="sequences start part-way into the cache")
    softcap: bool = entry(False, help="scores are capped")

    def __post_init__(self) -> None:
        forms.require(self)
        unit = 16 // ELEMENT_BYTES[self.dtype]
        for name, value in (("head_dim", self.head_dim), ("head_dim_v", self.dv)):
            if value % unit:
                raise BadArgument(
                    f"`{name}` is {value}, not a multiple of {unit}: pad it to {round_up(value, unit)}"
                )
        if self.heads % self.kv_heads:
            raise BadArgument(
                f"`heads` is {self.heads}, not a multiple of `kv_heads` {self.kv_heads}: give one that is"
            )

    @property
    def dv(self) -> int:
        """Head dim of V."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def ratio(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads


def fa3(call: AttentionCall) -> Dispatch:
    """FlashAttention-3's choice for one forward pass on sm_90.

    With `num_splits` 1; `fa3_num_splits` gives what FlashAttention-3 would choose.

    Raises:
        BadArgument: a value that FlashAttention-3 does not take; the message names it, the limit and a fix.
    """
    _require_fa3(call)
    paged, gqa, local = call.page_size is not None, call.ratio, call.local
    causal = call.causal and not local
    why: dict[str, str] = {}
    if call.seqlen_q == 1 and causal and not (paged and 64 < call.head_dim <= 128):
        causal = False
        why["tile_n"] = "one query row: the causal mask hides nothing and is dropped; "
    tile_m, tile_n = _fa3_tile(call, causal, gathered=False)
    gathered, why["k"] = _fa3_gathers(call, tile_m, tile_n)
    tile_m, tile_n = _fa3_tile(call, causal, gathered)
    why["v"] = why["k"]
    why["tile_m"] = "tile_size.h"
    why["tile_n"] = why.get("tile_n", "") + "tile_size.h" + (", gathered cache" if gathered else "")

    pack_gqa, why["pack_gqa"] = _fa3_packs(call, gathered, tile_m)
    lengths_differ = call.varlen or call.leftpad or call.append
    cluster_m, why["cluster_m"] = _fa3_cluster(
        call.dtype,
        call.head_dim,
        {"causal": causal, "local": local, "split": call.num_splits > 1}
        | {"gathered": gathered, "varlen": lengths_differ},
        ceil(call.seqlen_q * (gqa if pack_gqa else 1) / tile_m),
    )
    if cluster_m == 2:
        why["k"] = why["v"] = "two CTAs of a cluster take the same keys: " + why["cluster_m"]
    why["q"] = (
        "packed heads are not a box of a tensor: one pointer per row" if pack_gqa else "a box of a tensor"
    )
    against = {"varlen": lengths_differ, "split": call.num_splits > 1, "packed": pack_gqa}
    plain_store = [name for name, holds in against.items() if holds]
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
        num_splits=call.num_splits,
        reasons=why,
    )


def fa3_num_splits(
    call: AttentionCall, choice: Dispatch, *, batch: int, seqlen_k: int, masked: bool, sm_count: int
) -> int:
    """Parts that FlashAttention-3 cuts the keys into when it may choose.

    Args:
        call: the pass, with `num_splits` 1.
        choice: `fa3` of it; its tile counts.
        batch: sequences; 1 where their lengths differ and the split is decided on the GPU.
        seqlen_k: keys of a sequence that are loaded.
        masked: whether a causal or local mask is left.
        sm_count: of the GPU.
    """
    m_blocks = ceil(call.seqlen_q * call.ratio / choice.tile_m)
    n_blocks = ceil(seqlen_k / choice.tile_n)
    total = batch * call.kv_heads * m_blocks
    if total >= 0.8 * sm_count:
        kv_head_bytes = seqlen_k * (call.head_dim + call.dv) * ELEMENT_BYTES[call.dtype]
        if kv_head_bytes > L2_SHARE_BYTES and m_blocks >= 2 * sm_count and not masked:
            return min(ceil(kv_head_bytes / L2_SHARE_BYTES), MAX_SPLITS)
        return 1
    if n_blocks <= 4:
        return 1
    waves = [total * splits / sm_count for splits in range(1, min(MAX_SPLITS, sm_count, n_blocks) + 1)]
    efficiency = [wave / ceil(wave) for wave in waves]
    return 1 + next(at for at, reached in enumerate(efficiency) if reached >= 0.85 * max(efficiency))


def fa4(call: AttentionCall) -> Dispatch:
    """FlashAttention-4's choice (CuTe DSL) for one forward pass on sm_90; `varlen` and `softcap` change nothing.

    Raises:
        BadArgument: a value that FlashAttention-4 does not take; the message names it, the limit and a fix.
    """
    if call.dtype == "fp8":
        raise BadArgument(
            "`dtype` is 'fp8', FlashAttention-4 takes bf16 and fp16 on sm_90: choose one, or fa3"
        )
    for name, given in {"append": call.append, "leftpad": call.leftpad}.items():
        if given:
            raise BadArgument(f"`{name}` is True, FlashAttention-4 has no {name}: leave it out, or use fa3")
    tile_m, tile_n = _fa4_tile(call.head_dim, call.dv, call.causal and not call.local, call.local)
    by_tma = call.page_size in (None, tile_n)
    why = {name: "interface.py 141-174" for name in ("tile_m", "tile_n")}
    why["k"] = why["v"] = (
        "a contiguous cache is a tensor"
        if call.page_size is None
        else f"a page of {call.page_size} rows {'is' if by_tma else 'is not'} a tile of {tile_n}"
    )
    pack_gqa = call.ratio > 1
    boxes = not pack_gqa or tile_m % call.ratio == 0
    why["pack_gqa"] = f"{call.ratio} query heads per KV head"
    why["q"] = why["o"] = (
        "a box of a tensor" if boxes else f"{call.ratio} packed heads do not divide {tile_m} rows: row by row"
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
        num_splits=call.num_splits,
        reasons=why,
    )


RULES: dict[str, Callable[[AttentionCall], Dispatch]] = {"fa3": fa3, "fa4": fa4}


def _fa3_tile(call: AttentionCall, causal: bool, gathered: bool) -> tuple[int, int]:
    """`causal`: whether that mask is left."""
    d, dv, local, softcap = call.head_dim, call.dv, call.local, call.softcap
    if ELEMENT_BYTES[call.dtype] == 2:
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


def _fa3_gathers(call: AttentionCall, tile_m: int, tile_n: int) -> tuple[bool, str]:
    page_size = call.page_size
    if page_size is None:
        return False, "a contiguous cache is a tensor"
    rows = call.seqlen_q * call.ratio
    obstacles = {
        "sequences start part-way into a page (leftpad)": call.leftpad,
        "new keys are appended": call.append,
        f"pages of {page_size} rows are not a multiple of the tile's {tile_n}": page_size % tile_n != 0,
        f"seqlen_q × ratio = {rows} does not exceed the tile's {tile_m} rows": rows <= tile_m,
    }
    found = [obstacle for obstacle, stands in obstacles.items() if stands]
    if found:
        return True, "; ".join(found)
    return False, f"pages of {page_size} rows are whole tiles of {tile_n}, and {rows} rows exceed {tile_m}"


def _fa3_packs(call: AttentionCall, gathered: bool, tile_m: int) -> tuple[bool, str]:
    if gathered or call.num_splits > 1:
        return True, "always with a gathered cache" if gathered else "always with split keys"
    if call.ratio == 1:
        return False, "one query head per KV head"
    if call.varlen:
        return True, "always with query lengths that differ"
    plain, packed = (rows / round_up(rows, tile_m) for rows in (call.seqlen_q, call.seqlen_q * call.ratio))
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


def _require_fa3(call: AttentionCall) -> None:
    if call.num_splits > FA3_SPLIT_LIMIT:
        raise BadArgument(
            f"`num_splits` is {call.num_splits}, FlashAttention-3 refuses more than {FA3_SPLIT_LIMIT} "
            f"(hopper/flash_api.cpp): give {FA3_SPLIT_LIMIT} or less"
        )
    d, dv = call.head_dim, call.dv
    allowed = dv == d or (128 < d <= 192 and 96 < dv <= 128) or (d <= 64 and call.dtype != "fp8")
    if not allowed:
        also = " or 97 to 128" if 128 < d <= 192 else ""
        raise BadArgument(
            f"`head_dim_v` is {dv} for `head_dim` {d}: give {d}{also}; a 16-bit head dim up to 64 takes all"
        )
