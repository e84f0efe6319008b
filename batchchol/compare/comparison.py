"""The library against its peers, side by side in one run: same data, same clock, same rules, results checked."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from batchchol.backends import Backend
from batchchol.batches.checks import check_range
from batchchol.batches.host_memory import require_memory
from batchchol.batches.sizes import matrices
from batchchol.compare import factors, inversions, large, reflections, solves
from batchchol.compare.contenders import WAITING, Arena, BaseArena, Entrant
from batchchol.compare.cpu import CpuVenue
from batchchol.compare.factors import LuArena
from batchchol.compare.gpu import GpuVenue
from batchchol.compare.heat import Heat, Report, Run, Venue
from batchchol.compare.inversions import INVERSE_ARENAS
from batchchol.compare.large import LargeArena
from batchchol.compare.peers import Peer
from batchchol.compare.reflections import REFLECTION_ARENAS
from batchchol.compare.rows import Row, read_rows, write_csv
from batchchol.compare.solves import SOLVE_ARENAS
from batchchol.errors import BatchcholError, CompilerNotFound, DataFileError
from batchchol.measure.energy import idle_watts
from batchchol.measure.machine import stable_name
from batchchol.measure.provenance import about
from batchchol.measure.row import Row as Measured
from kernelgen import MAX_N
from kernelgen.operations import OPERATIONS

TIMED_RECIPE = "diagonally_dominant"
# Only contenders that also get these right are timed: a batch whose last chunk is not full.
CHECKED_RECIPE, CHECKED_BATCH = "wishart", 333
_CHECKED_LARGE = 3
_ARENAS: tuple[type[BaseArena], ...] = (Arena, *SOLVE_ARENAS, *INVERSE_ARENAS, LuArena, *REFLECTION_ARENAS)
ARENAS: Mapping[str, type[BaseArena]] = MappingProxyType({each.op: each for each in _ARENAS})
"""What contenders are given, by operation: those that can be compared."""
NO_PEERS = "--peers: none of them can be used here, see above: install one, or name others"


@dataclass(frozen=True)
class Outcome:
    """The rows of the cases asked for, and what did not take part, with the reason."""

    rows: tuple[Row, ...]
    absent: dict[str, str]


def to_stderr(line: str) -> None:
    """Report progress where it does not mix with results."""
    print(line, file=sys.stderr, flush=True)


def compare(
    backend: Backend,
    peers: Iterable[Peer],
    *,
    op: str = Arena.op,
    nrhs: int = 1,
    ns: Iterable[int] | None = None,
    sizes: Iterable[str] | None = None,
    threads: Iterable[int] | None = None,
    samples: int = 20,
    dtype: str = "float32",
    maths: Sequence[str] | None = None,
    protocols: Sequence[str] | None = None,
    known: Sequence[Measured] = (),
    searched: bool = False,
    contenders: Collection[str] | None = None,
    joules: float = 0.0,
    required: bool = False,
    out: Path | None = None,
    report: Report = to_stderr,
) -> Outcome:
    """Time the library and its peers in every case, by every protocol.

    Parameters
    ----------
    op : str
        The operation, of `ARENAS`.
    nrhs : int
        Right-hand sides of each matrix, where the operation has any.
    ns : iterable of int, optional
    sizes : iterable of str, optional
        Batches: matrices, or as many as fill an amount of memory such as "2GiB".
    threads : iterable of int, optional
        Numbers of the host's threads, by default one and all that the backend uses.
    samples : int
        Timed calls, or bursts, of every contender; on a GPU fewer, but at least 5, of those that take very long.
    dtype : {"float32", "float64"}
    maths : sequence of {"fast", "ieee"}, optional
        Accuracy classes of the library's kernels.
    protocols : sequence of str, optional
        By default all of the backend's.
    known : sequence of batchchol.measure.row.Row
        Measured GPU kernels that are known to be good, besides those of the tables of defaults; of factorizations.
    searched : bool
        Whether the fastest of all ways to factor takes part too, of orders above those of kernels, on a GPU.
    contenders : collection of str, optional
        The names of the library's own contenders that take part; by default all of them.
    joules : float
        Seconds that calls of each contender are repeated to measure their energy; 0 leaves it out.
    required : bool
        Whether it is an error if there are no peers.
    out : Path, optional
        A CSV file that is written on the way. What it holds already, measured on this machine with these versions, is
        not measured again.
    report : callable
        Called with a line at every step.

    Raises
    ------
    ValueError
        If an n, nrhs, the threads or the samples are out of range, or there is no such operation.
    ResidualError
        If the library's own result is wrong.
    BatchcholError
        If a peer is required and there is none, memory does not suffice, `out` cannot be read or written, or the GPU
        cannot be used any more.
    """
    venue: Venue = GpuVenue(backend) if backend.name == "cuda" else CpuVenue(backend)
    orders, asked = tuple(ns or venue.orders), tuple(sizes or venue.sizes)
    counts = tuple(sorted({1, backend.threads}) if threads is None else threads)
    _check(backend, op, nrhs, orders, counts, samples)
    absent: dict[str, str] = {}
    present, classes = list(_installed(peers, op, absent, report)), tuple(maths or venue.maths)
    if required and not present:
        raise BatchcholError(NO_PEERS)
    settings: dict[str, Any] = {
        "dtype": dtype,
        "searched": searched,
        "maths": classes,
        "known": known,
        "absent": absent,
    }
    run = Run(
        backend,
        venue,
        dtype,
        samples,
        "fast" if "fast" in classes else "ieee",
        tuple(protocols or backend.protocols),
        partial(_arena, op, nrhs),
        partial(_ours, backend, venue, _entrants(backend, venue, op), contenders, **settings),
        tuple(Entrant(peer.name, peer.survey().detail, peer.contenders, limit=peer.limit) for peer in present),
        report,
        about(backend),
        stable_name(backend.device()),
        absent,
        joules,
        idle_watts(backend.joules) if joules else math.nan,
    )
    kept = [] if out is None else _read(out, run)
    _prepare(run, present, orders, asked, op, nrhs if OPERATIONS[op].forgets and OPERATIONS[op].has_columns else 0)
    return Outcome(tuple(_measured(run, product(orders, asked), counts, kept, out)), absent)


def _check(backend: Backend, op: str, nrhs: int, orders: Iterable[int], counts: Iterable[int], samples: int) -> None:
    """Raise a ValueError that names the first argument out of range."""
    for n in orders:
        check_range("n", n, 1, None if op == Arena.op else MAX_N)
    for count in counts:
        check_range("threads", count, 1, backend.threads)
    check_range("samples", samples, 1)
    check_range("nrhs", nrhs, 1)
    if op not in ARENAS:
        raise ValueError(f"op: got {op!r}, expected one of {', '.join(map(repr, ARENAS))}")


def _entrants(backend: Backend, venue: Venue, op: str) -> Callable[..., Iterator[Entrant]]:
    """What yields this library's contenders of an operation, by order and batch."""
    return venue.entrants if op == Arena.op else partial(_room(op).entrants, backend, venue, op)


def _measured(
    run: Run, cases: Iterable[tuple[int, str]], counts: Sequence[int], kept: list[Row], out: Path | None
) -> Iterator[Row]:
    """The rows of every order and batch, with those that are kept written to `out` after each."""
    for n, size in cases:
        for found in _sized(run, n, size, counts, kept):
            yield from found
            measured = {row.point for row in found}
            kept = [row for row in kept if row.point not in measured] + found
            if out is not None:
                write_csv(out, kept)


def _room(op: str) -> Any:
    """The module with this library's contenders of an operation other than potrf."""
    operation = OPERATIONS[op]
    if operation.rectangular:
        return reflections
    alone = any(each.op == op for each in INVERSE_ARENAS)
    return factors if op == LuArena.op else inversions if alone else solves


def _arena(op: str, nrhs: int, backend: Backend, recipe: str, n: int, *rest: Any, **settings: Any) -> BaseArena:
    """The arena in which matrices of order n are compared."""
    kind = ARENAS[op] if n <= MAX_N else LargeArena
    return kind(backend, recipe, n, *rest, **{"nrhs": nrhs, **settings})


def _ours(
    backend: Backend,
    venue: Venue,
    ours: Callable[..., Iterator[Entrant]],
    contenders: Collection[str] | None,
    n: int,
    batch: int,
    dtype: str,
    searched: bool,
    **settings: Any,
) -> Iterator[Entrant]:
    """What of this library takes part at an order."""
    found: Iterable[Entrant]
    if n <= MAX_N:
        found = ours(n, batch, dtype=dtype, **settings)
    else:
        found = large.entrants(backend, venue, n, batch, dtype, searched=searched)
    return (each for each in found if contenders is None or each.name in contenders)


def _installed(peers: Iterable[Peer], op: str, absent: dict[str, str], report: Report) -> Iterator[Peer]:
    for peer in peers:
        found = peer.survey(op)
        if found.found:
            yield peer
        else:
            absent[peer.name] = "; ".join(filter(None, (found.detail, found.hint)))
            report(f"{peer.name} is absent: {absent[peer.name]}")


def _read(out: Path, run: Run) -> list[Row]:
    kept = read_rows(out)
    if kept and kept[0].on_gpu != (run.backend.name == "cuda"):
        place = "a GPU" if kept[0].on_gpu else "a CPU"
        raise DataFileError(out, "rows", f"it is a comparison on {place}: choose another file, or remove this one")
    return kept


def _prepare(
    run: Run, peers: Iterable[Peer], orders: Sequence[int], sizes: Sequence[str], op: str, nrhs: int
) -> None:
    """Compile everything ahead, in parallel; what fails is reported when it is its turn.

    Raises
    ------
    OutOfMemory
        If a batch would not fit: known before anything is compiled.
    """
    cases = [(n, matrices(size, n, run.dtype)) for n, size in product(orders, sizes)]
    for n, batch in cases:
        require_memory(batch, n, run.dtype, run.backend.free_bytes())
    for peer in peers:
        if peer.prepare is not None:
            run.report(f"{peer.name}: preparing")
            peer.prepare([n for n in orders if n <= MAX_N], run.dtype, nrhs, op)
    specs = dict.fromkeys(spec for case in cases for entrant in run.own(*case) for spec in entrant.specs)
    run.report(f"compiling {len(specs)} kernels")
    with suppress(CompilerNotFound):
        run.backend.build(list(specs))


def _sized(run: Run, n: int, size: str, counts: Sequence[int], kept: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows at one n and batch, with every number of threads: those that are measured together at a time."""
    batch = matrices(size, n, run.dtype)
    checked = CHECKED_BATCH if n <= MAX_N else _CHECKED_LARGE
    small = run.arena(run.backend, CHECKED_RECIPE, n, checked, run.dtype, run.bound, cold=False)
    arena = run.arena(run.backend, TIMED_RECIPE, n, batch, run.dtype, run.bound)
    for threads in counts:
        small, arena = small.changed(threads=threads), arena.changed(threads=threads)
        entrants = [*run.own(n, batch), *run.peers]
        for heat in [entrants] if run.venue.rounds > 1 else [[each] for each in entrants]:
            if old := _finished(run, heat, arena, size, kept):
                run.report(f"{run.label(arena)}: {', '.join(each.name for each in heat)}: there already")
                yield old
            else:
                # The matrices are made here, where not fitting ends the comparison.
                yield Heat(run, small, arena.changed(inputs=arena.inputs), size).rows(heat)


def _finished(run: Run, heat: Iterable[Entrant], arena: BaseArena, size: str, kept: Iterable[Row]) -> list[Row]:
    """The rows of entrants that an earlier run of the same code on this machine measured; none if any is missing.

    A changed checkout never counts as the same code.
    """
    commit, toolkit = run.about["commit"], run.about.get("toolkit", "")
    asked = (arena.op, arena.n, arena.nrhs, arena.batch, run.dtype), arena.threads, run.machine, commit, toolkit
    same = [
        row
        for row in kept
        if (row.case, row.threads, row.machine, row.commit, row.toolkit) == asked
        and row.size in ("", size)
        and (run.venue.fewer_samples or row.samples == run.samples)
    ]
    found = [_rows_of(run, entrant, same) for entrant in heat]
    return [] if commit.endswith("-dirty") or not all(found) else list(chain.from_iterable(found))


def _rows_of(run: Run, entrant: Entrant, same: Iterable[Row]) -> list[Row]:
    """An entrant's, if they are there for each protocol."""
    specs, names = {spec.name for spec in entrant.specs}, run.venue.protocols
    rows = [
        row
        for row in same
        if (row.contender, row.version) == (entrant.name, entrant.version)
        and (not specs or row.spec in specs)
        and row.protocol in {names[protocol] for protocol in run.protocols}
    ]
    waits = any(row.timing == WAITING for row in rows)
    wanted = {names[protocol] for protocol in run.protocols if protocol == "single" or not waits}
    known = not run.joules or any(not math.isnan(row.joules) for row in rows)
    return rows if known and wanted == {row.protocol for row in rows} else []
