"""Code that its licence forbids to disassemble: NVIDIA's closed libraries, told by name and by what is inside."""

import re
import zipfile
from collections.abc import Iterable
from pathlib import PurePath

from labkernels.errors import LabError

_LIBRARY = re.compile(
    r"lib(cublas|nvblas|cudnn|cufft|curand|cusolver|cusparse|cutensor|cudss|custatevec|cudensitymat|npp|nvjpeg"
    r"|nvtiff|nvcomp|nvinfer|nvshmem|cudadevrt|cudart|cuda|nvrtc|nvptxcompiler|nvjitlink)[\w.-]*\.(so|a)\b",
    re.IGNORECASE,
)
_KERNEL = re.compile(
    r"(_ZN?K?\d+)?(cublas|cudnn|cufft|cusolver|cusparse|cutensor|nvjet_|sm\d+_xmma_)", re.IGNORECASE
)
_CLAUSE = re.compile(rb"(reverse[\s-]+engineer|decompil)[^.]{0,80}disassembl", re.IGNORECASE)
_PROPRIETARY = re.compile(rb"^(License|Classifier: License)[^\n]*proprietary", re.IGNORECASE | re.MULTILINE)


class ClosedError(LabError, ValueError):
    """A file whose licence forbids disassembly; the message names the mark and the option for who may."""

    def __init__(self, mark: str) -> None:
        super().__init__(
            f"{mark}: the licence of NVIDIA's closed libraries forbids to disassemble them, so this is left closed; "
            "whoever has leave gives --may-disassemble"
        )


def refuse_name(path: str, own_name: str = "") -> None:
    """Refuse a library by the name of its file, or by the one that it carries inside (its SONAME)."""
    name = PurePath(path).name
    for known in (name, own_name):
        if _LIBRARY.match(known):
            raise ClosedError(known if known == name else f"it calls itself {known}")


def refuse_kernels(symbols: Iterable[str]) -> None:
    """Refuse a cubin by the names of its kernels: closed libraries are also linked into others, or unpacked."""
    if closed := next((symbol for symbol in symbols if _KERNEL.match(symbol)), None):
        raise ClosedError(f"kernel {closed[:80]}")


def refuse_wheel(wheel: zipfile.ZipFile) -> None:
    """Refuse a wheel that calls its licence proprietary and carries one that forbids disassembly."""
    entries = [
        info for info in wheel.infolist() if ".dist-info/" in info.filename and info.file_size < 1 << 22
    ]
    metadata = [wheel.read(one) for one in entries if one.filename.endswith("/METADATA")]
    licences = [one for one in entries if re.search(r"licen[sc]e[^/]*$", one.filename, re.IGNORECASE)]
    if any(map(_PROPRIETARY.search, metadata)):
        for one in licences:
            if _CLAUSE.search(wheel.read(one)):
                raise ClosedError(one.filename)
