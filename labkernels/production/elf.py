"""What a cubin's ELF tables say without a disassembler: architecture, kernels, system calls; cubins inside a file."""

import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

MAGIC = b"\x7fELF"
CUDA_MACHINE = 190

_NO_BYTES = 8  # SHT_NOBITS
_SYMBOLS = 2  # SHT_SYMTAB
_CALLGRAPH = 0x70000001
_DYNAMIC = 6  # SHT_DYNAMIC
_SONAME = 14  # DT_SONAME
_THREADS = (b"\x04\x10\x0c\x00", b"\x04\x05\x0c\x00")  # required, or at most: three numbers of 4 bytes
_FUNCTION = 2  # STT_FUNC
_KERNEL = 0x10  # STO_CUDA_ENTRY, in st_other
_NEW_FLAGS = 8  # EI_ABIVERSION from CUDA 13's layout on: the architecture is the second byte of the flags


@dataclass(frozen=True)
class Section:
    """One section: its name, type, and bytes in the file (none of NOBITS)."""

    name: str
    kind: int
    start: int
    size: int
    link: int


class Elf:
    """A 64-bit little-endian ELF image somewhere in a file's bytes.

    Args:
        data: The bytes that hold it.
        start: Where it begins.

    Raises:
        ValueError: Not such an image, or its tables point outside the bytes.
    """

    def __init__(self, data: bytes | mmap.mmap, start: int = 0) -> None:
        self.data, self.start = data, start
        try:
            ident = self.data[start : start + 16]
            if ident[:6] != MAGIC + b"\x02\x01":
                raise ValueError("no 64-bit little-endian ELF image")
            self._new = ident[8] >= _NEW_FLAGS
            (self.machine,) = struct.unpack_from("<H", self.data, start + 18)
            self._segments_at, self._sections_at, self.flags = struct.unpack_from(
                "<QQI", self.data, start + 32
            )
            self._counts = struct.unpack_from("<HHHHH", self.data, start + 54)
        except (struct.error, IndexError):
            raise ValueError("an ELF header that is cut off") from None

    @cached_property
    def sections(self) -> list[Section]:
        """All sections in order of their table."""
        _, _, entry_bytes, count, names = self._counts
        try:
            rows = [
                struct.unpack_from("<IIQQQQII", self.data, self.start + self._sections_at + entry_bytes * n)
                for n in range(count)
            ]
            table = self._text(rows[names][4], rows[names][5]) if rows else b""
        except (struct.error, IndexError):
            raise ValueError("section table outside the file") from None
        sections = [
            Section(_name(table, row[0]), row[1], row[4], 0 if row[1] == _NO_BYTES else row[5], row[6])
            for row in rows
        ]
        if any(self.start + s.start + s.size > len(self.data) for s in sections):
            raise ValueError("a section reaches beyond the file")
        return sections

    @property
    def size_bytes(self) -> int:
        """Bytes from its start to the end of the last of its tables, sections and segments."""
        segment_bytes, segments, section_bytes, sections, _ = self._counts
        ends = [s.start + s.size for s in self.sections]
        ends += [self._sections_at + section_bytes * sections, self._segments_at + segment_bytes * segments]
        return max(ends)

    @property
    def arch(self) -> str:
        """Of a cubin: `sm_90`, `sm_90a`, `sm_100f`.

        The flags have the number, of CUDA 12's compilers also the `a`; the rest is in what ptxas was told, a note.
        """
        number = self.flags >> 8 & 0xFF if self._new else self.flags & 0xFF
        notes = b"".join(self._text(s.start, s.size) for s in self.sections if s.name == ".note.nv.tkinfo")
        told = re.search(rb"-arch[= ]+sm_%d([af])\b" % number, notes)
        suffix = told[1].decode() if told else "a" if self.flags & (0x8 if self._new else 0x800) else ""
        return f"sm_{number}{suffix}"

    @property
    def own_name(self) -> str:
        """What a shared library calls itself (SONAME), or nothing."""
        for section in self.sections:
            if section.kind == _DYNAMIC and section.link < len(self.sections):
                names = self.sections[section.link]
                for tag, value in struct.iter_unpack(
                    "<QQ", self._text(section.start, section.size // 16 * 16)
                ):
                    if tag == _SONAME:
                        return _name(self._text(names.start, names.size), value)
        return ""

    @cached_property
    def symbols(self) -> list[tuple[str, int, int]]:
        """Name, type and `st_other` of each symbol."""
        found = []
        for section in self.sections:
            if section.kind == _SYMBOLS and section.link < len(self.sections):
                names = self.sections[section.link]
                table = self._text(names.start, names.size)
                for name, info, other, *_ in struct.iter_unpack(
                    "<IBBHQQ", self._text(section.start, section.size // 24 * 24)
                ):
                    found.append((_name(table, name), info & 0xF, other))
        return found

    @property
    def kernels(self) -> list[str]:
        """Linker names of its kernels."""
        return [name for name, kind, other in self.symbols if kind == _FUNCTION and other & _KERNEL]

    def most_threads(self, kernel: str) -> int | None:
        """Threads of a CTA that a kernel was compiled for, if it says so."""
        for section in self.sections:
            if section.name == f".nv.info.{kernel}":
                text = self._text(section.start, section.size)
                for mark in _THREADS:
                    if (at := text.find(mark)) >= 0 and at + 16 <= len(text):
                        x, y, z = struct.unpack_from("<III", text, at + 4)
                        return x * y * z
        return None

    def calls(self) -> dict[str, set[str]]:
        """Names of functions that each function may call, system calls of the driver among them."""
        result: dict[str, set[str]] = {}
        for section in self.sections:
            if section.kind == _CALLGRAPH:
                text = self._text(section.start, section.size // 8 * 8)
                for caller, callee in struct.iter_unpack("<II", text):
                    if caller < len(self.symbols) and callee < len(self.symbols):
                        result.setdefault(self.symbols[caller][0], set()).add(self.symbols[callee][0])
        return result

    def _text(self, start: int, size: int) -> bytes:
        return self.data[self.start + start : self.start + start + size]


def _name(table: bytes, start: int) -> str:
    return table[start : table.find(b"\0", start)].decode(errors="replace")


def embedded(data: bytes | mmap.mmap) -> Iterator[tuple[int, int]]:
    """Start and end of each whole cubin in some bytes, whatever section they lie in."""
    at = 0
    while (at := data.find(MAGIC, at)) >= 0:
        try:
            image = Elf(data, at)
            size = image.size_bytes if image.machine == CUDA_MACHINE else 0
        except ValueError:
            size = 0
        if size:
            yield at, at + size
        at += size or len(MAGIC)
