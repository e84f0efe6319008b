"""Batches on disk: NumPy's .npy (`text_files` has the text format), in slices; a file appears whole or not at all."""

from __future__ import annotations

import math
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from batchchol.errors import DataFileError
from batchchol.files import for_reading, replacing

DTYPES = ("float32", "float64")
SLICE_BYTES = 1 << 24

Source = Path | str | BinaryIO
"""A file to read: its path, or one that is open and can be read from any byte."""

# Without elements there are no bytes to check the header against.
_MOST_EMPTY, _LARGEST_EMPTY = 1 << 24, (1 << 16) - 1
# More than NumPy writes; a header of version 2.0 may announce 4 GiB.
_LONGEST_HEADER = 10_000


class Slices(Iterator[tuple[int, NDArray[Any]]]):
    """A batch that passes by once: pairs (index of the first matrix, dense (m, n, n)), in order.

    `batch`, `n` and `dtype` describe the whole; `parts` yields the pairs. `single`: text that has one matrix has it
    without a count.
    """

    def __init__(
        self, batch: int, n: int, dtype: str, parts: Iterable[tuple[int, NDArray[Any]]], *, single: bool = False
    ) -> None:
        self.batch = batch
        self.n = n
        self.dtype = dtype
        self.single = single
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

        parts = ((start, converted(start, dense)) for start, dense in self)
        return Slices(self.batch, self.n, dtype, parts, single=self.single)

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


def check_dtype(dtype: str) -> None:
    """Refuse a type of elements that batches do not have."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype: got {dtype!r}, expected float32 or float64")


def slice_length(n: int, dtype: str, slice_bytes: int = SLICE_BYTES) -> int:
    """Return how many matrices make a slice of about `slice_bytes`, at least one."""
    return max(1, slice_bytes // max(1, n * n * np.dtype(dtype).itemsize))


def save(path: Path | str, a: NDArray[Any] | Slices) -> None:
    """Write a batch, dense (batch, n, n) or in slices, as .npy in the machine-independent little-endian form.

    Raises
    ------
    DataFileError
        The file cannot be written, or there is no room for it. No part of it is left behind, and a file that was
        there stays as it was.
    ValueError
        Wrong shape or dtype, or slices that are not the batch they announce.
    """
    slices = a if isinstance(a, Slices) else Slices.of(a)
    descr = np.dtype(slices.dtype).newbyteorder("<").str
    shape = (slices.batch, slices.n, slices.n)
    check_space(path, math.prod(shape) * np.dtype(slices.dtype).itemsize)
    with replacing(path) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        for dense in checked(slices):
            file.write(np.ascontiguousarray(dense, dtype=descr).data)


def load(source: Source) -> NDArray[Any]:
    """Map a .npy file as a read-only array (batch, n, n): only what is touched is read.

    Raises DataFileError, naming the byte, for a file that is unreadable, truncated, too long or no batch.
    """
    with opened(source) as file:
        shape, fortran, dtype = _npy_header(source, file)
        offset, size = file.tell(), os.fstat(file.fileno()).st_size
        # True is an int, but not a number of matrices.
        if len(shape) != 3 or shape[1] != shape[2] or any(type(length) is not int or length < 0 for length in shape):
            raise failure(source, "header", f"shape {shape}, expected (batch, n, n)")
        if dtype.name not in DTYPES:
            raise failure(source, "header", f"dtype {dtype}, expected float32 or float64")
        expected = offset + math.prod(shape) * dtype.itemsize
        if size != expected:
            wrong = "the file is truncated" if size < expected else "data follow the last matrix"
            place = f"byte {min(size, expected)}"
            raise failure(source, place, f"{wrong}: {size} bytes, expected {expected}")
        if math.prod(shape) == 0:
            check_empty(source, "header", *shape[:2])
            return np.empty(shape, dtype)
        order: Literal["F", "C"] = "F" if fortran else "C"
        return cast(NDArray[Any], np.memmap(file, dtype, "r", offset, shape, order))


@contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """A file, open to be read from its first byte.

    Raises
    ------
    DataFileError
        If it cannot be opened or read, or is a pipe or a device.
    """
    place = "opening"
    try:
        if not isinstance(source, Path | str):
            source.seek(0)
            yield source
            return
        with open(source, "rb", opener=for_reading) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise failure(source, place, "a pipe, expected a file")
            place = "reading"
            yield file
    except OSError as error:
        raise failure(source, place, error.strerror or str(error)) from error


def failure(source: Source, place: str, reason: str) -> DataFileError:
    """The error that names a file; one that has no path is the standard input."""
    return DataFileError(source if isinstance(source, Path | str) else "standard input", place, reason)


def check_empty(source: Source, place: str, batch: int, n: int) -> None:
    """Refuse a header of a batch without elements whose sizes are implausible.

    Raises
    ------
    DataFileError
        It names the place of the header.
    """
    if batch > _MOST_EMPTY or n > _LARGEST_EMPTY:
        limits = f"at most {_MOST_EMPTY} of order at most {_LARGEST_EMPTY}"
        raise failure(source, place, f"{batch} matrices of order {n}, expected {limits} where there are no elements")


def check_space(path: Path | str, needed: int) -> None:
    """Refuse to write a file for which the disk has no room.

    Raises
    ------
    DataFileError
        It says how many bytes are needed at least, and how many are free.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            return
        free = shutil.disk_usage(path.resolve().parent).free
    except OSError:
        # Writing says what is wrong.
        return
    if needed > free:
        reason = f"needs {needed:,} bytes and {free:,} bytes are free there: write less, or to another disk"
        raise DataFileError(path, "writing", reason)


def checked(slices: Slices) -> Iterator[NDArray[Any]]:
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


def _npy_header(source: Source, file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        if version == (2, 0):
            _check_header_length(file)
            return np.lib.format.read_array_header_2_0(file)
    except Exception as error:  # the header is a Python literal: damage raises whatever parsing it raises
        reason = " ".join(str(error).split())
        raise failure(source, f"byte {file.tell()}", f"not a .npy header: {reason}") from error
    raise failure(source, "byte 6", f".npy version {version}, expected (1, 0) or (2, 0)")


def _check_header_length(file: BinaryIO) -> None:
    """NumPy reads a header whole before it looks at its length."""
    start = file.tell()
    length = int.from_bytes(file.read(4), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"it has {length} bytes, expected at most {_LONGEST_HEADER}")
    file.seek(start)
