"""SciPy: its LAPACK wrapper, called for one matrix after another.

`scipy.linalg.cholesky` takes batches too, but loops over them in Python with several checks a matrix: measured,
it takes three times as long at n = 4 as the low-level function in a loop, and never less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, lapack, solve

from batchchol.backends import lapack as by_address
from batchchol.backends import lapack_lu, lapack_qr
from batchchol.compare.contenders import Arena, Contender, Latest
from batchchol.compare.factors import LuArena, LuFactored
from batchchol.compare.inversions import InverseArena
from batchchol.compare.peers.base import Peer, blas_limit, lapack_name
from batchchol.compare.reflections import LeastSquaresArena, QrArena, QrFactored
from batchchol.compare.solves import FusedArena, GeneralArena, SolveArena


def contenders(arena: Arena) -> list[Contender]:
    """A copy of the batch, factored in place matrix by matrix."""
    name = lapack_name("potrf", arena.dtype)
    potrf = getattr(lapack, name)
    inputs, outputs = arena.each(arena.input), arena.each(arena.output)
    status = np.zeros(arena.batch, np.int32)

    def call(index: int) -> None:
        result = outputs[index]
        np.copyto(result, inputs[index])
        for member, matrix in enumerate(result):
            # LAPACK's upper triangle of the transpose, which is Fortran's view of it, is the lower one here.
            _, info = potrf(matrix.T, lower=0, clean=1, overwrite_a=1)
            if info:
                status[member] = info

    return [
        Contender(
            f"scipy.linalg.lapack.{name}, in a loop",
            arena.calls(call),
            lambda index: arena.result(index, info=status),
        )
    ]


def solvers(arena: SolveArena) -> list[Contender]:
    """LAPACK's potrs for one matrix after another: from Python, and by its address on threads of this library.

    `scipy.linalg.cho_solve` is the same function with several checks a matrix.
    """
    name = lapack_name("potrs", arena.dtype)
    potrs = getattr(lapack, name)
    # No solutions are left in the room that others had.
    arena.restore()

    def loop(index: int) -> None:
        for factor, b, x in zip(arena.input(index), arena.column(index), arena.output(index), strict=True):
            x[...], _ = potrs(factor.T, b, lower=0)

    def on_threads(index: int) -> None:
        by_address.potrs(arena.input(index), arena.column(index), arena.output(index), False, arena.threads)

    return [
        Contender(f"scipy.linalg.lapack.{name}, in a loop", arena.calls(loop), arena.solved),
        Contender(f"SciPy's {name} by its address", arena.calls(on_threads), arena.solved),
    ]


def fused(arena: FusedArena) -> list[Contender]:
    """Its functions and LAPACK's posv for one matrix after another, and posv by its address on threads."""
    name = lapack_name("posv", arena.dtype)
    posv, unchecked = getattr(lapack, name), {"check_finite": False}
    arena.restore()

    def on_threads(index: int) -> None:
        by_address.posv(arena.input(index), arena.column(index), arena.output(index), False, arena.threads)

    ways: dict[str, Callable[[int], None]] = {
        "scipy.linalg.cho_factor and cho_solve, in a loop": _one_by_one(
            arena, lambda a, b: cho_solve(cho_factor(a, lower=True, **unchecked), b, **unchecked)
        ),
        "scipy.linalg.solve, assume_a='pos', in a loop": _one_by_one(
            arena, lambda a, b: solve(a, b, lower=True, assume_a="pos", **unchecked)
        ),
        f"scipy.linalg.lapack.{name}, in a loop": _one_by_one(arena, lambda a, b: posv(a.T, b, lower=0)[1]),
        f"SciPy's {name} by its address": on_threads,
    }
    return [Contender(spec, arena.calls(call), arena.solved) for spec, call in ways.items()]


def inverses(arena: InverseArena) -> list[Contender]:
    """LAPACK's potri for one matrix after another, by given factors or after potrf, and the other triangle filled."""
    names = [lapack_name(routine, arena.dtype) for routine in ("potrf", "potri")]
    potrf, potri = (getattr(lapack, name) for name in names)
    given, below = arena.triangle == "lower", np.tri(arena.n, k=-1, dtype=np.bool_)

    def loop(matrices: NDArray[Any]) -> NDArray[Any]:
        made = np.empty_like(matrices)
        for matrix, x in zip(matrices, made, strict=True):
            # LAPACK's upper triangle of the transpose is the lower one here.
            factor = matrix.T if given else potrf(matrix.T, lower=0)[0]
            x[...] = potri(factor, lower=0)[0].T
            np.copyto(x.T, x, where=below)
        return made

    made = Latest(loop, arena.each(arena.input))
    spec = f"scipy.linalg.lapack.{names[1] if given else ' and '.join(names)}, in a loop"
    return [Contender(spec, made.calls, lambda index: arena.inverted(index, made.value), forget=made.forget)]


def general(arena: GeneralArena) -> list[Contender]:
    """Its function and LAPACK's gesv for one matrix after another, and getrf and getrs by address on threads."""
    name = lapack_name("gesv", arena.dtype)
    gesv = getattr(lapack, name)
    arena.restore()

    def on_threads(index: int) -> None:
        lapack_lu.gesv(arena.input(index), arena.column(index), arena.output(index), arena.threads)

    ways: dict[str, Callable[[int], None]] = {
        "scipy.linalg.solve, in a loop": _one_by_one(
            arena, lambda a, b: solve(a, b, check_finite=False, assume_a="gen")
        ),
        f"scipy.linalg.lapack.{name}, in a loop": _one_by_one(arena, lambda a, b: gesv(a, b)[2]),
        "SciPy's getrf and getrs by their addresses": on_threads,
    }
    return [Contender(spec, arena.calls(call), arena.solved) for spec, call in ways.items()]


def lu_factors(arena: LuArena) -> list[Contender]:
    """LAPACK's getrf for one matrix after another, which it factors in columns, and by its address on threads."""
    name = lapack_name("getrf", arena.dtype)
    getrf, pivots, status = getattr(lapack, name), arena.pivots(), np.zeros(arena.batch, np.int32)

    def loop(index: int) -> None:
        for member, (matrix, lu) in enumerate(zip(arena.input(index), arena.output(index), strict=True)):
            lu[...], pivots[member], status[member] = getrf(matrix)
        pivots[...] += 1

    def on_threads(index: int) -> None:
        status[...] = lapack_lu.getrf(arena.input(index), arena.output(index), pivots, arena.threads)

    def result(index: int) -> LuFactored:
        return arena.factored(index, arena.output(index), pivots, status)

    return [
        Contender(f"scipy.linalg.lapack.{name}, in a loop", arena.calls(loop), result),
        Contender("SciPy's getrf by its address", arena.calls(on_threads), result),
    ]


def reflectors(arena: QrArena) -> list[Contender]:
    """LAPACK's geqrf for one matrix after another."""
    tau = arena.tau()

    def result(index: int) -> QrFactored:
        return arena.reflected(index, arena.output(index), tau)

    def call(index: int) -> None:
        lapack_qr.geqrf(arena.input(index), arena.output(index), tau)

    return [
        Contender(f"scipy.linalg.lapack.{lapack_name('geqrf', arena.dtype)}, in a loop", arena.calls(call), result)
    ]


def least_squares(arena: LeastSquaresArena) -> list[Contender]:
    """LAPACK's gels for one matrix after another."""
    gels = getattr(lapack, lapack_name("gels", arena.dtype))
    spec = f"scipy.linalg.lapack.{lapack_name('gels', arena.dtype)}, in a loop"
    return [Contender(spec, arena.calls(_one_by_one(arena, lambda a, b: gels(a, b)[1])), arena.solved)]


def _one_by_one(
    arena: FusedArena, way: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
) -> Callable[[int], None]:
    """A call that solves by one matrix after another."""

    def call(index: int) -> None:
        for matrix, b, x in zip(arena.input(index), arena.column(index), arena.output(index), strict=True):
            x[...] = way(matrix, b)

    return call


PEER = Peer(
    "scipy",
    "cpu",
    lambda: f"scipy {scipy.__version__}",
    {
        "potrf": contenders,
        "potrs": solvers,
        "posv": fused,
        "potri": inverses,
        "poinv": inverses,
        "gesv": general,
        "getrf": lu_factors,
        "geqrf": reflectors,
        "gels": least_squares,
    },
    limit=blas_limit,
)
