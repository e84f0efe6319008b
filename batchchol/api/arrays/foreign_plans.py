"""How each public call is done in the memory of other libraries, for arrays on a GPU as they lie.

The functions have the names of the public calls. Their arguments are a call's arrays, then by name the options that
decide how it is done; all else is to have its default. They return None where the call is not for here: it is then
done in this library's memory, or what is wrong is said there.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from batchchol.api.arrays import device_addresses as at
from batchchol.api.arrays import general_addresses as general
from batchchol.api.arrays.device_addresses import Case, Operation
from batchchol.api.columns import Fit, fit
from kernelgen import MAX_N
from kernelgen.problem import MATHS
from kernelgen.targets import ELEMENT_BYTES


class Array(NamedTuple):
    """An array of a call: its shape and the name of its dtype."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def outer(self) -> tuple[int, ...]:
        return self.shape[:-2]

    @property
    def info(self) -> Array:
        """That of the matrices' info."""
        return Array(self.outer, "int32")

    @property
    def numbers(self) -> Array:
        """One number for each matrix."""
        return self.with_sides()

    def with_sides(self, *sides: int) -> Array:
        """An array for as many matrices, each part of it with these sides."""
        return Array((*self.outer, *sides), self.dtype)


class Plan(NamedTuple):
    """The operation that queues a call, the shapes and dtypes of its results, and the name of the tuple they form.

    Without a name the first result is returned alone.
    """

    operation: Operation
    results: tuple[Array, ...]
    returned: str = ""


def cholesky_ex(a: Array, *, upper: bool, math: str | None) -> Plan | None:
    """Factors and info."""
    case = _squares(a, math, upper)
    return case and Plan(at.factoring(case), (a, a.info), "Cholesky")


def solve_ex(a: Array, b: Array, *, assume_a: str, upper: bool, math: str | None, logdet: bool) -> Plan | None:
    """Solutions and info, and logarithms of determinants if asked for."""
    case, how = _squares(a, math, upper), _beside(a, b, "matrices")
    if case is None or how is None or not _assumed(assume_a, upper=upper, logdet=logdet):
        return None
    if logdet:
        both = general.determining("posvdet", case, how.nrhs) if how.plain else None
        return both and Plan(both, (Array(how.x, a.dtype), a.info, a.numbers), "SolutionLogDeterminant")
    solve = at.solving(case, how.nrhs) if assume_a == "pos" else general.kernel("gesv", case, how.nrhs)
    return Plan(general.beside(solve, 1, how, a.dtype), (Array(how.x, a.dtype), a.info), "Solution")


def cho_solve(L: Array, b: Array, *, upper: bool, math: str | None) -> Plan | None:
    """Solutions by factors."""
    case, how = _squares(L, math, upper), _beside(L, b, "factors")
    if case is None or how is None:
        return None
    solve = at.substituting(case, how.nrhs)
    return Plan(general.beside(solve, 1, how, L.dtype), (Array(how.x, L.dtype),))


def inv_ex(a: Array, *, assume_a: str, upper: bool, math: str | None, logdet: bool) -> Plan | None:
    """Inverses and info, and logarithms of determinants if asked for."""
    case = _squares(a, math, upper)
    if case is None or not _assumed(assume_a, upper=upper, logdet=logdet):
        return None
    if logdet:
        both = general.determining("poinvdet", case)
        return both and Plan(both, (a, a.info, a.numbers), "InverseLogDeterminant")
    invert = at.inverting if assume_a == "pos" else general.inverting
    return Plan(invert(case), (a, a.info), "Inverse")


def cho_inverse(L: Array, *, upper: bool, math: str | None) -> Plan | None:
    """Inverses by factors, and room for info."""
    case = _squares(L, math, upper)
    return case and Plan(at.inverting_by_factors(case), (L, L.info))


def cho_inverse_ex(L: Array, *, upper: bool, math: str | None) -> Plan | None:
    """Inverses by factors, info and logarithms of determinants."""
    case = _squares(L, math, upper)
    both = case and general.determining("potridet", case)
    return both and Plan(both, (L, L.info, L.numbers), "InverseLogDeterminant")


def slogdet_ex(a: Array, *, assume_a: str, upper: bool, math: str | None) -> Plan | None:
    """Signs, logarithms and info."""
    case = _squares(a, math, upper)
    if case is None or not _assumed(assume_a, upper=upper):
        return None
    take = at.taking_logarithms if assume_a == "pos" else general.taking_logarithms
    return Plan(take(case), (a.numbers, a.numbers, a.info), "LogDeterminantInfo")


def lu_factor_ex(a: Array, *, math: str | None) -> Plan | None:
    """LU factors, pivots and info."""
    case = _squares(a, math)
    if case is None:
        return None
    pivots = Array(a.shape[:-1], "int32")
    return Plan(general.kernel("getrf", case), (a, pivots, a.info), "LUInfo")


def lu_solve(LU: Array, pivots: Array, b: Array, *, math: str | None) -> Plan | None:
    """Solutions by LU factors."""
    case, how = _squares(LU, math), _beside(LU, b, "factors")
    if case is None or how is None or pivots != Array(LU.shape[:-1], "int32"):
        return None
    solve = general.kernel("getrs", case, how.nrhs)
    return Plan(general.beside(solve, 2, how, LU.dtype), (Array(how.x, LU.dtype),))


def qr(a: Array, *, mode: str, positive: bool, math: str | None) -> Plan | None:
    """Q and R, or R, or reflectors."""
    case = _rectangles(a, math)
    if case is None:
        return None
    m, n = a.shape[-2:]
    k = min(m, n)
    if mode == "raw" and not positive:
        return Plan(general.kernel("geqrf", case), (a, a.with_sides(k)), "Reflectors")
    if mode == "r":
        return Plan(general.triangular_factors(case, positive=positive), (a.with_sides(k, n),))
    if mode not in ("reduced", "complete"):
        return None
    columns = m if mode == "complete" else k
    factor = general.orthogonal_factors(case, columns, positive=positive)
    return Plan(factor, (a.with_sides(m, columns), a.with_sides(columns, n)), "QR")


def lstsq_ex(a: Array, b: Array, *, math: str | None) -> Plan | None:
    """Solutions of least squares, and info."""
    case, nrhs = _rectangles(a, math), _observations(a, b)
    if case is None or not nrhs or (case.m or case.n) < case.n:
        return None
    x = a.with_sides(case.n, *b.shape[len(a.shape) - 1 :])
    return Plan(general.kernel("gels", case, nrhs), (x, a.info), "LeastSquares")


def _products(qr: Array, tau: Array, b: Array, *, math: str | None) -> Plan | None:
    """Products with Q^T."""
    case, nrhs = _rectangles(qr, math), _observations(qr, b)
    if case is None or not nrhs or tau != qr.with_sides(min(qr.shape[-2:])):
        return None
    return Plan(general.kernel("ormqr", case, nrhs), (b,))


PLANS: dict[str, Callable[..., Plan | None]] = {
    each.__name__: each
    for each in (
        cholesky_ex,
        solve_ex,
        cho_solve,
        inv_ex,
        cho_inverse,
        cho_inverse_ex,
        slogdet_ex,
        lu_factor_ex,
        lu_solve,
        qr,
        lstsq_ex,
        _products,
    )
}


def _squares(a: Array, math: str | None, upper: bool = False) -> Case | None:
    """The case that decides which kernel runs on square matrices; None if no kernel takes them."""
    return _rectangles(a, math, upper) if a.shape[-2:-1] == a.shape[-1:] else None


def _rectangles(a: Array, math: str | None, upper: bool = False) -> Case | None:
    if a.dtype not in ELEMENT_BYTES or len(a.shape) < 2 or not prod(a.shape) or max(a.shape[-2:]) > MAX_N:
        return None
    m, n = a.shape[-2:]
    return Case(n, prod(a.outer), a.dtype, upper, math or MATHS[0], None if m == n else m)


def _assumed(assume_a: str, **symmetric: bool) -> bool:
    """Whether matrices are symmetric, or general and asked for nothing that symmetric ones alone have."""
    return assume_a == "pos" or (assume_a == "gen" and not any(symmetric.values()))


def _beside(a: Array, b: Array, what: str) -> Fit | None:
    """How right-hand sides belong to matrices, if they do and there are some."""
    try:
        how = fit(a.outer, a.shape[-1], b.shape, what)
    except (ValueError, IndexError):
        return None
    return how if how.nrhs and b.dtype == a.dtype else None


def _observations(a: Array, b: Array) -> int:
    """How many right-hand sides each rectangular matrix has; 0 if they are not its own."""
    rows, count = a.shape[:-1], len(a.shape) - 1
    if b.dtype != a.dtype or b.shape[:count] != rows or len(b.shape) > count + 1:
        return 0
    return prod(b.shape[count:])
