"""Claims that are looked up in a file of any columns: what one column says where others have given values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

from batchchol.errors import BatchcholError, DataFileError
from batchchol.report.claims.quantities import THREE_DIGITS, Value, written
from batchchol.report.claims.timed import read_columns
from batchchol.tune.choosing.winners import grouped

Columns = Mapping[str, Any]
Key = tuple[str, ...]

_CHOICES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "least": min,
    "most": max,
    "median": median,
    "mean": fmean,
}


@cache
def _columns(path: Path) -> Sequence[Columns]:
    """The rows of a file, with n where only the name of a kernel has it."""
    rows = read_columns(path)
    if not rows or "n" in rows[0] or "spec" not in rows[0]:
        return rows
    orders = (re.search(r"_n(\d+)_", row["spec"]) for row in rows)
    return [{**row, "n": int(found[1]) if found else ""} for row, found in zip(rows, orders, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """Claims of one column of a file, one for each combination of the values of `by`.

    Attributes
    ----------
    file : str
        CSV or Parquet, relative to the clone.
    about : str
        What readers are told of the numbers, their unit included.
    where : mapping of str to object
        By column: what rows must have, a value, a list of values, a pattern of texts (`potrf_f32*`), or what numbers
        lie between (`least`, `most`).
    by : sequence of str
        Columns whose values name a claim: NAME/8/1024. A file whose specs alone say n has that column too.
    value, per, scale
        The column that is claimed, divided by another one, times a number.
    choose : str
        "least", "most", "median" or "mean" of the rows' values.
    over : mapping of str to object
        What the rows have in whose value those of `own` are divided; empty for no ratio.
    own : mapping of str to object
        What the claimed rows have besides, where there is `over`.
    style : str
        A format specification, or "3" for three digits.
    """

    name: str
    root: Path
    file: str
    about: str
    by: Sequence[str]
    value: str
    where: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    over: Mapping[str, Any] = field(default_factory=dict)
    per: str = ""
    scale: float = 1.0
    choose: str = "least"
    style: str = THREE_DIGITS

    def __post_init__(self) -> None:
        if self.choose not in _CHOICES:
            raise BatchcholError(f"choose: got {self.choose!r}, expected one of {', '.join(_CHOICES)}")

    @cached_property
    def _rows(self) -> Mapping[Key, Sequence[Columns]]:
        rows = [row for row in _columns(self.root / self.file) if _has(row, self.where)]
        if not rows:
            raise DataFileError(self.root / self.file, self.name, "no row is as its `where` says: mend it")
        return grouped(rows, lambda row: tuple(str(row[column]) for column in self.by))

    def claims(self) -> Iterator[LookedUp]:
        """The claims, in the order of the file."""
        yield from (LookedUp(self, key) for key in self._rows)

    def of(self, key: Key) -> Value:
        """What the file says."""
        rows = self._rows[key]
        own = self._chosen([row for row in rows if _has(row, self.own)], key)
        return own / self._chosen([row for row in rows if _has(row, self.over)], key) if self.over else own

    def commits(self, key: Key) -> str:
        """Which were measured, as far as the file has it."""
        return ", ".join(sorted({str(row.get("commit") or "not recorded") for row in self._rows[key]}))

    def _chosen(self, rows: Sequence[Columns], key: Key) -> float:
        values = [row[self.value] / (row[self.per] if self.per else 1) for row in rows if row[self.value] != ""]
        if not values:
            raise BatchcholError(
                f"{self.name}: no row of {'/'.join(key)} has a {self.value}: mend its `own` or `over`"
            )
        return _CHOICES[self.choose](values) * (1 if self.over else self.scale)


@dataclass(frozen=True)
class LookedUp:
    """A number of a file."""

    group: Lookup
    key: Key

    @property
    def name(self) -> str:
        """What pages call it, such as branches/8/1024/4; blanks are hyphens there."""
        return "/".join([self.group.name, *self.key]).replace(" ", "-")

    @property
    def commits(self) -> str:
        """Which were measured, as far as the file has it."""
        return self.group.commits(self.key)

    def text(self, style: str = "") -> str:
        """The value in words."""
        return written(self.group.of(self.key), style or self.group.style)


def _has(row: Columns, wanted: Mapping[str, Any]) -> bool:
    return all(_is(row[column], value) for column, value in wanted.items())


def _is(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return any(_is(found, each) for each in wanted)
    if isinstance(wanted, Mapping):
        return isinstance(found, int | float) and bool(wanted["least"] <= found <= wanted["most"])
    return fnmatchcase(str(found), wanted) if isinstance(wanted, str) else bool(found == wanted)
