"""Build the GEMM library of one architecture: python -m labkernels.studies.gemm.build --arch sm_90a."""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Protocol

from labkernels.errors import LabError
from labkernels.paths import CACHE
from labkernels.studies.gemm.family import ARCHES, family
from labkernels.studies.gemm.pairs import ARCH, CONTROLLED, PAIRS

HERE = Path(__file__).resolve().parent
LIBRARIES = CACHE / "gemm"
CUTLASS_VERSION = "4.2.0.0"
OPTIONS = (
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "-Xcompiler",
    "-fPIC",
    "--expt-relaxed-constexpr",
    "-diag-suppress",
    "177",
)
CUTLASS = CACHE / "cutlass"  # where `make gemm` puts its headers: the rest of its package is not wanted
MOST_JOBS = 8  # a translation unit takes 3 GB of memory
MOST_KERNELS = 4  # of a unit: minutes of nvcc, kept once they are done


class BuildError(LabError):
    """The library cannot be built here; the message says what is missing or what the compiler said."""


class Listed(Protocol):
    """A kernel as the list that `kernels.cu` includes writes it."""

    @property
    def line(self) -> str:
        """Its line."""
        ...

    @property
    def header(self) -> str | None:
        """A file of `controls/` that is included before its unit; the same for all kernels of a library."""
        ...


def key(arch: str, kernels: Sequence[Listed] | None = None) -> str:
    """Hash of everything a library is made from: sources, kernel list, options, CUTLASS version.

    Args:
        arch: `sm_90a` or `sm_100a`.
        kernels: Of the library; by default the architecture's family.
    """
    made_from = [source.read_text() for source in sorted(HERE.glob("*.cu")) + sorted(HERE.glob("*.h"))]
    listed = family(arch) if kernels is None else kernels
    made_from += [kernel.line for kernel in listed] + [*OPTIONS, CUTLASS_VERSION, arch]
    made_from += [header.read_text() for header in _headers(listed)]
    return hashlib.sha256("\n".join(made_from).encode()).hexdigest()


def library_path(arch: str, kernels: Sequence[Listed] | None = None) -> Path:
    """Where a library is, or will be once built; arguments as of `key`."""
    return LIBRARIES / arch / f"gemm-{key(arch, kernels)[:12]}.so"


def build(arch: str, kernels: Sequence[Listed] | None = None) -> Path:
    """Compile what is not in the cache and link it.

    Args:
        arch: `sm_90a` or `sm_100a`; no GPU is needed.
        kernels: As of `key`.

    Returns:
        Path of the library.

    Raises:
        BuildError: No nvcc, no CUTLASS of the right version, or a compiler error.
        ValueError: An unknown architecture.
    """
    kernels = family(arch) if kernels is None else kernels
    path = library_path(arch, kernels)
    if path.exists():
        return path
    nvcc, headers = _nvcc(), _cutlass()
    path.parent.mkdir(parents=True, exist_ok=True)
    jobs = min(os.cpu_count() or 1, MOST_JOBS)
    parts = max(jobs, -(-len(kernels) // MOST_KERNELS))
    command = [nvcc, *OPTIONS, *_target(arch), f"-I{HERE}", *(f"-I{folder}" for folder in headers), "-c"]
    before = _headers(kernels)
    units = [(), *_split(kernels, parts)]
    _say(f"{len(kernels)} kernels for {arch} in {len(units)} units, {jobs} at once; each takes nvcc minutes")
    objects = []
    with ThreadPoolExecutor(jobs) as pool:
        for one in pool.map(lambda unit: _compile(command, path.parent, unit, before), units):
            objects.append(one)
            _say(f"{len(objects)} of {len(units)} units done")
    new = path.with_suffix(".new")
    _run([nvcc, "-shared", *_target(arch), *map(str, objects), "-o", str(new)])
    return new.replace(path)


def _split(kernels: Sequence[Listed], parts: int) -> list[tuple[Listed, ...]]:
    """Even parts, neighbors in the list spread over all of them."""
    return [part for at in range(parts) if (part := tuple(kernels[at::parts]))]


def _headers(kernels: Sequence[Listed]) -> list[Path]:
    """Included before the units of a library."""
    return [HERE / "controls" / name for name in sorted({one.header for one in kernels if one.header})]


def _compile(
    command: Sequence[str], folder: Path, kernels: tuple[Listed, ...], before: Sequence[Path]
) -> Path:
    """One object: some kernels, or with none the interface; named by what it is made from."""
    lines = "".join(f"{kernel.line}\n" for kernel in kernels)
    names = ["kernels.cu", "entry.h"] if kernels else ["api.cu", "entry.h"]
    sources = [*(HERE / name for name in names), *(before if kernels else ())]
    made_from = "\n".join([*command, lines, *(source.read_text() for source in sources)])
    stem = folder / hashlib.sha256(made_from.encode()).hexdigest()[:16]
    done = stem.with_suffix(".o")
    if not done.exists():
        listing = stem.with_suffix(".inc")
        listing.write_text(lines)
        new = stem.with_suffix(".new")
        first = [option for header in sources[2:] for option in ("-include", str(header))]
        _run([*command, *first, f'-DKERNELS="{listing}"', str(HERE / names[0]), "-o", str(new)])
        new.replace(done)
    return done


def _target(arch: str) -> list[str]:
    number = arch.removeprefix("sm_")
    return ["-gencode", f"arch=compute_{number},code={arch}", f"-DGEMM_SM={number.rstrip('a')}"]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line] or [done.stderr]
        raise BuildError(f"{command[0]} failed ({done.returncode}): {said[0]}")


def _nvcc() -> str:
    if found := shutil.which("nvcc"):
        return found
    raise BuildError("no nvcc on the PATH; install CUDA 12.8 or newer, or take a library built elsewhere")


def _say(text: str) -> None:
    print(f"gemm build: {text}", file=sys.stderr, flush=True)


def _cutlass() -> list[Path]:
    found = [*metadata.distributions(name="nvidia-cutlass", path=[str(CUTLASS), *sys.path])]
    right = [one for one in found if one.version == CUTLASS_VERSION]
    if not right:
        installed = found[0].version if found else "none"
        raise BuildError(
            f"CUTLASS {CUTLASS_VERSION} is needed, installed is {installed}; run make gemm, or pip install '.[gemm]'"
        )
    source = Path(right[0].locate_file("cutlass_library/source"))
    return [source / "include", source / "tools" / "util" / "include"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument(
        "--arch", choices=ARCHES, default="sm_90a", help="for which GPU (default: %(default)s)"
    )


def main(arguments: argparse.Namespace) -> int:
    """Build and print the libraries' paths; 1 when that cannot be done."""
    try:
        print(build(arguments.arch))
        if arguments.arch == ARCH:
            for kernels in (PAIRS, *CONTROLLED.values()):
                print(build(ARCH, kernels))
    except BuildError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m labkernels.studies.gemm.build", description=__doc__)
    add_arguments(parser)
    sys.exit(main(parser.parse_args()))
