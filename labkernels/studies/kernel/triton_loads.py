"""What do tensor descriptors change in Triton kernels whose tile, warps and stages stay?"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from os import environ
from pathlib import Path
from typing import Any

from labkernels.device import Gpu
from labkernels.errors import LabError, NotInstalled
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.protocols.rounds import interleaved

LOADS = ("descriptors", "pointers")
SEED = 20260131
TOLERANCE = 1e-2


@dataclass(frozen=True)
class Parameters:
    """What is measured.

    Attributes:
        gemms: M, N, K, then tile M, N, K, warps and stages.
        rows: Kernel, M, N, then tile M, N, warps and stages.
        rounds: Timed samples of each kernel; the two of a pair take turns.
        sample_us: Length of one sample.
    """

    gemms: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[str, int, int, int, int, int, int], ...]
    rounds: int = 15
    sample_us: float = 800.0


BEST = (128, 256, 64, 8, 3)
SMALL = (128, 128, 64, 4, 4)
FEW = (64, 128, 64, 4, 6)
ROWS = (
    ("reduce", 16384, 8192, 16, 256, 4, 4),
    ("reduce", 16384, 8192, 8, 128, 4, 6),
    ("scale", 16384, 8192, 16, 256, 4, 1),
    ("scale", 16384, 8192, 32, 128, 4, 1),
    ("softmax", 16384, 4096, 1, 4096, 4, 1),
    ("softmax", 65536, 1024, 4, 1024, 4, 1),
)
PRESETS = {
    "quick": Parameters(((4096, 4096, 4096, *BEST), (64, 8192, 8192, *FEW)), ROWS[::2], rounds=5),
    "full": Parameters(
        tuple(
            (*mnk, *tile)
            for mnk in (
                (2048, 2048, 8192),
                (4096, 4096, 4096),
                (8192, 8192, 8192),
                (4096, 14336, 4096),
                (8192, 8192, 256),
            )
            for tile in (BEST, SMALL)
        )
        + tuple((64, n, k, *FEW) for n, k in ((8192, 8192), (28672, 8192), (4096, 14336))),
        ROWS,
    ),
}


def require_triton() -> Any:
    """Triton, and PyTorch with it.

    Raises:
        NotInstalled: One is not installed.
    """
    try:
        import torch
        import triton
    except ModuleNotFoundError as error:
        raise NotInstalled(f"Triton kernels need {error.name}: pip install {error.name}") from None
    return torch, triton


def _descriptor(tensor: Any, box: tuple[int, int]) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(tensor, list(box))


class Bound:
    """A kernel with its arguments: `launch` queues it, `compiled` is what the compiler made."""

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, int]
    ) -> None:
        self.launch = partial(kernel[grid], *arguments, **options)
        self.compiled = self.launch()


def _pair(name: str, axes: tuple[int, ...], torch: Any) -> tuple[dict[str, Bound], Callable[[Bound], float]]:
    """Both kernels of a pair, and the relative error of what one computes."""
    from labkernels.studies.kernel import triton_kernels as made

    torch.manual_seed(SEED)
    random = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    both: dict[str, Bound] = {}
    if name == "gemm":
        m, n, k, bm, bn, bk, warps, stages = axes
        a, b = random(m, k), random(n, k)
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        expected = a.float() @ b.float().T
        given = {"pointers": (a, b), "descriptors": (_descriptor(a, (bm, bk)), _descriptor(b, (bn, bk)))}
        grid = (-(-m // bm) * -(-n // bn),)
        options = {"BM": bm, "BN": bn, "BK": bk, "G": 8, "num_warps": warps, "num_stages": stages}
        sizes = (m, n, k)
    else:
        m, n, bm, bn, warps, stages = axes
        x = random(m, n)
        given = {"pointers": (x,), "descriptors": (_descriptor(x, (bm, bn)),)}
        shape = (m,) if name == "reduce" else (m, n)
        out = torch.empty(shape, device="cuda", dtype=torch.float32 if name == "reduce" else torch.bfloat16)
        wide = x.float()
        expected = {
            "reduce": lambda: wide.sum(1),
            "scale": lambda: wide * 2,
            "softmax": lambda: wide.softmax(1),
        }[name]()
        grid = (m // bm, n // bn) if name == "scale" else (m // bm,)
        options = {"BM": bm, "BN": bn, "num_warps": warps, "num_stages": stages}
        sizes = (m, n)
    for loads in LOADS:
        both[loads] = Bound(getattr(made, f"{name}_{loads}"), grid, (*given[loads], out, *sizes), options)

    def error(one: Bound) -> float:
        out.fill_(float("nan"))
        one.launch()
        return float((out.float() - expected).norm() / expected.norm())

    return both, error


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Check and time both kernels of every pair; see `Parameters`. Binaries go to $PAIRS, if that is set."""
    torch, triton = require_triton()
    rows: list[dict[str, Any]] = []
    pairs = [("gemm", axes) for axes in parameters.gemms] + [
        (name, tuple(axes)) for name, *axes in parameters.rows
    ]
    with torch.cuda.stream(torch.cuda.Stream()):
        for name, axes in progress(pairs, "Triton pairs"):
            both, error = _pair(name, axes, torch)
            rows += _timed(name, axes, both, error, parameters, torch, triton)
            torch.cuda.empty_cache()
    return Result({"triton_loads": rows})


def _timed(
    name: str,
    axes: tuple[int, ...],
    both: dict[str, Bound],
    error: Callable[[Bound], float],
    parameters: Parameters,
    torch: Any,
    triton: Any,
) -> list[dict[str, Any]]:
    errors = {loads: error(one) for loads, one in both.items()}
    if max(errors.values()) > TOLERANCE:
        raise LabError(f"{name} {axes}: relative errors {errors}, allowed is {TOLERANCE}")
    stream = torch.cuda.current_stream()
    graphs, launches = {}, {}
    for loads, one in both.items():
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began.record(stream)
        for _ in range(4):
            one.launch()
        ended.record(stream)
        ended.synchronize()
        launches[loads] = max(2, round(parameters.sample_us / max(began.elapsed_time(ended) * 250, 2.0)))
        graphs[loads] = torch.cuda.CUDAGraph()
        graphs[loads].capture_begin(capture_error_mode="relaxed")
        for _ in range(launches[loads]):
            one.launch()
        graphs[loads].capture_end()
        if folder := environ.get("PAIRS"):
            stem = Path(folder) / "_".join(map(str, (name, *axes, loads)))
            stem.with_suffix(".cubin").write_bytes(one.compiled.asm["cubin"])
            stem.with_suffix(".ptx").write_text(one.compiled.asm["ptx"])
    rows = []
    for number, turns in enumerate(interleaved(LOADS, parameters.rounds + 1), -1):
        graphs[turns[0]].replay()
        timed = {}
        for loads in turns:
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record(stream)
            graphs[loads].replay()
            ended.record(stream)
            timed[loads] = began, ended
        torch.cuda.synchronize()
        for loads, (began, ended) in timed.items():
            compiled = both[loads].compiled
            gemm = name == "gemm"
            m, n, k, tm, tn, tk, warps, stages = (
                axes if gemm else (*axes[:2], None, *axes[2:4], None, *axes[4:])
            )
            rows.append(
                {
                    "kernel": name,
                    "m": m,
                    "n": n,
                    "k": k,
                    "tile_m": tm,
                    "tile_n": tn,
                    "tile_k": tk,
                    "warps": warps,
                    "stages": stages,
                    "loads": loads,
                    "registers": compiled.n_regs,
                    "spills": compiled.n_spills,
                    "shared_bytes": compiled.metadata.shared,
                    "triton": triton.__version__,
                    "relative_error": float(f"{errors[loads]:.3g}"),
                    "round": number,
                    "launches": launches[loads],
                    "duration_us": round(began.elapsed_time(ended) * 1000 / launches[loads], 3),
                }
            )
    return [row for row in rows if row["round"] >= 0]


EXPERIMENT = Experiment(
    "triton_loads",
    "What do tensor descriptors change in Triton kernels whose tile, warps and stages stay?",
    ("triton_loads",),
    PRESETS,
    measure,
    needs(Gpu, require_triton),
)
