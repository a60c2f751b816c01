"""What nvidia-matmul-heuristics predicts: python -m labkernels.studies.gemm.predict writes data/gemm_predicted.csv."""

import os
import sys
from importlib import metadata
from typing import Any

from labkernels.store import Store
from labkernels.studies.gemm.shapes import SHAPES, Shape

PACKAGE = "nvidia-matmul-heuristics"
GPU = "H200_SXM"
PRECISION = "TST"  # bf16 in, float32 accumulation, bf16 out
LISTED = 3


def rows() -> list[dict[str, Any]]:
    """The package's first choices of CUTLASS kernels for every bf16 shape, best first."""
    import nvMatmulHeuristics as heuristics

    global ask  # version 0.1.0.27 crashes when the interface is freed
    ask = heuristics.NvMatmulHeuristicsInterface(heuristics.NvMatmulHeuristicsTarget.CUTLASS3, PRECISION)
    gpu = ask.createHardwareDescriptor()
    ask.setHardwarePredefinedGpu(gpu, heuristics.NvMatmulHeuristicsNvidiaGpu[GPU])
    layout = heuristics.NvMatmulHeuristicsMatmulLayout.TN_ROW_MAJOR
    ask.loadInternalDiscoverySet(layout, gpu)
    source = f"{PACKAGE} {metadata.version(PACKAGE)}"
    return [
        {"source": source, "gpu": GPU.replace("_", " "), **_row(shape, rank, choice)}
        for shape in SHAPES
        for rank, choice in enumerate(ask.get_with_mnk(*shape.mnk, layout, LISTED, gpu), start=1)
    ]


def _row(shape: Shape, rank: int, choice: dict[str, Any]) -> dict[str, Any]:
    kernel = choice["kernel"]
    return {
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "dtype": "bf16",
        "rank": rank,
        "tile_m": kernel.cta_tile_m,
        "tile_n": kernel.cta_tile_n,
        "cluster_m": kernel.cluster_m,
        "cluster_n": kernel.cluster_n,
        "split_k": kernel.split_k,
        "swizzle": kernel.swizzle_factor,
        "duration_us": float(f"{choice['runtime'] * 1e6:.5g}"),
    }


def main() -> None:
    """Write the table."""
    try:
        found = rows()
    except ModuleNotFoundError:
        sys.exit(f"gemm predict: {PACKAGE} is not installed: pip install {PACKAGE}")
    Store().write("gemm_predicted", found)
    sys.stdout.flush()
    os._exit(0)  # version 0.1.0.27 crashes while the interpreter ends


if __name__ == "__main__":
    main()
