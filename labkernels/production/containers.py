"""Files that carry GPU code, unpacked into cubins: cubin, fatbin, object, library, wheel, PTX."""

import mmap
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from labkernels.errors import LabError
from labkernels.kernels.sass import DisassemblyError, run_tool

WHEEL_LIMIT_BYTES = 16 << 30
FREE_BYTES = 64 << 20  # what a member and a wheel may unpack to, however well they are compressed
RATIO_LIMIT = 100
PTX_LIMIT_BYTES = 64 << 20

_BY_HAND = "unpack it yourself and pass the files"
_ELF = b"\x7fELF"
_FATBIN = struct.pack("<I", 0xBA55ED50)
_BINARY = (_ELF, _FATBIN, b"!<arch>\n")
_CUDA_MACHINE = 190
_ELF_KIND = 2


class UnreadableError(LabError, ValueError):
    """A file without GPU code, damaged, or refused; the message says why."""


class NoCodeError(UnreadableError):
    """A sound file that simply carries no GPU code."""


@dataclass(frozen=True)
class Cubin:
    """One cubin on disk: `member` names the file of a wheel it came from, `arch` reads like `sm_90a`."""

    member: str
    arch: str
    path: Path


def unpack(path: Path, scratch: Path) -> tuple[list[Cubin], list[str]]:
    """All cubins that a file carries (PTX assembled), and what kept the rest of it from being read.

    Args:
        path: Cubin, fatbin, host object, archive or shared library, wheel (or other zip), or PTX.
        scratch: Existing empty directory; the cubins are written below it.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            return [], ["neither a file nor a link to one: write it to a file first"]
        with path.open("rb") as file:
            head = file.read(4)
        if head == b"PK\x03\x04":
            return _unpack_wheel(path, scratch)
        return _unpack_binary(path, "", scratch), []
    except UnreadableError as error:
        return [], [str(error)]
    except OSError as error:
        return [], [error.strerror or str(error)]


def _unpack_wheel(path: Path, scratch: Path) -> tuple[list[Cubin], list[str]]:
    cubins: list[Cubin] = []
    errors: list[str] = []
    left_bytes = min(WHEEL_LIMIT_BYTES, max(RATIO_LIMIT * path.stat().st_size, FREE_BYTES))
    try:
        with zipfile.ZipFile(path) as wheel:
            for number, info in enumerate(wheel.infolist()):
                # The name inside the wheel is only a label: what is written is called by its number.
                binary = scratch / str(number) / "binary"
                found: list[Cubin] = []
                try:
                    with wheel.open(info) as source:
                        head = source.read(8)
                        if not head.startswith(_BINARY) and not info.filename.endswith(".ptx"):
                            continue
                        if left_bytes <= 0:
                            errors.append(
                                f"{info.filename} and what follows: too much for a wheel of its size; {_BY_HAND}"
                            )
                            break
                        binary.parent.mkdir()
                        allowed = min(left_bytes, max(RATIO_LIMIT * info.compress_size, FREE_BYTES))
                        left_bytes -= _copy(source, head, binary, allowed)
                    if binary.stat().st_size > allowed:
                        raise UnreadableError(
                            f"unpacks to more than {allowed} bytes, too much for its size; {_BY_HAND}"
                        )
                    found = _unpack_binary(binary, info.filename, binary.parent)
                    cubins += found
                except NoCodeError:
                    continue
                except (UnreadableError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
                    errors.append(f"{info.filename}: {error}")
                finally:
                    if all(cubin.path != binary for cubin in found):
                        binary.unlink(missing_ok=True)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        errors.append(f"damaged zip: {error}")
    if not cubins and not errors:
        errors.append("no file of the wheel contains CUDA device code")
    return cubins, errors


def _copy(source: IO[bytes], head: bytes, target: Path, limit_bytes: int) -> int:
    """Write until there is no more, or more than the limit; returns the bytes written."""
    written = len(head)
    with target.open("wb") as file:
        file.write(head)
        while written <= limit_bytes and (block := source.read(1 << 20)):
            written += file.write(block)
    return written


def _unpack_binary(path: Path, member: str, scratch: Path) -> list[Cubin]:
    size_bytes = path.stat().st_size
    if not size_bytes:
        raise UnreadableError("empty file")
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith(_ELF):
        _check_elf(head, size_bytes)
    elif not head.startswith(_BINARY):
        return [_assemble(path, member, scratch)]
    listed = re.findall(r"^ELF file +\d+: (.+)$", _cuobjdump("-lelf", path), re.MULTILINE)
    if not listed:
        raise NoCodeError("no cubin in this file; PTX inside it can be passed after cuobjdump -xptx all")
    if head.startswith(_ELF) and _machine(head) == _CUDA_MACHINE:
        return [Cubin(member, _arch(listed[0]), path)]
    if len(set(listed)) == len(listed):
        _cuobjdump("-xelf", "all", path, cwd=scratch)
        return [Cubin(member, _arch(name), scratch / name) for name in listed]
    return _extract_one_by_one(path, member, scratch, len(listed))


def _check_elf(head: bytes, size_bytes: int) -> None:
    if len(head) < 64 or head[4] != 2 or head[5] != 1:
        raise UnreadableError("not a 64-bit little-endian ELF file, or cut off inside its header")
    sections_at, entry_bytes, entries = (
        *struct.unpack_from("<Q", head, 40),
        *struct.unpack_from("<HH", head, 58),
    )
    needed = sections_at + entry_bytes * entries
    if needed > size_bytes:
        raise UnreadableError(
            f"truncated: its ELF header speaks of {needed} bytes, the file has {size_bytes}"
        )


def _machine(head: bytes) -> int:
    return struct.unpack_from("<H", head, 18)[0]


def _arch(cubin_name: str) -> str:
    match = re.search(r"\.(sm_\w+)\.cubin$", cubin_name)
    return match[1] if match else "unknown"


def _cuobjdump(*arguments: str | Path, cwd: Path | None = None) -> str:
    try:
        return run_tool(
            "cuobjdump", *(str(a.resolve() if isinstance(a, Path) else a) for a in arguments), cwd=cwd
        )
    except DisassemblyError as error:
        if "does not contain device code" in str(error):
            raise NoCodeError("no CUDA device code in this file, or it is damaged") from None
        raise UnreadableError(re.sub(r" (in|from) '[^']*'", "", str(error))) from None


def _extract_one_by_one(path: Path, member: str, scratch: Path, expected: int) -> list[Cubin]:
    """Cubins that share a name, which cuobjdump would write over each other: one fatbin is made of each."""
    result = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for number, entry in enumerate(_fatbin_entries(data)):
            directory = scratch / f"entry{number}"
            directory.mkdir()
            single = directory / "single.fatbin"
            single.write_bytes(_FATBIN + struct.pack("<HHQ", 1, 16, len(entry)) + entry)
            name = _cuobjdump("-lelf", single).strip().partition(": ")[2]
            _cuobjdump("-xelf", "all", single, cwd=directory)
            result.append(Cubin(member, _arch(name), directory / name))
    if len(result) != expected:
        raise UnreadableError(f"{expected} cubins listed, {len(result)} found: some share a name")
    return result


def _fatbin_entries(data: mmap.mmap) -> Iterator[bytes]:
    start = data.find(_FATBIN)
    while start >= 0:
        version, header_bytes, body_bytes = struct.unpack_from("<HHQ", data, start + 4)
        end = start + header_bytes + body_bytes
        if version != 1 or header_bytes != 16 or end > len(data):
            start = data.find(_FATBIN, start + 1)
            continue
        at = start + header_bytes
        while at + 64 <= end:
            kind, _, entry_header_bytes, payload_bytes = struct.unpack_from("<HHIQ", data, at)
            if entry_header_bytes < 64:
                break
            following = at + entry_header_bytes + payload_bytes
            if kind == _ELF_KIND:
                yield data[at:following]
            at = following
        start = data.find(_FATBIN, end)


def _assemble(path: Path, member: str, scratch: Path) -> Cubin:
    if path.stat().st_size > PTX_LIMIT_BYTES:
        raise UnreadableError(f"not a CUDA file; as PTX it would exceed {PTX_LIMIT_BYTES} bytes")
    text = path.read_text(errors="replace")
    target = re.search(r"^\s*\.target\s+(sm_\w+)", text, re.MULTILINE)
    if "\0" in text or not re.search(r"^\s*\.version\s+\d", text, re.MULTILINE) or not target:
        raise UnreadableError("not a cubin, fatbin, library, wheel or complete PTX (.version and .target)")
    cubin = scratch / f"{path.stem}.assembled.cubin"
    try:
        # -c keeps functions that nothing here calls, and leaves calls to others open.
        run_tool("ptxas", "-c", "-arch", target[1], "-o", str(cubin), str(path.resolve()))
    except DisassemblyError as error:
        raise UnreadableError(str(error)) from None
    return Cubin(member, target[1], cubin)
