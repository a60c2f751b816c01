"""Launch some GEMM kernels once each on random bits, for a profiler to count."""

import argparse
import sys

from labkernels.device import Buffer, Gpu, counters
from labkernels.device.random_fill import fill
from labkernels.studies.gemm.family import ELEMENT_BYTES, family
from labkernels.studies.gemm.library import Library
from labkernels.studies.gemm.pairs import CONTROLLED, PAIRS


def main() -> int:
    """Launch what the command line names, in that order."""
    parser = argparse.ArgumentParser(prog="python -m labkernels.studies.gemm.once", description=__doc__)
    parser.add_argument("shape", type=int, nargs=3, metavar=("M", "N", "K"))
    parser.add_argument("kernels", nargs="+", metavar="KERNEL")
    parser.add_argument(
        "--swizzle", type=int, default=1, help="neighbouring columns of tiles walked together"
    )
    arguments = parser.parse_args()
    gpu = Gpu()
    listed = (family(gpu.facts.arch), PAIRS, *CONTROLLED.values())
    named = {kernel.name: (kernel, kernels) for kernels in listed for kernel in kernels}
    chosen = [named[name] for name in arguments.kernels]
    libraries = {kernels: Library(gpu.facts.arch, kernels) for _, kernels in chosen}
    m, n, k = arguments.shape
    element_bytes = max(ELEMENT_BYTES[kernel.dtype] for kernel, _ in chosen)
    a, b, d = (Buffer(size) for size in (m * k * element_bytes, n * k * element_bytes, m * n * 2))
    fill(gpu, a, 1)
    fill(gpu, b, 2)
    for kernel, kernels in chosen:
        plan = libraries[kernels].plan(
            kernel,
            (a.address, b.address, d.address),
            (m, n, k),
            sms=gpu.facts.sm_count,
            swizzle=arguments.swizzle,
        )
        counters.begin()
        plan.launch(int(gpu.stream.handle))
        gpu.sync()
        counters.end()
        plan.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
