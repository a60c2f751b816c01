"""What the name of a FlashAttention-3 kernel says: C++ template arguments, in the order of its source."""

import re
from dataclasses import dataclass

import cpp_demangle
import cxxfilt

_DTYPES = {"cutlass::bfloat16_t": "bf16", "cutlass::half_t": "fp16", "cutlass::float_e4m3_t": "fp8"}


@dataclass(frozen=True)
class FlashKernel:
    """Compile-time choices of one FlashAttention-3 attention kernel for sm_90.

    `paged_cp_async` is the source's PagedKVNonTMA. `gqa` is known of backward kernels only; `append`,
    `has_qv`, `pack_gqa`, `split`, `p_in_registers` and `overlap` of forward kernels only.
    """

    direction: str
    dtype: str
    head_dim: int
    head_dim_v: int
    tile_m: int
    tile_n: int
    cluster_m: int
    causal: bool
    local: bool
    softcap: bool
    varlen: bool
    paged_cp_async: bool = False
    append: bool = False
    has_qv: bool = False
    p_in_registers: bool = False
    overlap: bool = False
    pack_gqa: bool = False
    split: bool = False
    v_colmajor: bool = False
    gqa: bool = False

    @property
    def label(self) -> str:
        """A short name: `forward bf16 head dim 128, tile 128 x 176, causal, varlen, PackGQA`."""
        words = [
            f"{self.direction} {self.dtype} head dim {self.head_dim}, tile {self.tile_m} x {self.tile_n}",
            "cluster 2" if self.cluster_m == 2 else "",
            "causal" if self.causal else "local" if self.local else "",
            "softcap" if self.softcap else "",
            "varlen" if self.varlen else "",
            "paged by cp.async" if self.paged_cp_async else "",
            "append" if self.append else "",
            "Qv" if self.has_qv else "",
            "PackGQA" if self.pack_gqa else "",
            "split" if self.split else "",
            "GQA" if self.gqa else "",
        ]
        return ", ".join(word for word in words if word)


def demangle(symbol: str) -> str:
    """The C++ name of a linker symbol without its parameter list, or the symbol when it is no C++ name."""
    try:
        name = cxxfilt.demangle(symbol)
    except cxxfilt.Error:  # GNU's gives up on long names as well
        try:
            name = cpp_demangle.demangle(symbol)
        except ValueError:
            return symbol
    return _without_parameters(name).removeprefix("void ")


def parse(name: str) -> FlashKernel | None:
    """Read a demangled kernel name; None when it is not a FlashAttention-3 attention kernel for sm_90."""
    try:
        if forward := _arguments(name, "CollectiveMainloopFwdSm90"):
            _, cluster, tile, head_dim_v, element, _, _, *flags = forward
            tile_m, tile_n, head_dim = _integers(tile)
            if len(flags) == 15:  # vLLM's fork: a flag of its own after Qv, a type and a number at the end
                flags = [*flags[:7], *flags[8:13]]
            (causal, local, softcap, varlen, paged, append, qv, registers, overlap, pack, split, colmajor) = (
                _boolean(flag) for flag in flags
            )
            return FlashKernel(
                "forward", _DTYPES[element], head_dim, int(head_dim_v), tile_m, tile_n, _integers(cluster)[0],
                causal, local, softcap, varlen, paged, append, qv, registers, overlap, pack, split, colmajor,
            )  # fmt: skip
        if backward := _arguments(name, "CollectiveMainloopBwdSm90"):
            cluster, tile, element, _, _, *flags = backward[3:]
            tile_m, tile_n, head_dim = _integers(tile)
            causal, local, softcap, varlen = (_boolean(flag) for flag in flags[:4])
            return FlashKernel(
                "backward", _DTYPES[element], head_dim, head_dim, tile_m, tile_n, _integers(cluster)[0],
                causal, local, softcap, varlen, gqa="CollectiveEpilogueBwdGQA<" in name,
            )  # fmt: skip
    except (KeyError, ValueError):
        return None
    return None


def _arguments(name: str, template: str) -> list[str]:
    start = name.find(template + "<")
    if start < 0:
        return []
    arguments, depth = [""], 0
    for character in name[start + len(template) :]:
        if character == ">":
            depth -= 1
            if depth == 0:
                break
        if character == "," and depth == 1:
            arguments.append("")
        elif depth >= 1:
            arguments[-1] += character
        if character == "<":
            depth += 1
    return [argument.strip() for argument in arguments]


def _integers(shape: str) -> list[int]:
    return [int(number) for number in re.findall(r"C<(\d+)>", shape)]


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _without_parameters(name: str) -> str:
    if not name.endswith(")"):
        return name
    depth = 0
    for index in range(len(name) - 1, -1, -1):
        depth += (name[index] == ")") - (name[index] == "(")
        if depth == 0:
            return name[:index]
    return name
