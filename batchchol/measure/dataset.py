"""A data set on disk: rows are safe one by one while a sweep runs, and Parquet files for all readers.

A folder holds `points-*.parquet`, each written in one step and never changed. Rows that are in none of them yet are
lines of a journal; all of them are, where there is no pyarrow. Names of files that
readers of the Parquet files must skip begin with an underscore.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from batchchol.errors import DataFileError
from batchchol.files import replace_file
from batchchol.measure import csv_file, parquet
from batchchol.measure.point import key_of
from batchchol.measure.row import SCHEMA_VERSION, Row, rows_of

SHARD_ROWS = 2_000
_SYNC_SECONDS = 1.0
KEY_COLUMNS = ("spec", "chunk", "batch", "threads", "protocol", "any_block")
"""What tells points apart: see `key_of_row`."""
_DONE_COLUMNS = (*KEY_COLUMNS, "status", "median_seconds")
_ORDER = ("n", "dtype", "batch", "spec", "chunk", "protocol")

Warn = Callable[[str], None]


class DataSet(AbstractContextManager["DataSet"]):
    """The data set of a folder, open for more rows; no other process can have it open at the same time.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    device : str
        What is measured: the rows of a folder are all of one device.
    warn : callable
        Called with a sentence about each damaged file of the folder: it is set aside, its points must be measured
        again.

    Raises
    ------
    DataFileError
        If the folder cannot be used, is of another device or of another version of the schema.
    """

    def __init__(self, folder: Path, device: str, warn: Warn = lambda _: None) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(folder)
        except OSError as error:
            raise _failure(folder, "opening", error) from error
        try:
            _check_manifest(folder, device)
            self._number = 1 + max((_number(path) for path in folder.glob("*points-*.parquet")), default=0)
            self.done: dict[str, float | None] = {}
            """The points that are done, by key: seconds of a call, None where there is no number."""
            for path in _shards(folder):
                self.done |= _taken(self._shard_rows(path, warn))
            self._synced = time.monotonic()
            self._rows = [row for row in _journal(folder, warn) if key_of_row(row) not in self.done]
            self._restart_journal()
        except BaseException:
            os.close(self._lock)
            raise
        self.done |= _taken(self._rows)

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, row: Row) -> None:
        """Keep a row: whatever happens to this process, it is there whole or not at all, as `done` says.

        Raises
        ------
        DataFileError
            If it cannot be written, such as on a full disk: what was there before still is.
        """
        values = row.values()
        line = json.dumps(values, separators=(",", ":")).encode() + b"\n"
        size, count = os.fstat(self._file).st_size, len(self._rows)
        try:
            _write_whole(self._file, line)
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                os.fdatasync(self._file)
                self._synced = time.monotonic()
            self._rows.append(values)
            self.done[row.point.key] = row.seconds
        except BaseException as error:
            with suppress(OSError):
                os.ftruncate(self._file, size)
            del self._rows[count:]
            if isinstance(error, OSError):
                raise _failure(self.folder / _JOURNAL, "writing", error) from error
            raise
        if len(self._rows) >= SHARD_ROWS:
            self.flush()

    def flush(self) -> None:
        """Move the journal's rows to a Parquet file, if that can be done here.

        Raises
        ------
        DataFileError
            If it cannot be written: the journal still has them.
        """
        if not self._rows or not parquet.available():
            return
        path = self.folder / f"points-{self._number:06}.parquet"
        replace_file(path, parquet.encode(parquet.table(self._rows)))
        self._number += 1
        self._rows = []
        before = self._file
        self._restart_journal()
        os.close(before)

    def close(self) -> None:
        """End with all rows in Parquet files, where those can be written."""
        try:
            self.flush()
        finally:
            os.close(self._file)
            os.close(self._lock)

    def _restart_journal(self) -> None:
        """Write a journal with the rows that are in no Parquet file, in place of the old one."""
        path = self.folder / _JOURNAL
        lines = b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in self._rows)
        replace_file(path, lines)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def _shard_rows(self, path: Path, warn: Warn) -> list[dict[str, Any]]:
        """The `done` columns of a Parquet file's points; a damaged file is set aside."""
        try:
            rows: list[dict[str, Any]] = parquet.read(path).select(_DONE_COLUMNS).to_pylist()
        except DataFileError as error:
            if error.place == "schema":
                raise
            aside = path.with_name(f"_damaged-{path.name}")
            path.rename(aside)
            warn(f"{error}; it is now {aside.name}, and its points will be measured anew")
            return []
        return rows


def key_of_row(row: Mapping[str, Any]) -> str:
    """The key of a row's point."""
    return key_of(*(row[column] for column in KEY_COLUMNS))


def _taken(rows: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """What the points of rows took, by their keys."""
    return {key_of_row(row): row["median_seconds"] if row["status"] == "correct" else None for row in rows}


def device_of(folder: Path) -> str | None:
    """The device of a folder's rows; None if it is not known, such as of a folder that does not exist yet."""
    try:
        return str(json.loads((folder / _MANIFEST).read_bytes())["device"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read(path: Path, warn: Warn = lambda _: None) -> Any:
    """The Arrow table of a data set: of a folder, also while it is written to, or of one Parquet file.

    What is damaged in a folder is left out, with a sentence to `warn`.

    Raises
    ------
    DataFileError
        If there is nothing to read, or it is of another version of the schema.
    """
    if not path.is_dir():
        return parquet.read(path)
    tables = list(_tables(path, warn))
    seen = {key_of_row(row) for table in tables for row in table.select(KEY_COLUMNS).to_pylist()}
    tables.append(parquet.table([row for row in _journal(path, warn) if key_of_row(row) not in seen]))
    rows = parquet.pyarrow().concat_tables(tables)
    if not len(rows):
        raise DataFileError(path, "reading", "there are no rows: choose a folder that `tune --data` wrote")
    return rows


def read_rows(folder: Path, warn: Warn = lambda _: None) -> list[dict[str, Any]]:
    """The rows of a folder as `Row.values` makes them; without pyarrow too, as long as no Parquet file is there.

    Raises
    ------
    DataFileError
        If a file is of another version of the schema.
    """
    rows = [row for table in _tables(folder, warn) for row in table.to_pylist()]
    seen = {key_of_row(row) for row in rows}
    return rows + [row for row in _journal(folder, warn) if key_of_row(row) not in seen]


def read_correct(path: Path) -> list[Row]:
    """The correct rows of a data set, or of a CSV file of `tune`, whose points ran their specs' own code.

    Those of a data set whose kernels this version cannot build any more are left out, with a warning.

    Raises
    ------
    DataFileError
        If it cannot be read or is something else, or has none.
    """
    if not path.is_dir() and path.suffix != ".parquet":
        known = list(csv_file.read(path))
        if not known:
            raise DataFileError(path, "reading", "has no correct measurement: choose another file")
        return known
    found = [row for row in read(path).to_pylist() if row["status"] == "correct" and not row["any_block"]]
    if not found:
        raise DataFileError(path, "reading", "has no correct measurement of a spec's own code: choose another one")
    known = list(rows_of(found))
    if not known:
        raise DataFileError(path, "reading", "has no kernel that this version can build: measure again")
    if left_out := len(found) - len(known):
        which = f"{left_out:,} of {len(found):,} points are of kernels that this version cannot build"
        warnings.warn(f"{path}: {which}, and are left out", stacklevel=2)
    return known


def merge(folder: Path, file: Path, warn: Warn = lambda _: None) -> int:
    """Write all rows of a folder to one Parquet file, in order; return how many they are.

    Raises
    ------
    DataFileError
        If there is nothing to read, or the file cannot be written; the folder stays as it is.
    """
    rows = read(folder, warn).sort_by([(column, "ascending") for column in _ORDER])
    replace_file(file, parquet.encode(rows))
    return len(rows)


_MANIFEST, _JOURNAL, _LOCK = "_sweep.json", "_journal.jsonl", "_lock"


def _tables(folder: Path, warn: Warn) -> Iterator[Any]:
    for path in _shards(folder):
        try:
            yield parquet.read(path)
        except DataFileError as error:
            if error.place == "schema":
                raise
            warn(f"{error}; it is left out")


def _journal(folder: Path, warn: Warn) -> Iterable[dict[str, Any]]:
    """The rows of the journal; the last line may be torn, when its writer ended there."""
    path = folder / _JOURNAL
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise _failure(path, "reading", error) from error
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
            key_of_row(row)
        except (ValueError, KeyError, TypeError):
            warn(f"{path}: line {number} is damaged; it is left out")
        else:
            yield row


def _check_manifest(folder: Path, device: str) -> None:
    path = folder / _MANIFEST
    try:
        found = json.loads(path.read_bytes())
        version, measured = found["schema"], found["device"]
    except FileNotFoundError:
        if _shards(folder):
            raise DataFileError(folder, "schema", f"{_MANIFEST} is missing: choose another folder") from None
        replace_file(path, json.dumps({"schema": SCHEMA_VERSION, "device": device}, indent=1).encode())
        return
    except OSError as error:
        raise _failure(path, "reading", error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataFileError(path, "reading", f"damaged ({error!r}): choose another folder") from error
    if version != SCHEMA_VERSION:
        raise DataFileError(path, "schema", f"version {version}, expected {SCHEMA_VERSION}: choose another folder")
    if measured != device:
        raise DataFileError(path, "device", f"its rows are of {measured!r}, not of {device!r}: choose another folder")


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("points-*.parquet"))


def _number(path: Path) -> int:
    digits = path.stem.rsplit("-", 1)[1]
    return int(digits) if digits.isdecimal() else 0


def _locked(folder: Path) -> int:
    """A lock that the system releases when this process ends."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise DataFileError(folder, "opening", "another sweep is writing to this folder: wait for its end") from None
    return lock


def _write_whole(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _failure(path: Path, place: str, error: OSError) -> DataFileError:
    return DataFileError(path, place, f"{error.strerror or error}; what was kept before is not lost")
