"""Batches as text: the format of earlier work, in which numbers are split by blanks and line breaks of any kind.

A batch: how many matrices, their order n, and the matrices row by row. One matrix: its order, and its n*n numbers. A
file is one matrix if its first number and how many follow say so, unless its first lines are those of a batch, which
then is cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.host_memory import aligned_empty
from batchchol.datasets.files import (
    SLICE_BYTES,
    Slices,
    Source,
    check_dtype,
    check_empty,
    check_space,
    checked,
    failure,
    opened,
    slice_length,
)
from batchchol.errors import DataFileError
from batchchol.files import replacing

_LONGEST_COUNT = 18  # digits of a count that is sure to be less than 2**63
_BLOCK_BYTES = 1 << 20
_PART_WORDS = 1 << 16
_WORD_OR_LINE = re.compile(rb"\n|\S+")
_SHOWN = 40  # bytes of a word that a message repeats
_BLANKS = b" \n\r\t\v\f"

# Digits that tell every number from its neighbours, however the reader rounds on the way.
_NUMBER = {"float32": "%.9g", "float64": "%.17g"}


def write_text(path: Path | str, a: NDArray[Any] | Slices) -> None:
    """Write a batch, dense (batch, n, n) or in slices, as text that reads back to the same bits.

    A matrix is a line for each row. Raises like `files.save`.
    """
    slices = a if isinstance(a, Slices) else Slices.of(a)
    line = " ".join([_NUMBER[slices.dtype]] * slices.n) + "\n"
    # A digit and a separator are the least that an element takes.
    check_space(path, 2 * slices.batch * slices.n**2)
    with replacing(path) as file:
        file.write((f"{slices.n}\n" if slices.single else f"{slices.batch}\n{slices.n}\n").encode())
        for dense in checked(slices):
            rows = dense.reshape(len(dense) * slices.n, slices.n)
            file.write("".join([line % tuple(row) for row in rows.tolist()]).encode())


def read_text(source: Source, dtype: str = "float64") -> NDArray[Any]:
    """Read a text file whole: (batch, n, n). The file does not say its precision; float64 holds both exactly.

    Raises DataFileError, naming the line, for a file that is unreadable, truncated, too long or not numeric.
    """
    slices = read_slices(source, dtype)
    shape = (slices.batch, slices.n, slices.n)
    dense = aligned_empty(shape, dtype, f"a batch of shape {shape}")
    for start, part in slices:
        dense[start : start + len(part)] = part
    return dense


def read_slices(source: Source, dtype: str = "float64") -> Slices:
    """Open a text file as slices of bounded size; raises like `read_text`, the header's errors at once."""
    check_dtype(dtype)
    with opened(source) as file:
        batch, n, single = _header(source, file)
    return Slices(batch, n, dtype, _parts(source, batch, n, dtype, single), single=single)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """A text from its first byte on, in blocks of whole words."""
    file.seek(0)
    carry = b""
    while read := file.read(_BLOCK_BYTES):
        text = carry + read
        end = 1 + max(map(text.rfind, _BLANKS))
        yield text[:end]
        carry = text[end:]
        if len(carry) >= _BLOCK_BYTES:
            # Longer than any number: what is left of it is none either.
            carry = carry[:_SHOWN] + b"..."
    yield carry


def _words(file: BinaryIO) -> Iterator[bytes]:
    return chain.from_iterable(map(bytes.split, _blocks(file)))


def _place(file: BinaryIO, index: int) -> tuple[int, int]:
    """The line of the word of an index, and its number in that line, both from 1; of none, the last line."""
    line, number = 1, 0
    for found in (match[0] for text in _blocks(file) for match in _WORD_OR_LINE.finditer(text)):
        if found == b"\n":
            line, number = line + 1, 0
            continue
        number += 1
        if index == 0:
            break
        index -= 1
    return line, number


def _fill(out: NDArray[Any], words: Iterator[bytes], source: Source, file: BinaryIO, index: int) -> int:
    """Numbers for a vector, or as many as there are, the first from the word of that index; returns how many."""
    filled = 0
    while part := list(islice(words, min(_PART_WORDS, len(out) - filled))):
        values = out[filled : filled + len(part)]
        if not _convert(part, values):
            _check(part, out.dtype.name, source, file, index + filled)
        filled += len(part)
    return filled


def _convert(words: list[bytes], out: NDArray[Any]) -> bool:
    """Write the numbers that words are; False if some of them may be none, or may not fit."""
    try:
        exact = np.array(list(map(float, words)))
    except ValueError:
        return False
    with np.errstate(over="ignore"):
        out[:] = exact
    return bool(np.isfinite(out).all()) and b"_" not in b"".join(words)


def _check(words: list[bytes], dtype: str, source: Source, file: BinaryIO, index: int) -> None:
    """Refuse the first word that is no number of `dtype`; the first of all has that index."""
    for place, word in enumerate(words, index):
        if fault := _fault(word, dtype):
            line, number = _place(file, place)
            raise failure(source, f"line {line}, number {number}", f"{_shown(word)} {fault}")


def _fault(word: bytes, dtype: str) -> str:
    """Why a word is no number of `dtype`; "" if it is one. Infinities and NaN are numbers when spelt out."""
    try:
        # Which Python takes between digits, and the format does not.
        value = float(word.replace(b"_", b"?"))
    except ValueError:
        return "is not a number"
    # Digits of the largest number may be more than it, and are read as it.
    with np.errstate(over="ignore"):
        overflows = np.isinf(np.array(value).astype(dtype))
    return f"does not fit in {dtype}" if overflows and b"n" not in word.lower() else ""


def _header(source: Source, file: BinaryIO) -> tuple[int, int, bool]:
    """How many matrices, of which order, and whether the file is of one matrix."""
    room = file.seek(0, SEEK_END)
    batch, n = 1, _count(source, file, 0, "the number of matrices, or the order of one matrix")
    single = _is_single(file, n, room)
    if not single:
        batch, n = n, _count(source, file, 1, "n")
    if not batch or not n:
        check_empty(source, "line 1", batch, n)
    # A large lie is refused before memory is asked for.
    elif 2 * batch * n * n > max(room, SLICE_BYTES):
        raise failure(source, "line 1", f"{batch} matrices of order {n} do not fit in the file's {room} bytes")
    return batch, n, single


def _is_single(file: BinaryIO, n: int, room: int) -> bool:
    """Whether a text is one matrix of this order: as many numbers follow, or the next is no number of matrices."""
    words = islice(_words(file), 1, None)
    second = next(words, b"")
    if not second or n == 0 or (n, second) == (1, b"0"):
        return False
    if not _is_count(second):
        return not _fault(second, "float64")
    enough = 2 * n * n <= room and sum(1 for _ in islice(words, n * n)) == n * n - 1
    return enough and not _has_lines_of_batch(file)


def _has_lines_of_batch(file: BinaryIO) -> bool:
    """Whether the first lines are a number, an order n and a row of n numbers."""
    file.seek(0)
    first, order, row = (file.readline(_BLOCK_BYTES).split() for _ in range(3))
    return len(first) == len(order) == 1 and 1 < int(order[0]) == len(row)


def _count(source: Source, file: BinaryIO, index: int, what: str) -> int:
    """The word of that index, which is a number of something."""
    word = next(islice(_words(file), index, None), b"")
    if not _is_count(word):
        line, _ = _place(file, index)
        raise failure(source, f"line {line}", f"{_shown(word)}, expected {what}, an integer of at least 0")
    return int(word)


def _is_count(word: bytes) -> bool:
    return word.isdigit() and len(word) <= _LONGEST_COUNT


def _parts(source: Source, batch: int, n: int, dtype: str, single: bool) -> Iterator[tuple[int, NDArray[Any]]]:
    length = slice_length(n, dtype)
    index = 1 if single else 2
    with opened(source) as file:
        words = islice(_words(file), index, None)
        for start in range(0, batch, length):
            shape = (min(length, batch - start), n, n)
            dense = aligned_empty(shape, dtype, f"a batch of shape {shape}")
            filled = _fill(dense.reshape(-1), words, source, file, index)
            index += filled
            if filled < dense.size:
                row, column = divmod(start * n * n + filled, n)
                where = f"number {column + 1} of row {row % n + 1} of matrix {row // n + 1} of {batch}"
                raise _wrong_length(source, file, index, f"the file ends before {where}", n, single)
            yield start, dense
        if next(words, None):
            raise _wrong_length(source, file, index, f"text follows the last of {batch} matrices", n, single)


def _wrong_length(source: Source, file: BinaryIO, index: int, reason: str, n: int, single: bool) -> DataFileError:
    line, _ = _place(file, index)
    return failure(source, f"line {line}", reason + _ragged(file, n, single))


def _ragged(file: BinaryIO, n: int, single: bool) -> str:
    """Of a file that begins with a row a line, the first line that is none: where a number too few or many may be."""
    file.seek(0)
    lines = enumerate(iter(partial(file.readline, _BLOCK_BYTES), b""), start=1)
    counts = [(number, count) for number, line in lines if (count := len(line.split()))]
    header = 1 if single else 2
    if [count for _, count in counts[: header + 1]] != [1] * header + [n]:
        return ""
    ragged = ((number, count) for number, count in counts[header:] if count != n)
    return next((f": line {number} has {count} numbers, where rows have {n}" for number, count in ragged), "")


def _shown(text: bytes) -> str:
    shown = text[:_SHOWN].decode("ascii", "backslashreplace")
    return repr(shown + "..." if len(text) > _SHOWN else shown)
