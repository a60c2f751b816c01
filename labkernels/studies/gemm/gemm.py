"""Does multicast pay in a GEMM?"""

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from labkernels.device import Gpu
from labkernels.device.energy import keep_busy_for, power_while
from labkernels.protocols.experiment import Experiment, Progress, Result, needs
from labkernels.studies.gemm.bench import Busy, Candidate, Clocks, Prepared, between, time_rounds
from labkernels.studies.gemm.family import TRANSPORTS, GemmKernel
from labkernels.studies.gemm.library import Library, require_library
from labkernels.studies.gemm.operands import Operands, Pool, require_torch, sets_for
from labkernels.studies.gemm.shapes import DECOMPOSED, SHAPES

Mnk = tuple[int, int, int]
SEED = 20260131


@dataclass(frozen=True)
class Parameters:
    """Axes of the sweep.

    Attributes:
        shapes: (M, N, K) in bf16.
        fp8_shapes: (M, N, K) in e4m3.
        decomposed: Of `shapes`, those at which multicast is also switched off inside the same clusters.
        sustained: (M, N, K) in bf16 that are run long enough for clock and power to settle.
        swizzles: Most neighboring columns of tiles walked together.
        rounds: Timed samples of each candidate; all candidates of a shape are interleaved.
        sample_us: Length of one sample, at least one launch of each operand set.
        sustained_s: Least length of one sustained sample, which lasts until the energy counter moves.
        sustained_rounds: How often each is run.
        spread_l2: A and B of all operand sets take at least so many times the L2.
    """

    shapes: tuple[Mnk, ...]
    fp8_shapes: tuple[Mnk, ...] = ()
    decomposed: tuple[Mnk, ...] = ()
    sustained: tuple[Mnk, ...] = ()
    swizzles: tuple[int, ...] = (1, 8)
    rounds: int = 9
    sample_us: float = 800.0
    sustained_s: float = 0.5
    sustained_rounds: int = 7
    spread_l2: float = 4.0


PRESETS = {
    "quick": Parameters(
        shapes=(
            (2048, 2048, 8192),
            (4096, 4096, 4096),
            (8192, 8192, 8192),
            (64, 28672, 8192),
            (1536, 3072, 4096),
        ),
        decomposed=((2048, 2048, 8192), (8192, 8192, 8192)),
        fp8_shapes=((8192, 8192, 8192),),
    ),
    "full": Parameters(
        shapes=tuple(shape.mnk for shape in SHAPES if not shape.held_out),
        fp8_shapes=(
            (2048, 2048, 8192),
            (4096, 4096, 4096),
            (8192, 8192, 8192),
            (64, 28672, 8192),
            (256, 8192, 28672),
            (4096, 14336, 4096),
            (8192, 6144, 4096),
            (1536, 3072, 4096),
        ),
        decomposed=DECOMPOSED,
        sustained=((8192, 8192, 8192),),
    ),
    "held_out": Parameters(shapes=tuple(shape.mnk for shape in SHAPES if shape.held_out)),
}


def candidates(library: Library, dtype: str, shape: Mnk, parameters: Parameters, sms: int) -> list[Candidate]:
    """All ways to compute one product.

    The controls of a cluster shape: the kernels without multicast, and the kernel of a cluster of one on as many
    SMs as the clusters keep.
    """
    chosen = [Candidate(None, sms)]
    decomposed = dtype == "bf16" and shape in parameters.decomposed
    for swizzle in parameters.swizzles:
        for kernel in library.kernels:
            if kernel.dtype == dtype and (decomposed or kernel.transport == "multicast"):
                chosen.append(Candidate(kernel, sms, swizzle))
        if decomposed:
            kept = {
                (kernel.tile, library.resident_clusters(kernel) * kernel.cluster_size)
                for kernel in library.kernels
                if kernel.dtype == dtype and kernel.transport == "independent"
            }
            chosen += [
                Candidate(_alone(library, dtype, tile), count, swizzle)
                for tile, count in sorted(kept)
                if count < sms
            ]
    return chosen


def _alone(library: Library, dtype: str, tile: tuple[int, int]) -> GemmKernel:
    return next(k for k in library.kernels if (k.dtype, k.tile, k.cluster) == (dtype, tile, (1, 1)))


def measure(gpu: Gpu, parameters: Parameters, progress: Progress) -> Result:
    """Check and time every kernel at every shape; see `Parameters`."""
    torch = require_torch()
    library = Library(gpu.facts.arch)
    sms = gpu.facts.sm_count
    spread = int(parameters.spread_l2 * gpu.facts.l2_bytes)
    rows: list[dict[str, Any]] = []
    sustained: list[dict[str, Any]] = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for dtype, shapes in (("bf16", parameters.shapes), ("e4m3", parameters.fp8_shapes)):
            if not shapes:
                continue
            pool = Pool(dtype, max(_elements(dtype, shape, spread) for shape in shapes), SEED)
            for shape in progress(shapes, f"GEMM shapes in {dtype}"):
                operands = Operands(pool, shape, spread)
                chosen = candidates(library, dtype, shape, parameters, sms)
                prepared = [Prepared(library, c, operands, parameters.sample_us) for c in chosen]
                for timed in time_rounds(library, prepared, parameters.rounds, sms):
                    one = prepared[timed.pop("index")]
                    rows.append(_row(library, one, dtype, shape, timed))
                if dtype == "bf16" and shape in parameters.sustained:
                    sustained += _sustain(gpu, library, prepared, shape, parameters, sms)
                for one in prepared:
                    one.close()
            del pool, operands, prepared
            torch.cuda.empty_cache()
    return Result({"gemm": rows, "gemm_sustained": sustained}, [library])


def _elements(dtype: str, shape: Mnk, spread: int) -> int:
    m, n, k = shape
    return sets_for(dtype, shape, spread) * (m + n) * k


def _tflops(shape: Mnk, duration_us: float) -> float:
    m, n, k = shape
    return 2 * m * n * k / duration_us / 1e6


def _named(library: Library, candidate: Candidate) -> dict[str, Any]:
    """Columns that say which kernel ran and how."""
    kernel = candidate.kernel
    if kernel is None:
        return {"kernel": candidate.name}
    clusters = min(library.resident_clusters(kernel), candidate.sms // kernel.cluster_size)
    return {
        "kernel": kernel.name,
        "swizzle": candidate.swizzle,
        "ctas": clusters * kernel.cluster_size,
    }


def _row(library: Library, one: Prepared, dtype: str, shape: Mnk, timed: dict[str, Any]) -> dict[str, Any]:
    m, n, k = shape
    return {
        "m": m,
        "n": n,
        "k": k,
        "dtype": dtype,
        **_named(library, one.candidate),
        "relative_error": float(f"{one.relative_error:.3g}"),
        "round": timed["round"],
        "launches": timed["launches"],
        "duration_us": round(timed["duration_us"], 3),
        "sm_clock_mhz": round(timed["sm_clock_mhz"], 1),
        "tflops": round(_tflops(shape, timed["duration_us"]), 2),
    }


SUSTAINED = (
    "library",
    *(f"bf16_128x256_{cluster}" for cluster in ("1x1", "2x1", "1x2")),
    *(f"bf16_128x256_{cluster}_{off}" for cluster in ("2x1", "1x2") for off in TRANSPORTS[1:]),
    *(f"bf16_128x128_{cluster}" for cluster in ("1x1", "2x1", "2x1_handshake", "2x1_independent")),
)


def _sustain(
    gpu: Gpu, library: Library, prepared: list[Prepared], shape: Mnk, parameters: Parameters, sms: int
) -> list[dict[str, Any]]:
    """Clock and power of some kernels once they have run for a while."""
    torch = require_torch()
    swizzle = max(parameters.swizzles)
    chosen = [
        one
        for one in prepared
        if one.candidate.name in SUSTAINED
        and one.candidate.sms == sms
        and (one.candidate.kernel is None or one.candidate.swizzle == swizzle)
    ]
    rows = []
    for number, one in product(range(parameters.sustained_rounds), chosen):
        busy = Busy(one)
        keep_busy_for(parameters.sustained_s / 2, busy)  # until clock and power have settled
        before, clocks = busy.replays, Clocks(library, sms, 1)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        watched = partial(power_while, gpu.board.energy_j, parameters.sustained_s, busy)
        power = clocks.around(0, partial(between, events, watched))
        torch.cuda.synchronize()
        seconds, launches = events[0].elapsed_time(events[1]) / 1000, (busy.replays - before) * one.launches
        m, n, k = shape
        rows.append(
            {
                "m": m,
                "n": n,
                "k": k,
                "dtype": "bf16",
                **_named(library, one.candidate),
                "round": number,
                "launches": launches,
                "seconds": round(seconds, 4),
                "sm_clock_mhz": round(float(clocks.mhz()[0]), 1),
                "power_w": power and round(power.watts, 1),
                "power_window_s": power and round(power.seconds, 4),
                "tflops": round(_tflops(shape, seconds * 1e6 / launches), 2),
            }
        )
    return rows


EXPERIMENT = Experiment(
    "gemm",
    "Does multicast pay in a GEMM?",
    ("gemm", "gemm_sustained"),
    PRESETS,
    measure,
    needs(Gpu, require_torch, require_library),
)
