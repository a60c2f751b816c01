"""PTX compiled as a whole program, by ptxas: in relocatable code, as nvJitLink compiles, setmaxnreg is ignored."""

import re
import subprocess
import tempfile
from pathlib import Path

from labkernels.kernels import sass
from labkernels.kernels.render import AssemblyError


def compile_whole(module: str, arch: str, threads: int) -> bytes:
    """One PTX module as a cubin. Whatever ptxas says is an error: serialized wgmma, a setmaxnreg that it ignores.

    Args:
        module: its text, with an entry.
        arch: `sm_90a` or `sm_100a`.
        threads: of a block, alone on its SM: how many registers it has to share out.

    Raises:
        AssemblyError: with what ptxas said.
        LabError: there is no ptxas.
    """
    bounds = f")\n.reqntid {threads}\n.minnctapersm 1\n{{"
    module = re.sub(r"(?<=^)\)\n\{", bounds, module, count=1, flags=re.M)
    with tempfile.TemporaryDirectory() as folder:
        text, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        text.write_text(module)
        command = [sass.tool("ptxas"), "-arch", arch, "-o", cubin, text]
        done = subprocess.run(command, capture_output=True, text=True)
        said = " ".join((done.stdout + done.stderr).split())
        if done.returncode or said:
            raise AssemblyError(f"ptxas: {said or done.returncode}")
        return cubin.read_bytes()
