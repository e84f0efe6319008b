"""A comparison on a GPU: which of the library's kernels take part, and how calls are timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from batchchol import __version__
from batchchol.api import cholesky_ex
from batchchol.backends import Backend
from batchchol.backends.cuda.device import device
from batchchol.compare import known_kernels, own
from batchchol.compare.contenders import Arena, BaseArena, Contender, Entrant
from batchchol.defaults.request import Request
from batchchol.errors import CompileError, OutOfMemory
from batchchol.measure.row import Row
from batchchol.measure.stopwatch import Stopwatch, Timing
from batchchol.plan import array_choice
from kernelgen import FAMILIES, KernelSpec, Problem, SpecError


class GpuVenue:
    """What a comparison on a GPU has of its own; see `CpuVenue`."""

    orders = (4, 8, 16, 24, 32, 40, 48, 64, 80, 96, 128)
    sizes = ("1024", "16384", "2GiB")
    maths = ("fast",)
    protocols: Mapping[str, str] = {"queued": "queued", "single": "single"}
    case = "n = {n}, batch {batch:,}"
    # Their buffers would not fit into the memory of a GPU together.
    rounds = 1
    fewer_samples = True
    prefix = ""
    version = f"batchchol {__version__}"
    tolerated = (CompileError, OutOfMemory, SpecError)

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._stopwatch = Stopwatch(device())

    def entrants(
        self, n: int, batch: int, dtype: str, maths: Sequence[str], known: Sequence[Row], absent: dict[str, str]
    ) -> Iterator[Entrant]:
        """The best known kernel of each family and accuracy class, on chunks and on arrays, and `cholesky_ex`."""
        for math in maths:
            problem, arch = Problem(n, dtype, math=math), self._backend.architecture
            request = Request(problem, self._backend.target, batch=batch, arch=arch)
            yield from _kernels(request, known, f" {math}" if len(maths) > 1 else "", absent)
        spec, _ = array_choice(self._backend, Problem(n, dtype), batch, None, host=False)
        yield _entrant("cholesky_ex", spec, partial(own.array_call, spec=spec, function=cholesky_ex))

    def trial(self, arena: BaseArena) -> BaseArena:
        return arena

    def measure(self, contender: Contender, samples: int, protocol: str) -> Timing:
        return self._stopwatch.measure(
            contender.calls, samples, protocol, restore=contender.restore, most=contender.most
        )

    def floor(self, protocol: str, threads: int) -> float:
        return self._backend.floor(protocol)


def _kernels(request: Request, known: Sequence[Row], suffix: str, absent: dict[str, str]) -> Iterator[Entrant]:
    for family in FAMILIES:
        name, best = f"{family}{suffix}", known_kernels.best_packed(known, family, request)
        if best is None:
            reason = "no kernel of it is known: give a tuning run that measured some (--tuned)"
            absent[f"{name} at n = {request.problem.n}"] = reason
        else:
            yield _entrant(name, best.spec, partial(own.packed_kernels, specs=[best.spec], layout=best.layout))
    if spec := known_kernels.best_canonical(known, request):
        for name, in_place in ((f"canonical{suffix}", False), (f"canonical in place{suffix}", True)):
            chosen = replace(spec, in_place=in_place)
            yield _entrant(name, chosen, partial(own.canonical_kernel, spec=chosen))


def _entrant(name: str, spec: KernelSpec, make: Callable[[Arena], list[Contender]]) -> Entrant:
    return Entrant(name, GpuVenue.version, make, (spec,), GpuVenue.tolerated)
