"""What do TMA's loads and stores change in a real GEMM whose tile, stages and schedule stay?"""

from dataclasses import dataclass
from typing import Any

from labkernels.device import Gpu
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.studies.gemm.bench import Candidate, Prepared, time_rounds
from labkernels.studies.gemm.library import pair_libraries, require_pairs
from labkernels.studies.gemm.operands import Operands, Pool, require_torch, sets_for
from labkernels.studies.gemm.pairs import PairKernel

Mnk = tuple[int, int, int]
SEED = 20260131


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        shapes: (M, N, K), each in bf16 and e4m3.
        swizzle: Most neighboring columns of tiles walked together, where whole groups fill the product.
        rounds: Timed samples of each kernel; all kernels of a shape are interleaved.
        sample_us: Length of one sample, at least one launch of each operand set.
        spread_l2: A and B of all operand sets take at least so many times the L2.
    """

    shapes: tuple[Mnk, ...]
    swizzle: int = 8
    rounds: int = 9
    sample_us: float = 800.0
    spread_l2: float = 4.0


PRESETS = {
    "quick": Parameters(((4096, 4096, 4096), (8192, 8192, 256), (64, 28672, 8192)), rounds=5),
    "full": Parameters(
        (
            (2048, 2048, 2048),
            (4096, 4096, 4096),
            (8192, 8192, 8192),
            (4096, 14336, 4096),
            (8192, 8192, 256),
            (8192, 8192, 1024),
            (16, 8192, 8192),
            (64, 28672, 8192),
            (128, 28672, 8192),
            (128, 4096, 14336),
            (1408, 3072, 4096),
            (1536, 1408, 4096),
        ),
        rounds=15,
    ),
}


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Check and time every kernel at every shape; see `Parameters`.

    Raises:
        WrongProduct: A kernel computed something else than the float32 reference.
    """
    torch = require_torch()
    libraries, sms = pair_libraries(gpu.facts.arch), gpu.facts.sm_count
    clocks = libraries[0]
    spread = int(parameters.spread_l2 * gpu.facts.l2_bytes)
    rows: list[dict[str, Any]] = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for dtype in ("bf16", "e4m3"):
            pool = Pool(dtype, max(_elements(dtype, shape, spread) for shape in parameters.shapes), SEED)
            for shape in progress(parameters.shapes, f"GEMM pairs in {dtype}"):
                operands = Operands(pool, shape, spread)
                prepared = [Prepared(clocks, Candidate(None, sms), operands, parameters.sample_us)]
                prepared += [
                    Prepared(
                        library,
                        Candidate(kernel, sms, kernel.swizzle(shape, parameters.swizzle)),
                        operands,
                        parameters.sample_us,
                    )
                    for library in libraries
                    for kernel in library.kernels
                    if kernel.dtype == dtype and kernel.takes(shape)
                ]
                for timed in time_rounds(clocks, prepared, parameters.rounds, sms):
                    rows.append(_row(prepared[timed.pop("index")], dtype, shape, timed))
                for one in prepared:
                    one.close()
            del pool, operands, prepared
            torch.cuda.empty_cache()
    return Result({"gemm_loads": rows}, libraries)


def _elements(dtype: str, shape: Mnk, spread: int) -> int:
    m, n, k = shape
    return sets_for(dtype, shape, spread) * (m + n) * k


def _row(one: Prepared, dtype: str, shape: Mnk, timed: dict[str, Any]) -> dict[str, Any]:
    m, n, k = shape
    kernel, library = one.candidate.kernel, one.library
    built: dict[str, Any] = {}
    if isinstance(kernel, PairKernel):
        built = {
            "schedule": kernel.schedule,
            "tile_m": kernel.tile[0],
            "tile_n": kernel.tile[1],
            "loads": kernel.loads,
            "stores": kernel.stores,
            "stages": library.stages(kernel),
            "threads": library.threads(kernel),
            "shared_bytes": library.shared_bytes(kernel),
            "swizzle": one.candidate.swizzle,
        }
    return {
        "m": m,
        "n": n,
        "k": k,
        "dtype": dtype,
        "kernel": one.candidate.name,
        **built,
        "relative_error": float(f"{one.relative_error:.3g}"),
        "round": timed["round"],
        "launches": timed["launches"],
        "duration_us": round(timed["duration_us"], 3),
        "sm_clock_mhz": round(timed["sm_clock_mhz"], 1),
        "tflops": round(2 * m * n * k / timed["duration_us"] / 1e6, 2),
    }


EXPERIMENT = Experiment(
    "gemm_loads",
    "What do TMA's loads and stores change in a real GEMM whose tile, stages and schedule stay?",
    ("gemm_loads",),
    PRESETS,
    measure,
    needs(Gpu, require_torch, require_pairs),
)
