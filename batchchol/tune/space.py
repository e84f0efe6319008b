"""Search spaces: what is measured, as TOML files, of which some are package data."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from batchchol.batches.sizes import LARGEST, LONGEST_LIST, matrices
from batchchol.errors import BatchcholError
from batchchol.files import read_file
from batchchol.measure.dataset import read_correct
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from batchchol.tune.choosing.winners import Best, value_of
from batchchol.tune.general_candidates import OPS
from kernelgen import FAMILIES
from kernelgen.problem import LAYOUT_KINDS, MATHS, ORDERS
from kernelgen.schedules.axes import CACHES, LOOKINGS, UNROLLS, axes_of, required_axes
from kernelgen.targets import ELEMENT_BYTES

SPACES = ("paper", "study2", "course", "full", "quick", "general")

ALL_FAMILIES = "all"
CHUNK, DEFAULT = "chunk", "default"
"""Words for numbers: the chunk of the point, and the default."""

_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "backend": ("cpu", "cuda"),
        "dtype": tuple(ELEMENT_BYTES),
        "op": OPS,
        "uplo": ("lower", "upper"),
        "layout": LAYOUT_KINDS,
        "order": ORDERS,
        "protocol": ("queued", "single"),
        "math": MATHS,
        "looking": LOOKINGS,
        "unroll": UNROLLS,
        "cache": CACHES,
        "family": tuple(FAMILIES),
    }
)
# Numbers of at most 18 digits are sure to be less than 2**63.
_SIZES = re.compile(r"2\^([0-9]{1,18})|([1-9][0-9]{0,8})(KiB|MiB|GiB)")
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})(?::([1-9][0-9]{0,17}))?")
_LARGEST_POWER = 40
_COMMON = {
    "backend": None,
    "n": None,
    "op": ("potrf",),
    "dtype": ("float32",),
    "uplo": ("lower",),
    "math": ("ieee",),
    "batch": (16384,),
    "layout": ("chunked",),
    "protocol": (DEFAULT,),
    "any_block": (False,),
}
_KERNELS = _COMMON | {"order": ("col",), "chunk": (DEFAULT,)}
_CANDIDATES = _COMMON | {"variations": (False,)}
_CHOICES = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in axes_of(family)))
_NARROWING = ("n", "dtype", "math", "batch", "layout", "family")
_BEST = ("data", "count", "backend", *_NARROWING)

Axis = tuple[Any, ...]


class SpaceError(BatchcholError):
    """A search space that is unknown or malformed; names the file, the line and the key."""


@dataclass(frozen=True)
class Table:
    """The cross product of some axes, by name: of a family's schedules, or of the candidates of some."""

    candidates: bool
    families: tuple[str, ...]
    axes: Mapping[str, Axis]

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that it is for."""
        return self.axes.get("backend", _WORDS["backend"])


@dataclass(frozen=True)
class Space:
    """A search space: the points of all its tables; see `tune.expand` for what they are on a machine."""

    name: str
    about: str
    tables: tuple[Table | Best, ...]


def load_space(name: str | Path) -> Space:
    """The space of a name, or of a TOML file.

    Raises
    ------
    SpaceError
        If there is no such space, or the file is malformed; names the line and the key.
    """
    if isinstance(name, str) and name in SPACES:
        return parse_space((files("batchchol.tune") / "spaces" / f"{name}.toml").read_text(), f"{name}.toml", name)
    path = Path(name)
    if path.suffix != ".toml":
        raise SpaceError(f"space: got {str(name)!r}, expected one of {', '.join(SPACES)}, or a file *.toml")
    try:
        return parse_space(read_file(path).decode(), str(path), path.stem, path.parent)
    except (OSError, UnicodeDecodeError) as error:
        raise SpaceError(f"{path}: cannot be read: {error}") from error


def parse_space(text: str, file: str, name: str, folder: Path = Path()) -> Space:
    """The space that a TOML text describes; `file` is what messages call it, `folder` where its data are.

    Raises
    ------
    SpaceError
        If it is malformed.
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # ValueError: a number of more digits than Python converts.
        raise SpaceError(f"{file}: not TOML: {error}{_key_at(text, str(error))}") from error
    source = _Source(text, file)
    about = content.pop("about", "")
    if not isinstance(about, str):
        raise source.error("about", None, f"got {about!r}, expected a text")
    tables: list[Table | Best] = []
    for kind, entries in content.items():
        if kind not in ("kernels", "candidates", "best"):
            raise source.error(kind, None, "unknown, expected about, [[kernels]], [[candidates]] or [[best]]")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise source.error(kind, None, f"expected tables: [[{kind}]]")
        make = partial(_best, folder=folder) if kind == "best" else _table
        tables += [make(source, (kind, number), entry) for number, entry in enumerate(entries)]
    if not tables:
        raise SpaceError(f"{file}: no points: expected at least one table [[kernels]], [[candidates]] or [[best]]")
    return Space(name, " ".join(about.split()), tuple(tables))


@dataclass(frozen=True)
class _Source:
    """A text, to say where an error is in it."""

    text: str
    file: str

    def error(self, key: str, table: tuple[str, int] | None, reason: str) -> SpaceError:
        line = self._line(key, table)
        where = f"line {line}: " if line else ""
        inside = f"[[{table[0]}]] " if table else ""
        return SpaceError(f"{self.file}: {where}{inside}{key}: {reason}")

    def _line(self, key: str, table: tuple[str, int] | None) -> int:
        """The line of a key, in the table of that kind and number, else of the table; 0 if neither is found."""
        counts: dict[str, int] = {}
        here: tuple[str, int] | None = None
        start = 0
        for number, line in enumerate(self.text.splitlines(), start=1):
            if header := re.match(r"\s*\[\[?\s*([\w-]+)\s*\]", line):
                kind = header[1]
                counts[kind] = counts.get(kind, -1) + 1
                here = (kind, counts[kind])
                start = number if here == table else start
                if table is None and kind == key:
                    return number
            elif here == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return number
        return start


def _table(source: _Source, place: tuple[str, int], entry: Mapping[str, Any]) -> Table:
    candidates = place[0] == "candidates"
    families = _families(source, place, entry, candidates)
    known: dict[str, Axis | None] = dict(_CANDIDATES if candidates else _KERNELS)
    if not candidates:
        known |= dict.fromkeys(axes_of(FAMILIES[families[0]]))
    axes = _axes(source, place, entry, ("family", *known), families)
    needed = ["n"] if candidates else ["n", *required_axes(FAMILIES[families[0]])]
    for key in needed:
        if key not in axes:
            raise source.error(key, place, "missing, expected one value or a list of them")
    return Table(candidates, families, {key: default for key, default in known.items() if default} | axes)


def _best(source: _Source, place: tuple[str, int], entry: Mapping[str, Any], folder: Path) -> Best:
    axes = _axes(source, place, entry, dict.fromkeys((*_BEST, *_CHOICES)), tuple(FAMILIES))
    count = axes.get("count", (1,))
    if len(count) != 1:
        raise source.error("count", place, f"got {len(count)} numbers, expected one")
    refuse = partial(source.error, "data", place)
    kept = {name: axes[name] for name in _NARROWING if name in axes}
    rows = tuple(row for row in _measured(entry.get("data", []), refuse, folder) if _is_of(row.point, kept))
    if not rows:
        raise refuse(f"has no correct measurement of that {', '.join(kept)}")
    changes = {key: values for key, values in axes.items() if key not in _BEST}
    for key in changes:
        if not any(hasattr(row.spec.schedule, key) for row in rows):
            families = dict.fromkeys(row.spec.family for row in rows)
            raise source.error(key, place, f"no kernel of the data has it, they are of {', '.join(families)}")
    return Best(axes.get("backend", _WORDS["backend"]), rows, count[0], changes)


def _axes(
    source: _Source, place: tuple[str, int], entry: Mapping[str, Any], known: Collection[str], families: Sequence[str]
) -> dict[str, Axis]:
    """The values of each key of a table but those of its kernels' source; refuses a key that is not known."""
    axes: dict[str, Axis] = {}
    other = "data" if place[0] == "best" else "family"
    for key, values in entry.items():
        if key not in known:
            raise source.error(key, place, f"unknown, expected one of {', '.join(known)}")
        if key != other:
            axes[key] = _values(values, partial(source.error, key, place), _kind(key, families))
    return axes


def _measured(data: Any, refuse: Callable[[str], SpaceError], folder: Path) -> list[Row]:
    """The correct rows of the files that a table names."""
    names = data if isinstance(data, list) else [data]
    if not names or not all(isinstance(name, str) for name in names):
        raise refuse("expected a file of measurements, CSV or Parquet, or a list of them")
    try:
        return [row for name in names for row in read_correct(folder / name)]
    except BatchcholError as error:
        raise refuse(str(error)) from error


def _is_of(point: Point, kept: Mapping[str, Axis]) -> bool:
    """Whether a point has one of the values of each key; sizes in bytes are those of its own matrices."""
    problem = point.spec.problem
    own = {name: values for name, values in kept.items() if name != "batch"}
    sizes = [matrices(str(size), problem.n, problem.dtype) for size in kept.get("batch", (point.batch,))]
    return point.batch in sizes and all(value_of(point, name) in values for name, values in own.items())


def _families(source: _Source, place: tuple[str, int], entry: Mapping[str, Any], several: bool) -> tuple[str, ...]:
    found = entry.get("family", "thread")
    chosen = found if isinstance(found, list) and several else [found]
    allowed = (*FAMILIES, ALL_FAMILIES) if several else tuple(FAMILIES)
    for family in chosen:
        if family not in allowed:
            raise source.error("family", place, f"got {family!r}, expected one of {', '.join(allowed)}")
    return tuple(chosen)


def _kind(key: str, families: Sequence[str]) -> str:
    """What values of a key are: its name if words, "sizes", "orders", "bools", "choices", "texts" or "numbers"."""
    if key in _WORDS:
        return key
    if key in ("batch", "n", "count", "any_block", "variations"):
        return {"batch": "sizes", "n": "orders", "count": "orders"}.get(key, "bools")
    axes = [axes[key] for family in families if key in (axes := axes_of(FAMILIES[family]))]
    if not axes:
        return "numbers"
    return "choices" if axes[-1].is_switch else "texts" if axes[-1].words else "numbers"


def _values(given: Any, refuse: Callable[[str], SpaceError], kind: str) -> Axis:
    """The values of an axis: one, or a list of them, in which ranges of numbers are one word."""
    listed = given if isinstance(given, list) else [given]
    if not listed:
        raise refuse("got nothing, expected at least one value")
    expanded = [_expanded(item, refuse, kind) for item in listed]
    if (count := sum(map(len, expanded))) > LONGEST_LIST:
        raise refuse(f"got {count:,} values, expected at most {LONGEST_LIST:,}")
    return tuple(dict.fromkeys(value for values in expanded for value in values))


def _expanded(item: Any, refuse: Callable[[str], SpaceError], kind: str) -> Sequence[Any]:
    allowed = (*_WORDS.get(kind, ()), *((DEFAULT,) if kind in ("protocol", "cache") else ()))
    # Of the kinds whose items are one value each: whether this is one, and what is expected.
    single = dict.fromkeys(_WORDS, (item in allowed, f"some of {', '.join(allowed)}")) | {
        # A family's own words: the family refuses others.
        "texts": (isinstance(item, str), "a text"),
        "bools": (isinstance(item, bool), "true or false"),
        "choices": (isinstance(item, bool) or item == DEFAULT, f'true or false or "{DEFAULT}"'),
    }
    if kind in single:
        fits, expected = single[kind]
        if not fits:
            raise refuse(f"got {item!r}, expected {expected}")
        return [item]
    if isinstance(item, int) and not isinstance(item, bool) and 1 <= item <= LARGEST:
        return [item]
    if isinstance(item, str):
        if (found := _RANGE.fullmatch(item)) and int(found[1]) <= int(found[2]):
            return range(int(found[1]), int(found[2]) + 1, int(found[3] or 1))
        if kind == "numbers" and item in (CHUNK, DEFAULT):
            return [item]
        if kind == "sizes" and (size := _SIZES.fullmatch(item)):
            return [2 ** min(int(size[1]), _LARGEST_POWER)] if size[1] else [item]
    words = {"numbers": f', "{CHUNK}" or "{DEFAULT}"', "sizes": ', powers such as "2^14" or sizes such as "2GiB"'}
    raise refuse(f'got {item!r}, expected positive integers, ranges such as "1-9" or "2-24:2"{words.get(kind, "")}')


def _key_at(text: str, message: str) -> str:
    """What key the line of a syntax error is about, for a message that says only the line."""
    found = re.search(r"line (\d+)", message)
    lines = text.splitlines()
    last = int(found[1]) if found else len(lines)
    for line in reversed(lines[:last]):
        if key := re.match(r"\s*([\w-]+)\s*=", line):
            return f", key {key[1]!r}"
    return ""
