"""TMA or cp.async for paged keys, by the model's shape: head dims, query heads per KV head, MLA, split keys.

Runs the FlashAttention-3 that vLLM 0.33.0 ships (operator `_vllm_fa3_C::fwd`, PyTorch's stable interface): bf16 at head
dims 64 to 256 and absorbed MLA (64 of RoPE, 512 latent), each kernel with TMA and with cp.async. Two inputs that do not
change the result choose between them: a bound on the query length above a tile of queries lets it take TMA wherever a
page is whole tiles of keys, and a left padding of zero rows beside that same bound makes it gather. Query lengths are
given as offsets, so that a larger bound adds no query rows. What ran is read from the kernel's name.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from labkernels.device import Gpu
from labkernels.errors import NoGpu, NotInstalled
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.studies.paged.fa3_fwd import REFERENCE_TOLERANCE, TorchWheel
from labkernels.studies.paged.flash import Refused, WrongKernel, launches, mechanism

FIX = "pip install --no-deps vllm==0.33.0 beside PyTorch 2.10 or newer for CUDA 13"
MOST_QUERY_ROWS = 192  # of the largest tile
CHECKED_QUERIES = 128  # the last ones of the first and of the last sequence, against float32
PAGE_ROWS = {  # the least page by TMA: a tile of keys, by head dims of K and V
    (64, 64): (128,), (96, 96): (144,), (128, 128): (128,), (192, 192): (96,), (192, 128): (128,), (256, 256): (80,),
    (64, 512): (64, 128),
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Sequences of one length, and the model that they are of.

    Attributes:
        batch: sequences.
        seqlen_q: query rows of each.
        seqlen_k: keys of each, rounded up to whole pages.
        heads: query heads.
        kv_heads: KV heads.
        head_dim: of queries and keys; of absorbed MLA's RoPE part.
        head_dim_v: of values; of absorbed MLA's latent.
        num_splits: parts that the keys are cut into, at most.
    """

    batch: int
    seqlen_q: int
    seqlen_k: int
    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    num_splits: int = 1

    @property
    def ratio(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def absorbed(self) -> bool:
        """Whether queries meet the latent too, as in absorbed MLA."""
        return self.head_dim_v > 2 * self.head_dim

    @property
    def phase(self) -> str:
        """`decode` for a few query rows, as one token and those drafted beside it."""
        return "decode" if self.seqlen_q <= 8 else "prefill"


@dataclass(frozen=True)
class Way:
    """How one call comes by its mechanism: page size, bound on the query length, whether padded by zero rows."""

    page_rows: int
    route: str
    bound: int


_HEADS = (32, 8)
_DIMS = ((64, 64), (96, 96), (128, 128), (192, 192), (256, 256))


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        shapes: values of `Shape`, in order.
        rounds: calls of each way of each shape.
    """

    shapes: tuple[tuple[int, ...], ...] = (
        *((32, 1, 8192, *_HEADS, *dims) for dims in _DIMS),
        *((2, 2048, 8192, *_HEADS, *dims) for dims in _DIMS),
        (2, 2048, 8192, 32, 32, 192, 128),
        *((32, 1, 8192, heads, 8, 128, 128) for heads in (8, 64, 128)),
        (16, 1, 8192, 32, 32, 128, 128),
        (128, 1, 8192, 8, 1, 128, 128),
        *((2, 2048, 8192, heads, kv, 128, 128) for heads, kv in ((8, 8), (64, 8), (128, 8), (32, 32), (32, 1))),
        *((128, 1, 8192, heads, 1, 64, 512) for heads in (16, 32, 64, 128)),
        (32, 1, 8192, 128, 1, 64, 512),
        (128, 2, 8192, 128, 1, 64, 512),
        (128, 4, 8192, 16, 1, 64, 512),
        (2, 512, 8192, 128, 1, 64, 512),
        (1, 8192, 8270, 8, 1, 64, 512),
        (1, 1, 131072, *_HEADS, 64, 64, 16),
        (1, 1, 65536, *_HEADS, 128, 128, 16),
        (4, 1, 32768, *_HEADS, 128, 128, 4),
        (1, 1, 65536, 64, 8, 128, 128, 16),
        (1, 1, 65536, 8, 8, 128, 128, 16),
        (1, 1, 65536, *_HEADS, 256, 256, 16),
        (1, 1, 131072, 128, 1, 64, 512, 64),
        (8, 1, 32768, 128, 1, 64, 512, 8),
        (1, 1, 131072, 16, 1, 64, 512, 64),
    )  # fmt: skip
    rounds: int = 21


PRESETS = {
    "quick": Parameters(
        shapes=(
            (32, 1, 8192, 32, 8, 128, 128),
            (128, 1, 4096, 128, 1, 64, 512),
            (1, 1, 65536, 32, 8, 128, 128, 16),
            (2, 1024, 4096, 32, 8, 64, 64),
        ),
        rounds=9,
    ),
    "full": Parameters(),
}


def plan(parameters: Parameters) -> Iterator[tuple[Shape, list[Way]]]:
    """Shapes with the ways to run each: as the library has it, with TMA, and the same call gathering."""
    for values in parameters.shapes:
        shape = Shape(*values)
        page_rows = PAGE_ROWS[shape.head_dim, shape.head_dim_v]
        whole = math.lcm(*page_rows)
        shape = Shape(*values[:2], -(-shape.seqlen_k // whole) * whole, *values[3:])
        bound = max(shape.seqlen_q, MOST_QUERY_ROWS // shape.ratio + 1)
        ways = []
        for rows in page_rows:
            ways.append(Way(rows, "rule", shape.seqlen_q))
            if bound > shape.seqlen_q:
                ways.append(Way(rows, "bound", bound))
            ways.append(Way(rows, "leftpad", bound))
        yield shape, ways


def require_vllm() -> Any:
    """PyTorch with the operator of vLLM's FlashAttention-3.

    Raises:
        NotInstalled: the wheel or PyTorch is missing, or of another build.
        NoGpu: PyTorch sees no GPU.
    """
    try:
        import torch
    except ImportError as missing:
        raise NotInstalled(f"{missing}: {FIX}") from None
    package = find_spec("vllm")  # its own import would want all of vLLM's dependencies
    library = Path(package.origin if package else "", "../vllm_flash_attn/_vllm_fa3_C.abi3.so")
    if not package or not library.resolve().exists():
        raise NotInstalled(f"no FlashAttention-3 of vLLM: {FIX}")
    if not torch.cuda.is_available():
        raise NoGpu("PyTorch sees no GPU: install its build for the driver's CUDA")
    try:
        torch.ops.load_library(library.resolve())
    except OSError as error:
        raise NotInstalled(f"{error}: {FIX}") from None
    return torch


class VllmWheel(TorchWheel):
    """vLLM's library, with queries, keys and values of one shape: a pool of rows, cut into pages of any size."""

    def __init__(self, shape: Shape, seed: int = 1) -> None:
        torch = self.torch = require_vllm()
        self.shape = shape
        generator = torch.Generator("cuda").manual_seed(seed)

        def normal(*sizes: int) -> Any:
            return torch.randn(sizes, generator=generator, device="cuda", dtype=torch.bfloat16)

        rows, queries = shape.batch * shape.seqlen_k, (shape.batch * shape.seqlen_q, shape.heads)
        self.q = normal(*queries, shape.head_dim)
        self.q_v = normal(*queries, shape.head_dim_v) if shape.absorbed else None
        if shape.absorbed:  # one cache, as MLA has it: the latent, then the RoPE part
            cache = normal(rows, shape.kv_heads, shape.head_dim_v + shape.head_dim)
            self.v, self.k = cache.split((shape.head_dim_v, shape.head_dim), -1)
        else:
            self.k, self.v = (normal(rows, shape.kv_heads, dim) for dim in (shape.head_dim, shape.head_dim_v))
        self.scale = (shape.head_dim + (shape.head_dim_v if shape.absorbed else 0)) ** -0.5
        ends = torch.arange(shape.batch + 1, device="cuda", dtype=torch.int32)
        self.given = {
            "cu_seqlens_q": ends * shape.seqlen_q,
            "seqused_k": torch.full_like(ends[1:], shape.seqlen_k),
        }

    def page_table(self, page_rows: int) -> np.ndarray:
        """Pages of each sequence, in random order in the pool: shape (sequences, pages of each)."""
        pages = np.random.default_rng(page_rows).permutation(
            self.shape.batch * self.shape.seqlen_k // page_rows
        )
        return pages.astype(np.int32).reshape(self.shape.batch, -1)

    def forward(self, way: Way) -> Callable[[], Any]:
        """A call ready to be made, of (all query rows, heads, head dim of V); see `Wheel`."""
        torch, shape = self.torch, self.shape
        operator = torch.ops._vllm_fa3_C.fwd
        schema = operator.default._schema.arguments
        given = {
            **self.given,
            "q": self.q,
            "k": self.k.unflatten(0, (-1, way.page_rows)),
            "v": self.v.unflatten(0, (-1, way.page_rows)),
            "q_v": self.q_v,
            "out": torch.empty(
                (len(self.q), shape.heads, shape.head_dim_v), device="cuda", dtype=torch.bfloat16
            ),
            "page_table": torch.from_numpy(self.page_table(way.page_rows)).cuda(),
            "leftpad_k": torch.zeros_like(self.given["seqused_k"]) if way.route == "leftpad" else None,
            "max_seqlen_q": way.bound,
            "max_seqlen_k": shape.seqlen_k,
            "softmax_scale": self.scale,
            "is_causal": True,
            "window_size_left": -1,
            "window_size_right": -1,
            "softcap": 0.0,
            "is_rotary_interleaved": True,
            "num_splits": shape.num_splits,
            "sm_margin": 0,
            "cp_world_size": 1,
            "cp_rank": 0,
        }
        arguments = [given.get(argument.name) for argument in schema]

        def call() -> Any:
            try:
                output = operator(*arguments)[0]
            except RuntimeError as refused:
                torch.cuda.synchronize()  # a fault of the GPU's ends the run here
                raise Refused(str(refused).splitlines()[0]) from None
            torch.cuda.synchronize()
            return output

        return call

    def error(self, output: Any, page_rows: int) -> float:
        """Largest difference from attention in float32, over the reference's largest output.

        Compared are the last queries of the first and of the last sequence, with the first KV head's heads.
        """
        torch, shape = self.torch, self.shape
        rows = min(CHECKED_QUERIES, shape.seqlen_q)
        worst = 0.0
        for sequence in {0, shape.batch - 1}:
            pages = torch.from_numpy(self.page_table(page_rows)[sequence]).cuda().long()
            last = slice((sequence + 1) * shape.seqlen_q - rows, (sequence + 1) * shape.seqlen_q)
            k, v = (
                part[:, 0].unflatten(0, (-1, page_rows))[pages].flatten(0, 1).float()
                for part in (self.k, self.v)
            )
            scores = torch.einsum("qhd,kd->hqk", self.q[last, : shape.ratio].float(), k)
            if self.q_v is not None:
                scores += torch.einsum("qhd,kd->hqk", self.q_v[last, : shape.ratio].float(), v)
            seen = torch.arange(shape.seqlen_k - rows, shape.seqlen_k, device="cuda")
            hidden = torch.arange(shape.seqlen_k, device="cuda") > seen[:, None]
            weights = (scores * self.scale).masked_fill_(hidden, -torch.inf).softmax(-1)
            reference = torch.einsum("hqk,kd->qhd", weights, v)
            off = (output[last, : shape.ratio].float() - reference).abs().max() / reference.abs().max()
            worst = max(worst, float(off)) if not math.isnan(off) else math.inf
        return worst


def time_ways(wheel: VllmWheel, ways: list[Way], rounds: int) -> list[dict[str, Any]]:
    """Check each way's output against float32, then time all in every round; a row per round and way.

    A way that the library refuses, or whose output is wrong, is left out, with a warning.

    Raises:
        WrongKernel: the profiler saw another number of kernels.
    """
    calls, errors = {}, {}
    for way in ways:
        call = wheel.forward(way)
        try:
            errors[way] = wheel.error(call(), way.page_rows)
        except Refused as refused:
            warnings.warn(f"{wheel.shape}, {way} is left out: {refused}", stacklevel=2)
            continue
        if errors[way] <= REFERENCE_TOLERANCE["bf16"]:
            calls[way] = call
        else:
            warnings.warn(f"{wheel.shape}, {way} is left out: off float32 by {errors[way]:.3g}", stacklevel=2)
    return [
        {
            **asdict(wheel.shape),
            "phase": wheel.shape.phase,
            "route": way.route,
            "bound": way.bound,
            "page_rows": way.page_rows,
            "mechanism": mechanism(kernel),
            "kernel": kernel.label,
            **{name: getattr(kernel, name) for name in ("dtype", "causal", "tile_m", "tile_n", "pack_gqa")},
            "error": errors[way],
            "round": number,
            **times,
        }
        for number, way, kernel, times in launches(wheel, calls, rounds)
    ]


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Time every way of every shape, after a check against float32; what fails is left out, with a warning.

    Raises:
        NotInstalled, NoGpu: see `require_vllm`.
        Refused: nothing could be compared.
    """
    rows = []
    for shape, ways in progress(list(plan(parameters)), "shape"):
        try:
            rows += time_ways(VllmWheel(shape), ways, parameters.rounds)
        except WrongKernel as error:
            warnings.warn(f"{shape} is left out: {error}", stacklevel=2)
        require_vllm().cuda.empty_cache()
    if not rows:
        raise Refused("no way was timed: the warnings above say why")
    return Result({"fa3_shapes": rows})


EXPERIMENT = Experiment(
    "fa3_shapes",
    "TMA or cp.async for FlashAttention-3's pages: which is faster at which model shape?",
    ("fa3_shapes",),
    PRESETS,
    measure,
    needs(Gpu, require_vllm),
)
