"""Solves in a comparison, by factors and by matrices: what they are given, and this library's own contenders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from batchchol.api import LeastSquares, Solution, cho_solve, cholesky_ex, solve, solve_ex
from batchchol.backends import Backend
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.measuring.clock import MOST_CALLS
from batchchol.batches.batch import Batch
from batchchol.compare.contenders import BaseArena, Contender, Entrant, Latest
from batchchol.compare.cpu import CpuVenue
from batchchol.compare.defaults import default_kernels, default_specs
from batchchol.compare.gpu import GpuVenue
from batchchol.measure.solves import CHECKS, info_of, rotating_buffers
from batchchol.measure.timing import CACHES
from batchchol.plan import factor_then_solve
from kernelgen import KernelSpec, Layout, Problem, SpecError
from kernelgen.gpu import WARP
from kernelgen.operations import OPERATIONS


@dataclass(frozen=True)
class Solved:
    """Finished solves: the matrices or factors, the right-hand sides and the solutions, of shape (batch, n, nrhs).

    `info` is that of each matrix, empty of factors, which have none.
    """

    op: str
    matrices: Batch
    b: Any
    x: Any
    info: tuple[Any, ...] = ()

    @property
    def layout(self) -> Layout:
        return self.matrices.layout

    def ratio(self, backend: Backend, math: str) -> float:
        return CHECKS[self.op](self.matrices, self.b, self.x, *self.info, math, host=backend.host)


@dataclass(frozen=True)
class BaseSolveArena(BaseArena):
    """Matrices on a backend, or their factors, right-hand sides for each, and room for the solutions."""

    triangle: ClassVar[str | None]

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
        """The matrices or factors and the right-hand sides of every set."""
        return [(self.input(index), self.column(index)) for index in range(self.sets)]

    def solved(self, index: int, x: Any = None, info: Any = None) -> Solved:
        """The result of set `index`: solutions, by default in the room for them, and what info there is."""
        matrices = type(self.inputs)(self.input(index), self.n, self.batch, Layout.canonical(), self.triangle)
        solutions = self.output(index) if x is None else x
        return Solved(self.op, matrices, self.column(index), solutions, self._status(info))

    def _status(self, info: Any) -> tuple[Any, ...]:
        return ()


@dataclass(frozen=True)
class SolveArena(BaseSolveArena):
    """The factors of SPD matrices."""

    op: ClassVar[str] = "potrs"
    triangle: ClassVar[str | None] = "lower"

    @cached_property
    def inputs(self) -> Batch:
        """The factors of all sets, canonical: lower triangles, zero above. Not to be written to."""
        matrices = super().inputs
        factors = cholesky_ex(matrices.data, backend=self.backend.name).L
        return type(matrices)(factors, self.n, matrices.batch, Layout.canonical(), "lower")


@dataclass(frozen=True)
class FusedArena(BaseSolveArena):
    """The SPD matrices themselves, which are factored and solved by."""

    op: ClassVar[str] = "posv"
    triangle: ClassVar[str | None] = None

    def _status(self, info: Any) -> tuple[Any, ...]:
        # Of a library that has none: its solutions are not finite where it failed.
        return (self.upload(np.zeros(self.batch, np.int32)) if info is None else info,)


# How many general matrices are different.
DISTINCT = 16_384


@dataclass(frozen=True)
class GeneralArena(FusedArena):
    """General matrices, whatever the recipe, with elements of the standard normal distribution."""

    op: ClassVar[str] = "gesv"

    @cached_property
    def inputs(self) -> Batch:
        """The matrices of all sets, canonical. Not to be written to."""
        return general_matrices(self)


def general_matrices(arena: BaseArena) -> Batch:
    """Matrices for all sets of an arena, canonical, with elements of the standard normal distribution.

    Behind DISTINCT of them come the same again: making more takes longer than all that is timed.
    """
    cache = CACHES * arena.backend.last_level_cache_bytes()
    sets = -(-cache // (arena.batch * arena.matrix_bytes)) if arena.cold else 1
    random = np.random.Generator(np.random.Philox(arena.n))
    shape = sets * arena.batch, arena.n, arena.n
    made = random.standard_normal((min(shape[0], DISTINCT), *shape[1:]), np.dtype(arena.dtype).type)
    return arena.backend.from_dense(np.resize(made, shape), Layout.canonical())


SOLVE_ARENAS: tuple[type[BaseSolveArena], ...] = (SolveArena, FusedArena, GeneralArena)


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
    """The default kernel in each accuracy class, on packed matrices and on whole arrays, and the operation's call.

    Where there is no kernel of an operation its call does without one; not for general matrices.
    """
    problem = Problem(n, dtype, op=op)
    yield from default_kernels(backend, venue, problem, batch, maths, absent, kernel)
    function = _function(op, backend)
    chosen: tuple[KernelSpec, ...] = ()
    with suppress(SpecError):
        chosen = _of_call(backend, problem, batch)
    if not chosen and OPERATIONS[op].general:
        return
    assumed = partial(function, assume_a="gen") if OPERATIONS[op].general else function
    make = partial(array_call, specs=chosen, function=assumed)
    yield Entrant(f"{venue.prefix}{function.__name__}", venue.version, make, chosen, venue.tolerated)


def _of_call(backend: Backend, problem: Problem, batch: int) -> tuple[KernelSpec, ...]:
    """The kernels that the call for arrays runs: two where warps of a GPU share a general matrix."""
    chosen = default_specs(backend, problem, batch, Layout.canonical())
    if problem.op != "gesv" or (getattr(chosen[0].schedule, "split", None) or 1) <= WARP:
        return chosen
    parts = (replace(problem, op=op) for op in ("getrf", "getrs"))
    return tuple(spec for part in parts for spec in default_specs(backend, part, batch, Layout.canonical()))


def kernel(arena: BaseSolveArena, specs: tuple[KernelSpec, ...], layout: Layout) -> list[Contender]:
    """A kernel, or two as one, on the matrices or factors of the first set in a layout."""
    backend, specs = arena.backend, _of_columns(arena, specs, layout)
    matrices, b = backend.from_dense(arena.input(0), layout).marked(arena.triangle), backend.host(arena.column(0))
    sets = rotating_buffers(backend, matrices, b) if arena.cold else [(matrices, backend.place(b), backend.place(b))]
    status = info_of(backend, specs[0], matrices)
    run = backend.kernel(specs[0]) if len(specs) == 1 else factor_then_solve(backend, *specs)
    calls = [partial(run, *each, *status, threads=arena.threads) for each in sets]

    def result(index: int) -> Solved:
        return Solved(arena.op, *sets[index], status)

    return [Contender(_name(specs), calls, result, most=MOST_CALLS, math=specs[0].problem.math)]


def array_call(arena: BaseSolveArena, specs: tuple[KernelSpec, ...], function: Callable[..., Any]) -> list[Contender]:
    """A call of this library, from arrays to array; `specs` is what it chooses by itself."""
    specs = _of_columns(arena, specs, Layout.canonical())
    threads = {"threads": arena.threads, "backend": arena.backend.name}
    made = Latest(lambda given: function(*given, **threads), arena.pairs())

    def result(index: int) -> Solved:
        x, info = made.value if isinstance(made.value, Solution | LeastSquares) else (made.value, None)
        return arena.solved(index, x, info)

    name = _name(specs) if specs else "a kernel that factors, and one that solves"
    return [Contender(name, made.calls, result, forget=made.forget, math=specs[0].problem.math if specs else None)]


def _of_columns(arena: BaseSolveArena, specs: tuple[KernelSpec, ...], layout: Layout) -> tuple[KernelSpec, ...]:
    """The default kernels for as many right-hand sides as there are, where these are the ones for a single one."""
    if arena.op != FusedArena.op or arena.nrhs == 1 or not specs:
        return specs
    problem = replace(specs[0].problem, op=arena.op)
    return default_specs(arena.backend, problem, arena.batch, layout, arena.nrhs)


def _function(op: str, backend: Backend) -> Callable[..., Any]:
    if op == SolveArena.op:
        return cho_solve
    # On a GPU the other one waits.
    return solve if backend.name == "cpu" else solve_ex


def _name(specs: Sequence[KernelSpec]) -> str:
    return " + ".join(spec.name for spec in specs)
