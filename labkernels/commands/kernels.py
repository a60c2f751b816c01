"""`kernels`: assemble every kernel, count its SASS, check the registry's promises."""

from argparse import Namespace
from collections.abc import Iterator

from labkernels.commands import Answer, Option, option
from labkernels.kernels.build import assemble_all
from labkernels.kernels.registry import kernels
from labkernels.mechanisms import ARCHITECTURES, MECHANISMS
from labkernels.protocols.progress import track


def options() -> Iterator[Option]:
    """Which of them."""
    protocols = sorted({spec.protocol for spec in kernels()})
    archs = list(ARCHITECTURES)
    yield option("--arch", nargs="+", choices=archs, default=archs, help="architectures (default: all)")
    yield option("--mechanism", choices=list(MECHANISMS), help="only kernels of this mechanism")
    yield option("--protocol", choices=protocols, help="only kernels of this protocol")


def run(arguments: Namespace) -> Answer:
    """A kernel that breaks a promise is an error: what is listed is sound."""
    specs = kernels(arguments.mechanism, arguments.protocol)
    rows, lines = [], []
    for arch in arguments.arch:
        count = sum(arch in spec.architectures for spec in specs)
        for kernel in track(assemble_all(specs, arch), f"kernels for {arch}", count):
            row = {
                "kernel": kernel.spec.name,
                "arch": arch,
                "mechanism": kernel.spec.mechanism,
                "ptx_sha256": kernel.ptx_sha256,
                "registers": kernel.registers,
                "shared_bytes": kernel.shared_bytes,
                "opcodes": kernel.opcodes,
                "verdict": "ok",
            }
            own = ", ".join(f"{name} {count}" for name, count in kernel.mechanisms.items())
            rows.append(row)
            lines.append(
                f"{arch:8} {row['kernel']:56} {row['ptx_sha256'][:12]} {row['registers']:4} registers "
                f"{row['shared_bytes']:6} B shared  {own:24} ok"
            )
    return Answer({"kernels": rows}, "\n".join(lines) or "no kernel is of both")
