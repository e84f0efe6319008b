"""QR factorizations and least squares in a comparison: what they are given, and this library's own contenders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from batchchol.api import QR, Reflectors, lstsq_ex, qr
from batchchol.backends import Backend
from batchchol.backends.cuda.measuring.clock import MOST_CALLS
from batchchol.batches.batch import Batch
from batchchol.compare import solves
from batchchol.compare.contenders import BaseArena, Contender, Entrant, Latest
from batchchol.compare.cpu import CpuVenue
from batchchol.compare.defaults import default_kernels, default_specs
from batchchol.compare.factors import GeneralFactorArena
from batchchol.compare.gpu import GpuVenue
from batchchol.compare.solves import GeneralArena
from batchchol.measure.timing import CACHES
from batchchol.operations.qr import check_factors, check_product
from kernelgen import KernelSpec, Layout, Problem

ROWS = Layout.canonical()


@dataclass(frozen=True)
class QrFactored:
    """Finished QR factorizations: the matrices, and R with the reflectors below it and tau, or Q and R themselves."""

    a: Batch
    made: Reflectors | QR

    @property
    def layout(self) -> Layout:
        return self.a.layout if isinstance(self.made, QR) else self.made.qr.layout

    def ratio(self, backend: Backend, math: str) -> float:
        check = check_product if isinstance(self.made, QR) else check_factors
        left, right = self.made
        return check(self.a, left, right, math, host=backend.host)


@dataclass(frozen=True)
class QrArena(GeneralFactorArena):
    """General matrices, and room for the factors of QR factorizations."""

    op: ClassVar[str] = "geqrf"

    def tau(self) -> Any:
        """Room for the scalars of the reflectors of one set, (batch, n)."""
        return self.upload(np.zeros((self.batch, self.n), self.dtype))

    def reflected(self, index: int, factors: Any, tau: Any, order: str = "row") -> QrFactored:
        """The result of set `index`, as reflectors; in columns, of the transposes of the matrices."""
        layout = Layout.canonical(order)
        a, made = (type(self.inputs)(each, self.n, self.batch, layout) for each in (self.input(index), factors))
        return QrFactored(a, Reflectors(made, tau))

    def multiplied(self, index: int, q: Any, r: Any) -> QrFactored:
        """The result of set `index`, as Q and R, arrays (batch, n, n)."""
        a, *made = (type(self.inputs)(each, self.n, self.batch, ROWS) for each in (self.input(index), q, r))
        return QrFactored(a, QR(*made))


@dataclass(frozen=True)
class LeastSquaresArena(GeneralArena):
    """The matrices of QR factorizations, square ones, by which right-hand sides are solved for."""

    op: ClassVar[str] = "gels"


REFLECTION_ARENAS: tuple[type[BaseArena], ...] = (QrArena, LeastSquaresArena)


def entrants(
    backend: Backend,
    venue: CpuVenue | GpuVenue,
    op: str,
    n: int,
    batch: int,
    dtype: str,
    maths: Sequence[str],
    known: object,
    absent: dict[str, str],
) -> Iterator[Entrant]:
    """The default kernel in each accuracy class, on packed matrices and on whole arrays, and the calls on arrays."""
    problem = Problem(n, dtype, op=op)
    kernels = solves.kernel if op == LeastSquaresArena.op else kernel
    yield from default_kernels(backend, venue, problem, batch, maths, absent, kernels)
    chosen = default_specs(backend, problem, batch, ROWS)
    if op == LeastSquaresArena.op:
        made = partial(solves.array_call, specs=chosen, function=lstsq_ex)
        yield Entrant(f"{venue.prefix}lstsq_ex", venue.version, made, chosen, venue.tolerated)
        return
    (spec,) = chosen
    generated = default_specs(backend, Problem(n, dtype, op="orgqr"), batch, ROWS)
    for mode, specs in (("raw", chosen), ("reduced", chosen + generated)):
        made = partial(array_call, spec=spec, mode=mode)
        yield Entrant(f"{venue.prefix}qr {mode}", venue.version, made, specs, venue.tolerated)


def kernel(arena: QrArena, specs: tuple[KernelSpec], layout: Layout) -> list[Contender]:
    """A kernel on the matrices of the first set in a layout."""
    (spec,), backend = specs, arena.backend
    first = backend.from_dense(arena.input(0), layout)
    count = -(-CACHES * backend.last_level_cache_bytes() // (2 * first.nbytes)) if arena.cold else 1
    sets = [(first.copy() if index else first, first.like(), arena.tau()) for index in range(count)]
    run = backend.kernel(spec)
    calls = [partial(run, *each, threads=arena.threads) for each in sets]

    def result(index: int) -> QrFactored:
        a, factors, tau = sets[index]
        return QrFactored(a, Reflectors(factors, tau))

    return [Contender(spec.name, calls, result, most=MOST_CALLS, math=spec.problem.math)]


def array_call(arena: QrArena, spec: KernelSpec, mode: str) -> list[Contender]:
    """`batchchol.qr`, from array to arrays; `spec` is what it chooses by itself to factor."""
    how: dict[str, Any] = {"threads": arena.threads, "backend": arena.backend.name}
    made = Latest(lambda given: qr(given, mode, **how), arena.each(arena.input))

    def result(index: int) -> QrFactored:
        return (arena.reflected if mode == "raw" else arena.multiplied)(index, *made.value)

    return [Contender(spec.name, made.calls, result, forget=made.forget, math=spec.problem.math)]
