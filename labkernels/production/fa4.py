"""How FlashAttention-4 (CuTe DSL) chooses, on Hopper, the mechanism for each operand.

`flash_attn/cute/interface.py` and `flash_fwd_sm90.py` at commit 0251105a.
"""

from labkernels.errors import BadArgument
from labkernels.operand import round_up
from labkernels.production.attention import AttentionCall, Dispatch

MOST_HEAD_DIM_V = 256  # interface.py 120-124
LEAST_HEAD_DIM = 8
HEAD_DIM_UNIT = 16  # flash_fwd.py 80-89: what a tile's head dim is rounded up to


def choose(call: AttentionCall) -> Dispatch:
    """FlashAttention-4's choice for one forward pass on sm_90; lengths and `softcap` change nothing.

    Raises:
        BadArgument: a value that FlashAttention-4 does not take; the message names it, the limit and a fix.
    """
    tile_m, tile_n = _tile(call.head_dim, call.dv, call.masked, call.local)
    by_tma = call.page_size in (None, tile_n)
    _require(call, by_tma)
    why = {name: "interface.py 142-174" for name in ("tile_m", "tile_n")}
    why["k"] = why["v"] = (
        "a contiguous cache is a tensor"
        if call.page_size is None
        else f"a page of {call.page_size} rows {'is' if by_tma else 'is not'} a tile of {tile_n}"
    )
    pack_gqa = call.ratio > 1 if call.packing == "auto" else call.packing == "yes"
    boxes = not pack_gqa or tile_m % call.ratio == 0
    why["pack_gqa"] = (
        f"{call.ratio} query heads per KV head" if call.packing == "auto" else "as given (pack_gqa)"
    )
    why["q"] = why["o"] = (
        "a box of a tensor" if boxes else f"{call.ratio} packed heads do not divide {tile_m} rows: row by row"
    )
    why["cluster_m"] = "no multicast on sm_90"
    why["num_splits"] = "keys are never split on sm_90"
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


def _tile(d: int, dv: int, causal: bool, local: bool) -> tuple[int, int]:
    if d <= 64:
        return 192, 128
    if d <= 96:
        return 192, 128 if causal or local else 144
    if d <= 128:
        return 128, 128
    if d <= 192:
        return 128, 96 if local else 128 if dv <= 128 else 112
    return 128, 64 if local else 80


def _require(call: AttentionCall, by_tma: bool) -> None:
    if call.dtype == "fp8":
        raise BadArgument(
            "`dtype` is 'fp8', FlashAttention-4 takes bf16 and fp16 on sm_90: choose one, or fa3"
        )
    for name, given in {"append": call.append, "leftpad": call.leftpad}.items():
        if given:
            raise BadArgument(f"`{name}` is True, FlashAttention-4 has no {name}: leave it out, or use fa3")
    if call.num_splits != 1:
        raise BadArgument(
            f"`num_splits` is {call.num_splits}, FlashAttention-4 does not split keys on sm_90 (interface.py 1266): "
            "give 1, or use fa3"
        )
    if call.dv > MOST_HEAD_DIM_V:
        raise BadArgument(
            f"`head_dim_v` is {call.dv}, FlashAttention-4 takes {LEAST_HEAD_DIM} to {MOST_HEAD_DIM_V} on sm_90 "
            f"(interface.py 120-124): give {MOST_HEAD_DIM_V} or less, or use fa3"
        )
    for name, value in (("head_dim", call.head_dim), ("head_dim_v", call.dv)):
        if not by_tma and value % HEAD_DIM_UNIT:
            raise BadArgument(
                f"`{name}` is {value}, FlashAttention-4 gathers pages by cp.async only with multiples of "
                f"{HEAD_DIM_UNIT} (flash_fwd_sm90.py 66): pad it to {round_up(value, HEAD_DIM_UNIT)}"
            )
