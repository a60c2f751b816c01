"""What the compiled GEMMs contain: python -m labkernels.studies.gemm.code writes data/gemm_census.csv."""

import sys
from typing import Any

from labkernels.production.census import census
from labkernels.store import Store
from labkernels.studies.gemm.build import BuildError, build
from labkernels.studies.gemm.family import ARCHES, family, of_symbol
from labkernels.studies.gemm.library import Library

LOADS = ("tma_tile", "tma_multicast")


def rows(arch: str) -> list[dict[str, Any]]:
    """One row per kernel of an architecture's library, built if need be.

    Raises:
        BuildError: See `labkernels.studies.gemm.build.build`.
        ValueError: The library lacks a kernel of the family, or could not be read.
    """
    path = build(arch)
    library = Library(arch)
    kernels, errors = census([path])
    if errors:
        raise ValueError(f"{path}: {errors}")
    found = {}
    for kernel in kernels:
        if (known := of_symbol(arch, kernel.kernel)) is None:
            continue
        counts = dict(kernel.mechanisms)
        copies = [f"{opcode}={count}" for opcode, count in kernel.opcodes if opcode.startswith("UTMALDG")]
        found[known.name] = {
            "arch": arch,
            "kernel": known.name,
            "registers": kernel.registers,
            "stages": library.stages(known),
            "shared_bytes": library.shared_bytes(known),
            **{name: counts.get(name, 0) for name in LOADS},
            "opcodes": " ".join(copies),
        }
    if missing := {kernel.name for kernel in family(arch)} - found.keys():
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}")
    return [found[kernel.name] for kernel in family(arch)]


def main() -> int:
    """Write the table; 1 when a library cannot be built."""
    try:
        found = [row for arch in ARCHES for row in rows(arch)]
    except BuildError as error:
        print(f"gemm census: {error}", file=sys.stderr)
        return 1
    Store().write("gemm_census", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
