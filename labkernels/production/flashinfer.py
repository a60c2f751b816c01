"""How FlashInfer chooses, on Hopper, the mechanism for each operand of attention.

`flashinfer/utils.py` 427-600, `include/flashinfer/attention/hopper` and `prefill.cuh` at commit fb28d724.
"""

from dataclasses import dataclass, field

from labkernels import forms
from labkernels.errors import BadArgument
from labkernels.forms import entry

FP8 = "fp8"
SQUARE = (64, 128, 256)  # head dims of the kernels for sm_90, beside 192 with 128


@dataclass(frozen=True, kw_only=True)
class FlashInferCall:
    """One prefill or decode, as it is asked for.

    Raises:
        BadArgument: a value that FlashInfer does not take; the message names it, the limit and a fix.
    """

    work: str = entry(
        "prefill",
        help="prefill, decode on CUDA cores, or mla (paged decode of latent attention)",
        choices=("prefill", "decode", "mla"),
    )
    cache: str = entry(
        "paged", help="how the cache lies: paged, or contiguous (ragged)", choices=("paged", "ragged")
    )
    page_size: int = entry(16, help="rows of a page; it changes no mechanism", least=1, most=2**31 - 1)
    dtype: str = entry("bf16", help="type of Q", choices=("bf16", "fp16", FP8))
    kv_dtype: str = entry("bf16", help="type of K and V", choices=("bf16", "fp16", FP8))
    head_dim: int = entry(128, help="head dim of Q and K", least=1, most=512)
    head_dim_v: int | None = entry(None, help="head dim of V (default: that of K)", least=1, most=512)
    custom_mask: bool = entry(False, help="a mask of the caller's own")
    positions: bool = entry(False, help="positions are encoded inside (RoPE or ALiBi)")
    fp16_reduction: bool = entry(False, help="Q·K is added up in fp16")

    def __post_init__(self) -> None:
        forms.require(self)
        if self.work != "prefill" and self.cache == "ragged":
            raise BadArgument(f"`cache` is 'ragged', {self.work} reads a paged cache: give paged")


@dataclass(frozen=True)
class FlashInferChoice:
    """What a call was chosen to do: mechanisms by this book's names.

    Attributes:
        backend: `fa3` (written for sm_90), `fa2` (for sm_80), or the kernel that has no choice.
        q: what loads Q.
        k: what loads K.
        v: what loads V.
        o: what stores the output.
        reasons: why, for each of the fields above.
    """

    backend: str
    q: str
    k: str
    v: str
    o: str
    reasons: dict[str, str] = field(compare=False)


def choose(call: FlashInferCall) -> FlashInferChoice:
    """FlashInfer's choice on sm_90, with `backend="auto"`."""
    backend, why = _backend(call)
    by_tma = backend == "fa3" and call.cache == "ragged"
    kv = "tma_tile" if by_tma else "cp_async"
    why_kv = (
        "a contiguous cache is a tensor"
        if by_tma
        else "kernels for sm_80 know cp.async alone"
        if backend in ("fa2", "decode")
        else "one gather for every page size, down to a token"
    )
    q = "tma_tile" if backend == "fa3" else "ldg" if backend == "decode" else "cp_async"
    return FlashInferChoice(
        backend=backend,
        q=q,
        k=kv,
        v=kv,
        o="stg",
        reasons={
            "backend": why,
            "q": "a box of a tensor" if q == "tma_tile" else "rows of several heads, one by one",
            "k": why_kv,
            "v": why_kv,
            "o": "from shared memory or registers, up to where the sequence ends",
        },
    )


def _backend(call: FlashInferCall) -> tuple[str, str]:
    if call.work == "decode":
        return "decode", "one query row: no tensor cores"
    if call.work == "mla":
        return "mla", "the kernel of its own for latent attention (mla_hopper.cuh)"
    dv = call.head_dim if call.head_dim_v is None else call.head_dim_v
    against = {
        "a custom mask": call.custom_mask,
        "positions encoded inside": call.positions,
        "sums in fp16": call.fp16_reduction,
        "an fp8 cache beside 16-bit queries": call.kv_dtype == FP8 and call.dtype != FP8,
        f"head dims {call.head_dim} and {dv}": not (
            (call.head_dim == dv and dv in SQUARE) or (call.head_dim, dv) == (192, 128)
        ),
    }
    if found := [name for name, holds in against.items() if holds]:
        return "fa2", f"not fa3 with {', '.join(found)}"
    return "fa3", "sm_90, and nothing asked that its kernels lack"
