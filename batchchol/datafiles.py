"""Batches on disk: NumPy's .npy, and the row-major text format of earlier work.

The text format: the number of matrices on the first line, n on the second, then one matrix row a line, its
numbers split by blanks. Both formats stream; a file appears whole or not at all.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from batchchol.errors import DataFileError

DTYPES = ("float32", "float64")
SLICE_BYTES = 1 << 24

_LONGEST_COUNT = 18  # digits of a count that is sure to be less than 2**63

# Digits that tell every number from its neighbours, however the reader rounds on the way.
_NUMBER = {"float32": "%.9g", "float64": "%.17g"}


class Slices(Iterator[tuple[int, NDArray[Any]]]):
    """A batch that passes by once: pairs (index of the first matrix, dense (m, n, n)), in order.

    `batch`, `n` and `dtype` describe the whole; `parts` yields the pairs.
    """

    def __init__(self, batch: int, n: int, dtype: str, parts: Iterable[tuple[int, NDArray[Any]]]) -> None:
        self.batch = batch
        self.n = n
        self.dtype = dtype
        self._parts = iter(parts)

    def __next__(self) -> tuple[int, NDArray[Any]]:
        return next(self._parts)

    def astype(self, dtype: str) -> Slices:
        """Return what is left of the batch in another precision; ValueError, on the way, for what overflows."""

        def converted(start: int, dense: NDArray[Any]) -> NDArray[Any]:
            with np.errstate(over="ignore"):
                result = dense.astype(dtype)
            overflow = np.isinf(result) & np.isfinite(dense)
            if overflow.any():
                member, row, column = (int(index) for index in np.argwhere(overflow)[0])
                value = dense[member, row, column]
                raise ValueError(f"matrix {start + member}: {value:g} at row {row} does not fit in {dtype}")
            return result

        return Slices(self.batch, self.n, dtype, ((start, converted(start, dense)) for start, dense in self))

    @classmethod
    def of(cls, dense: NDArray[Any]) -> Slices:
        """Cut a dense array (batch, n, n) of float32 or float64 into slices of bounded size."""
        if dense.ndim != 3 or dense.shape[1] != dense.shape[2]:
            raise ValueError(f"a: got shape {dense.shape}, expected (batch, n, n)")
        if dense.dtype.name not in DTYPES:
            raise ValueError(f"a: got dtype {dense.dtype}, expected float32 or float64: convert with .astype")
        length = slice_length(dense.shape[1], dense.dtype.name)
        parts = ((start, dense[start : start + length]) for start in range(0, len(dense), length))
        return cls(len(dense), dense.shape[1], dense.dtype.name, parts)


def slice_length(n: int, dtype: str, slice_bytes: int = SLICE_BYTES) -> int:
    """Return how many matrices make a slice of about `slice_bytes`, at least one."""
    return max(1, slice_bytes // max(1, n * n * np.dtype(dtype).itemsize))


def save(path: Path | str, a: NDArray[Any] | Slices) -> None:
    """Write a batch, dense (batch, n, n) or in slices, as .npy in the machine-independent little-endian form.

    Raises
    ------
    DataFileError
        The file cannot be written. No part of it is left behind, and a file that was there stays as it was.
    ValueError
        Wrong shape or dtype, or slices that are not the batch they announce.
    """
    slices = a if isinstance(a, Slices) else Slices.of(a)
    descr = np.dtype(slices.dtype).newbyteorder("<").str
    shape = (slices.batch, slices.n, slices.n)
    with replacing(Path(path)) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        for dense in _checked(slices):
            file.write(np.ascontiguousarray(dense, dtype=descr).data)


def load(path: Path | str) -> NDArray[Any]:
    """Map a .npy file as a read-only array (batch, n, n): only what is touched is read.

    Raises DataFileError, naming the byte, for a file that is unreadable, truncated, too long or no batch.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            shape, fortran, dtype = _npy_header(path, file)
            offset, size = file.tell(), path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(shape) != 3 or shape[1] != shape[2] or min(shape) < 0:
        raise DataFileError(path, "header", f"shape {shape}, expected (batch, n, n)")
    if dtype.name not in DTYPES:
        raise DataFileError(path, "header", f"dtype {dtype}, expected float32 or float64")
    expected = offset + math.prod(shape) * dtype.itemsize
    if size != expected:
        wrong = "the file is truncated" if size < expected else "data follow the last matrix"
        place = f"byte {min(size, expected)}"
        raise DataFileError(path, place, f"{wrong}: {size} bytes, expected {expected}")
    order: Literal["F", "C"] = "F" if fortran else "C"
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    return cast(NDArray[Any], np.memmap(path, dtype, "r", offset, shape, order))


def write_text(path: Path | str, a: NDArray[Any] | Slices) -> None:
    """Write a batch, dense (batch, n, n) or in slices, as text that reads back to the same bits.

    Raises like `save`.
    """
    slices = a if isinstance(a, Slices) else Slices.of(a)
    line = " ".join([_NUMBER[slices.dtype]] * slices.n) + "\n"
    with replacing(Path(path)) as file:
        file.write(f"{slices.batch}\n{slices.n}\n".encode())
        for dense in _checked(slices):
            rows = dense.reshape(len(dense) * slices.n, slices.n)
            file.write("".join([line % tuple(row) for row in rows.tolist()]).encode())


def read_text(path: Path | str, dtype: str = "float64") -> NDArray[Any]:
    """Read a text file whole: (batch, n, n). The file does not say its precision; float64 holds both exactly.

    Raises DataFileError, naming the line, for a file that is unreadable, truncated, too long, ragged or not
    numeric.
    """
    slices = read_slices(path, dtype)
    dense = np.empty((slices.batch, slices.n, slices.n), dtype)
    for start, part in slices:
        dense[start : start + len(part)] = part
    return dense


def read_slices(path: Path | str, dtype: str = "float64") -> Slices:
    """Open a text file as slices of bounded size; raises like `read_text`, the header's errors at once."""
    path = Path(path)
    if dtype not in DTYPES:
        raise ValueError(f"dtype: got {dtype!r}, expected float32 or float64")
    try:
        with path.open("rb") as file:
            batch, n = _text_count(path, file, 1), _text_count(path, file, 2)
            room = path.stat().st_size - file.tell()
    except OSError as error:
        raise _unreadable(path, error) from error
    # A digit and a separator are the least an element takes: a large lie is refused before memory is asked for.
    if 2 * batch * n * n > max(room + 1, SLICE_BYTES):
        reason = f"{batch} matrices of order {n} do not fit in the {room} bytes that follow"
        raise DataFileError(path, "line 1", reason)
    return Slices(batch, n, dtype, _text_parts(path, batch, n, dtype))


def _checked(slices: Slices) -> Iterator[NDArray[Any]]:
    """The dense parts, once they are known to be the batch that the slices announce."""
    written, origin = 0, None
    for start, dense in slices:
        origin = start if origin is None else origin
        got = (start, dense.shape[1:], dense.dtype.name)
        expected = (origin + written, (slices.n, slices.n), slices.dtype)
        if got != expected:
            raise ValueError(f"slices: got (start, order, dtype) {got}, expected {expected}")
        written += len(dense)
        yield dense
    if written != slices.batch:
        raise ValueError(f"slices: got {written} matrices, expected {slices.batch}")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file in the same folder: it takes the place of `path` when all went well, else it vanishes."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise DataFileError(path, "writing", f"{error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _unreadable(path: Path, error: OSError) -> DataFileError:
    return DataFileError(path, "opening", f"{error.strerror or error}")


def _npy_header(path: Path, file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(file)
    except Exception as error:  # the header is a Python literal: damage raises whatever parsing it raises
        raise DataFileError(path, f"byte {file.tell()}", f"not a .npy header: {error}") from error
    raise DataFileError(path, "byte 6", f".npy version {version}, expected (1, 0) or (2, 0)")


def _text_count(path: Path, file: BinaryIO, line: int) -> int:
    text = file.readline().strip()
    if not text.isdigit() or len(text) > _LONGEST_COUNT:
        what = "the number of matrices" if line == 1 else "n"
        reason = f"{_shown(text)}, expected {what}, an integer of at least 0"
        raise DataFileError(path, f"line {line}", reason)
    return int(text)


def _text_parts(path: Path, batch: int, n: int, dtype: str) -> Iterator[tuple[int, NDArray[Any]]]:
    length = slice_length(n, dtype)
    try:
        with path.open("rb") as file:
            lines = enumerate(file, start=1)
            next(lines), next(lines)
            for start in range(0, batch, length):
                dense = np.empty((min(length, batch - start), n, n), dtype)
                for row in range(len(dense) * n):
                    dense[divmod(row, n)] = _text_row(path, lines, start * n + row, batch, n, dtype)
                yield start, dense
            for number, text in lines:
                if text.strip():
                    raise DataFileError(path, f"line {number}", f"text follows the last of {batch} matrices")
    except OSError as error:
        raise _unreadable(path, error) from error


def _text_row(
    path: Path, lines: Iterator[tuple[int, bytes]], row: int, batch: int, n: int, dtype: str
) -> NDArray[Any]:
    where = f"row {row % n + 1} of matrix {row // n + 1} of {batch}"
    number, text = next(lines, (row + 3, b""))
    words = text.split()
    if not words:
        raise DataFileError(path, f"line {number}", f"the file ends or is blank before {where}")
    if len(words) != n:
        raise DataFileError(path, f"line {number}", f"{where} has {len(words)} numbers, expected {n}")
    try:
        exact = np.array([float(word) for word in words])
    except ValueError:
        exact = None
    with np.errstate(over="ignore"):
        values = None if exact is None else exact.astype(dtype)
    if values is None or b"_" in text or not np.isfinite(values).all():
        _check_words(path, number, words, dtype)
    assert values is not None
    return values


def _check_words(path: Path, number: int, words: list[bytes], dtype: str) -> None:
    """Refuse the first word that is no number of `dtype`; infinities and NaN are numbers when spelt out."""
    for column, word in enumerate(words, start=1):
        place = f"line {number}, number {column}"
        try:
            value = float(word)
        except ValueError:
            raise DataFileError(path, place, f"{_shown(word)} is not a number") from None
        if b"_" in word:
            raise DataFileError(path, place, f"{_shown(word)} is not a number")
        if b"n" not in word.lower() and abs(value) > float(np.finfo(dtype).max):
            raise DataFileError(path, place, f"{_shown(word)} does not fit in {dtype}")


def _shown(text: bytes) -> str:
    shown = text[:40].decode("ascii", "backslashreplace")
    return repr(shown + "..." if len(text) > 40 else shown)
