"""Files that carry GPU code, unpacked into cubins: cubin, fatbin, object, library, wheel, PTX."""

import mmap
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from labkernels.errors import LabError
from labkernels.kernels.sass import DisassemblyError, run_tool
from labkernels.production import closed, flash_names
from labkernels.production.closed import ClosedError
from labkernels.production.elf import CUDA_MACHINE, Elf, embedded

WHEEL_LIMIT_BYTES = 16 << 30
FREE_BYTES = 64 << 20  # what a member and a wheel may unpack to, however well they are compressed
RATIO_LIMIT = 100
PTX_LIMIT_BYTES = 64 << 20

_BY_HAND = "unpack it yourself and pass the files"
_ELF = b"\x7fELF"
_ZIP = b"PK\x03\x04"
_FATBIN = struct.pack("<I", 0xBA55ED50)
_BINARY = (_ELF, _FATBIN, b"!<arch>\n")
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


@dataclass(frozen=True)
class Selection:
    """Which code to look at; what is left out is never disassembled.

    Attributes:
        archs: As in `sm_90a`; all if there are none.
        kernel: Part of a kernel's name, mangled or not.
        closed: Also what its licence forbids to disassemble.
    """

    archs: tuple[str, ...] = ()
    kernel: str = ""
    closed: bool = False

    def has_arch(self, arch: str) -> bool:
        """Whether code for an architecture is looked at."""
        return not self.archs or arch in self.archs

    def has_kernel(self, symbol: str) -> bool:
        """Whether a kernel is looked at."""
        return self.kernel in symbol or self.kernel in flash_names.demangle(symbol)

    def has(self, image: Elf) -> bool:
        """Whether a cubin may hold something to look at; without kernels only if none is named.

        Raises:
            ClosedError: Its kernels are a closed library's.
        """
        if not self.has_arch(image.arch) or (self.kernel and not any(map(self.has_kernel, image.kernels))):
            return False
        if not self.closed:
            closed.refuse_kernels(image.kernels)
        return True


ALL = Selection()


def files(path: Path) -> Iterator[Path]:
    """What to read of an argument: the file, or all below a folder that may hold GPU code.

    A folder's PTX is left out where its cubin lies beside it, as in Triton's cache.
    """
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            one = Path(folder, name)
            if one.is_file() and not (one.suffix == ".ptx" and one.with_suffix(".cubin").name in names):
                with suppress(OSError), one.open("rb") as file:
                    if _may_hold_code(name, file.read(8)):
                        yield one


def _may_hold_code(name: str, head: bytes) -> bool:
    return head.startswith(_BINARY) or name.endswith(".ptx") or (head[:4] == _ZIP and name.endswith(".whl"))


def unpack(
    path: Path, scratch: Path, selection: Selection = ALL, empty_is_fine: bool = False
) -> Iterator[Cubin | str]:
    """The cubins that a file carries (PTX assembled), one after another, and what kept others from being read.

    Args:
        path: Cubin, fatbin, host object, archive or shared library, wheel (or other zip), or PTX.
        scratch: Existing empty directory; the cubins are written below it.
        selection: Which of them.
        empty_is_fine: Whether a sound file without GPU code is worth no word.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            yield "neither a file nor a link to one: write it to a file first"
            return
        with path.open("rb") as file:
            head = file.read(4)
        if head == _ZIP:
            yield from _unpack_wheel(path, scratch, selection)
        else:
            yield from _unpack_binary(path, "", scratch, selection)
    except (UnreadableError, ClosedError) as error:
        if not (empty_is_fine and isinstance(error, NoCodeError)):
            yield str(error)
    except OSError as error:
        yield error.strerror or str(error)


def _unpack_wheel(path: Path, scratch: Path, selection: Selection) -> Iterator[Cubin | str]:
    left_bytes = min(WHEEL_LIMIT_BYTES, max(RATIO_LIMIT * path.stat().st_size, FREE_BYTES))
    holds_code = False
    try:
        with zipfile.ZipFile(path) as wheel:
            if not selection.closed:
                closed.refuse_wheel(wheel)
            for number, info in enumerate(wheel.infolist()):
                # The name inside the wheel is only a label: what is written is called by its number.
                binary = scratch / str(number) / "binary"
                kept = False
                try:
                    with wheel.open(info) as source:
                        head = source.read(8)
                        if not head.startswith(_BINARY) and not info.filename.endswith(".ptx"):
                            continue
                        if left_bytes <= 0:
                            yield f"{info.filename} and what follows: too much for a wheel of its size; {_BY_HAND}"
                            return
                        binary.parent.mkdir()
                        allowed = min(left_bytes, max(RATIO_LIMIT * info.compress_size, FREE_BYTES))
                        left_bytes -= _copy(source, head, binary, allowed)
                    if binary.stat().st_size > allowed:
                        raise UnreadableError(
                            f"unpacks to more than {allowed} bytes, too much for its size; {_BY_HAND}"
                        )
                    for found in _unpack_binary(binary, info.filename, binary.parent, selection):
                        holds_code = True
                        kept |= isinstance(found, Cubin) and found.path == binary
                        yield found
                    holds_code = True
                except NoCodeError:
                    continue
                except (LabError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
                    holds_code = True
                    yield f"{info.filename}: {error}"
                finally:
                    if not kept:
                        binary.unlink(missing_ok=True)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        yield str(error) if isinstance(error, LabError) else f"damaged zip: {error}"
        return
    if not holds_code:
        raise NoCodeError("no file of the wheel contains CUDA device code")


def _copy(source: IO[bytes], head: bytes, target: Path, limit_bytes: int) -> int:
    """Write until there is no more, or more than the limit; returns the bytes written."""
    written = len(head)
    with target.open("wb") as file:
        file.write(head)
        while written <= limit_bytes and (block := source.read(1 << 20)):
            written += file.write(block)
    return written


def _unpack_binary(path: Path, member: str, scratch: Path, selection: Selection) -> Iterator[Cubin | str]:
    size_bytes = path.stat().st_size
    if not size_bytes:
        raise UnreadableError("empty file")
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith(_ELF):
        _check_elf(head, size_bytes)
    elif not head.startswith(_BINARY):
        yield from _assemble(path, member, scratch, selection)
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        host = _host(data) if head.startswith(_ELF) else None
        if host and host.machine == CUDA_MACHINE:
            yield from _selected(path, member, host, selection)
            return
        fatbins = list(_fatbins(data))
        bare = [one for one in embedded(data) if not any(start <= one[0] < end for start, end in fatbins)]
        extracted: list[Path | str] = []
        try:
            listed = re.findall(r"^ELF file +\d+: (.+)$", _cuobjdump("-lelf", path), re.MULTILINE)
            if not listed and not bare:
                raise NoCodeError(
                    "no cubin in this file; PTX inside it can be passed after cuobjdump -xptx all"
                )
            refused: UnreadableError | None = None
        except NoCodeError as error:
            # The tool looks in a section of their own for fatbins; CuTe DSL's libraries have theirs in plain data.
            unlisted = any(_fatbin_entries(data, fatbins))
            if not bare and not unlisted:
                raise
            listed, refused = [], error if unlisted else None
        except UnreadableError as error:
            listed, refused = [], error
        if not selection.closed:  # a library that has kernels; their list was looked at, not their code
            closed.refuse_name(member or path.name, host.own_name if host else "")
        if refused or len(set(listed)) < len(listed):  # what shares a name would be written over each other
            extracted += _extract_one_by_one(data, fatbins, scratch)
            if refused and not bare and not any(isinstance(one, Path) for one in extracted):
                raise refused
        elif listed:
            _cuobjdump("-xelf", "all", path, cwd=scratch)
            extracted += [scratch / name for name in listed]
        for number, (start, end) in enumerate(bare):
            extracted.append(scratch / f"bare.{number}.cubin")
            extracted[-1].write_bytes(data[start:end])
    for one in extracted:
        found: list[Cubin] = []
        try:
            if isinstance(one, str):
                raise UnreadableError(one)
            found += _selected(one, member, Elf(one.read_bytes()), selection)
            yield from found
        except (OSError, ValueError) as error:
            name = "" if isinstance(one, str) else one.name
            yield ": ".join(filter(None, (member, name, str(error))))
        if not found and isinstance(one, Path):
            one.unlink(missing_ok=True)


def _host(data: mmap.mmap) -> Elf | None:
    """The file's own tables, unless they are of no known kind: what NVIDIA's tool makes of them counts."""
    try:
        host = Elf(data)
        return host if host.sections else None
    except ValueError:
        return None


def _selected(path: Path, member: str, image: Elf, selection: Selection) -> Iterator[Cubin]:
    if selection.has(image):
        yield Cubin(member, image.arch, path)


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


def _cuobjdump(*arguments: str | Path, cwd: Path | None = None) -> str:
    try:
        return run_tool(
            "cuobjdump", *(str(a.resolve() if isinstance(a, Path) else a) for a in arguments), cwd=cwd
        )
    except DisassemblyError as error:
        if "does not contain device code" in str(error):
            raise NoCodeError("no CUDA device code in this file, or it is damaged") from None
        raise UnreadableError(re.sub(r" (in|from) '[^']*'", "", str(error))) from None


def _extract_one_by_one(
    data: mmap.mmap, fatbins: Iterable[tuple[int, int]], scratch: Path
) -> Iterator[Path | str]:
    """The cubins of a file's fatbins, each extracted alone, or what is wrong with it."""
    for number, entry in enumerate(_fatbin_entries(data, fatbins)):
        directory = scratch / f"entry{number}"
        directory.mkdir()
        single = directory / "single.fatbin"
        single.write_bytes(_FATBIN + struct.pack("<HHQ", 1, 16, len(entry)) + entry)
        try:
            name = _cuobjdump("-lelf", single).strip().partition(": ")[2]
            _cuobjdump("-xelf", "all", single, cwd=directory)
            yield directory / name
        except UnreadableError as error:
            source = re.match(rb"[^\0]*", entry[64:])[0].decode(errors="replace")
            yield f"cubin {number} ({Path(source).name}): {error}"
        single.unlink()


def _fatbins(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Start and end of each whole fatbin."""
    start = data.find(_FATBIN)
    while start >= 0:
        end = start + 1
        if start + 16 <= len(data):
            version, header_bytes, body_bytes = struct.unpack_from("<HHQ", data, start + 4)
            if version == 1 and header_bytes == 16 and start + header_bytes + body_bytes <= len(data):
                end = start + header_bytes + body_bytes
                yield start, end
        start = data.find(_FATBIN, end)


def _fatbin_entries(data: mmap.mmap, fatbins: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    for start, end in fatbins:
        at = start + 16
        while at + 64 <= end:
            kind, _, entry_header_bytes, payload_bytes = struct.unpack_from("<HHIQ", data, at)
            if entry_header_bytes < 64:
                break
            following = at + entry_header_bytes + payload_bytes
            if kind == _ELF_KIND:
                yield data[at:following]
            at = following


def _assemble(path: Path, member: str, scratch: Path, selection: Selection) -> Iterator[Cubin]:
    if path.stat().st_size > PTX_LIMIT_BYTES:
        raise UnreadableError(f"not a CUDA file; as PTX it would exceed {PTX_LIMIT_BYTES} bytes")
    text = path.read_text(errors="replace")
    version = re.search(r"^\s*\.version\s+(\d+)\.(\d+)", text, re.MULTILINE)
    target = re.search(r"^\s*\.target\s+(sm_\w+)", text, re.MULTILINE)
    if "\0" in text or not version or not target:
        raise UnreadableError("not a cubin, fatbin, library, wheel or complete PTX (.version and .target)")
    if not selection.has_arch(target[1]):
        return
    cubin = scratch / f"{path.stem}.assembled.cubin"
    try:
        # -c keeps functions that nothing here calls, and leaves calls to others open.
        run_tool("ptxas", "-c", "-arch", target[1], "-o", str(cubin), str(path.resolve()))
    except DisassemblyError as error:
        if here := re.search(r"Unsupported \.version .*current version is '([\d.]+)'", str(error)):
            raise UnreadableError(
                f"PTX {version[1]}.{version[2]} needs the ptxas of {_cuda_of(int(version[1]), int(version[2]))} "
                f"or newer, the one here knows PTX {here[1]} at most: install the packages of CUDA 13 "
                "(make CUDA=cu13, or the extra cu13), or assemble it with your own ptxas and pass the cubin"
            ) from None
        raise UnreadableError(str(error)) from None
    try:
        image = Elf(cubin.read_bytes())
    except ValueError as error:
        raise UnreadableError(str(error)) from None
    if selection.has(image):
        yield Cubin(member, target[1], cubin)


def _cuda_of(major: int, minor: int) -> str:
    """The first CUDA whose ptxas knows a version of PTX; from PTX 9.0 on their minor versions run in step."""
    if major == 9:
        return f"CUDA 13.{minor}"
    return f"the first CUDA with PTX {major}.{minor}"
