"""Two commits' kernels in one process, calls in turn: the only comparison in which a few per cent can be seen.

`lines` has the methods of `Pair` called, in a process of its own. Between two processes one kernel differs by more
than 10% as often as not; within one, where both have the same buffers and the same clock, by some tenths. What is
left differs from one process to the next, so that a process is one piece of evidence, however long it measures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from batchchol.api import factor
from batchchol.asv_plugin.gate.estimate import both_times
from batchchol.backends import Backend, get_backend
from batchchol.backends.base import Kernel
from batchchol.backends.foreign import foreign_kernel
from batchchol.batches.batch import Batch
from batchchol.measure.solves import CHECKS, info_of, results_for
from batchchol.measure.timing import CACHES
from kernelgen import KernelSpec, Launch, Layout
from kernelgen.targets import ELEMENT_BYTES

TIMED_RECIPE, CHECKED_RECIPE, CHECKED_BATCH = "diagonally_dominant", "wishart", 77
# On a GPU a turn is a burst of calls that takes about as long.
BURST_SECONDS, MOST_CALLS = 200e-6, 64
# Even, as is every number of rounds: of an odd one the median has the order of the first.
FEWEST_ROUNDS = 4
# On a CPU a call takes that part of what exceeds the cache four times.
SETS = 8
Call = Callable[[], None]


@dataclass(frozen=True)
class Contender:
    """One commit's kernel of a case, loaded, and what it is called for."""

    spec: KernelSpec
    kernel: Kernel
    layout: Layout
    batch: int
    threads: int
    nrhs: int

    def calls(self, backend: Backend, buffers: Sequence[tuple[Any, ...]]) -> list[Call]:
        """A call on each of the buffers."""
        info = info_of(backend, self.spec, buffers[0][0])
        return [partial(self.kernel, *each, *info, threads=self.threads) for each in buffers]


@dataclass(frozen=True)
class Paired:
    """What one process found: the logarithm of head's time over base's, medians of both, and its rounds."""

    log_ratio: float
    base: float
    head: float
    rounds: int
    conditions: Mapping[str, Any]


class Pair:
    """Answers requests about pairs of kernels."""

    def __init__(self, backend: str) -> None:
        self._backend = get_backend(backend)

    def check(self, described: Mapping[str, Any]) -> float:
        """The largest residual ratio of a kernel on a small ragged batch.

        Raises
        ------
        batchchol.errors.ResidualError
            If a result is wrong.
        """
        return check(self._backend, loaded(described))

    def measure(self, base: Mapping[str, Any], head: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Time both kernels alternately for `seconds`; see `Paired`."""
        backend = self._backend
        old, new = loaded(base), loaded(head)
        # The same buffers, where that can be: their places in memory then favour neither.
        shared = old.layout == new.layout and old.spec.problem == new.spec.problem
        buffers = cold_buffers(backend, old)
        calls = [old.calls(backend, buffers), new.calls(backend, buffers if shared else cold_buffers(backend, new))]
        before = backend.conditions()
        logs, times = rounds(backend, calls, seconds, alone=old.threads == 1)
        conditions = {"before": before, "after": backend.conditions()}
        return asdict(Paired(median(logs), median(times[0]), median(times[1]), len(logs), conditions))


def loaded(described: Mapping[str, Any]) -> Contender:
    """The kernel of a description, from its machine code."""
    spec = KernelSpec.from_dict(described["spec"])
    launch = described["launch"]
    if launch is not None:
        known = {field.name for field in fields(Launch)}
        launch = Launch(**{name: value for name, value in launch.items() if name in known})
    code = Path(described["payload"]).read_bytes()
    kernel = foreign_kernel(spec, code, described["entry"], launch)
    layout = Layout(**described["layout"])
    return Contender(spec, kernel, layout, described["batch"], described["threads"], described["nrhs"])


def check(backend: Backend, contender: Contender) -> float:
    """The largest residual ratio of a kernel on a small ragged batch; errors are those of `Pair.check`."""
    problem = contender.spec.problem
    batch = _filled(backend, contender, CHECKED_BATCH, CHECKED_RECIPE)
    (arrays,) = _buffers(backend, contender, batch, lambda _: 1)
    status = info_of(backend, contender.spec, batch)
    contender.kernel(*arrays, *status, threads=contender.threads)
    if problem.op in CHECKS:
        return CHECKS[problem.op](*arrays, *status, problem.math, upper=problem.uplo == "upper", host=backend.host)
    (info,) = status
    return backend.check(batch, arrays[1].marked(problem.uplo), info, problem.math)


def cold_buffers(backend: Backend, contender: Contender) -> Sequence[tuple[Any, ...]]:
    """The arguments that calls of a kernel take in turn, so that none finds its data in a cache.

    Of an odd number of turns: else one contender always had the same ones.
    """
    problem, matrices = contender.spec.problem, contender.batch
    cold = CACHES * backend.last_level_cache_bytes()
    if backend.name == "cpu":
        # One group follows another there, so that few matrices take as long each; the turns are the shorter.
        group = contender.spec.lanes * contender.threads
        enough = cold // SETS // (2 * problem.n**2 * ELEMENT_BYTES[problem.dtype]) + 1
        matrices = min(matrices, -(-enough // group) * group)
    batch = _filled(backend, contender, matrices, TIMED_RECIPE)
    return _buffers(backend, contender, batch, lambda nbytes: -(-cold // nbytes) | 1)


def _buffers(
    backend: Backend, contender: Contender, batch: Batch, sets: Callable[[int], int]
) -> Sequence[tuple[Any, ...]]:
    """Sets of the arrays of a call, as many as `sets` says for their bytes."""
    operation = contender.spec.problem.operation
    if operation.in_registers or operation.inverts or (operation.rectangular and not operation.has_columns):
        triangles, room = batch if operation.factors else factor(batch).L, results_for(backend, contender.spec, batch)
        return [
            (triangles.copy(), *(room if turn == 0 else results_for(backend, contender.spec, batch)))
            for turn in range(sets(batch.nbytes + sum(each.nbytes for each in room)))
        ]
    if not operation.has_columns:
        return [(batch if turn == 0 else batch.copy(), batch.copy()) for turn in range(sets(2 * batch.nbytes))]
    b = np.random.default_rng(0).standard_normal((batch.batch, batch.n, contender.nrhs)).astype(batch.dtype)
    triangles = batch if operation.factors else factor(batch).L
    return [(triangles.copy(), backend.place(b), backend.place(b)) for _ in range(sets(batch.nbytes + 2 * b.nbytes))]


def _filled(backend: Backend, contender: Contender, matrices: int, recipe: str) -> Batch:
    problem = contender.spec.problem
    batch = backend.empty(problem.n, matrices, contender.layout, problem.dtype)
    backend.fill(batch, recipe)
    return batch


def rounds(
    backend: Backend, calls: Sequence[Sequence[Call]], seconds: float, *, alone: bool
) -> tuple[list[float], tuple[list[float], list[float]]]:
    """Log ratios of rounds A B B A and B A A B alternately, and the times of A and of B in them.

    Drift cancels within a round, what the first of a round suffers between two of them. Where both take the same
    buffers in turns, B is half of them ahead: what A has just used is in the cache.
    """
    ahead = len(calls[1]) // 2
    old, new = cycle(calls[0]), cycle([*calls[1][ahead:], *calls[1][:ahead]])
    timed = partial(backend.in_turn, alone=alone)
    (estimate,) = timed([list(islice(old, 2))])
    count = 1 if backend.name == "cpu" else min(max(round(BURST_SECONDS / max(estimate, 1e-7)), 1), MOST_CALLS)
    timed([list(islice(new, 2))])
    logs: list[float] = []
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while len(logs) < FEWEST_ROUNDS or len(logs) % 2 or time.perf_counter() < end:
        flip = len(logs) % 2 == 1
        order: list[Iterator[Call]] = [new, old, old, new] if flip else [old, new, new, old]
        taken = timed([list(islice(each, count)) for each in order])
        base, head = both_times(taken, flip)
        logs.append(math.log(head / base))
        times[0].append(base)
        times[1].append(head)
    return logs, times
