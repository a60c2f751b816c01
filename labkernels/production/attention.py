"""A forward pass of attention as FlashAttention's libraries are asked for it, and what they choose for it."""

from dataclasses import dataclass, field

from labkernels import forms
from labkernels.errors import BadArgument
from labkernels.forms import entry
from labkernels.operand import round_up

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}
INT = 2**31 - 1  # what the libraries count with


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
        BadArgument: a value that no library takes; the message names it, the limit and a fix.
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
    num_splits: int = entry(
        1,
        help="parts that the keys are cut into; 0, what flash_attn_with_kvcache asks for: the library chooses, "
        "from `batch`, `seqlen_k` and `sm_count`",
        least=0,
        most=INT,
    )
    batch: int | None = entry(None, help="sequences, where `num_splits` is 0", least=1, most=INT)
    seqlen_k: int | None = entry(
        None, help="keys of a sequence, of the longest, where `num_splits` is 0", least=1, most=INT
    )
    window: int | None = entry(
        None, help="keys of a sliding window, where `num_splits` is 0", least=1, most=INT
    )
    sm_count: int = entry(132, help="SMs of the GPU, where `num_splits` is 0", least=1, most=INT)
    causal: bool = entry(False, help="causal mask")
    local: bool = entry(False, help="sliding window; with a causal mask, one that ends at the diagonal")
    varlen: bool = entry(False, help="query lengths differ (cu_seqlens_q or seqused_q is given)")
    cache_seqlens: bool = entry(
        False, help="lengths of the keys are given (cache_seqlens, seqused_k or cu_seqlens_k)"
    )
    append: bool = entry(False, help="new keys and values are appended; they and their cache need lengths")
    leftpad: bool = entry(False, help="sequences start part-way into the cache")
    softcap: bool = entry(False, help="scores are capped")
    packing: str = entry(
        "auto",
        help="whether the query heads of a KV head share a tile (pack_gqa)",
        choices=("auto", "yes", "no"),
    )

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
        if self.num_splits == 0:
            asked = {"batch": self.batch, "seqlen_k": self.seqlen_k}
            asked |= {"window": self.window} if self.local else {}
            if missing := [name for name, value in asked.items() if value is None]:
                raise BadArgument(
                    f"`num_splits` is 0, so that the library chooses it, and `{missing[0]}` is not given: give it"
                )

    @property
    def dv(self) -> int:
        """Head dim of V."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def ratio(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def masked(self) -> bool:
        """Whether a causal mask is asked for and no window takes its place."""
        return self.causal and not self.local
