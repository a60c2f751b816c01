"""Libraries whose choices this book can repeat: what each is asked, and the function that answers."""

from collections.abc import Callable
from typing import Any, NamedTuple

from labkernels.production import fa3, fa4, flashinfer, flashmla, gemms, quack
from labkernels.production.attention import AttentionCall


class Library(NamedTuple):
    """One library.

    Attributes:
        title: its name and what it is asked for.
        form: what it is asked, a form.
        choose: from the form to a dataclass whose `reasons` say why for each of its other fields.
    """

    title: str
    form: type
    choose: Callable[[Any], Any]


LIBRARIES = {
    "fa3": Library("FlashAttention-3, a forward pass", AttentionCall, fa3.choose),
    "fa4": Library("FlashAttention-4 on sm_90, a forward pass", AttentionCall, fa4.choose),
    "flashinfer": Library("FlashInfer, prefill or decode", flashinfer.FlashInferCall, flashinfer.choose),
    "flashmla": Library("FlashMLA, latent attention", flashmla.MlaCall, flashmla.choose),
    "deepgemm": Library("DeepGEMM, a matrix product", gemms.DeepProduct, gemms.deepgemm),
    "vllm": Library("vLLM, a product of 8-bit operands with scales", gemms.ScaledProduct, gemms.vllm),
    "sglang": Library("SGLang, a product of fp8 operands with scales", gemms.ScaledProduct, gemms.sglang),
    "quack": Library("quack, a reduction over rows", quack.RowReduction, quack.choose),
}
