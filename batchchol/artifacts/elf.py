"""As much of the ELF format as compiled kernels need: whether a file is whole, and how much code it holds."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_ALLOCATED = 0x2
_EXECUTABLE = _ALLOCATED | 0x4  # with instructions
_PROGBITS, _RELA, _NOBITS, _DYNSYM = 1, 4, 8, 11
# Sections of a kernel: code, its constants, and those of a CUDA module.
_RUN = ("text", "rodata", "data", "nv.constant", "nv.shared", "nv.global")
# In a CUDA module these belong to all kernels.
_COMMON = (".nv.constant3", ".nv.constant4", ".nv.global", ".nv.global.init")


@dataclass(frozen=True)
class Section:
    """A part of a file: `start` and `length` are its bytes; the other names are the format's."""

    name: str
    type: int
    flags: int
    start: int
    length: int
    link: int
    info: int

    @property
    def family(self) -> str:
        """The name without that of a kernel: "text" of ".text.potrf"."""
        return next((family for family in _RUN if self.name.startswith(f".{family}")), "")

    def is_run(self, entry: str | None) -> bool:
        """Whether it is code, constants or room for data; of the kernel `entry` alone, if one is named."""
        common = entry is None or self.name in _COMMON or self.name.endswith(f".{entry}")
        return bool(self.flags & _ALLOCATED and self.type in (_PROGBITS, _NOBITS) and self.family) and common


def is_whole(data: bytes) -> bool:
    """Whether these are a 64-bit ELF file whose section and program tables lie inside it.

    Linkers write the one last, CUDA's assembler the other.
    """
    if len(data) < 64 or data[:5] != b"\x7fELF\x02":
        return False
    segments, sections = struct.unpack_from(_order(data) + "QQ", data, 0x20)
    segment_size, segment_count, section_size, section_count = struct.unpack_from(_order(data) + "4H", data, 0x36)
    return bool(
        sections > 0
        and section_count > 0
        and sections + section_size * section_count <= len(data)
        and segments + segment_size * segment_count <= len(data)
    )


def code_sections(data: bytes) -> list[tuple[str, int]]:
    """Name and bytes of each section with executable code in a 64-bit ELF file.

    Raises
    ------
    ValueError
        If it is damaged.
    """
    try:
        return [(each.name, each.length) for each in _sections(data) if each.flags & _EXECUTABLE == _EXECUTABLE]
    except (struct.error, IndexError) as error:
        raise ValueError(f"not an ELF file with sections: {error}") from error


def fingerprint(data: bytes, entry: str | None = None) -> str:
    """A hash of what a 64-bit ELF file would run: its code and constants, and nothing that names or dates it.

    Of a CUDA module it is that of the kernel `entry` alone, its registers included.

    Raises
    ------
    ValueError
        If it is damaged.
    """
    digest = hashlib.sha256()
    try:
        for section in _sections(data):
            if section.is_run(entry):
                # CUDA keeps the number of registers above the index of a symbol.
                registers = section.info >> 24 if entry else 0
                digest.update(f"{section.family} {section.length} {registers} ".encode())
                digest.update(data[section.start :][: section.length] if section.type == _PROGBITS else b"")
        if entry is None:
            digest.update(" ".join(_called(data)).encode())
    except (struct.error, IndexError) as error:
        raise ValueError(f"not an ELF file with sections: {error}") from error
    return digest.hexdigest()


def _called(data: bytes) -> Iterator[str]:
    """What the loader looks up for a shared object: functions of other libraries, whose calls look alike."""
    sections, order = [*_sections(data)], _order(data)
    for section in sections:
        symbols = sections[section.link]
        if section.type != _RELA or symbols.type != _DYNSYM:
            continue
        names = sections[symbols.link].start
        for start in range(section.start, section.start + section.length, 24):
            (info,) = struct.unpack_from(order + "Q", data, start + 8)
            (name,) = struct.unpack_from(order + "I", data, symbols.start + 24 * (info >> 32))
            yield f"{info & 0xFFFFFFFF} {_text(data, names + name)}"


def _sections(data: bytes) -> Iterator[Section]:
    order = _order(data)
    (table,) = struct.unpack_from(order + "Q", data, 0x28)
    size, count, names = struct.unpack_from(order + "3H", data, 0x3A)
    headers = [struct.unpack_from(order + "IIQQQQII", data, table + index * size) for index in range(count)]
    strings = headers[names][4]
    for name, kind, flags, _, start, length, link, info in headers:
        yield Section(_text(data, strings + name), kind, flags, start, length, link, info)


def _order(data: bytes) -> str:
    return "<" if data[5] == 1 else ">"


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode("ascii", "replace")
