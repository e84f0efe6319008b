"""The public calls for arrays of JAX, on a CPU and on a GPU: arrays in, arrays of the same device out.

They compile with `jax.jit`, are batched by `jax.vmap`, and have derivatives of both modes and any order. On a GPU
they run on XLA's stream, in its memory. None raises for what matrices hold, as JAX's own do not. Matrices are of
orders up to 128.
"""

from __future__ import annotations

from typing import Any

from batchchol.api import Cholesky, Inverse, LogDeterminant, LogDeterminantInfo, Solution
from batchchol.batches.checks import check_math, flag
from batchchol.errors import BatchcholError, optional

try:
    optional("jax", "batchchol.interop.jax", "jax")
except BatchcholError as error:
    # What those who import a module expect.
    raise ImportError(str(error)) from error

import jax.numpy as jnp
import numpy as np

from batchchol.api.columns import Fit, check_columns_dtype, fit
from batchchol.interop.jax import operations

__all__ = [
    "cho_inverse",
    "cho_solve",
    "cholesky",
    "cholesky_ex",
    "inv",
    "inv_ex",
    "slogdet",
    "slogdet_ex",
    "solve",
    "solve_ex",
]

Array = Any


def cholesky(a: Array, *, upper: bool = False, math: str = "ieee") -> Array:
    """Cholesky factors of symmetric positive definite matrices, NaN of those that are not; see `batchchol.cholesky`.

    Parameters
    ----------
    a : Array, shape (..., n, n)
        The matrices, float32 or float64. Only the lower triangle is used, or the upper one if `upper` is set. The
        gradient is symmetric, as that of jax.numpy.linalg.cholesky.
    upper : bool
        Return U with A = U^T U in place of L with A = L L^T.
    math : {"ieee", "fast"}
        As for `batchchol.cholesky`.

    Returns
    -------
    Array, shape (..., n, n)
        The factors; the other triangle is zero.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or n is above 128.
    """
    l, info = cholesky_ex(a, upper=upper, math=math)
    return _where_right(info, l)


def cholesky_ex(a: Array, *, upper: bool = False, math: str = "ieee") -> Cholesky:
    """Cholesky factors and LAPACK's info of each matrix, int32: where it is not 0 a factor has no meaning."""
    return Cholesky(*operations.cholesky(operations.checked("a", a), _how(upper, math)))


def solve(a: Array, b: Array, *, upper: bool = False, math: str = "ieee") -> Array:
    """The solutions x of a x = b, NaN of matrices that are not positive definite; see `batchchol.solve`.

    Parameters
    ----------
    a : Array, shape (..., n, n)
        The matrices, as for `cholesky`.
    b : Array, shape (n,), (..., n) or (..., n, nrhs)
        The right-hand sides, of the matrices' dtype: one vector for each matrix if b.ndim == 1 or b.shape ==
        a.shape[:-1], else matrices, which are broadcast with those of `a`.

    Returns
    -------
    Array, of the shape of b, broadcast
    """
    return _solved(a, b, upper, math, marked=True).x


def solve_ex(a: Array, b: Array, *, upper: bool = False, math: str = "ieee") -> Solution:
    """The solutions x of a x = b and LAPACK's info of each matrix, int32: where it is not 0 they have no meaning."""
    return _solved(a, b, upper, math, marked=False)


def cho_solve(L: Array, b: Array, *, upper: bool = False, math: str = "ieee") -> Array:
    """The solutions x of A x = b, given the Cholesky factors L of the matrices A = L L^T; see `batchchol.cho_solve`.

    `b` is as for `solve`. The gradient of the factors is triangular.
    """
    l = operations.checked("L", L)
    how, sides = _fitted(l, b, "factors")
    return _unfolded(operations.cho_solve(l, sides, _how(upper, math)), how)


def cho_inverse(L: Array, *, upper: bool = False, math: str = "ieee") -> Array:
    """Inverses of matrices A = L L^T, given their Cholesky factors L; see `batchchol.cho_inverse` and `cho_solve`."""
    return operations.cho_inverse(operations.checked("L", L), _how(upper, math))


def inv(a: Array, *, upper: bool = False, math: str = "ieee") -> Array:
    """Inverses of symmetric positive definite matrices, NaN of those that are not; see `cholesky`."""
    inverse, info = inv_ex(a, upper=upper, math=math)
    return _where_right(info, inverse)


def inv_ex(a: Array, *, upper: bool = False, math: str = "ieee") -> Inverse:
    """Inverses and LAPACK's info of each matrix, int32: where it is not 0 an inverse has no meaning."""
    return Inverse(*operations.inv(operations.checked("a", a), _how(upper, math)))


def slogdet(a: Array, *, upper: bool = False, math: str = "ieee") -> LogDeterminant:
    """Signs, which are 1, and logarithms of determinants, NaN of matrices that are not positive definite."""
    return LogDeterminant(*slogdet_ex(a, upper=upper, math=math)[:2])


def slogdet_ex(a: Array, *, upper: bool = False, math: str = "ieee") -> LogDeterminantInfo:
    """`slogdet` and LAPACK's info of each matrix, int32."""
    return LogDeterminantInfo(*operations.slogdet(operations.checked("a", a), _how(upper, math)))


def _how(upper: Any, math: Any) -> tuple[bool, str]:
    check_math(math)
    return flag("upper", upper), math


def _where_right(info: Array, results: Array) -> Array:
    """Results of matrices, NaN of those whose info is not 0."""
    return jnp.where((info == 0)[..., None, None], results, jnp.nan)


def _solved(a: Array, b: Array, upper: Any, math: Any, *, marked: bool) -> Solution:
    matrices = operations.checked("a", a)
    how, sides = _fitted(matrices, b, "matrices")
    x, info = operations.solve(matrices, sides, _how(upper, math))
    return Solution(_unfolded(_where_right(info, x) if marked else x, how), info)


def _fitted(a: Array, b: Any, what: str) -> tuple[Fit, Array]:
    """How right-hand sides belong to matrices, and they as (..., n, nrhs), one for each of the matrices."""
    given = jnp.asarray(b)
    check_columns_dtype(np.dtype(given.dtype), np.dtype(a.dtype), what)
    how = fit(a.shape[:-2], a.shape[-1], given.shape, what)
    columns = jnp.broadcast_to(given.reshape(how.given), how.whole).transpose(how.axes)
    return how, columns.reshape(*a.shape[:-1], how.nrhs)


def _unfolded(x: Array, how: Fit) -> Array:
    """Solutions in the order of the right-hand sides."""
    return (x.reshape(how.apart).transpose(how.back) if how.folded else x).reshape(how.x)
