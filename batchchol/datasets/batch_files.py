"""Batches in files of either kind, .npy or text, as commands read and write them; "-" is a standard stream."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from batchchol.batches.sizes import shown
from batchchol.datasets.files import Slices, Source, failure, load, save
from batchchol.datasets.text_files import read_slices, write_text

TEXT, NPY = ".txt", ".npy"
STANDARD = Path("-")

_NPY_MAGIC = b"\x93NUMPY"
_REPORT_SECONDS = 2.0


def data_file(text: str) -> Path:
    """A type for argparse: the name of a file whose suffix says its kind."""
    path = Path(text)
    if path.suffix not in (TEXT, NPY):
        raise argparse.ArgumentTypeError(f"got {shown(text)}, expected a name that ends in {NPY} or {TEXT}")
    return path


def data_file_or_stream(text: str) -> Path:
    """A type for argparse: such a file, or "-"."""
    return STANDARD if text == str(STANDARD) else data_file(text)


def kind_of(source: Source) -> str:
    """The suffix of a file's kind; of an open file its first bytes tell."""
    if isinstance(source, Path | str):
        return Path(source).suffix
    source.seek(0)
    return NPY if source.read(len(_NPY_MAGIC)) == _NPY_MAGIC else TEXT


def read(source: Source, dtype: str | None) -> Slices:
    """A batch in its own precision, which for text is float64, or in another one.

    Raises
    ------
    DataFileError
        If it cannot be read, or is damaged.
    """
    if kind_of(source) == TEXT:
        return read_slices(source, dtype or "float64")
    slices = Slices.of(load(source))
    return slices.astype(dtype) if dtype else slices


def write(path: Path, slices: Slices, kind: str) -> None:
    """Write a batch of the kind that a suffix names; what ends it on the way leaves nothing.

    Raises
    ------
    DataFileError
        If it cannot be written.
    """
    (write_text if kind == TEXT else save)("/dev/stdout" if path == STANDARD else path, slices)


@contextmanager
def standard_input() -> Iterator[BinaryIO]:
    """The standard input whole, as a file that can be read again.

    Raises
    ------
    DataFileError
        If it cannot be read, or there is no room for it.
    """
    with tempfile.TemporaryFile() as file:
        opened = cast(BinaryIO, file)
        try:
            if sys.stdin is None:
                raise failure(opened, "opening", "it is closed")
            shutil.copyfileobj(sys.stdin.buffer, opened)
            opened.flush()
        except OSError as error:
            reason = f"{error.strerror or error} (it is copied to {tempfile.gettempdir()}; TMPDIR chooses another)"
            raise failure(opened, "copying", reason) from error
        yield opened


def watched(slices: Slices, done: str) -> Slices:
    """The same slices; how far they got appears on stderr every few seconds."""

    def parts() -> Iterator[tuple[int, Any]]:
        reported, count = time.monotonic(), 0
        for start, dense in slices:
            yield start, dense
            count += len(dense)
            if time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                share = f"{count / slices.batch:.0%}"
                print(f"batchchol: {count:,} of {slices.batch:,} matrices {done} ({share})", file=sys.stderr)

    return Slices(slices.batch, slices.n, slices.dtype, parts(), single=slices.single)
