"""Which kernels does cuBLAS run for the products of this study?"""

from dataclasses import dataclass
from typing import Any

from labkernels.device import Gpu
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.studies.gemm.operands import Operands, Pool, require_torch
from labkernels.studies.gemm.shapes import SHAPES

SEED = 20260131
LAUNCHES = 3


@dataclass(frozen=True)
class Parameters:
    """What is asked.

    Attributes:
        shapes: (M, N, K).
        dtypes: Of A and B.
    """

    shapes: tuple[tuple[int, int, int], ...]
    dtypes: tuple[str, ...] = ("bf16", "e4m3")


PRESETS = {
    "quick": Parameters(((4096, 4096, 4096), (64, 28672, 8192))),
    "full": Parameters(tuple(dict.fromkeys(shape.mnk for shape in SHAPES))),
}


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Run each product under PyTorch's profiler and note the kernels it launched, by name."""
    torch = require_torch()
    rows: list[dict[str, Any]] = []
    for dtype in parameters.dtypes:
        pool = Pool(dtype, max((m + n) * k for m, n, k in parameters.shapes), SEED)
        for shape in progress(parameters.shapes, f"library kernels in {dtype}"):
            operands = Operands(pool, shape, 1)
            if dtype == "e4m3" and any(extent % 16 for extent in shape[1:]):
                continue  # the library's product refuses them
            operands.library_product(0)
            torch.cuda.synchronize()
            activities = [torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities) as profiler:
                for _ in range(LAUNCHES):
                    operands.library_product(0)
                torch.cuda.synchronize()
            m, n, k = shape
            ran: dict[str, list[float]] = {}
            for event in profiler.events():
                if (
                    event.device_type == torch.autograd.DeviceType.CUDA
                    and "mem" not in event.name.lower()[:4]
                ):
                    ran.setdefault(event.name, []).append(float(event.device_time))
            for order, (name, times) in enumerate(ran.items()):
                rows.append(
                    {
                        "m": m,
                        "n": n,
                        "k": k,
                        "dtype": dtype,
                        "layout": "tn",
                        "kernel_order": order,
                        "library_kernel": name,
                        "launches": len(times) / LAUNCHES,
                        "duration_us": round(min(times), 3),
                        "library": f"torch {torch.__version__}, cuBLAS {torch.version.cuda}",
                    }
                )
            del operands
        del pool
        torch.cuda.empty_cache()
    return Result({"gemm_library_kernels": rows})


EXPERIMENT = Experiment(
    "gemm_library_kernels",
    "Which kernels does cuBLAS run for the products of this study?",
    ("gemm_library_kernels",),
    PRESETS,
    measure,
    needs(Gpu, require_torch),
)
