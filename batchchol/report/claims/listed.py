"""The claims of a clone, from `docs/claims.toml`: groups of them, each of one file and one side of a comparison."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from batchchol.compare.rows import read_rows
from batchchol.errors import BatchcholError, DataFileError
from batchchol.report.claims.looked_up import LookedUp, Lookup
from batchchol.report.claims.quantities import AnyRow, Side, Value, quantity, written
from batchchol.report.claims.timed import has_contenders, read_timed

LIST = Path("docs", "claims.toml")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Claims of one file.

    Attributes
    ----------
    file : str
        A comparison's rows, or others that were timed, relative to the clone.
    about : str
        What readers are told of the rows.
    where, own : mapping of str to object
        By column: what all rows have, and those that the claims are of; strings are patterns (`chunked*`).
    peers : sequence of str, or mapping of str to object
        Patterns of the contenders that these are compared with, or what these rows have, as `own`.
    cases : sequence of (n, batches)
    own_of : mapping of (n, batch) to a mapping of str to object
        What the rows of one case have besides `own`.
    quantities, whole : sequence of str
        Of each case, and of all of them together.
    """

    name: str
    root: Path
    file: str
    about: str
    own: Mapping[str, Any]
    where: Mapping[str, Any]
    peers: Sequence[str] | Mapping[str, Any] = ()
    cases: Sequence[tuple[int, Sequence[int]]]
    own_of: Mapping[tuple[int, int], Mapping[str, Any]] = field(default_factory=dict)
    quantities: Sequence[str] = ()
    whole: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in (*self.quantities, *self.whole):
            quantity(name)

    @property
    def points(self) -> list[tuple[int, int]]:
        """The cases one by one: n, batch."""
        return [(n, batch) for n, batches in self.cases for batch in batches]

    @property
    def rows(self) -> Sequence[AnyRow]:
        """What was measured and committed."""
        return _committed(self.root / self.file)

    def published(self) -> list[AnyRow]:
        """The rows of its cases, of all contenders."""
        return [row for row in self.rows if (row.n, row.batch) in self.points and _has(row, self.where)]

    def side(self, rows: Iterable[AnyRow], point: tuple[int, int] | None) -> Side:
        """What rows say of one case, or of all.

        Raises
        ------
        BatchcholError
            If none of them is of it.
        """
        points = self.points if point is None else [point]
        here = [row for row in rows if (row.n, row.batch) in points and _has(row, self.where)]
        own = [row for row in here if _has(row, self.own) and _has(row, self.own_of.get((row.n, row.batch), {}))]
        if not own:
            raise BatchcholError(f"{self.name}: no row is of (n, batch) = {points}: mend its `own`, `where` or cases")
        return Side(own, [row for row in here if self._is_peer(row)], here)

    def _is_peer(self, row: AnyRow) -> bool:
        if isinstance(self.peers, Mapping):
            return _has(row, self.peers)
        return any(fnmatchcase(row.contender, peer) for peer in self.peers)

    def claims(self) -> Iterator[Claim]:
        """The claims of each case, then those of all."""
        yield from (Claim(self, point, name) for point in self.points for name in self.quantities)
        yield from (Claim(self, None, name) for name in self.whole)


def _has(row: AnyRow, wanted: Mapping[str, Any]) -> bool:
    try:
        return all(
            fnmatchcase(str(getattr(row, column)), value) if isinstance(value, str) else getattr(row, column) == value
            for column, value in wanted.items()
        )
    except AttributeError as error:
        raise BatchcholError(f"column: got one that the file does not have: mend {LIST} ({error})") from error


@cache
def _committed(path: Path) -> Sequence[AnyRow]:
    rows: Sequence[AnyRow] = tuple(read_rows(path) if has_contenders(path) else read_timed(path))
    if not rows:
        raise DataFileError(path, "rows", "there are none: correct the file's name in docs/claims.toml")
    return rows


@dataclass(frozen=True)
class Claim:
    """A published number: a quantity of one case, or of all cases of its group where `point` is None."""

    group: Group
    point: tuple[int, int] | None
    quantity: str

    @property
    def name(self) -> str:
        """What pages call it: such as h200/n8/b1024/gflops, or h200/copy."""
        place = f"n{self.point[0]}/b{self.point[1]}/" if self.point else ""
        return f"{self.group.name}/{place}{self.quantity}"

    def of(self, rows: Iterable[AnyRow]) -> Value:
        """What rows of a comparison say, those that are published or those of another machine.

        Raises
        ------
        BatchcholError
            If none of them is of the claim.
        """
        return quantity(self.quantity).of(self.group.side(rows, self.point).narrowed(self.quantity))

    @property
    def commits(self) -> str:
        """Which were measured, as far as the file has it."""
        side = self.group.side(self.group.rows, self.point).narrowed(self.quantity)
        return ", ".join(sorted({row.commit or "not recorded" for row in side.own}))

    def text(self, style: str = "") -> str:
        """Its published value in words; `style` is a format specification in place of its quantity's."""
        return written(self.of(self.group.rows), style or quantity(self.quantity).style)


@dataclass(frozen=True)
class Column:
    """Of a table: its head, and what its cells are: a text or claims, with {n} and whatever else a line has.

    Lines of an order in `empty` have no such claim.
    """

    head: str
    claims: Sequence[str] = ()
    text: str = ""
    style: str = ""
    left: bool = False
    empty: Sequence[int] = ()


@dataclass(frozen=True)
class Table:
    """A table of a page: its columns, and what each line is about."""

    columns: Sequence[Column]
    lines: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Plot:
    """GFLOP/s over n of a group, at `stem`.png and .svg: a line for each of its contenders.

    With `lines`, names and what their rows have (patterns as in a group's `own`), each is the best of those rows, and
    the batches of a case have panels beside each other, with these titles; `own` names those that are this library's,
    `references` are libraries of which there are dated figures alone. Where there are groups `beside` it, a panel is
    of each group, at its first batches. `width` is a panel's, in inches. With `energy` the lines are drawn in joules
    and in time, of one batch an order.
    """

    stem: Path
    group: Group
    title: str
    lines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    panels: Sequence[str] = ()
    own: Sequence[str] = ()
    references: Sequence[str] = ()
    beside: Sequence[Group] = ()
    width: float | None = None
    energy: bool = False

    def best(self, name: str, point: tuple[int, int], group: Group | None = None) -> AnyRow | None:
        """The fastest row of a line at n, batch, of a group, by default its own; None if there is none."""
        wanted = self.lines[name]
        rows = [row for row in (group or self.group).published() if (row.n, row.batch) == point and _has(row, wanted)]
        return min(rows, key=lambda row: row.seconds, default=None)


@dataclass(frozen=True)
class Listed:
    """What `docs/claims.toml` says: which pages have claims, the groups, and the tables and plots of the pages."""

    root: Path
    pages: Sequence[Path]
    groups: Sequence[Group]
    tables: Mapping[str, Table]
    plots: Sequence[Plot]
    lookups: Sequence[Lookup] = ()

    @cached_property
    def claims(self) -> Mapping[str, Claim]:
        """All claims of comparisons and timed kernels by name: those that `reproduce` may measure again."""
        return {claim.name: claim for group in self.groups for claim in group.claims()}

    @cached_property
    def looked_up(self) -> Mapping[str, LookedUp]:
        """All numbers of other files by name."""
        return {claim.name: claim for lookup in self.lookups for claim in lookup.claims()}

    @property
    def every(self) -> Mapping[str, Claim | LookedUp]:
        """All of them by name."""
        return {**self.claims, **self.looked_up}

    def find(self, name: str) -> Claim | LookedUp:
        """The claim of a name.

        Raises
        ------
        BatchcholError
            If there is none.
        """
        found = self.claims.get(name) or self._look_up(name)
        if found is None:
            raise BatchcholError(f"claim: got {name!r}, which {LIST} has not: add it there, or mend the page")
        return found

    def _look_up(self, name: str) -> LookedUp | None:
        groups = [lookup for lookup in self.lookups if lookup.name == name.partition("/")[0]]
        return next((claim for lookup in groups for claim in lookup.claims() if claim.name == name), None)


def pages(root: Path) -> list[Path]:
    """Pages that may have claims: README and all of docs/ but the list of every claim, which only the site shows."""
    found = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    return [page for page in found if page.is_file() and page.name != "claims.md"]


def load(root: Path) -> Listed:
    """Read the list of the clone at `root`.

    Raises
    ------
    DataFileError
        If it cannot be read.
    """
    path = root / LIST
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        entries = found["groups"]
        groups = {name: _group(name, root, entry, entries) for name, entry in entries.items()}
        tables = {name: _table(entry) for name, entry in found["tables"].items()}
        plots = [
            Plot(**{**entry, "stem": path.with_name(name), **_groups_of(entry, groups)})
            for name, entry in found.get("plots", {}).items()
        ]
        lookups = [Lookup(name=name, root=root, **entry) for name, entry in found.get("lookups", {}).items()]
        return Listed(root, pages(root), [*groups.values()], tables, plots, lookups)
    except FileNotFoundError as error:
        if error.filename != str(path):
            raise
        raise DataFileError(path, "reading", "no such file: change to a clone of batchchol, or name one") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataFileError(path, "reading", f"not a list of claims ({error!r}): correct it") from error


def _groups_of(entry: Mapping[str, Any], groups: Mapping[str, Group]) -> dict[str, Any]:
    return {"group": groups[entry["group"]], "beside": tuple(groups[name] for name in entry.get("beside", ()))}


def _group(name: str, root: Path, entry: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> Group:
    """A group; what it does not say is that of the one that it is `like`, but for what is claimed."""
    given = _filled_in(entry, others)
    cases = [(case["n"], case["batch"]) for case in given["cases"]]
    own_of = {(case["n"], batch): case.get("own", {}) for case in given["cases"] for batch in case["batch"]}
    return Group(**{**given, "name": name, "root": root, "cases": cases, "own_of": own_of})


def _filled_in(entry: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    if "like" not in entry:
        return dict(entry)
    base = _filled_in(others[entry["like"]], others)
    shared: dict[str, Any] = {key: base[key] for key in ("file", "where", "own", "peers", "cases") if key in base}
    return {**shared, **{key: value for key, value in entry.items() if key != "like"}}


def _table(entry: Mapping[str, Any]) -> Table:
    return Table([Column(**column) for column in entry["columns"]], entry["lines"])
