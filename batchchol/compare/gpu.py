"""The library against its peers on a GPU, side by side in one run: same data, same clock, same checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np

from batchchol.backends import Backend
from batchchol.backends.cuda.device import device
from batchchol.batches.sizes import matrices
from batchchol.compare import gpu_contenders, known_kernels
from batchchol.compare.cpu import NO_PEERS, PEER_ERRORS, TIMED_RECIPE, Report, to_stderr
from batchchol.compare.gpu_contenders import Arena, DeviceContender, verify
from batchchol.compare.known_kernels import Known, Wanted
from batchchol.compare.peers.gpu import DevicePeer
from batchchol.compare.rows import DeviceRow, read_rows, write_csv
from batchchol.errors import BatchcholError, CompileError, CompilerNotFound, DeviceLost, OutOfMemory
from batchchol.measure.machine import stable_name
from batchchol.measure.provenance import about
from batchchol.measure.stopwatch import Stopwatch, Timing
from batchchol.measure.timing import spread
from batchchol.operations.roofline import roofline_seconds
from kernelgen import FAMILIES, MAX_N, KernelSpec, SpecError

ORDERS = (4, 8, 16, 24, 32, 40, 48, 64, 80, 96, 128)
SIZES = ("1024", "16384", "2GiB")
MATHS = ("fast",)
# Nobody is timed who does not get these right too.
CHECKED_RECIPE, CHECKED_BATCH = "wishart", 333
# The ways of one contender are compared by this many samples; the fastest is measured.
RIVAL_SAMPLES = 5

# What keeps one of the library's own kernels from taking part, and nothing else does.
_NOT_TO_BE_HAD = (CompileError, OutOfMemory, SpecError)

Maker = Callable[[Arena], Sequence[DeviceContender]]


@dataclass(frozen=True)
class Entrant:
    """Who may take part at a point: `make` makes the ways of factoring an arena of which the fastest counts.

    `version` says which, and `spec` which kernel of the library's it takes.
    """

    name: str
    make: Maker
    version: str
    spec: KernelSpec | None = None

    @property
    def own(self) -> bool:
        """Whether it is the library's, which has to be right."""
        return self.spec is not None


@dataclass
class DeviceRun:
    """What is the same for every point, and what was found out on the way."""

    backend: Backend
    dtype: str
    samples: int
    maths: Sequence[str]
    protocols: Sequence[str]
    peers: Sequence[DevicePeer]
    known: Sequence[Known]
    report: Report
    stopwatch: Stopwatch = field(init=False)
    about: dict[str, str] = field(init=False)
    approved: set[tuple[str, str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.stopwatch, self.about = Stopwatch(device()), about(self.backend)

    @property
    def bound(self) -> str:
        """The widest accuracy class of all that take part: what the peers are held to."""
        return "fast" if "fast" in self.maths else "ieee"


@dataclass(frozen=True)
class Outcome:
    """The rows of the points asked for, and who did not take part, with the reason."""

    rows: tuple[DeviceRow, ...]
    absent: dict[str, str]


def compare_on_gpu(
    backend: Backend,
    peers: Iterable[DevicePeer],
    *,
    ns: Iterable[int] = ORDERS,
    sizes: Iterable[str] = SIZES,
    samples: int = 20,
    dtype: str = "float32",
    maths: Sequence[str] = MATHS,
    protocols: Sequence[str] | None = None,
    known: Sequence[Known] = (),
    required: bool = False,
    out: Path | None = None,
    report: Report = to_stderr,
) -> Outcome:
    """Time the library and its peers at every n and batch, by every protocol.

    The library takes part with the best kernel that is known of each family, on chunks and on canonical arrays, and
    with `cholesky_ex` of a whole array.

    Parameters
    ----------
    ns : iterable of int
    sizes : iterable of str
        Batches: matrices, or as many as fill an amount of memory such as "2GiB".
    samples : int
        Timed calls, or bursts, of every contender; fewer, but at least 5, of those that take very long.
    dtype : {"float32", "float64"}
    maths : sequence of {"fast", "ieee"}
        Accuracy classes of the library's kernels.
    protocols : sequence of str, optional
        By default all of the backend's.
    known : sequence of Known
        Kernels that are known to be good, besides those of the tables of defaults.
    required : bool
        Whether it is an error that none of the peers is there.
    out : Path, optional
        A CSV file that is written after every contender. What it holds already, measured on this machine with these
        versions, is not measured again.
    report : callable
        Gets a line at every step.

    Raises
    ------
    ValueError
        If an n, a batch or the samples are out of range.
    ResidualError
        If the library's own result is wrong.
    BatchcholError
        If no peer is there that is required, `out` cannot be read or written, or the GPU cannot be used any more.
    """
    orders = tuple(ns)
    if wrong := [n for n in orders if not 1 <= n <= MAX_N]:
        raise ValueError(f"n: got {wrong[0]}, expected 1 to {MAX_N}")
    if samples < 1:
        raise ValueError(f"samples: got {samples}, expected at least 1")
    absent: dict[str, str] = {}
    present = list(_installed(peers, absent, report))
    if required and not present:
        raise BatchcholError(NO_PEERS)
    chosen = tuple(protocols or backend.protocols)
    run = DeviceRun(backend, dtype, samples, maths, chosen, present, known, report)
    kept = [] if out is None else read_rows(out, DeviceRow)
    asked = tuple(sizes)
    _prepare(run, orders, asked)
    rows: list[DeviceRow] = []
    for n in orders:
        small = Arena(backend, CHECKED_RECIPE, n, CHECKED_BATCH, dtype, run.bound, cold=False)
        for size in asked:
            for found in _point(run, small, n, size, kept, absent):
                rows += found
                kept = [row for row in kept if not any(_same(row, other) for other in found)] + found
                if out is not None:
                    write_csv(out, kept, DeviceRow)
    return Outcome(tuple(rows), absent)


def _prepare(run: DeviceRun, orders: Sequence[int], sizes: Sequence[str]) -> None:
    """Compile everything ahead, in parallel; what fails is found again, in words, when it is its turn."""
    for peer in run.peers:
        run.report(f"{peer.name}: preparing")
        peer.prepare(orders, run.dtype)
    points = [(n, matrices(size, n, run.dtype)) for n in orders for size in sizes]
    specs = [entrant.spec for n, batch in points for entrant in _entrants(run, n, batch, {})]
    own = list(dict.fromkeys(spec for spec in specs if spec is not None))
    run.report(f"compiling {len(own)} kernels")
    with suppress(CompilerNotFound):
        run.backend.build(own)


def _point(
    run: DeviceRun, small: Arena, n: int, size: str, kept: Sequence[DeviceRow], absent: dict[str, str]
) -> Iterator[list[DeviceRow]]:
    """The rows of each contender at one n and batch."""
    batch = matrices(size, n, run.dtype)
    label = f"n = {n}, batch {batch:,}"
    arena: Arena | None = None
    for entrant in _entrants(run, n, batch, absent):
        if old := _finished(run, entrant, n, size, kept):
            run.report(f"{label}: {entrant.name} is there already")
            yield old
            continue
        arena = arena or Arena(run.backend, TIMED_RECIPE, n, batch, run.dtype, run.bound)
        try:
            rows = _measured(run, entrant, small, arena, size)
        except (*PEER_ERRORS, MemoryError, TypeError, ValueError) as error:
            if isinstance(error, DeviceLost) or (entrant.own and not isinstance(error, _NOT_TO_BE_HAD)):
                raise
            reason = " ".join(str(error).split())
            absent[f"{entrant.name} at n = {n}, batch {batch:,}"] = reason
            run.report(f"{label}: {entrant.name} left out: {reason}")
            continue
        first = rows[0]
        run.report(f"{label}: {entrant.name:24} {first.gflops:10,.1f} GFLOP/s {first.protocol}, {first.spec}")
        yield rows


def _entrants(run: DeviceRun, n: int, batch: int, absent: dict[str, str]) -> Iterator[Entrant]:
    """The library's kernels of each family and class, `cholesky_ex`, and the peers."""
    for math in run.maths:
        yield from _kernels(run, n, batch, math, absent)
    spec = gpu_contenders.array_spec(run.backend, n, batch, run.dtype)
    yield _own(partial(gpu_contenders.whole_call, name="cholesky_ex", spec=spec))
    for peer in run.peers:
        yield Entrant(peer.name, peer.contenders, peer.survey().detail)


def _own(make: partial[DeviceContender]) -> Entrant:
    name, version = make.keywords["name"], gpu_contenders.VERSION
    return Entrant(name, lambda arena: [make(arena)], version, make.keywords["spec"])


def _kernels(run: DeviceRun, n: int, batch: int, math: str, absent: dict[str, str]) -> Iterator[Entrant]:
    wanted = Wanted(n, batch, run.dtype, math, run.backend.target, device().architecture)
    suffix = f" {math}" if len(run.maths) > 1 else ""
    for family in FAMILIES:
        name, best = f"{family}{suffix}", known_kernels.best_packed(run.known, family, wanted)
        if best is None:
            absent[f"{name} at n = {n}"] = "no kernel of it is known: give a tuning run that measured some (--tuned)"
        else:
            yield _own(partial(gpu_contenders.kernel, name=name, spec=best.spec, layout=best.layout))
    if spec := known_kernels.best_canonical(run.known, wanted):
        for name, in_place in ((f"canonical{suffix}", False), (f"canonical in place{suffix}", True)):
            chosen = replace(spec, in_place=in_place)
            yield _own(partial(gpu_contenders.canonical_kernel, name=name, spec=chosen))


def _measured(run: DeviceRun, entrant: Entrant, small: Arena, arena: Arena, size: str) -> list[DeviceRow]:
    """The rows of a contender, the fastest of its ways, each of which has got the small batch right."""
    ways = entrant.make(arena)
    if not all((way.name, way.spec, arena.n) in run.approved for way in ways):
        for way in entrant.make(small):
            if way.restore is not None:
                way.restore()
            way.calls[0]()
            verify(small, way, 0)
            run.approved.add((way.name, way.spec, arena.n))
    fastest = ways[0]
    if len(ways) > 1:
        brief = [_timed(run, way, way.protocols[0], RIVAL_SAMPLES) for way in ways]
        fastest = ways[int(np.argmin([float(np.median(timing.seconds)) for timing in brief]))]
    rows = []
    for protocol in (each for each in run.protocols if each in fastest.protocols):
        timing = _timed(run, fastest, protocol, run.samples)
        rows.append(_row(run, arena, fastest, protocol, timing, verify(arena, fastest, timing.last), size))
    if not rows:
        raise BatchcholError(f"it can be timed by {', '.join(fastest.protocols)} alone")
    return rows


def _timed(run: DeviceRun, way: DeviceContender, protocol: str, samples: int) -> Timing:
    return run.stopwatch.measure(way.calls, samples, protocol, restore=way.restore, most=way.most)


def _row(
    run: DeviceRun, arena: Arena, way: DeviceContender, protocol: str, timing: Timing, ratio: float, size: str
) -> DeviceRow:
    ceilings, state = run.backend.ceilings(run.dtype), run.backend.conditions()
    return DeviceRow(
        contender=way.name,
        spec=way.spec,
        n=arena.n,
        batch=arena.batch,
        dtype=run.dtype,
        protocol=protocol,
        samples=len(timing.seconds),
        seconds=float(np.median(timing.seconds)),
        spread=spread(timing.seconds),
        floor_seconds=run.backend.floor(protocol),
        roofline_seconds=roofline_seconds(arena.n, arena.batch, way.layout, ceilings),
        ratio=ratio,
        date=date.today().isoformat(),
        machine=stable_name(run.backend.device()),
        commit=run.about["commit"],
        version=way.version,
        size=size,
        math=way.math,
        layout=str(way.layout),
        calls=timing.calls,
        timing=way.timing,
        copy_bytes_per_second=ceilings.copy_bytes_per_second,
        gpu=run.about.get("gpu", ""),
        driver=run.about.get("driver", ""),
        toolkit=run.about.get("toolkit", ""),
        gpu_clock_mhz=float(state.get("gpu_clock_mhz", 0)),
        temperature_c=float(state.get("temperature_c", 0)),
        throttle=str(state.get("throttle", "")),
    )


def _installed(peers: Iterable[DevicePeer], absent: dict[str, str], report: Report) -> Iterator[DevicePeer]:
    for peer in peers:
        found = peer.survey()
        if found.found:
            yield peer
        else:
            absent[peer.name] = f"{found.detail}; {found.hint}"
            report(f"{peer.name} is absent: {absent[peer.name]}")


def _finished(run: DeviceRun, entrant: Entrant, n: int, size: str, kept: Sequence[DeviceRow]) -> list[DeviceRow]:
    """The rows of a contender that an earlier run of the same code on this machine measured; none if any is missing.

    A changed checkout never counts as the same code.
    """
    commit = run.about["commit"]
    machine = stable_name(run.backend.device())
    asked = (entrant.name, entrant.version, n, size, run.dtype, machine, commit, run.about["toolkit"])
    rows = [
        row
        for row in kept
        if (row.contender, row.version, row.n, row.size, row.dtype, row.machine, row.commit, row.toolkit) == asked
        and (entrant.spec is None or entrant.spec.name == row.spec)
        and row.protocol in run.protocols
    ]
    if not rows or commit.endswith("-dirty"):
        return []
    wanted = {protocol for protocol in run.protocols if _possible(rows[0], protocol)}
    return rows if wanted == {row.protocol for row in rows} else []


def _possible(row: DeviceRow, protocol: str) -> bool:
    return protocol == "single" or row.timing == gpu_contenders.QUEUED


def _same(row: DeviceRow, other: DeviceRow) -> bool:
    """Whether one replaces the other."""
    return (row.contender, row.n, row.batch, row.dtype, row.protocol, row.machine) == (
        other.contender,
        other.n,
        other.batch,
        other.dtype,
        other.protocol,
        other.machine,
    )
