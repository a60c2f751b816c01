"""From a kernel's spec to a built kernel: Numba side and rendered PTX linked, its promise kept, the result cached.

Needs no GPU. The cache is keyed by everything that can change machine code or what is told of it.
"""

import hashlib
import json
import os
import re
import signal
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from labkernels.errors import BadArgument
from labkernels.kernels.registry import KernelSpec
from labkernels.kernels.render import AssemblyError, Parameter, declared, render
from labkernels.mechanisms import ARCHITECTURES
from labkernels.operand import WARP
from labkernels.paths import CACHE

KERNELS = CACHE / "kernels"

#: Environment variable that asks for kernels that compute-sanitizer can follow.
SANITIZER = "LABKERNELS_SANITIZER"

#: Threads at the start of a block that copy nothing: the consumer warp of a warp-specialized ring.
CONSUMER_THREADS = WARP

#: What a cached kernel depends on besides its PTX, its spec and the tools.
SOURCES = [Path(__file__).parent / f"{name}.py" for name in ("entry", "link", "numba_side", "whole")]

#: What is told of a kernel depends on this, too; when it changes, the machine code is read again, and not made again.
READER = Path(__file__).parent / "sass.py"


@dataclass(frozen=True)
class BuiltKernel:
    """One assembled kernel.

    Attributes:
        spec: what it is.
        arch: `sm_90a` or `sm_100a`.
        entry: name of its entry point.
        parameters: what a launch gives it, in order.
        ptx: the rendered PTX of the mechanism, which holds the timed region.
        ptx_sha256: hash of that text; stored with every measurement.
        cubin: linked machine code.
        registers: per thread, of the entry and what it calls.
        shared_bytes: static shared memory per block.
        opcodes: SASS opcode with modifiers → static count, entry and mechanism together.
        mechanisms: mechanism or feature, as `sass` names them → static count in the timed function.
        loop_opcodes: opcodes with modifiers that stand in a loop of the timed function.
        timed: name of the function that holds the timed region: the mechanism's, or the entry it was written into.
    """

    spec: KernelSpec
    arch: str
    entry: str
    parameters: tuple[Parameter, ...]
    ptx: str
    ptx_sha256: str
    cubin: bytes
    registers: int
    shared_bytes: int
    opcodes: dict[str, int]
    mechanisms: dict[str, int]
    loop_opcodes: list[str]
    timed: str

    def count(self, opcode: str) -> int:
        """Static count of a SASS opcode whatever its modifiers: `count("LDG")` does not count LDGSTS."""
        return sum(n for name, n in self.opcodes.items() if name == opcode or name.startswith(f"{opcode}."))


def is_warp_specialized(spec: KernelSpec) -> bool:
    """Whether the kernel's first warp only consumes: a stream whose stages have barriers."""
    return spec.protocol == "stream" and declared(spec).max_stages is not None


@cache
def toolchain() -> dict[str, str]:
    """Versions of what turns Python and PTX into machine code."""
    names = ("numba-cuda", "numba", "cuda-core", "cuda-bindings", "nvidia-nvjitlink-cu12", "nvidia-nvjitlink")
    installed = {name: _version(name) for name in names}
    return {name: version for name, version in installed.items() if version}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def assemble(spec: KernelSpec, arch: str = "sm_90a", cache_dir: Path = KERNELS) -> BuiltKernel:
    """Build one kernel, or take it from the cache.

    Raises:
        BadArgument: unknown architecture.
        AssemblyError: PTX or link failed, or the machine code breaks the registry's promise.
    """
    if arch not in ARCHITECTURES:
        raise BadArgument(f"architecture {arch!r} is not supported; choose one of {', '.join(ARCHITECTURES)}")
    if arch not in spec.architectures:
        raise BadArgument(f"{spec.name} does not exist for {arch}, only for {', '.join(spec.architectures)}")
    ptx = render(spec, arch, sanitizer=bool(os.environ.get(SANITIZER)))
    sources = [ptx, spec.name, arch, json.dumps(toolchain()), str(spec.max_registers), *spec.traits.opcodes]
    sources += [file.read_text() for file in SOURCES]
    key = _hash(*sources)
    cubin_file, parameters_file = cache_dir / f"{key}.cubin", cache_dir / f"{key}.json"
    facts_file = cache_dir / f"{_hash(key, READER.read_text())}.json"
    entry = re.sub(r"\W+", "_", f"{spec.name}_kernel")
    if built := parameters_file.exists():
        parameters, cubin = json.loads(parameters_file.read_text()), cubin_file.read_bytes()
    else:
        cubin, parameters = _machine_code(spec, ptx, arch, entry)
    if known := facts_file.exists():
        facts, found = json.loads(facts_file.read_text())
    else:
        from labkernels.kernels.link import examine

        facts, found = examine(spec, cubin)
    if broken := spec.broken_promise(facts["mechanisms"], found):
        raise AssemblyError(f"{spec.name}: {broken}")
    cache_dir.mkdir(parents=True, exist_ok=True)
    if not built:
        _write(cubin_file, cubin)
        _write(parameters_file, json.dumps(parameters).encode())
    if not known:
        _write(facts_file, json.dumps([facts, found]).encode())
    return BuiltKernel(
        spec=spec,
        arch=arch,
        entry=entry,
        parameters=tuple(declared(spec).parameter(*one) for one in parameters.items()),
        ptx=ptx,
        ptx_sha256=hashlib.sha256(ptx.encode()).hexdigest(),
        cubin=cubin,
        **facts,
    )


def _machine_code(spec: KernelSpec, ptx: str, arch: str, entry: str) -> tuple[bytes, dict[str, str]]:
    from labkernels.kernels.link import inline, link
    from labkernels.kernels.whole import compile_whole

    text, parameters = _numba_side(spec, arch, entry)
    modules = [text, ptx] if ".visible .func" in ptx else [inline(text, ptx)]
    try:
        if spec.moves_registers:
            return compile_whole(*modules, arch, spec.mainloop_threads), parameters
        return link(modules, arch, spec.max_registers), parameters
    except AssemblyError as error:
        raise AssemblyError(f"{spec.name}: its PTX does not assemble: {error}") from error


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _numba_side(spec: KernelSpec, arch: str, entry: str) -> tuple[str, dict[str, str]]:
    from labkernels.kernels import numba_side

    of = dict(spec.constants)
    constants = {
        "stream": (CONSUMER_THREADS if is_warp_specialized(spec) else 0,),
        "gather": (of.get("tile_rows"), of.get("row_bytes")),
    }
    arguments = tuple(declared(spec).arguments.items())
    text, parameters = numba_side.compiled(
        spec.protocol, constants.get(spec.protocol, ()), spec.function, arguments, arch
    )
    return text.replace(numba_side.ENTRY, entry), parameters


def _write(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


def assemble_all(
    specs: Iterable[KernelSpec], arch: str = "sm_90a", cache_dir: Path = KERNELS, workers: int | None = None
) -> Iterator[BuiltKernel]:
    """Build many kernels in parallel processes; yields each as it is done, in order.

    Kernels that do not exist for the architecture are left out.

    Args:
        specs: what to build.
        arch: `sm_90a` or `sm_100a`.
        cache_dir: where built kernels are kept.
        workers: processes; by default one per core.
    """
    specs = [spec for spec in specs if arch in spec.architectures]
    quiet = {
        "initializer": signal.signal,
        "initargs": (signal.SIGINT, signal.SIG_IGN),
    }  # Ctrl-C ends the parent
    with ProcessPoolExecutor(workers or os.cpu_count(), **quiet) as pool:
        count = len(specs)
        yield from pool.map(assemble, specs, [arch] * count, [cache_dir] * count, chunksize=4)
