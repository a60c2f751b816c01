"""`doctor`: what this machine has, what is missing, and what works without it.

It runs wherever Python does: it is needed most where a package is missing, so nothing is imported before its check.
"""

import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module, metadata

from labkernels.commands import Answer, Option
from labkernels.paths import IS_CHECKOUT

#: What each distribution is imported as, by what needs it; None for one that brings programs.
PACKAGES: dict[str, dict[str, str | None]] = {
    "commands": {
        "numpy": "numpy",
        "pandas": "pandas",
        "scipy": "scipy",
        "PyYAML": "yaml",
        "Jinja2": "jinja2",
        "tqdm": "tqdm",
        "cxxfilt": "cxxfilt",
        "cpp-demangle": "cpp_demangle",
        "cuda-pathfinder": "cuda.pathfinder",
        "cuda-core": "cuda.core",
        "cuda-bindings": "cuda.bindings",
        "nvidia-cuda-cuobjdump": None,
        "nvidia-cuda-nvdisasm": None,
    },
    "kernels": {"numba-cuda": "numba.cuda"},
    "book": {
        "altair": "altair",
        "vl-convert-python": "vl_convert",
        "jupyter-book": "jupyter_book",
        "sphinx-book-theme": "sphinx_book_theme",
        "Sphinx": "sphinx",
        "docutils": "docutils",
        "myst-nb": "myst_nb",
        "papermill": "papermill",
        "nbformat": "nbformat",
        "latex2mathml": "latex2mathml",
        "ipykernel": "ipykernel",
        "ipython": "IPython",
    },
    "batch": {"distributed": "distributed", "dask": "dask"},
}


@dataclass(frozen=True)
class Finding:
    """One thing looked at; `optional` where the stored results can be read without it."""

    what: str
    ok: bool
    detail: str
    optional: bool = False

    @property
    def verdict(self) -> str:
        """`ok`, `FIX`, or `none` for something that may be left out."""
        return "ok" if self.ok else "none" if self.optional else "FIX"


def options() -> Iterator[Option]:
    """None."""
    return iter(())


def run(arguments: Namespace) -> Answer:
    """All findings; exit status 1 where something has to be mended."""
    found = findings()
    text = "\n".join(f"{one.verdict:5}{one.what}: {one.detail}" for one in found)
    bad = any(one.verdict == "FIX" for one in found)
    return Answer([asdict(one) for one in found], text, status=int(bad))


def findings() -> list[Finding]:
    """Python, packages, assembler, disassembler, driver, GPU and profiler, in that order."""
    packages = [_packages(purpose) for purpose in PACKAGES]
    return [_python(), *packages, _assembler(), _disassembler(), _gpu(), _counters()]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("Python", sys.version_info >= (3, 11), f"{version} (3.11 or newer is needed)")


def _packages(purpose: str) -> Finding:
    """Whether the packages for one purpose are there and can be imported."""
    missing, broken = [], []
    for distribution, module in PACKAGES[purpose].items():
        try:
            metadata.version(distribution)
            if module:
                import_module(module)
        except metadata.PackageNotFoundError:
            missing.append(distribution)
        except Exception as error:  # whatever a half-installed package raises
            broken.append(f"{distribution} cannot be imported ({_first_line(error)})")
    what, optional = f"packages for the {purpose}", purpose != "commands" and not IS_CHECKOUT
    if not (missing or broken):
        return Finding(what, True, f"{len(PACKAGES[purpose])} installed")
    said = [f"{', '.join(missing)} not installed"] if missing else []
    fix = "make book installs all, or pip install -r requirements.txt" if IS_CHECKOUT else _extra(purpose)
    return Finding(what, False, f"{'; '.join([*said, *broken])}: {fix}", optional)


def _extra(purpose: str) -> str:
    extra = {"commands": "", "kernels": "[cu12] or [cu13]", "book": "[book]", "batch": "[batch]"}[purpose]
    return f"reinstall labkernels{extra}"


def _try(what: str, look: Callable[[], str], optional: bool = False) -> Finding:
    try:
        return Finding(what, True, look(), optional)
    except Exception as error:  # a missing package, too, is a finding
        return Finding(what, False, _first_line(error), optional)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _assembler() -> Finding:
    def look() -> str:
        from labkernels.kernels.build import assemble
        from labkernels.kernels.registry import kernel

        built = assemble(kernel("tma_bulk", "issue", per_copy="copy"))
        return f"{built.spec.name} built for {built.arch}, {len(built.cubin)} bytes"

    return _try("assembler", look, optional=not IS_CHECKOUT)


def _disassembler() -> Finding:
    def look() -> str:
        from labkernels.kernels.sass import tool

        return f"{tool('nvdisasm')}, {tool('cuobjdump')}"

    return _try("disassembler", look)


def _gpu() -> Finding:
    def look() -> str:
        from labkernels.device import Gpu

        facts = Gpu().facts
        return f"{facts.name}, {facts.sm_count} SMs, {facts.arch}, CUDA {facts.driver_api}"

    return _try("GPU", look, optional=True)


def _counters() -> Finding:
    path = shutil.which("ncu")
    missing = (
        "ncu (Nsight Compute) is not on the PATH: experiments that count with it cannot be measured here"
    )
    return Finding("profiler", path is not None, path or missing, optional=True)
