"""How FlashAttention-3 chooses, on Hopper, the mechanism for each operand.

`hopper/flash_api.cpp` 415-470 and 798-804, `tile_size.h` 10-52, `heuristics.h` 10-59 and
`flash_fwd_launch_template.h` 200-218, at commit 0251105a.
"""

from math import ceil

from labkernels.errors import BadArgument
from labkernels.operand import round_up
from labkernels.production.attention import ELEMENT_BYTES, AttentionCall, Dispatch
from labkernels.production.single import single

MAX_SPLITS = 128  # that it chooses itself
SPLIT_LIMIT = 256  # flash_api.cpp 1095: "num_splits > 256 not supported"
L2_SHARE_BYTES = 50 * 2**20  # what it takes the L2 of an H100 to hold
HEAD_DIMS = (64, 96, 128, 192, 256, 512)  # that its kernels are compiled for; 512 for V alone


def choose(call: AttentionCall) -> Dispatch:
    """FlashAttention-3's choice for one forward pass on sm_90.

    Raises:
        BadArgument: a value that FlashAttention-3 does not take; the message names it, the limit and a fix.
    """
    _require(call)
    causal, why = call.masked, {}
    if call.seqlen_q == 1 and causal and not (call.page_size and 64 < call.head_dim <= 128):
        causal = False
        why["tile_n"] = "one query row: the causal mask hides nothing and is dropped; "
    gathered, why["k"] = _gathers(call, *_tile(call, causal, False, _planned_dv(call)))
    # The host plans with the tile of V's own head dim; the kernel that it picks may have another.
    planned = _tile(call, causal, gathered, _planned_dv(call))
    tile_m, tile_n = _tile(call, causal, gathered, _compiled_dv(call))
    why["v"] = why["k"]
    why["tile_m"] = "tile_size.h"
    why["tile_n"] = why.get("tile_n", "") + "tile_size.h" + (", gathered cache" if gathered else "")

    lengths_differ = call.varlen or call.cache_seqlens or call.leftpad or call.append
    num_splits, why["num_splits"] = _splits(call, causal, lengths_differ, *planned)
    pack_gqa, why["pack_gqa"] = _packs(call, gathered, num_splits, planned[0])
    cluster_m, why["cluster_m"] = _cluster(
        call.dtype,
        call.head_dim,
        {"causal": causal, "local": call.local, "split": num_splits > 1}
        | {"gathered": gathered, "varlen": lengths_differ},
        ceil(call.seqlen_q * (call.ratio if pack_gqa else 1) / tile_m),
    )
    if cluster_m == 2:
        why["k"] = why["v"] = "two CTAs of a cluster take the same keys: " + why["cluster_m"]
    why["q"] = (
        "packed heads are not a box of a tensor: one pointer per row" if pack_gqa else "a box of a tensor"
    )
    against = {"varlen": lengths_differ, "split": num_splits > 1, "packed": pack_gqa}
    plain_store = [name for name, holds in against.items() if holds]
    why["o"] = f"not a box of a tensor: {', '.join(plain_store)}" if plain_store else "a box of a tensor"
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


def _splits(
    call: AttentionCall, causal: bool, lengths_differ: bool, tile_m: int, tile_n: int
) -> tuple[int, str]:
    """Parts of the keys (flash_api.cpp 442-470, heuristics.h 25-59), in the floats that its source counts with."""
    if call.num_splits:
        return call.num_splits, "as given; 0 lets the library choose, as flash_attn_with_kvcache does"
    batch = 1 if lengths_differ else call.batch
    loaded = min(call.seqlen_k, call.window + tile_m) if call.local else call.seqlen_k
    m_blocks, n_blocks = ceil(call.seqlen_q * call.ratio / tile_m), ceil(loaded / tile_n)
    total = batch * call.kv_heads * m_blocks
    bound = "; lengths differ: the most that a sequence may get, the GPU decides" if lengths_differ else ""
    tiles = f"{total} tiles on {call.sm_count} SMs"
    if total >= single(single(0.8) * call.sm_count):
        kv_head_bytes = call.seqlen_k * (call.head_dim + call.dv) * ELEMENT_BYTES[call.dtype]
        unmasked = not (causal or call.local)
        if kv_head_bytes > L2_SHARE_BYTES and m_blocks >= 2 * call.sm_count and unmasked:
            parts = min(ceil(kv_head_bytes / L2_SHARE_BYTES), MAX_SPLITS)
            return parts, f"the keys of a head exceed {L2_SHARE_BYTES >> 20} MiB of L2{bound}"
        return 1, f"{tiles} nearly fill them"
    if n_blocks <= 4:
        return 1, f"{n_blocks} tiles of keys are too few to split"
    most = min(MAX_SPLITS, call.sm_count, n_blocks)
    waves = [single(total * parts / call.sm_count) for parts in range(1, most + 1)]
    filled = [single(wave / ceil(wave)) for wave in waves]
    chosen = 1 + next(at for at, reached in enumerate(filled) if reached >= 0.85 * max(filled))
    return chosen, f"{tiles}: the fewest parts within 15% of the best fill{bound}"


def _tile(call: AttentionCall, causal: bool, gathered: bool, dv: int) -> tuple[int, int]:
    """Rows of queries and of keys.

    Args:
        call: the pass.
        causal: whether that mask is left.
        gathered: whether K and V come by cp.async.
        dv: head dim of V, rounded up as whoever asks rounds it.
    """
    d, local, softcap = call.head_dim, call.local, call.softcap
    if ELEMENT_BYTES[call.dtype] == 2:
        short = causal or local or gathered
        if d <= 64:
            return {512: (64, 64), 256: (128, 96)}.get(dv, (192, 128 if short else 192))
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


def _planned_dv(call: AttentionCall) -> int:
    """V's head dim as the host rounds it (flash_api.cpp 514-521)."""
    return next(dim for dim in HEAD_DIMS if call.dv <= dim)


def _compiled_dv(call: AttentionCall) -> int:
    """V's head dim of the kernel that runs: beside a head dim of 64 there are 64, 256 and 512 (261-270)."""
    offered = (64, 256, 512) if call.head_dim <= 64 and call.dtype != "fp8" else HEAD_DIMS
    return next(dim for dim in offered if call.dv <= dim)


def _gathers(call: AttentionCall, tile_m: int, tile_n: int) -> tuple[bool, str]:
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


def _packs(call: AttentionCall, gathered: bool, num_splits: int, tile_m: int) -> tuple[bool, str]:
    if gathered or num_splits > 1:
        return True, "always with a gathered cache" if gathered else "always with split keys"
    if call.packing != "auto":
        return call.packing == "yes", "as given (pack_gqa)"
    if call.ratio == 1:
        return False, "one query head per KV head"
    if call.varlen:
        return True, "always with query lengths that differ"
    plain, packed = (
        single(rows / round_up(rows, tile_m)) for rows in (call.seqlen_q, call.seqlen_q * call.ratio)
    )
    fuller = plain < 0.9 * packed
    return fuller, f"tiles are full to {plain:.2f} without packing, to {packed:.2f} with it"


def _cluster(dtype: str, d: int, against: dict[str, bool], m_blocks: int) -> tuple[int, str]:
    if not (128 < d <= 192 if dtype == "fp8" else d > 96):
        return 1, f"not for {dtype} with head dim {d}"
    if found := [name for name, holds in against.items() if holds]:
        return 1, f"not with {', '.join(found)}"
    if m_blocks % 2:
        return 1, f"{m_blocks} tiles of queries are not even"
    return 2, f"{m_blocks} tiles of queries are even"


def _require(call: AttentionCall) -> None:
    if call.num_splits > SPLIT_LIMIT:
        raise BadArgument(
            f"`num_splits` is {call.num_splits}, FlashAttention-3 refuses more than {SPLIT_LIMIT} "
            f"(hopper/flash_api.cpp): give {SPLIT_LIMIT} or less"
        )
    d, dv = call.head_dim, call.dv
    allowed = dv == d or (128 < d <= 192 and 96 < dv <= 128) or (d <= 64 and call.dtype != "fp8")
    if not allowed:
        also = " or 97 to 128" if 128 < d <= 192 else ""
        raise BadArgument(
            f"`head_dim_v` is {dv} for `head_dim` {d}: give {d}{also}; a 16-bit head dim up to 64 takes all"
        )
