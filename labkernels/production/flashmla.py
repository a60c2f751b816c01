"""How FlashMLA chooses, on Hopper, the mechanism for each operand: multi-head latent attention of DeepSeek's models.

`csrc/api/{dense_decode,sparse_decode,sparse_fwd}.h` and `csrc/sm90` at commit 9241ae3e.
"""

from dataclasses import dataclass, field
from math import ceil

from labkernels import forms
from labkernels.errors import BadArgument
from labkernels.forms import entry
from labkernels.production.attention import INT

TILE_M = 64  # query rows, or heads, of a CTA
HEAD_DIMS = (512, 576)


@dataclass(frozen=True, kw_only=True)
class MlaCall:
    """One call, as it is asked for.

    Raises:
        BadArgument: a value that FlashMLA does not take; the message names it, the limit and a fix.
    """

    work: str = entry(
        "dense-decode",
        help="dense-decode (bf16 or fp16 cache), sparse-decode (fp8 cache, chosen tokens) or sparse-prefill (bf16)",
        choices=("dense-decode", "sparse-decode", "sparse-prefill"),
    )
    heads: int = entry(128, help="query heads", least=1, most=INT)
    kv_heads: int = entry(1, help="KV heads, a divisor of the query heads", least=1, most=INT)
    seqlen_q: int = entry(1, help="query rows of a sequence", least=1, most=INT)
    head_dim: int = entry(576, help="head dim of Q and K", least=1, most=1024)
    page_size: int = entry(64, help="rows of a page", least=1, most=INT)
    topk: int = entry(2048, help="tokens chosen for a query, in the sparse kernels", least=1, most=INT)
    split: bool = entry(False, help="the scheduler cuts this sequence's keys into parts")

    def __post_init__(self) -> None:
        forms.require(self)
        if self.head_dim not in HEAD_DIMS:
            raise BadArgument(f"`head_dim` is {self.head_dim}, FlashMLA takes 512 and 576: give one of them")
        if self.heads % self.kv_heads:
            raise BadArgument(
                f"`heads` is {self.heads}, not a multiple of `kv_heads` {self.kv_heads}: give one that is"
            )
        if self.work == "dense-decode":
            if self.head_dim != 576:
                raise BadArgument(
                    f"`head_dim` is {self.head_dim}, the dense kernel for sm_90 is compiled for 576: give 576"
                )
            if self.page_size != TILE_M:
                raise BadArgument(
                    f"`page_size` is {self.page_size}, the dense kernel takes pages of 64 rows: give 64"
                )
            return
        if self.kv_heads != 1:
            raise BadArgument(f"`kv_heads` is {self.kv_heads}, the sparse kernels take 1: give 1")
        allowed = (64, 128) if self.work == "sparse-decode" else range(64, INT, 64)
        if self.heads not in allowed:
            wanted = "64 or 128" if self.work == "sparse-decode" else "a multiple of 64"
            raise BadArgument(
                f"`heads` is {self.heads}, the {self.work} kernel for sm_90 takes {wanted}: pad them"
            )
        if self.work == "sparse-prefill" and self.topk % 128:
            raise BadArgument(f"`topk` is {self.topk}, not a multiple of 128: pad the indices with -1")


@dataclass(frozen=True)
class MlaChoice:
    """What a call was chosen to do: mechanisms by this book's names.

    Attributes:
        q: what loads Q.
        k: what loads K, which is V too.
        o: what stores the output, or the parts of a split.
        cluster: CTAs of a cluster.
        between_ctas: what carries K from one CTA of a cluster to the other, or `none`.
        ctas_m: CTAs along the query rows or heads.
        reasons: why, for each of the fields above.
    """

    q: str
    k: str
    o: str
    cluster: int
    between_ctas: str
    ctas_m: int
    reasons: dict[str, str] = field(compare=False)


def choose(call: MlaCall) -> MlaChoice:
    """FlashMLA's choice on sm_90."""
    decode = call.work != "sparse-prefill"
    splits = decode and call.split
    pair = call.work == "sparse-decode" and call.heads == 2 * TILE_M
    rows = call.seqlen_q * call.heads // call.kv_heads if call.work == "dense-decode" else call.heads
    k, why_k = {
        "dense-decode": ("tma_tile", "a page of 64 rows is a tile: the block table gives its coordinate"),
        "sparse-decode": (
            "ldg",
            "fp8 is dequantized in registers on its way to shared memory; an index for every token",
        ),
        "sparse-prefill": ("cp_async", "an index for every token: no box of a tensor"),
    }[call.work]
    return MlaChoice(
        q="tma_tile",
        k=k,
        o="bulk_store" if splits else "tma_store",
        cluster=2 if pair else 1,
        between_ctas="dsm_store" if pair else "none",
        ctas_m=ceil(rows / TILE_M),
        reasons={
            "q": "heads of a KV head are rows of one matrix",
            "k": why_k,
            "o": "parts of a split go row by row, only valid ones" if splits else "a box of a tensor",
            "cluster": "128 heads are two CTAs of 64" if pair else "each CTA works alone",
            "between_ctas": "each CTA dequantizes half of the tokens, and st.async writes them for the other"
            if pair
            else "nothing is shared in shared memory",
            "ctas_m": f"{rows} rows in tiles of {TILE_M}",
        },
    )
