"""Inversions, by factors and by matrices, and determinants in a comparison: and this library's contenders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from batchchol.api import cho_inverse, cholesky_ex, inv_ex, slogdet_ex
from batchchol.backends import Backend
from batchchol.backends.cuda.measuring.clock import MOST_CALLS
from batchchol.batches.batch import Batch
from batchchol.compare.contenders import BaseArena, Contender, Entrant, Latest
from batchchol.compare.cpu import CpuVenue
from batchchol.compare.defaults import default_kernels, default_specs
from batchchol.compare.gpu import GpuVenue
from batchchol.measure.solves import CHECKS, buffers_with_room, info_of, room_for
from kernelgen import KernelSpec, Layout, Problem, SpecError


@dataclass(frozen=True)
class Inverted:
    """Finished inversions: the matrices or factors, the inverses of shape (batch, n, n), and the info of each.

    Or finished determinants, of which the logarithms are of shape (batch,).
    """

    op: str
    matrices: Batch
    x: Any
    info: Any

    @property
    def layout(self) -> Layout:
        return self.matrices.layout

    def ratio(self, backend: Backend, math: str) -> float:
        return CHECKS[self.op](self.matrices, self.x, self.info, math, host=backend.host)


@dataclass(frozen=True)
class InverseArena(BaseArena):
    """SPD matrices on a backend, which are inverted."""

    op: ClassVar[str] = "poinv"
    triangle: ClassVar[str | None] = None

    def inverted(self, index: int, x: Any, info: Any = None) -> Inverted:
        """The result of set `index`, and the info; a library that has none says nothing of failures."""
        matrices = type(self.inputs)(self.input(index), self.n, self.batch, Layout.canonical(), self.triangle)
        status = self.upload(np.zeros(self.batch, np.int32)) if info is None else info
        return Inverted(self.op, matrices, x, status)


@dataclass(frozen=True)
class FactorInverseArena(InverseArena):
    """The factors of SPD matrices, by which those are inverted."""

    op: ClassVar[str] = "potri"
    triangle: ClassVar[str | None] = "lower"

    @cached_property
    def inputs(self) -> Batch:
        """The factors of all sets, canonical: lower triangles, zero above. Not to be written to."""
        matrices = super().inputs
        factors = cholesky_ex(matrices.data, backend=self.backend.name).L
        return type(matrices)(factors, self.n, matrices.batch, Layout.canonical(), "lower")


@dataclass(frozen=True)
class DeterminantArena(InverseArena):
    """SPD matrices, of whose determinants the logarithms are taken: they are in the place of inverses."""

    op: ClassVar[str] = "logdet"


INVERSE_ARENAS: tuple[type[InverseArena], ...] = (InverseArena, FactorInverseArena, DeterminantArena)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    InverseArena.op: inv_ex,
    FactorInverseArena.op: cho_inverse,
    DeterminantArena.op: slogdet_ex,
}


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
    """The default kernel in each accuracy class, on packed matrices and on whole arrays, and the operation's call."""
    problem = Problem(n, dtype, op=op)
    yield from default_kernels(backend, venue, problem, batch, maths, absent, kernel)
    chosen: tuple[KernelSpec, ...] = ()
    with suppress(SpecError):
        chosen = default_specs(backend, problem, batch, Layout.canonical())
    made = partial(array_call, specs=chosen)
    yield Entrant(f"{venue.prefix}{_FUNCTIONS[op].__name__}", venue.version, made, chosen, venue.tolerated)


def kernel(arena: InverseArena, specs: tuple[KernelSpec], layout: Layout) -> list[Contender]:
    """A kernel on the matrices or factors of the first set in a layout."""
    (spec,), backend = specs, arena.backend
    matrices = backend.from_dense(arena.input(0), layout).marked(arena.triangle)
    alone = [(matrices, room_for(backend, spec, matrices))]
    sets = buffers_with_room(backend, spec, matrices) if arena.cold else alone
    (status,) = info_of(backend, spec, matrices)
    calls = [partial(backend.kernel(spec), *each, status, threads=arena.threads) for each in sets]

    def result(index: int) -> Inverted:
        given, x = sets[index]
        return Inverted(arena.op, given, x, status)

    return [Contender(spec.name, calls, result, most=MOST_CALLS, math=spec.problem.math)]


def array_call(arena: InverseArena, specs: tuple[KernelSpec, ...]) -> list[Contender]:
    """A call of this library, from array to array; `specs` is what it chooses by itself."""
    how: dict[str, Any] = {"threads": arena.threads, "backend": arena.backend.name}
    made = Latest(lambda given: _FUNCTIONS[arena.op](given, **how), arena.each(arena.input))

    def result(index: int) -> Inverted:
        # An inverse alone, or with an info; or the sign, the logarithm and the info.
        *_, x, info = made.value if isinstance(made.value, tuple) else (made.value, None)
        return arena.inverted(index, x, info)

    apart = "the factors' diagonals" if arena.op == DeterminantArena.op else "solutions for the identity"
    name, math = (specs[0].name, specs[0].problem.math) if specs else (apart, None)
    return [Contender(name, made.calls, result, forget=made.forget, math=math)]
