"""What does a page table cost FlashAttention-3 when TMA loads the pages too, in fp8 and at other head dims?

Runs the wheel fa3-fwd 0.0.3 (PyTorch; operator `fa3_fwd::fwd`, the schema of FlashAttention-3's stable interface). Its
600 sm_90a forward kernels are bf16 and fp8 (e4m3) at head dims 64, 96, 128, 192 and 256; PagedKVNonTMA is false in all
of them, so a paged cache is loaded by TMA or refused: a page has to be a multiple of the tile's keys and the query rows
more than a tile. In decode a larger bound on the query length provides that, with and without pages: both sides run
the same kernel, which the profiler's name of it shows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkernels.device import Gpu
from labkernels.errors import NoGpu, NotInstalled
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.studies.paged.flash import Problem, Refused, Variant, Wheel, time_variants

FIX = "pip install --no-deps fa3-fwd==0.0.3 beside PyTorch 2.10 or newer for CUDA 13"
REFERENCE_TOLERANCE = {
    "bf16": 0.02,
    "fp8": 0.1,
}  # of the largest output; probabilities are rounded to the dtype


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        dtypes: of queries, keys and values.
        head_dims: head dimensions.
        problems: (batch, seqlen_q, least seqlen_k, heads, kv_heads); keys are rounded up to whole pages of every size.
        page_tiles: page sizes, in tiles of keys: by TMA nothing else loads.
        rounds: launches of each variant of each problem.
    """

    dtypes: tuple[str, ...] = ("bf16", "fp8")
    head_dims: tuple[int, ...] = (64, 96, 128, 192, 256)
    problems: tuple[tuple[int, ...], ...] = ((32, 1, 8192, 32, 8), (4, 2048, 8192, 32, 8))
    page_tiles: tuple[int, ...] = (1, 2, 4)
    rounds: int = 21


PRESETS = {
    "quick": Parameters(
        head_dims=(64, 128, 256),
        problems=((32, 1, 8192, 32, 8), (1, 2048, 8192, 32, 8)),
        page_tiles=(1,),
        rounds=9,
    ),
    "full": Parameters(),
}


def plan(parameters: Parameters) -> Iterator[list[Variant]]:
    """The variants of each problem: the contiguous cache first, then each page size, all with one bound."""
    for dtype in parameters.dtypes:
        for head_dim in parameters.head_dims:
            for batch, seqlen_q, least, heads, kv_heads in parameters.problems:
                problem = Problem(batch, seqlen_q, least, heads, kv_heads, dtype, head_dim)
                tile_n = problem.rule(
                    0, 2
                ).tile_n  # a bound of 1 would drop the causal mask, and with it this tile
                whole = tile_n * int(np.lcm.reduce(parameters.page_tiles))
                problem = replace(problem, seqlen_k=-(-least // whole) * whole)
                by_rule = problem.rule(tile_n).k == "tma_tile"
                yield [
                    Variant(problem, 0, "contiguous" if by_rule else "bound"),
                    *(
                        Variant(problem, tile_n * tiles, "rule" if by_rule else "bound")
                        for tiles in parameters.page_tiles
                    ),
                ]


def require_wheel() -> Any:
    """PyTorch with the wheel's operator.

    Raises:
        NotInstalled: the wheel or PyTorch is missing, or of another build.
        NoGpu: PyTorch sees no GPU.
    """
    try:
        import torch
    except ImportError as missing:
        raise NotInstalled(f"{missing}: {FIX}") from None
    try:
        import fa3_fwd._C  # noqa: F401 - registers torch.ops.fa3_fwd
    except (ImportError, OSError) as missing:
        raise NotInstalled(f"{missing}: {FIX}") from None
    if not torch.cuda.is_available():
        raise NoGpu("PyTorch sees no GPU: install its build for the driver's CUDA")
    return torch


class TorchWheel(Wheel):
    """The wheel under PyTorch; the query rows of a problem are as many as the kernel's bound says."""

    tolerance = (
        5e-4  # of outputs up to 0.25: half a unit in the last place of bf16, which fp8 inputs give too
    )
    num_splits = 1

    def __init__(self, problem: Problem, bound: int, seed: int = 1) -> None:
        torch = self.torch = require_wheel()
        self.problem = problem
        generator = torch.Generator("cuda").manual_seed(seed)
        dtype = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[problem.dtype]

        def normal(rows: int, heads: int) -> Any:
            shape = (problem.batch, rows, heads, problem.head_dim)
            values = torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
            return values.to(dtype)

        self.q = normal(bound, problem.heads)
        self.k, self.v = (normal(problem.seqlen_k, problem.kv_heads) for _ in range(2))
        self.used = {
            name: torch.full((problem.batch,), length, device="cuda", dtype=torch.int32)
            for name, length in (("seqused_q", problem.seqlen_q), ("seqused_k", problem.seqlen_k))
        }

    def forward(self, variant: Variant) -> Callable[[], Any]:
        """See `Wheel`: a sequence's rows beyond its own number are undefined."""
        torch, arguments = self.torch, self.arguments(variant)

        def call() -> Any:
            try:
                output = torch.ops.fa3_fwd.fwd(**arguments, is_causal=True, num_splits=1)[0]
            except RuntimeError as refused:
                torch.cuda.synchronize()  # a fault of the GPU's ends the run here
                raise Refused(str(refused).splitlines()[0]) from None
            torch.cuda.synchronize()
            return output

        return call

    def float32(self, output: Any) -> Any:
        """See `Wheel`."""
        return output.float()

    def traced(self, calls: Callable[[], None]) -> list[tuple[float, str, float]]:
        """See `Wheel`."""
        torch = self.torch
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            calls()
            torch.cuda.synchronize()
        on_gpu = torch.autograd.DeviceType.CUDA
        return [
            (event.time_range.start, event.name, float(event.time_range.elapsed_us()))
            for event in profile.events()
            if event.device_type == on_gpu
        ]

    def arguments(self, variant: Variant) -> dict[str, Any]:
        """Arguments of the operator."""
        if not variant.page_rows:
            return {"q": self.q, "k": self.k, "v": self.v, **self.used}
        torch, table = self.torch, variant.page_table
        order = torch.from_numpy(np.argsort(table.ravel())).cuda()

        def paged(part: Any) -> Any:
            pages = part.view(torch.uint8).reshape(order.numel(), -1)[order]
            return pages.view(part.dtype).reshape(variant.paged_shape)

        table = torch.from_numpy(table).cuda()
        return {"q": self.q, "k": paged(self.k), "v": paged(self.v), "page_table": table, **self.used}

    def wrong(self, output: Any) -> str | None:
        """See `Wheel`: of the first sequence's first KV head, against attention in float32."""
        torch, problem = self.torch, self.problem
        ratio = problem.heads // problem.kv_heads
        q = self.q[0, : problem.seqlen_q, :ratio].float()
        k, v = self.k[0, :, 0].float(), self.v[0, :, 0].float()
        scores = torch.einsum("qhd,kd->hqk", q, k) * problem.head_dim**-0.5
        last = torch.arange(problem.seqlen_q, device="cuda") + problem.seqlen_k - problem.seqlen_q
        hidden = torch.arange(problem.seqlen_k, device="cuda") > last[:, None]
        reference = torch.einsum("hqk,kd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
        wrong = float((output[0, :, :ratio] - reference).abs().max() / reference.abs().max())
        if wrong <= REFERENCE_TOLERANCE[problem.dtype]:
            return None
        return f"off float32 by {wrong:.3g} of its largest output"


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Compare each page size's output with the contiguous cache's, then time all of a problem in every round.

    What the wheel refuses, and what gives another output, is left out with a warning on stderr.

    Raises:
        NotInstalled, NoGpu: see `require_wheel`.
        WrongKernel: a kernel is not the one that the rules say.
        Refused: no two variants could be compared.
    """
    rows = []
    for chosen in progress(list(plan(parameters)), "problem"):
        rows += time_variants(TorchWheel(chosen[0].problem, chosen[0].bound), chosen, parameters.rounds)
        require_wheel().cuda.empty_cache()
    if not any(row["page_rows"] for row in rows):
        raise Refused("no paged cache was loaded: the warnings above say why")
    return Result({"fa3": rows})


EXPERIMENT = Experiment(
    "fa3_fwd",
    "What does a page table cost FlashAttention-3 when TMA loads the pages, in fp8 and at other head dims?",
    ("fa3",),
    PRESETS,
    measure,
    needs(Gpu, require_wheel),
)
