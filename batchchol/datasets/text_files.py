"""Batches as text: the format of earlier work, in which numbers are split by blanks and line breaks of any kind.

A batch: how many matrices, their order n, and the matrices row by row. One matrix: its order, and its n*n numbers. A
file is one matrix if its first number and how many follow say so, unless its first lines are those of a batch, which
then is cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import islice
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.host_memory import aligned_empty
from batchchol.datasets.files import (
    DTYPES,
    SLICE_BYTES,
    Slices,
    Source,
    check_empty,
    check_space,
    checked,
    failure,
    opened,
    slice_length,
)
from batchchol.files import replacing

_LONGEST_COUNT = 18  # digits of a count that is sure to be less than 2**63
_BLOCK_BYTES = 1 << 20
_WORD = re.compile(rb"\S+")
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
    if dtype not in DTYPES:
        raise ValueError(f"dtype: got {dtype!r}, expected float32 or float64")
    with opened(source) as file:
        batch, n, single = _header(source, file)
    return Slices(batch, n, dtype, _parts(source, batch, n, dtype, single), single=single)


class _Words:
    """The words of a text from its first byte on, a block at a time, and where they are."""

    def __init__(self, source: Source, file: BinaryIO) -> None:
        file.seek(0)
        self._source, self._file = source, file
        self._text, self._carry = b"", b""
        self._words: list[bytes] = []
        # Of the block: the next word's place in it, its first line, and the words of that line before it.
        self._next, self._line, self._before = 0, 1, 0

    def __bool__(self) -> bool:
        """Whether there is another word."""
        while self._next == len(self._words):
            if not self._read_block():
                return False
        return True

    def take(self) -> bytes:
        """The next word; nothing at the end."""
        if not self:
            return b""
        self._next += 1
        return self._words[self._next - 1]

    def skip(self, most: int) -> int:
        """Pass by that many words, or those that there are; returns how many."""
        passed = 0
        while passed < most and self:
            step = min(most - passed, len(self._words) - self._next)
            self._next += step
            passed += step
        return passed

    def fill(self, out: NDArray[Any]) -> int:
        """Numbers for a vector, or as many as there are; returns how many."""
        filled = 0
        while filled < len(out) and self:
            words = self._words[self._next : self._next + len(out) - filled]
            out[filled : filled + len(words)] = self._converted(words, out.dtype.name)
            self._next += len(words)
            filled += len(words)
        return filled

    def line(self) -> int:
        """The line of the last word that was taken; at the end, the file's last."""
        return self._place(self._next - 1)[0] if self._next else self._line

    def _read_block(self) -> bool:
        """Go on to the next block of whole words; False at the end."""
        self._line += self._text.count(b"\n")
        last = self._text.rfind(b"\n")
        self._before = len(self._text[last + 1 :].split()) + (self._before if last < 0 else 0)
        text = self._carry + self._file.read(_BLOCK_BYTES)
        end = len(text) if len(text) == len(self._carry) else 1 + max(text.rfind(blank) for blank in _BLANKS)
        self._text, self._carry = text[:end], text[end:]
        self._words, self._next = self._text.split(), 0
        if len(self._carry) >= _BLOCK_BYTES:
            raise failure(self._source, f"line {self._line}", f"{_shown(self._carry)} is not a number")
        return bool(text)

    def _place(self, index: int) -> tuple[int, int]:
        """The line of a word of the block, and its number among that line's, from 1."""
        start = next(islice(_WORD.finditer(self._text), index, None)).start()
        last = self._text.rfind(b"\n", 0, start)
        before = len(self._text[last + 1 : start].split()) + (self._before if last < 0 else 0)
        return self._line + self._text.count(b"\n", 0, start), before + 1

    def _converted(self, words: list[bytes], dtype: str) -> NDArray[Any]:
        try:
            exact = np.array(list(map(float, words)))
        except ValueError:
            exact = None
        with np.errstate(over="ignore"):
            values = None if exact is None else exact.astype(dtype)
        if values is None or b"_" in self._text or not np.isfinite(values).all():
            self._check(words, dtype)
        assert values is not None
        return values

    def _check(self, words: list[bytes], dtype: str) -> None:
        """Refuse the first word that is no number of `dtype`; infinities and NaN are numbers when spelt out."""
        for index, word in enumerate(words):
            try:
                value = float(word)
            except ValueError:
                value = None
            if value is None or b"_" in word:
                reason = "is not a number"
            elif b"n" not in word.lower() and _overflows(value, dtype):
                reason = f"does not fit in {dtype}"
            else:
                continue
            line, number = self._place(self._next + index)
            raise failure(self._source, f"line {line}, number {number}", f"{_shown(word)} {reason}")


def _overflows(value: float, dtype: str) -> bool:
    # Digits of the largest number may be more than it, and are read as it.
    with np.errstate(over="ignore"):
        return bool(np.isinf(np.array(value).astype(dtype)))


def _header(source: Source, file: BinaryIO) -> tuple[int, int, bool]:
    """How many matrices, of which order, and whether the file is of one matrix."""
    room = file.seek(0, SEEK_END)
    words = _Words(source, file)
    batch, n = 1, _count(source, words, "the number of matrices, or the order of one matrix")
    single = _is_single(source, file, n, room)
    if not single:
        batch, n = n, _count(source, words, "n")
    if not batch or not n:
        check_empty(source, "line 1", batch, n)
    # A large lie is refused before memory is asked for.
    elif 2 * batch * n * n > max(room, SLICE_BYTES):
        raise failure(source, "line 1", f"{batch} matrices of order {n} do not fit in the file's {room} bytes")
    return batch, n, single


def _is_single(source: Source, file: BinaryIO, n: int, room: int) -> bool:
    """Whether a text is one matrix of this order: as many numbers follow, or the next is no number of matrices."""
    place = file.tell()
    words = _Words(source, file)
    words.take()
    second = words.take()
    if n == 0 or (n, second) == (1, b"0"):
        single = False
    elif _is_count(second):
        single = 2 * n * n <= room and words.skip(n * n) == n * n - 1 and not _has_lines_of_batch(file)
    else:
        single = _is_number(second)
    file.seek(place)
    return single


def _has_lines_of_batch(file: BinaryIO) -> bool:
    """Whether the first lines are a number, an order and a row of that many numbers."""
    file.seek(0)
    first, order, row = (file.readline(_BLOCK_BYTES).split() for _ in range(3))
    return len(first) == len(order) == 1 and 1 < int(order[0]) == len(row)


def _count(source: Source, words: _Words, what: str) -> int:
    word = words.take()
    if not _is_count(word):
        raise failure(source, f"line {words.line()}", f"{_shown(word)}, expected {what}, an integer of at least 0")
    return int(word)


def _is_count(word: bytes) -> bool:
    return word.isdigit() and len(word) <= _LONGEST_COUNT


def _is_number(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _parts(source: Source, batch: int, n: int, dtype: str, single: bool) -> Iterator[tuple[int, NDArray[Any]]]:
    length = slice_length(n, dtype)
    with opened(source) as file:
        words = _Words(source, file)
        words.skip(1 if single else 2)
        for start in range(0, batch, length):
            shape = (min(length, batch - start), n, n)
            dense = aligned_empty(shape, dtype, f"a batch of shape {shape}")
            filled = words.fill(dense.reshape(-1))
            if filled < dense.size:
                row, column = divmod(start * n * n + filled, n)
                where = f"number {column + 1} of row {row % n + 1} of matrix {row // n + 1} of {batch}"
                hint = _ragged(file, n, single)
                raise failure(source, f"line {words.line()}", f"the file ends before {where}{hint}")
            yield start, dense
        if words:
            words.take()
            hint = _ragged(file, n, single)
            raise failure(source, f"line {words.line()}", f"text follows the last of {batch} matrices{hint}")


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
    shown = text[:40].decode("ascii", "backslashreplace")
    return repr(shown + "..." if len(text) > 40 else shown)
