"""As much of the ELF format as compiled kernels need: whether a file is whole, and how much code it holds."""

from __future__ import annotations

import struct

_EXECUTABLE = 0x2 | 0x4  # allocated, and with instructions


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
        order = _order(data)
        (table,) = struct.unpack_from(order + "Q", data, 0x28)
        size, count, names = struct.unpack_from(order + "3H", data, 0x3A)
        headers = [struct.unpack_from(order + "IIQQQQ", data, table + index * size) for index in range(count)]
        strings = headers[names][4]
    except (struct.error, IndexError) as error:
        raise ValueError(f"not an ELF file with sections: {error}") from error
    code = (
        (strings + name, length) for name, _, flags, _, _, length in headers if flags & _EXECUTABLE == _EXECUTABLE
    )
    return [(data[start : data.index(b"\0", start)].decode("ascii", "replace"), length) for start, length in code]


def _order(data: bytes) -> str:
    return "<" if data[5] == 1 else ">"
