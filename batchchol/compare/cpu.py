"""A comparison on a CPU: which of the library's kernels take part, and how calls are timed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np

from batchchol import __version__
from batchchol.api import cholesky
from batchchol.backends import Backend
from batchchol.compare import own
from batchchol.compare.contenders import Arena, BaseArena, Contender, Entrant
from batchchol.defaults.lookup import default_spec
from batchchol.measure.stopwatch import Timing
from batchchol.parallel import over_ranges
from batchchol.plan import array_choice
from batchchol.tune import candidates
from kernelgen import KernelSpec, Layout, Problem, ThreadSchedule

THREADS_VARIABLE = "BATCHCHOL_THREADS"
# All that are compared are of this accuracy class; a speedup between classes means nothing.
MATH = "ieee"
PROTOCOL = "single call, cold data"
_FLOOR_CALLS = 200


class CpuVenue:
    """What a comparison on a CPU has of its own; `GpuVenue` has the same.

    Attributes
    ----------
    orders, sizes, maths
        What is compared by default.
    protocols : mapping of str to str
        By the backend's protocols, what rows call them.
    case : str
        What messages call a case.
    rounds : int
        How many turns the entrants of a case take, so that a drift of the machine's clock meets all of them. If it is
        one, their buffers need not be there together.
    fewer_samples : bool
        Whether calls that take very long have fewer samples.
    prefix : str
        What the names of the library's entrants begin with.
    version : str
        The library's.
    tolerated : tuple of exception types
        The errors that keep one of its kernels from taking part, and nothing else does.
    """

    orders = (4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 100)
    sizes = ("16384",)
    maths = (MATH,)
    protocols: Mapping[str, str] = {"single": PROTOCOL}
    case = "n = {n}, threads = {threads}"
    rounds = 5
    fewer_samples = False
    prefix = "batchchol "
    tolerated: tuple[type[Exception], ...] = ()

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.version = f"batchchol {__version__}, {backend.device()['compiler']}"
        self._calls = 0

    def entrants(
        self, n: int, batch: int, dtype: str, maths: object, known: object, absent: object
    ) -> Iterator[Entrant]:
        """`factor` on packed batches, by the best of a shortlist of specs, and `cholesky` from array to array."""
        shortlist = _shortlist(n, dtype, self._backend.target)
        yield Entrant("batchchol factor", self.version, partial(_factor, specs=shortlist), shortlist, ())
        spec, _ = array_choice(self._backend, Problem(n, dtype), batch, None, host=True)
        make = partial(own.array_call, spec=spec, function=partial(cholesky, backend=self._backend.name))
        yield Entrant("batchchol cholesky", self.version, make, (spec,), (), limit=own_threads)

    def trial(self, arena: BaseArena) -> BaseArena:
        """What the ways of one entrant are compared on: as many of the matrices as leave the cache cold."""
        enough = -(-2 * self._backend.last_level_cache_bytes() // arena.matrix_bytes)
        return arena.changed(inputs=arena.inputs, batch=min(enough, arena.batch))

    def measure(self, contender: Contender, samples: int, protocol: str) -> Timing:
        """Single calls, the first of which is not timed, on the buffers after those that were used last."""
        seconds = list[float]()
        begin = 0 if contender.restore else self._calls
        for call in range(begin, begin + samples + 1):
            place = call % len(contender.calls)
            if contender.restore and place == 0:
                contender.restore()
            if contender.forget:
                contender.forget()
            seconds += self._backend.seconds([contender.calls[place]], samples=1, protocol=protocol, warm_up=0)
        self._calls += samples + 1
        return Timing(tuple(seconds[1:]), 1, place)

    def floor(self, protocol: str, threads: int) -> float:
        """Seconds that it takes to hand nothing at all to the threads and wait for them: the median of many calls."""

        def nothing() -> None:
            over_ranges(lambda first, last: 0, threads, threads, threads << 30, arrays=())

        return float(np.median(self._backend.seconds([nothing], samples=_FLOOR_CALLS, protocol=protocol)))


def _shortlist(n: int, dtype: str, target: str) -> tuple[KernelSpec, ...]:
    family = candidates.specs(n, dtype, MATH, target)
    listed = [
        spec
        for spec in family
        if isinstance(spec.schedule, ThreadSchedule) and spec.schedule.unroll == "tiles" and spec.schedule.prefetch
    ]
    return tuple(dict.fromkeys([default_spec(n, target=target, dtype=dtype), *listed]))


def _factor(arena: Arena, specs: tuple[KernelSpec, ...]) -> list[Contender]:
    outcomes = zip(specs, arena.backend.build(specs), strict=True)
    built = [spec for spec, outcome in outcomes if outcome.status == "built"]
    # If none was built, the first says why.
    first = specs[0]
    layout = Layout(first.layout, first.lanes if first.layout == "chunked" else None, first.order)
    return own.packed_kernels(arena, built or specs[:1], layout)


@contextmanager
def own_threads(threads: int) -> Iterator[None]:
    """Hold `cholesky` to a number of threads: it has no such argument, since its signature is NumPy's."""
    before = os.environ.get(THREADS_VARIABLE)
    os.environ[THREADS_VARIABLE] = str(threads)
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS_VARIABLE]
        else:
            os.environ[THREADS_VARIABLE] = before
