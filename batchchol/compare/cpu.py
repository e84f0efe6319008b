"""The library against its peers, side by side in one run: same data, same clock, same rules, results checked."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

import numpy as np

from batchchol.backends import Backend, get_backend
from batchchol.batches.host_memory import last_level_cache_bytes
from batchchol.compare import contenders
from batchchol.compare.contenders import MATH, Contender, Outcome, Workload, verify
from batchchol.compare.peers import Peer, find
from batchchol.compare.rows import Row, read_csv, write_csv
from batchchol.datasets import generation
from batchchol.defaults.lookup import default_spec
from batchchol.errors import BatchcholError, CompileError
from batchchol.measure.machine import stable_name
from batchchol.measure.provenance import commit
from batchchol.measure.timing import Sample, busy_warning, drift
from batchchol.operations.roofline import measured_ceilings, roofline_seconds
from batchchol.parallel import over_ranges
from batchchol.tune import candidates
from kernelgen import MAX_N, KernelSpec, Schedule, ThreadSchedule

PROTOCOL = "single call, cold data"
TIMED_RECIPE = "diagonally_dominant"
# Nobody is timed who does not get these right too, in a batch whose last chunk is not full.
CHECKED_RECIPE, CHECKED_BATCH = "wishart", 333
# Contenders take turns, so that a drift of the machine's clock meets all of them; a turn begins with an untimed call.
ROUNDS = 5
SHORTLIST_SAMPLES = 6
NO_PEERS = "--peers: none of them can be used here, see above: install one, or name others"
_FLOOR_CALLS = 200
# What an optional library may fail with without ending the comparison of the others.
PEER_ERRORS = (BatchcholError, ImportError, AttributeError, OSError, RuntimeError)

Report = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """What is the same for every point of a comparison."""

    backend: Backend
    batch: int
    dtype: str
    samples: int
    peers: tuple[Peer, ...]
    report: Report

    @property
    def machine(self) -> str:
        return stable_name(self.backend.device())


def to_stderr(line: str) -> None:
    """Report progress where it does not mix with results."""
    print(line, file=sys.stderr, flush=True)


def compare(
    ns: Iterable[int],
    batch: int = 16_384,
    threads: Iterable[int] | None = None,
    samples: int = 20,
    *,
    peers: Sequence[str] | None = None,
    dtype: str = "float32",
    backend: str | None = None,
    out: Path | None = None,
    report: Report = to_stderr,
) -> list[Row]:
    """Time the library and its peers at every n and number of threads.

    The library takes part twice: `factor` on packed batches, by the best of a shortlist of specs that is measured
    first, and `cholesky` from NumPy array to NumPy array.

    Parameters
    ----------
    ns, threads : iterables of int
        The points: every n with every number of threads, by default one and all.
    batch, samples : int
        Matrices in a batch, and timed calls of every contender.
    peers : sequence of str, optional
        Names from `peers.PEERS`; by default all. Those not installed are reported and left out.
    dtype : {"float32", "float64"}
    backend : str, optional
        As for `cholesky`.
    out : Path, optional
        A CSV file that is written after every point. Points that it holds already, measured on this machine with
        these versions, are not measured again.
    report : callable
        Gets a line at every step.

    Returns
    -------
    list of Row
        Of the points asked for.

    Raises
    ------
    ValueError
        If an n, the batch, the threads or the samples are out of range.
    ResidualError
        If the library's own result is wrong.
    BatchcholError
        If a peer is unknown, none of those asked for is installed, the backend cannot be used, memory does not
        suffice, or `out` cannot be read or written.
    """
    device = get_backend(backend)
    if device.name != "cpu":
        raise BatchcholError(f"backend {device.name!r} has no peers yet: the library is compared on the CPU")
    orders, counts = tuple(ns), tuple(sorted({1, device.threads}) if threads is None else threads)
    _require("n", orders, MAX_N)
    _require("threads", counts, device.threads)
    _require("batch", (batch,), math.inf)
    _require("samples", (samples,), math.inf)
    present = tuple(_installed(find(peers), report))
    if peers is not None and not present:
        raise BatchcholError(NO_PEERS)
    run = Run(device, batch, dtype, samples, present, report)
    kept = [] if out is None else read_csv(out)
    rows: list[Row] = []
    for n in orders:
        workload = None
        for count in counts:
            point = _finished(kept, run, n, count)
            if point:
                report(f"n = {n}, threads = {count}: already in {out}")
            else:
                workload = workload or _workload(run, TIMED_RECIPE, n, batch)
                point = measure(run, workload, count)
                kept = [row for row in kept if not _same_point(row, point[0])] + point
                if out is not None:
                    write_csv(out, kept)
            rows += point
    return rows


def measure(run: Run, workload: Workload, threads: int) -> list[Row]:
    """The rows of one point: the library's two, then each peer's."""
    label = f"n = {workload.n}, threads = {threads}"
    spec = best_spec(run, workload, threads, label)
    run.report(f"{label}: {spec.name} against {', '.join(peer.name for peer in run.peers) or 'nobody'}")
    small = _workload(run, CHECKED_RECIPE, workload.n, CHECKED_BATCH, cold=False)
    own = (
        lambda data: next(contenders.kernels(run.backend, [spec], data, threads)),
        lambda data: contenders.whole_call(run.backend, data, threads),
    )
    ready = [_checked(make, small, workload) for make in own]
    for peer in run.peers:
        ready += _ready(run, peer, small, workload, threads)
    timed = interleaved(ready, run.samples)
    if warning := busy_warning(drift(seconds) for seconds, _ in timed):
        run.report(f"{label}: {warning}")
    return _rows(run, workload, threads, _correct(run, ready, timed, workload, len(own)))


def _is_shortlisted(schedule: Schedule) -> bool:
    return isinstance(schedule, ThreadSchedule) and schedule.unroll == "tiles" and bool(schedule.prefetch)


def best_spec(run: Run, workload: Workload, threads: int, label: str) -> KernelSpec:
    """The fastest of a shortlist of chunked specs, timed on as many of the matrices as leave the cache cold."""
    n, dtype, target = workload.n, workload.dtype, run.backend.target
    family = candidates.specs(n, dtype, MATH, target)
    shortlist = [spec for spec in family if _is_shortlisted(spec.schedule)]
    specs = list(dict.fromkeys([default_spec(n, target=target, dtype=dtype), *shortlist]))
    run.report(f"{label}: compiling and timing {len(specs)} specs")
    run.backend.build(specs)
    specs = [spec for spec in specs if _builds(run.backend, spec)]
    enough = -(-2 * last_level_cache_bytes() // workload.dense[0].nbytes)
    part = Workload(workload.dense[:enough], workload.cold)
    timed = interleaved(list(contenders.kernels(run.backend, specs, part, threads)), SHORTLIST_SAMPLES)
    medians = [float(np.median(seconds)) for seconds, _ in timed]
    return specs[int(np.argmin(medians))]


def interleaved(ready: Sequence[Contender], samples: int) -> list[tuple[list[float], Outcome]]:
    """The seconds of `samples` calls of each contender, taken in turns, and its last outcome."""
    rounds = min(ROUNDS, samples)
    shares = [samples * (turn + 1) // rounds - samples * turn // rounds for turn in range(rounds)]
    seconds: list[list[float]] = [[] for _ in ready]
    outcomes: list[Outcome] = []
    begin = 0
    for share in shares:
        outcomes = []
        for contender, taken in zip(ready, seconds, strict=True):
            called, outcome = _turn(contender, begin, share + 1)
            taken.extend(called[1:])
            outcomes.append(outcome)
        begin += share + 1
    return list(zip(seconds, outcomes, strict=True))


def _turn(contender: Contender, begin: int, count: int) -> tuple[list[float], Outcome]:
    """The seconds of calls begin, begin + 1, ... of a contender, each on the next buffers, and the last outcome."""
    seconds = []
    with contender.limit():
        for call in range(begin, begin + count):
            if contender.restore is not None and call % contender.sets == 0:
                contender.restore()
            outcome = contender.run(call % contender.sets)
            seconds.append(outcome.seconds)
    return seconds, outcome


def _checked(make: Callable[[Workload], Contender], small: Workload, workload: Workload) -> Contender:
    """The contender for a workload, once it has got the small one right."""
    contender = make(small)
    verify(contender, _turn(contender, 0, 1)[1], small.dense)
    return make(workload)


def _ready(run: Run, peer: Peer, small: Workload, workload: Workload, threads: int) -> list[Contender]:
    """A peer's contender; none if the peer cannot do what it is asked."""
    try:
        return [_checked(lambda data: peer.contender(data, threads), small, workload)]
    except PEER_ERRORS as error:
        run.report(f"n = {workload.n}, threads = {threads}: {peer.name} left out: {error}")
        return []


def _correct(
    run: Run,
    ready: Sequence[Contender],
    timed: Sequence[tuple[list[float], Outcome]],
    workload: Workload,
    own: int,
) -> list[tuple[Contender, Sample]]:
    """Those whose last result is right: a peer's is left out if it is wrong, the library's own must not be."""
    kept = []
    for place, (contender, (seconds, outcome)) in enumerate(zip(ready, timed, strict=True)):
        try:
            kept.append((contender, Sample(tuple(seconds), verify(contender, outcome, workload.dense))))
        except BatchcholError as error:
            if place < own:
                raise
            run.report(f"n = {workload.n}: {contender.name} left out: {error}")
    return kept


def _rows(run: Run, workload: Workload, threads: int, kept: Sequence[tuple[Contender, Sample]]) -> list[Row]:
    ceilings = measured_ceilings(threads, workload.dtype, run.backend.target)
    numpy = next((sample.median for contender, sample in kept if contender.name == "numpy"), math.nan)
    return [
        Row(
            contender=contender.name,
            spec=contender.spec,
            n=workload.n,
            batch=workload.batch,
            dtype=workload.dtype,
            threads=threads,
            protocol=PROTOCOL,
            samples=len(sample.seconds),
            seconds=sample.median,
            spread=sample.spread,
            floor_seconds=floor_seconds(threads),
            roofline_seconds=roofline_seconds(workload.n, workload.batch, contender.layout, ceilings),
            ratio=sample.ratio,
            times_numpy=numpy / sample.median,
            date=date.today().isoformat(),
            machine=run.machine,
            commit=commit(),
            version=contender.version,
        )
        for contender, sample in kept
    ]


@cache
def floor_seconds(threads: int) -> float:
    """What it takes to hand nothing at all to `threads` threads and wait for them: the median of many calls."""

    def seconds() -> float:
        start = time.perf_counter()
        over_ranges(lambda first, last: 0, threads, threads, threads << 30, arrays=())
        return time.perf_counter() - start

    return float(np.median([seconds() for _ in range(_FLOOR_CALLS)]))


def _require(what: str, values: Iterable[int], most: float) -> None:
    for value in values:
        if not 1 <= value <= most:
            raise ValueError(f"{what}: got {value}, expected {'at least 1' if most == math.inf else f'1 to {most}'}")


def _installed(peers: Iterable[Peer], report: Report) -> Iterable[Peer]:
    for peer in peers:
        found = peer.survey()
        if found.found:
            yield peer
        else:
            report(f"{peer.name} is absent: {found.detail}; {found.hint}")


def _builds(backend: Backend, spec: KernelSpec) -> bool:
    try:
        backend.kernel(spec)
    except CompileError:
        return False
    return True


def _workload(run: Run, recipe: str, n: int, batch: int, cold: bool = True) -> Workload:
    return Workload(generation.generate(recipe, n=n, stop=batch, dtype=run.dtype), cold)


def _finished(kept: Sequence[Row], run: Run, n: int, threads: int) -> list[Row]:
    """The rows of a point that an earlier run of the same code on this machine measured; none if any is missing.

    A changed checkout never counts as the same code.
    """
    asked = (n, run.batch, run.dtype, threads, run.samples, run.machine, commit())
    rows = [
        row
        for row in kept
        if (row.n, row.batch, row.dtype, row.threads, row.samples, row.machine, row.commit) == asked
    ]
    measured = {(row.contender, row.version) for row in rows}
    wanted = {(peer.name, peer.survey().detail) for peer in run.peers}
    return [] if commit().endswith("-dirty") or not rows or not wanted <= measured else rows


def _same_point(row: Row, other: Row) -> bool:
    return (row.n, row.batch, row.dtype, row.threads) == (other.n, other.batch, other.dtype, other.threads)
