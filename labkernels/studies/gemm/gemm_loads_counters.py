"""Issue slots, shared memory, L2: what do TMA's loads and cp.async's take in a real GEMM?"""

from dataclasses import dataclass

from labkernels.device import Gpu, counters
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.studies.gemm.gemm_traffic import count
from labkernels.studies.gemm.library import pair_libraries, require_pairs

METRICS = {metric: column for metric, (column, _) in counters.OF_SM.items()} | {
    metric: column for metric, column in counters.MEMORY_PATH.items() if "programmatic" not in metric
}


@dataclass(frozen=True)
class Parameters:
    """What is counted.

    Attributes:
        shapes: (M, N, K) in bf16.
        swizzle: Most neighboring columns of tiles walked together.
    """

    shapes: tuple[tuple[int, int, int], ...] = ((4096, 4096, 4096),)
    swizzle: int = 8


PRESETS = {"quick": Parameters(), "full": Parameters(((4096, 4096, 4096), (8192, 8192, 8192)))}


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Count one launch of every pair and control with TMA's stores, L2 flushed before it.

    Raises:
        NoCounters: No `ncu`, or it refuses.
    """
    libraries = pair_libraries(gpu.facts.arch)
    kernels = [k for library in libraries for k in library.kernels if k.dtype == "bf16" and k.stores == "tma"]
    rows = []
    for shape in progress(parameters.shapes, "count GEMM pairs"):
        m, n, k = shape
        of_shape = [kernel for kernel in kernels if kernel.takes(shape)]
        for kernel, values in zip(of_shape, count(of_shape, shape, parameters.swizzle, METRICS), strict=True):
            built = {"kernel": kernel.name, "schedule": kernel.schedule, "loads": kernel.loads}
            rows.append({**built, "m": m, "n": n, "k": k, "swizzle": parameters.swizzle, **values})
    return Result({"gemm_loads_counters": rows}, libraries)


EXPERIMENT = Experiment(
    "gemm_loads_counters",
    "What do TMA's loads and cp.async's take of issue slots, shared memory and L2 in a real GEMM?",
    ("gemm_loads_counters",),
    PRESETS,
    measure,
    needs(Gpu, counters.ncu, require_pairs),
)
