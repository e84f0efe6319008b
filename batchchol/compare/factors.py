"""LU factorizations in a comparison: what they are given, and this library's own contenders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from batchchol.api import lu_factor_ex
from batchchol.backends import Backend
from batchchol.backends.cuda.measuring.clock import MOST_CALLS
from batchchol.batches.batch import Batch
from batchchol.compare.contenders import Contender, Entrant, FactorArena, Latest
from batchchol.compare.cpu import CpuVenue
from batchchol.compare.defaults import default_kernels, default_specs
from batchchol.compare.gpu import GpuVenue
from batchchol.compare.solves import general_matrices
from batchchol.measure.timing import CACHES
from batchchol.operations.lu import check_factors
from kernelgen import KernelSpec, Layout, Problem, SpecError


@dataclass(frozen=True)
class LuFactored:
    """Finished LU factorizations: the matrices, their factors, the pivots, counted from 1, and the info of each."""

    a: Batch
    lu: Batch
    pivots: Any
    info: Any

    @property
    def layout(self) -> Layout:
        return self.lu.layout

    def ratio(self, backend: Backend, math: str) -> float:
        return check_factors(self.a, self.lu, self.pivots, self.info, math, host=backend.host)


@dataclass(frozen=True)
class GeneralFactorArena(FactorArena):
    """General matrices on a backend, with elements of the standard normal distribution, and room for factors."""

    @cached_property
    def inputs(self) -> Batch:
        """The matrices of all sets, canonical. Not to be written to."""
        return general_matrices(self)


@dataclass(frozen=True)
class LuArena(GeneralFactorArena):
    """General matrices, and room for LU factors."""

    op: ClassVar[str] = "getrf"

    def pivots(self) -> Any:
        """Room for the pivots of one set, int32 of shape (batch, n)."""
        return self.upload(np.zeros((self.batch, self.n), np.int32))

    def factored(self, index: int, lu: Any, pivots: Any, info: Any = None, order: str = "row") -> LuFactored:
        """The result of set `index`; in columns, of the transposes of the matrices.

        A library that has no info says nothing of failures.
        """
        layout = Layout.canonical(order)
        a, factors = (type(self.inputs)(each, self.n, self.batch, layout) for each in (self.input(index), lu))
        return LuFactored(a, factors, pivots, self.upload(np.zeros(self.batch, np.int32)) if info is None else info)


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
    """The default kernel in each accuracy class, on packed matrices and on whole arrays, and `lu_factor_ex`."""
    problem = Problem(n, dtype, op=op)
    yield from default_kernels(backend, venue, problem, batch, maths, absent, kernel)
    with suppress(SpecError):
        chosen = default_specs(backend, problem, batch, Layout.canonical())
        called = partial(array_call, spec=chosen[0])
        yield Entrant(f"{venue.prefix}lu_factor_ex", venue.version, called, chosen, venue.tolerated)


def kernel(arena: LuArena, specs: tuple[KernelSpec], layout: Layout) -> list[Contender]:
    """A kernel on the matrices of the first set in a layout."""
    (spec,), backend = specs, arena.backend
    first = backend.from_dense(arena.input(0), layout)
    count = -(-CACHES * backend.last_level_cache_bytes() // (2 * first.nbytes)) if arena.cold else 1
    sets = [(first.copy() if index else first, first.like(), arena.pivots()) for index in range(count)]
    run, info = backend.kernel(spec), backend.info(first, spec)
    calls = [partial(run, *each, info, threads=arena.threads) for each in sets]

    def result(index: int) -> LuFactored:
        return LuFactored(*sets[index], info)

    return [Contender(spec.name, calls, result, most=MOST_CALLS, math=spec.problem.math)]


def array_call(arena: LuArena, spec: KernelSpec) -> list[Contender]:
    """`batchchol.lu_factor_ex`, from array to array; `spec` is what it chooses by itself."""
    how: dict[str, Any] = {"threads": arena.threads, "backend": arena.backend.name}
    made = Latest(lambda given: lu_factor_ex(given, **how), arena.each(arena.input))

    def result(index: int) -> LuFactored:
        return arena.factored(index, *made.value)

    return [Contender(spec.name, made.calls, result, forget=made.forget, math=spec.problem.math)]
