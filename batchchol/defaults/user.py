"""What was learned on this machine: tables in the user's cache folder, one file for each device.

An entry is about exactly one case and order, and one batch; what it replaced, or did not, is its evidence. A file is
read once in a process. It is replaced in one step, under a lock, so that processes which tune at the same time keep
each other's entries.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from batchchol.artifacts.cache import ArtifactCache, default_folder
from batchchol.batches.sizes import LARGEST
from batchchol.defaults.tables import Case, schedule_of, values_of, without_none
from batchchol.errors import CacheError, DataFileError, SettingError
from batchchol.files import read_file, replace_file
from kernelgen import KernelSpec, Layout, Problem, Schedule
from kernelgen.targets import ELEMENT_BYTES

FORMAT = 1
FOLDER = "tables"
VARIABLE = "BATCHCHOL_TABLES"
"""The environment variable: "shipped" leaves the user's tables unread, "user" is as if it were not set."""

_CASE = ("dtype", "math", "layout", "chunk", "order")
_OPTIONAL = ("incumbent_ns", "runner_up_ns")
_LONGEST_NAME = 120
_T = TypeVar("_T")


class TableWarning(UserWarning):
    """A table of the user's, or a part of it, cannot be used; names the file."""


@dataclass(frozen=True)
class Tuned:
    """The best schedule of a case at one order and batch, measured against the one that was used before.

    Times are nanoseconds of a matrix, None where there was nothing to measure. `kept`: the one that comes with the
    library stays, and the entry is only evidence for it. `margin` is what another one had to be faster by, as a
    part of its time; `about` says when, with what and how it was measured.
    """

    case: Case
    n: int
    batch: int
    schedule: Schedule
    ns: float
    kept: bool
    incumbent: Schedule
    incumbent_ns: float | None
    margin: float
    runner_up: Schedule | None = None
    runner_up_ns: float | None = None
    about: Mapping[str, str | int] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The entry as its file has it."""
        values = {**asdict(self.case), "n": self.n, "batch": self.batch, **_numbers(self)}
        schedules = {"schedule": self.schedule, "incumbent": self.incumbent, "runner_up": self.runner_up}
        values |= {name: values_of(schedule) for name, schedule in schedules.items() if schedule is not None}
        return without_none(values | {"runner_up_ns": self.runner_up_ns, "about": dict(self.about)})


@dataclass(frozen=True)
class Placed:
    """The layout for an order and a batch: `section` says of what, "layouts" of batches or "arrays"; as `Tuned`."""

    section: str
    dtype: str
    n: int
    batch: int
    layout: Layout
    ns: float
    kept: bool
    incumbent: Layout
    incumbent_ns: float | None
    margin: float
    about: Mapping[str, str | int] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The placement as its file has it."""
        values: dict[str, Any] = {name: getattr(self, name) for name in _PLACE} | _numbers(self)
        values |= {name: without_none(asdict(getattr(self, name))) for name in ("layout", "incumbent")}
        return without_none(values | {"about": dict(self.about)})


_PLACE = ("section", "dtype", "n", "batch")


@dataclass(frozen=True)
class Planned:
    """How larger matrices of a dtype, an order and a batch are factored, by the choices of its plan; as `Tuned`."""

    dtype: str
    n: int
    batch: int
    plan: Mapping[str, str | int]
    ns: float
    kept: bool
    incumbent: Mapping[str, str | int]
    incumbent_ns: float | None
    margin: float
    runner_up: Mapping[str, str | int] | None = None
    runner_up_ns: float | None = None
    about: Mapping[str, str | int] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The entry as its file has it."""
        values: dict[str, Any] = {name: getattr(self, name) for name in _PLANNED} | _numbers(self)
        plans = {"plan": self.plan, "incumbent": self.incumbent, "runner_up": self.runner_up}
        values |= {name: dict(choices) for name, choices in plans.items() if choices is not None}
        return without_none(values | {"runner_up_ns": self.runner_up_ns, "about": dict(self.about)})


_PLANNED = ("dtype", "n", "batch")


@dataclass(frozen=True)
class UserTable:
    """The entries of a file."""

    path: Path | None = None
    entries: tuple[Tuned, ...] = ()
    placements: tuple[Placed, ...] = ()
    plans: tuple[Planned, ...] = ()


def enabled() -> bool:
    """Whether the user's tables are read.

    Raises
    ------
    SettingError
        If BATCHCHOL_TABLES has a value that means nothing.
    """
    chosen = os.environ.get(VARIABLE) or "user"
    if chosen not in ("user", "shipped"):
        raise SettingError(f"{VARIABLE}={chosen!r} is unknown: use 'user' or 'shipped'")
    return chosen == "user"


def path_of(device: str, architecture: str) -> Path:
    """The file of a device.

    Parameters
    ----------
    device : str
        The GPU's name, or the CPU's.
    architecture : str
        A GPU's, such as "sm_90", or the name of a CPU's target.

    Raises
    ------
    CacheError
        If there is no cache folder (no home folder).
    """
    name = re.sub(r"[^a-z0-9_]+", "-", f"{device} {architecture}".lower()).strip("-")
    return default_folder() / FOLDER / f"{name[-_LONGEST_NAME:]}.json"


def load(device: str, architecture: str, target: str) -> UserTable:
    """The table of a device; an empty one if there is none, or if it is not read.

    Whatever is wrong with it costs a `TableWarning`, and the entries that cannot be used.
    """
    if not enabled():
        return UserTable()
    try:
        path = path_of(device, architecture)
    except CacheError:
        return UserTable()
    try:
        content = _content(path, device, architecture)
    except (OSError, ValueError) as error:
        _warn(f"{path} is not used: {_reason(error)}; tune again, or remove it")
        return UserTable()
    entries = _parsed(path, content["entries"], lambda values: _tuned(values, target))
    placements = _parsed(path, content["placements"], _placed)
    plans = _parsed(path, content["plans"], _planned)
    return UserTable(path, tuple(entries), tuple(placements), tuple(plans))


def merge(
    device: str,
    architecture: str,
    entries: Iterable[Tuned],
    placements: Iterable[Placed] = (),
    plans: Iterable[Planned] = (),
) -> Path:
    """Put entries into the table of a device, in place of those of the same case, order and batch; return its file.

    Raises
    ------
    CacheError
        If it cannot be written, or is of a newer version; what it had is still there.
    """
    path = path_of(device, architecture)
    try:
        ArtifactCache().prepare()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with _locked(path):
            content = _known(path, device, architecture)
            content["entries"] = _merged(content["entries"], entries, (*_CASE, "n", "batch"))
            content["placements"] = _merged(content["placements"], placements, _PLACE)
            content["plans"] = _merged(content["plans"], plans, _PLANNED)
            replace_file(path, _render(content).encode())
    except (OSError, DataFileError) as error:
        raise CacheError(
            f"the table {path} cannot be written ({_reason(error)}): make room or give write permission "
            "there, or set BATCHCHOL_CACHE to another folder"
        ) from error
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file's lock; the system releases it when this process ends."""
    # Not at the top: tables are also read where there is no such module.
    import fcntl

    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _content(path: Path, device: str, architecture: str) -> dict[str, Any]:
    """What a file says, an empty table if there is none; its entries are not checked."""
    empty = {"format": FORMAT, "device": device, "architecture": architecture, "entries": [], "placements": []}
    empty["plans"] = []
    try:
        content = json.loads(read_file(path))
    except (FileNotFoundError, NotADirectoryError):
        return empty
    except (ValueError, RecursionError) as error:
        raise ValueError(f"damaged: {_reason(error)}") from error
    if isinstance(content, dict):
        # What is newer than the format's first files.
        content.setdefault("plans", [])
    if not isinstance(content, dict) or not all(isinstance(content.get(key), type(empty[key])) for key in empty):
        raise ValueError("damaged: not a table")
    if content["format"] > FORMAT:
        raise _Newer(f"it is of format {content['format']}, and this version of batchchol knows {FORMAT}")
    if (content["device"], content["architecture"]) != (device, architecture):
        raise ValueError(f"it is of {content['device']!r}, {content['architecture']!r}")
    return content


class _Newer(ValueError):
    """A table that a newer version of the library wrote."""


def _known(path: Path, device: str, architecture: str) -> dict[str, Any]:
    """What a file says before it is replaced; an unreadable one is set aside."""
    try:
        return _content(path, device, architecture)
    except _Newer as error:
        raise CacheError(f"the table {path} cannot be changed: {error}; use that version, or remove it") from error
    except ValueError as error:
        aside = path.with_suffix(".damaged")
        path.replace(aside)
        _warn(f"{path} cannot be used: {_reason(error)}; it is now {aside.name}")
        return _content(path, device, architecture)


def _merged(known: Sequence[Any], new: Iterable[Tuned | Placed | Planned], names: Sequence[str]) -> list[Any]:
    """Old and new entries, the new where both are about the same; unknown ones stay as they are."""
    merged: dict[str, Any] = {}
    for values in (*known, *(each.values() for each in new)):
        same = [_op(values), *(values.get(name) for name in names)] if isinstance(values, dict) else [values]
        merged[json.dumps(same)] = values
    return list(merged.values())


def _op(values: Mapping[str, Any]) -> str:
    """The operation of an entry: the oldest one names none."""
    return str(values.get("op") or "potrf")


def _render(content: Mapping[str, Any]) -> str:
    """JSON with an entry a line."""
    parts = [
        f" {json.dumps(key)}: [\n" + ",\n".join(f"  {json.dumps(each)}" for each in value) + "\n ]"
        if isinstance(value, list) and value
        else f" {json.dumps(key)}: {json.dumps(value)}"
        for key, value in content.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _parsed(path: Path, listed: Sequence[Any], parse: Callable[[Any], _T]) -> Iterator[_T]:
    """What can be used of a list; one warning names the rest."""
    unusable = []
    for values in listed:
        try:
            parsed = parse(values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            of = [values.get(name) for name in ("n", "batch")] if isinstance(values, dict) else values
            unusable.append(f"(n, batch)={of}: {_reason(error)}")
        else:
            yield parsed
    if unusable:
        more = f" (and {len(unusable) - 1} more)" if len(unusable) > 1 else ""
        _warn(
            f"{path}: an entry is not used{more}, that of {unusable[0]}; another version wrote it, or it is damaged: "
            "tune again"
        )


def _tuned(values: Mapping[str, Any], target: str) -> Tuned:
    case = Case(**{name: values.get(name) for name in _CASE} | {"op": _op(values)})  # type: ignore[arg-type]
    runner_up = values.get("runner_up")
    tuned = Tuned(
        case,
        _positive(values, "n"),
        _positive(values, "batch"),
        schedule_of(values["schedule"]),
        incumbent=schedule_of(values["incumbent"]),
        runner_up=None if runner_up is None else schedule_of(runner_up),
        runner_up_ns=_number(values, "runner_up_ns"),
        **_timed(values),
    )
    # Check that it can be built.
    order = "col" if case.order is None else case.order
    KernelSpec(Problem(tuned.n, case.dtype, op=case.op, math=case.math), case.layout, order, tuned.schedule, target)
    return tuned


def _placed(values: Mapping[str, Any]) -> Placed:
    section, dtype = values["section"], values["dtype"]
    layouts = (Layout(**values[name]) for name in ("layout", "incumbent"))
    layout, incumbent = layouts
    if section not in ("layouts", "arrays"):
        raise ValueError(f"section={section!r}")
    n, batch = _positive(values, "n"), _positive(values, "batch")
    Problem(n, dtype)
    return Placed(section, dtype, n, batch, layout, incumbent=incumbent, **_timed(values))


def _planned(values: Mapping[str, Any]) -> Planned:
    dtype, runner_up = values["dtype"], values.get("runner_up")
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"dtype={dtype!r}")
    return Planned(
        dtype,
        _positive(values, "n"),
        _positive(values, "batch"),
        dict(values["plan"]),
        incumbent=dict(values["incumbent"]),
        runner_up=None if runner_up is None else dict(runner_up),
        runner_up_ns=_number(values, "runner_up_ns"),
        **_timed(values),
    )


def _timed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "ns": _number(values, "ns"),
        "kept": bool(values["kept"]),
        "incumbent_ns": _number(values, "incumbent_ns"),
        "margin": _number(values, "margin"),
        "about": dict(values["about"]),
    }


def _numbers(each: Tuned | Placed | Planned) -> dict[str, Any]:
    return {name: getattr(each, name) for name in ("kept", "ns", "incumbent_ns", "margin")}


def _positive(values: Mapping[str, Any], name: str) -> int:
    value = values[name]
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise ValueError(f"{name}={value!r}")
    return value


def _number(values: Mapping[str, Any], name: str) -> float | None:
    """A finite number that is not negative; None if an optional one is missing."""
    value = values.get(name) if name in _OPTIONAL else values[name]
    if value is None and name in _OPTIONAL:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{name}={value!r}")
    return float(value)


def _reason(error: Exception) -> str:
    said = error.reason if isinstance(error, DataFileError) else getattr(error, "strerror", None)
    return said or " ".join(str(error).split()) or repr(error)


def _warn(message: str) -> None:
    warnings.warn(message, TableWarning, stacklevel=2)
