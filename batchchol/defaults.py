"""What is used when nobody says: the spec, the chunk and the way of arrays, out of measured tables."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from importlib.resources import files
from math import log2
from numbers import Integral
from typing import Any, Literal, NamedTuple

from batchchol.tables import Case, Placement, Table, nearest, parse, rows
from kernelgen import TARGETS, KernelSpec, Layout, Problem, Schedule, SpecError, ThreadSchedule
from kernelgen.schedules import DEFAULT_THREADS, with_math
from kernelgen.targets import CUDA

_FILE = "defaults.json"
# What is chosen for a batch of unknown size: speeds are stated for this one.
TYPICAL_BATCH = 16_384


class Choice(NamedTuple):
    """A spec and where it comes from: an entry of a table, for batches near `batch`, or for all if that is None."""

    spec: KernelSpec
    batch: int | None
    origin: str


class Source(NamedTuple):
    """The table that serves a machine, and why that one."""

    table: Table
    reason: str


@lru_cache(maxsize=4096, typed=True)
def default_spec(
    n: int,
    *,
    target: str,
    dtype: str = "float32",
    layout: str = "chunked",
    chunk: int | None = None,
    order: str = "col",
    math: str = "ieee",
    uplo: str = "lower",
    in_place: bool = False,
    batch: int | None = None,
    arch: str | None = None,
) -> KernelSpec:
    """The spec that the measured table of a target names for matrices of order `n`.

    An order between two of the table is served as the next larger one, a batch as the one nearest by ratio. What was
    not measured is served as what is most like it: float64 as float32, one class of accuracy as the other.

    Parameters
    ----------
    n, target, dtype, layout, order, math, uplo, in_place
        As in `KernelSpec`.
    chunk : int, optional
        That of the batch: the spec is then the best on it, and may run on no other.
    batch : int, optional
        How many matrices there are; by default 16,384.
    arch : str, optional
        The GPU's architecture, such as "sm_90"; see `source_of`.

    Raises
    ------
    SpecError
        If an argument is outside what can be built.
    """
    case: dict[str, Any] = {"target": target, "dtype": dtype, "layout": layout, "chunk": chunk, "order": order}
    return default_choice(n, batch=batch, math=math, uplo=uplo, in_place=in_place, arch=arch, **case).spec


def default_choice(n: int, *, batch: int | None = None, **case: Any) -> Choice:
    """What `default_spec` returns, and where it comes from; the arguments are the same."""
    if batch is not None and (not isinstance(batch, Integral) or batch < 0):
        raise SpecError(f"batch={batch!r} cannot be built: use an integer from 0 up")
    return nearest(choices(n, **case), TYPICAL_BATCH if batch is None else int(batch))


@lru_cache(maxsize=4096, typed=True)
def choices(
    n: int,
    *,
    target: str,
    dtype: str = "float32",
    layout: str = "chunked",
    chunk: int | None = None,
    order: str = "col",
    math: str = "ieee",
    uplo: str = "lower",
    in_place: bool = False,
    arch: str | None = None,
) -> tuple[Choice, ...]:
    """What `default_spec` chooses from, one choice for each size of batch; its other arguments are the same.

    Raises
    ------
    SpecError
        If an argument is outside what can be built.
    """
    problem = Problem(n, dtype, uplo)
    # This one can be built whatever is asked for; if it is refused, an argument is wrong.
    plain = KernelSpec(problem, layout, order, ThreadSchedule(1, math=math), target, in_place)
    table, reason = source_of(target, arch)
    lower_order = order if uplo == "lower" else {"row": "col", "col": "row"}[order]
    wanted = Case(dtype, math, layout, chunk if layout == "chunked" else None, lower_order)
    for case in sorted(table.cases, key=lambda case: _unlike(case, wanted)):
        for row in rows(table.cases[case], n):
            origin = f"{reason}; {case}, up to order {row[0].n}"
            found = [
                Choice(spec, entry.batch, origin)
                for entry in row
                if (spec := _fitted(plain, entry.schedule, wanted.chunk)) is not None
            ]
            if found:
                return tuple(found)
    return (Choice(plain, None, f"{reason}; nothing of it can be built"),)


def _unlike(case: Case, wanted: Case) -> tuple[float, ...]:
    """How unlike a case of a table is to what is wanted; what comes first matters most."""
    if wanted.layout == "canonical":
        layout = case.order != wanted.order if case.layout == "canonical" else 2
    else:
        layout = ("chunked", "interleaved", "canonical").index(case.layout) + 1 if case.layout != wanted.layout else 0
    if case.chunk == wanted.chunk or case.chunk is None or wanted.chunk is None:
        chunk = 0.0 if case.chunk == wanted.chunk else 1.0
    else:
        chunk = 2 + abs(log2(case.chunk / wanted.chunk))
    return (layout, case.dtype != wanted.dtype, case.math != wanted.math, chunk)


def _fitted(plain: KernelSpec, schedule: Schedule, chunk: int | None) -> KernelSpec | None:
    """The spec with a schedule of another one's, or None if that cannot be built."""
    schedule = with_math(schedule, plain.schedule.math)
    changes: dict[str, Any] = {}
    if schedule.stride not in (None, chunk):
        changes["stride"] = None
    if getattr(schedule, "staged", None) is False and plain.layout == "canonical":
        changes["staged"] = True
    # A tile that fits the entry's order may be larger than this one.
    nb = getattr(schedule, "nb", None)
    smaller = {} if nb is None else {"nb": min(nb, plain.problem.n)}
    for fitting in (changes, changes | smaller):
        with suppress(SpecError):
            return replace(plain, schedule=replace(schedule, **fitting))
    return None


def default_layout(n: int, *, target: str, dtype: str = "float32", arch: str | None = None) -> Layout:
    """The layout in which large batches of matrices of order `n` are factored fastest.

    Where none was measured, chunks of as many matrices as a warp has threads, or a SIMD register lanes.
    """
    row = _placements("layouts", n, target, dtype, arch)
    if row:
        return row[0].layout
    return Layout.chunked(DEFAULT_THREADS if TARGETS[target].gpu else TARGETS[target].lanes(dtype))


def array_layout(n: int, batch: int, *, target: str, dtype: str = "float32", arch: str | None = None) -> Layout:
    """The layout in which C-contiguous arrays (batch, n, n) are factored fastest, copies between layouts included.

    Where none was measured, as they are on a CPU, whose kernels transpose them in cache, and as batches on a GPU.
    """
    row = _placements("arrays", n, target, dtype, arch)
    if row:
        return nearest(row, batch).layout
    return default_layout(n, target=target, dtype=dtype, arch=arch) if TARGETS[target].gpu else Layout.canonical()


@lru_cache(maxsize=1024)
def _placements(
    section: Literal["layouts", "arrays"], n: int, target: str, dtype: str, arch: str | None
) -> tuple[Placement, ...]:
    """The entries of a section for an order, one a batch; those of the other dtype if a dtype has none."""
    known: tuple[Placement, ...] = getattr(source_of(target, arch).table, section)
    own = [each for each in known if each.dtype == dtype]
    return next(rows(own or known, n), ())


def source_of(target: str, arch: str | None = None) -> Source:
    """The table that serves a target: on a GPU that of its architecture, else of the nearest one that was measured.

    Nearest is who differs least in the major compute capability, then in the number as a whole, the lower of two. A
    GPU of unknown architecture is served as the newest.

    Raises
    ------
    SpecError
        If the target is unknown, or the architecture no GPU's.
    """
    if target not in TARGETS:
        raise SpecError(f"target={target!r} cannot be built: use one of {', '.join(map(repr, TARGETS))}")
    return _source(target, arch)


@cache
def _source(target: str, arch: str | None) -> Source:
    tables = [table for table in shipped_tables().values() if table.target == target]
    if target != CUDA.name:
        if arch is not None:
            raise SpecError(f"arch={arch!r} cannot be built: target {target!r} is no GPU's, use None")
        return Source(tables[0], f"table {target}")
    newest_first = sorted(tables, key=lambda table: -_number(table.name))
    if arch is None:
        chosen = newest_first[0]
        return Source(chosen, f"table {chosen.name}, the newest: the architecture is not known")
    wanted = _number(arch)
    chosen = min(reversed(newest_first), key=lambda table: _distance(_number(table.name), wanted))
    if _number(chosen.name) == wanted:
        return Source(chosen, f"table {chosen.name}")
    return Source(chosen, f"table {chosen.name}, the nearest to {arch} of those that were measured")


def _distance(number: int, other: int) -> tuple[int, int]:
    return abs(number // 10 - other // 10), abs(number - other)


def _number(arch: str) -> int:
    from batchchol.cuda.toolkit import parse_architecture

    try:
        return parse_architecture(arch)[1]
    except (TypeError, ValueError):
        raise SpecError(
            f"arch={arch!r} cannot be built: use the name of a GPU architecture, such as 'sm_90'"
        ) from None


@cache
def shipped_tables() -> dict[str, Table]:
    """The tables that come with the package."""
    return parse((files("batchchol") / _FILE).read_text(encoding="utf-8"))
