"""What XLA is told of the operations: their handlers on a CPU and a GPU, the shapes of results, their derivatives.

Derivatives are the textbook's (Murray, "Differentiation of the Cholesky decomposition", arXiv:1602.07527; Giles,
"Collected matrix derivative results for forward and reverse mode algorithmic differentiation", 2008), in terms of
operations that have derivatives themselves. Matrices are symmetric: their tangents are taken so, whichever triangle
was read.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from batchchol.interop.jax import device, host, xla
from kernelgen import MAX_N

Array = Any


@lru_cache
def _target(op: str, upper: bool, math: str) -> str:
    """The name of an operation's handlers, which XLA is told."""
    name = f"batchchol_{op}_{'upper' if upper else 'lower'}_{math}"
    how = {"upper": upper, "math": math}
    there = {"cpu": host, "CUDA": device}
    xla.register(name, {platform: partial(getattr(module, op), **how) for platform, module in there.items()})
    return name


def _call(op: str, how: tuple[bool, str], shapes: list[tuple[tuple[int, ...], Any]], *arrays: Array) -> Any:
    """Results of these shapes and dtypes; of vmap's axes the arrays have all."""
    results = [jax.ShapeDtypeStruct(*each) for each in shapes]
    if not all(prod(each.shape) for each in arrays):
        return [jnp.zeros(each.shape, each.dtype) for each in results]
    return jax.ffi.ffi_call(_target(op, *how), results, vmap_method="broadcast_all")(*arrays)


def _symmetric(a: Array) -> Array:
    return (a + a.mT) / 2


def _no_tangent(info: Array) -> Array:
    return np.zeros(info.shape, jax.dtypes.float0)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def cholesky(a: Array, how: tuple[bool, str]) -> Any:
    """Factors and info."""
    return _call("cholesky", how, [(a.shape, a.dtype), (a.shape[:-2], np.int32)], a)


def _cholesky_jvp(how: tuple[bool, str], primals: Any, tangents: Any) -> Any:
    """Of A = L L^T: L phi(L^-1 dA L^-T), where phi takes the lower triangle and half of the diagonal."""
    (a,), (da,) = primals, tangents
    l, info = cholesky(a, how)
    lower = l.mT if how[0] else l
    solve = partial(jax.lax.linalg.triangular_solve, lower, lower=True)
    s = solve(solve(_symmetric(da), left_side=True), left_side=False, transpose_a=True)
    dl = lower @ (jnp.tril(s) - s * jnp.eye(s.shape[-1], dtype=s.dtype) / 2)
    return (l, info), (dl.mT if how[0] else dl, _no_tangent(info))


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def solve(a: Array, b: Array, how: tuple[bool, str]) -> Any:
    """Solutions and info, for right-hand sides (..., n, nrhs) whose other axes are the matrices'."""
    return _call("solve", how, [(b.shape, b.dtype), (a.shape[:-2], np.int32)], a, b)


def _solve_jvp(how: tuple[bool, str], primals: Any, tangents: Any) -> Any:
    """Of x = A^-1 b: A^-1 (db - dA x)."""
    (a, b), (da, db) = primals, tangents
    x, info = solve(a, b, how)
    return (x, info), (_by_matrices(a, db - _symmetric(da) @ x, how), _no_tangent(info))


def _by_matrices(a: Array, b: Array, how: tuple[bool, str]) -> Array:
    """Solutions, linear in the right-hand sides, as JAX knows."""
    symmetric = _symmetric(a)
    return jax.lax.custom_linear_solve(
        lambda x: symmetric @ x, b, lambda _, sides: solve(a, sides, how)[0], symmetric=True
    )


def cho_solve(l: Array, b: Array, how: tuple[bool, str]) -> Array:
    """Solutions by factors, for right-hand sides as of `solve`."""
    lower = jnp.triu(l).mT if how[0] else jnp.tril(l)

    def substituted(_: Any, sides: Array) -> Array:
        (x,) = _call("cho_solve", how, [(sides.shape, sides.dtype)], l, sides)
        return x

    return jax.lax.custom_linear_solve(lambda x: lower @ (lower.mT @ x), b, substituted, symmetric=True)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def inv(a: Array, how: tuple[bool, str]) -> Any:
    """Inverses and info."""
    return _call("inv", how, [(a.shape, a.dtype), (a.shape[:-2], np.int32)], a)


def _inv_jvp(how: tuple[bool, str], primals: Any, tangents: Any) -> Any:
    """Of A^-1: -A^-1 dA A^-1."""
    (a,), (da,) = primals, tangents
    inverse, info = inv(a, how)
    return (inverse, info), (-inverse @ _symmetric(da) @ inverse, _no_tangent(info))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def cho_inverse(l: Array, how: tuple[bool, str]) -> Array:
    """Inverses by factors."""
    return _call("cho_inverse", how, [(l.shape, l.dtype), (l.shape[:-2], np.int32)], l)[0]


def _cho_inverse_jvp(how: tuple[bool, str], primals: Any, tangents: Any) -> Any:
    """Of (L L^T)^-1: -A^-1 (dL L^T + L dL^T) A^-1."""
    (l,), (dl,) = primals, tangents
    inverse = cho_inverse(l, how)
    lower, change = (jnp.triu(each).mT if how[0] else jnp.tril(each) for each in (l, dl))
    return inverse, -2 * inverse @ _symmetric(change @ lower.mT) @ inverse


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def slogdet(a: Array, how: tuple[bool, str]) -> Any:
    """Signs, logarithms and info."""
    outer = a.shape[:-2]
    if not prod(a.shape):
        return jnp.ones(outer, a.dtype), jnp.zeros(outer, a.dtype), jnp.zeros(outer, np.int32)
    return _call("slogdet", how, [(outer, a.dtype), (outer, a.dtype), (outer, np.int32)], a)


def _slogdet_jvp(how: tuple[bool, str], primals: Any, tangents: Any) -> Any:
    """Of log det A: the trace of A^-1 dA."""
    (a,), (da,) = primals, tangents
    sign, logabsdet, info = slogdet(a, how)
    change = (inv(a, how)[0] * _symmetric(da)).sum((-2, -1))
    return (sign, logabsdet, info), (jnp.zeros_like(sign), change, _no_tangent(info))


for _function, _rule in (
    (cholesky, _cholesky_jvp),
    (solve, _solve_jvp),
    (inv, _inv_jvp),
    (cho_inverse, _cho_inverse_jvp),
    (slogdet, _slogdet_jvp),
):
    _function.defjvp(_rule)


def checked(argument: str, a: Any) -> Array:
    """Matrices (..., n, n) as operations take them.

    Raises
    ------
    TypeError, ValueError
        If they are none, or of an order above the kernels'.
    """
    array = jnp.asarray(a)
    if array.dtype not in (np.float32, np.float64):
        raise TypeError(
            f"{argument}: got dtype {array.dtype}, expected float32 or float64: convert with .astype first"
        )
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        raise ValueError(f"{argument}: got shape {array.shape}, expected square matrices (..., n, n)")
    if array.shape[-1] > MAX_N:
        raise ValueError(
            f"{argument}: got matrices of order {array.shape[-1]}, expected at most {MAX_N}: jax.numpy.linalg takes "
            "larger ones"
        )
    return array
