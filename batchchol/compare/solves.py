"""Solves by given factors in a comparison: what they are given, and this library's own contenders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from batchchol.api import cho_solve, cholesky_ex
from batchchol.backends import Backend
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.clock import MOST_CALLS
from batchchol.batches.batch import Batch
from batchchol.compare.contenders import BaseArena, Contender, Entrant, Latest
from batchchol.compare.cpu import CpuVenue
from batchchol.compare.gpu import GpuVenue
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.measure.solves import rotating_buffers
from batchchol.operations import potrs
from kernelgen import KernelSpec, Layout, Problem


@dataclass(frozen=True)
class Solved:
    """Finished solves: the factors, the right-hand sides and the solutions, of shape (batch, n, nrhs)."""

    l: Batch
    b: Any
    x: Any

    @property
    def layout(self) -> Layout:
        return self.l.layout

    def ratio(self, backend: Backend, math: str) -> float:
        return potrs.check(self.l, self.b, self.x, math, host=backend.host)


@dataclass(frozen=True)
class SolveArena(BaseArena):
    """The factors of SPD matrices on a backend, right-hand sides for each, and room for the solutions."""

    op: ClassVar[str] = "potrs"

    @cached_property
    def inputs(self) -> Batch:
        """The factors of all sets, canonical: lower triangles, zero above. Not to be written to."""
        matrices = super().inputs
        factors = cholesky_ex(matrices.data, backend=self.backend.name).L
        return type(matrices)(factors, self.n, matrices.batch, Layout.canonical(), "lower")

    @cached_property
    def columns(self) -> Any:
        """The right-hand sides of all sets, (sets * batch, n, nrhs). Not to be written to."""
        shape = self.inputs.batch, self.n, self.nrhs
        return self.backend.place(np.random.default_rng(0).standard_normal(shape).astype(self.dtype))

    @cached_property
    def room(self) -> Any:
        """Room for the solutions of all sets, made at its first use; it holds the right-hand sides until then."""
        return self.backend.place(self.backend.host(self.columns))

    def restore(self) -> None:
        """Copy all right-hand sides into the room for solutions: they are none, and input to calls in place."""
        if self.backend.name == "cpu":
            np.copyto(self.room, self.columns)
        else:
            memory.copy_on_device(self.columns, self.room)

    def column(self, index: int) -> Any:
        """The right-hand sides of set `index`, not to be written to."""
        return self._of_set(self.columns, index)

    def output(self, index: int) -> Any:
        """The room for the solutions of set `index`."""
        return self._of_set(self.room, index)

    def pairs(self) -> list[tuple[Any, Any]]:
        """The factors and the right-hand sides of every set."""
        return [(self.input(index), self.column(index)) for index in range(self.sets)]

    def solved(self, index: int, x: Any = None) -> Solved:
        """The result of set `index`: solutions, by default in the room for them."""
        l = type(self.inputs)(self.input(index), self.n, self.batch, Layout.canonical(), "lower")
        return Solved(l, self.column(index), self.output(index) if x is None else x)


def entrants(
    backend: Backend,
    venue: CpuVenue | GpuVenue,
    n: int,
    batch: int,
    dtype: str,
    maths: Sequence[str],
    known: object,
    absent: object,
) -> Iterator[Entrant]:
    """The default kernel in each accuracy class, on packed factors and on whole arrays, and `cho_solve`."""
    for math in maths:
        suffix = f" {math}" if len(maths) > 1 else ""
        for name, layout in (
            ("packed", backend.default_layout(n, dtype, batch, math)),
            ("canonical", Layout.canonical()),
        ):
            spec = _default(backend, Problem(n, dtype, op=SolveArena.op, math=math), batch, layout)
            make = partial(kernel, spec=spec, layout=layout)
            yield Entrant(f"{venue.prefix}{name}{suffix}", venue.version, make, (spec,), venue.tolerated)
    spec = _default(backend, Problem(n, dtype, op=SolveArena.op), batch, Layout.canonical())
    make = partial(array_call, spec=spec)
    yield Entrant(f"{venue.prefix}cho_solve", venue.version, make, (spec,), venue.tolerated)


def kernel(arena: SolveArena, spec: KernelSpec, layout: Layout) -> list[Contender]:
    """A kernel on the factors of the first set in a layout."""
    backend = arena.backend
    l, b = backend.from_dense(arena.input(0), layout).marked("lower"), backend.host(arena.column(0))
    sets = rotating_buffers(backend, l, b) if arena.cold else [(l, backend.place(b), backend.place(b))]
    calls = [partial(backend.kernel(spec), *each, threads=arena.threads) for each in sets]
    return [Contender(spec.name, calls, lambda index: Solved(*sets[index]), most=MOST_CALLS, math=spec.problem.math)]


def array_call(arena: SolveArena, spec: KernelSpec) -> list[Contender]:
    """`batchchol.cho_solve`, from arrays to array; `spec` is what it chooses by itself."""
    made = Latest(lambda given: cho_solve(*given, threads=arena.threads, backend=arena.backend.name), arena.pairs())
    return [
        Contender(
            spec.name,
            made.calls,
            lambda index: arena.solved(index, made.value),
            forget=made.forget,
            math=spec.problem.math,
        )
    ]


def _default(backend: Backend, problem: Problem, batch: int, layout: Layout) -> KernelSpec:
    request = Request(problem, backend.target, batch=batch, arch=backend.architecture, device=backend.model)
    return default_choice(request.on(layout)).spec
