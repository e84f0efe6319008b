"""Speedups over peers, from a comparison that measured them and the library in the same run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchchol.compare.peers import PEERS
from batchchol.compare.rows import Row, read_rows
from batchchol.errors import DataFileError
from batchchol.report.data import require
from batchchol.tune.choosing.winners import grouped


@dataclass(frozen=True)
class Speedups:
    """How many times faster the library was.

    Attributes
    ----------
    tables : mapping of str to pandas.DataFrame
        By accuracy class of the library's kernels: a line an order, a column a peer: its time over that of the
        library's fastest contender. Correctly rounded square roots come first, if the file has such kernels.
    note : str
        What was compared.
    absent : tuple of str
        Peers that the library knows and that took no part.
    thread : pandas.DataFrame
        As the first of `tables`, of the thread family alone, the study's; empty without it.
    """

    tables: Mapping[str, Any]
    note: str
    absent: tuple[str, ...]
    thread: Any

    @property
    def table(self) -> Any:
        """The first of the tables, which flatters the library least."""
        return next(iter(self.tables.values()))


def read(path: Path, dtype: str, batch: int) -> Speedups:
    """The speedups at one dtype and, of the batches of the file, the one nearest to `batch`.

    Both sides were timed by the same protocol: queued where there is such a row of the peer, single otherwise. The
    peers' results are held to the bound of the widest class that took part; beside kernels with correctly rounded
    square roots they are never at a disadvantage.

    Raises
    ------
    DataFileError
        If the file is no comparison or has no rows of this dtype with a peer in them.
    """
    if not path.is_file():
        raise DataFileError(path, "reading", "no such file: make one with `python -m batchchol compare`")
    # The factorizations: no figure is of solves yet.
    every = [row for row in read_rows(path) if not row.solves]
    peers = PEERS["cuda" if any(row.on_gpu for row in every) else "cpu"]
    rows = [row for row in every if row.dtype == dtype]
    batches = {row.batch for row in rows if row.contender in peers}
    if not batches:
        raise DataFileError(path, "rows", f"no peer was measured with {dtype}: compare with one installed")
    nearest = min(batches, key=lambda each: (max(each, batch) / min(each, batch), each))
    rows = [row for row in rows if row.batch == nearest]
    tables = {}
    for math in ("ieee", "fast"):
        own = [row for row in rows if row.contender not in peers and row.math == math]
        if not (table := _table(own, rows, peers)).empty:
            tables[math] = table
    if not tables:
        raise DataFileError(path, "rows", f"at batch {nearest:,} no order has both the library and a peer")
    thread = [row for row in rows if row.contender.split()[0] == "thread" and row.math == next(iter(tables))]
    note = f"{dtype}, batch {nearest:,}, the library's fastest contender, {rows[0].machine}, {rows[0].date}"
    there = {peer for table in tables.values() for peer in table.columns}
    return Speedups(tables, note, tuple(peer for peer in peers if peer not in there), _table(thread, rows, peers))


def _table(own: Sequence[Row], rows: Sequence[Row], peers: Iterable[str]) -> Any:
    found = {peer: _of(own, [row for row in rows if row.contender == peer]) for peer in peers}
    return require()[0].DataFrame({peer: speedup for peer, speedup in found.items() if speedup}).sort_index()


def _of(own: Iterable[Row], theirs: Iterable[Row]) -> dict[int, float]:
    """By order: at the same protocol and number of threads; queued before single, most threads first."""
    fastest = {key: min(row.seconds for row in alike) for key, alike in grouped(own, _key).items()}
    found: dict[int, float] = {}
    for row in sorted(theirs, key=lambda row: (row.protocol != "queued", -row.threads)):
        if _key(row) in fastest:
            found.setdefault(row.n, row.seconds / fastest[_key(row)])
    return found


def _key(row: Row) -> tuple[object, ...]:
    return row.n, row.protocol, row.threads
