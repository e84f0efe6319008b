"""Rows as Arrow tables and Parquet files; what needs pyarrow is here."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from batchchol.datasets.files import opened
from batchchol.errors import BatchcholError, DataFileError, optional
from batchchol.measure.row import COLUMNS, SCHEMA_VERSION

VERSION_KEY = b"batchchol.schema"
"""Where a file says the version of its schema."""

_COMPRESSION, _LEVEL = "zstd", 15


def pyarrow() -> Any:
    """The package.

    Raises
    ------
    BatchcholError
        If it is not installed; says how to get it.
    """
    package, _ = [optional(name, "a data set", "tune") for name in ("pyarrow", "pyarrow.parquet")]
    return package


def available() -> bool:
    """Whether Parquet files can be read and written here."""
    try:
        pyarrow()
    except BatchcholError:
        return False
    return True


@cache
def schema() -> Any:
    """The Arrow schema of a data set; its metadata say the version."""
    arrow = pyarrow()
    types = {name: getattr(arrow, name) for name in ("int32", "int64", "float32", "float64", "string")}
    types["bool"] = arrow.bool_
    columns = [
        (name, arrow.list_(types[kind.split()[0]]()) if kind.endswith(" list") else types[kind]())
        for name, kind in ((name, column.dtype) for name, column in COLUMNS.items())
    ]
    return arrow.schema(columns, metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()})


def table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """An Arrow table of rows as `Row.values` makes them."""
    return pyarrow().Table.from_pylist(list(rows), schema=schema())


def encode(rows: Any) -> bytes:
    """The Parquet file of an Arrow table."""
    parquet = pyarrow().parquet
    buffer = io.BytesIO()
    parquet.write_table(rows, buffer, compression=_COMPRESSION, compression_level=_LEVEL)
    return buffer.getvalue()


def read(path: Path) -> Any:
    """The Arrow table of a Parquet file of this schema; columns that are newer than the file are null.

    Raises
    ------
    DataFileError
        If it cannot be read, is damaged, is no data set or is of another version of the schema.
    """
    arrow = pyarrow()
    with opened(path):
        # A missing file, a folder or a pipe must not be called damaged.
        pass
    try:
        found = arrow.parquet.ParquetFile(path)
        check_version(path, found.schema_arrow.metadata or {})
        rows = found.read()
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise DataFileError(path, "reading", f"damaged, or no Parquet file ({reason})") from error
    return _completed(path, rows)


def check_version(path: Path, metadata: Mapping[bytes, bytes]) -> None:
    """Refuse a file of another schema.

    Raises
    ------
    DataFileError
        Names the version that was found and the one that is expected.
    """
    version = metadata.get(VERSION_KEY)
    if version is None:
        raise DataFileError(path, "schema", "not a data set of a sweep: choose a file that `tune --data` wrote")
    if version != str(SCHEMA_VERSION).encode():
        raise DataFileError(
            path,
            "schema",
            f"version {version.decode(errors='replace')}, expected {SCHEMA_VERSION}: read it with the version of "
            "batchchol that wrote it (column `version`), or measure anew",
        )


def _completed(path: Path, rows: Any) -> Any:
    arrow, wanted = pyarrow(), schema()
    known = rows.select([name for name in wanted.names if name in rows.column_names])
    try:
        return arrow.concat_tables([wanted.empty_table(), known], promote_options="permissive").cast(wanted)
    except arrow.ArrowException as error:
        raise DataFileError(path, "schema", f"a column is of another type than its version says ({error})") from error
