"""Symmetric positive definite batches, and others, that the tests make for themselves: (count, n, n) in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

Matrices = NDArray[np.float64]
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}


def dominant(count: int, n: int, seed: int = 1) -> Matrices:
    """(R + R^T) / 2 + n I, R uniform in [0, 1): strictly diagonally dominant."""
    uniform = np.random.default_rng((seed, n)).random((count, n, n))
    return (uniform + uniform.swapaxes(1, 2)) / 2 + n * np.eye(n)


def wishart(count: int, n: int, seed: int = 2) -> Matrices:
    """G G^T / 2n, G of n rows and 2n columns of normal numbers."""
    normal = np.random.default_rng((seed, n)).standard_normal((count, n, 2 * n))
    return normal @ normal.swapaxes(1, 2) / (2 * n)


def conditioned(count: int, n: int, condition: float, seed: int = 3) -> Matrices:
    """Eigenvalues from 1 down to 1 / condition, evenly spread in the logarithm, in a random orthogonal basis."""
    normal = np.random.default_rng((seed, n)).standard_normal((count, n, n))
    basis, _ = np.linalg.qr(normal)
    eigenvalues = np.logspace(0, -np.log10(condition), n)
    return (basis * eigenvalues) @ basis.swapaxes(1, 2)


def long_tails(count: int, n: int, seed: int = 5) -> Matrices:
    """Of factors from which tensor cores, which keep 11 bits of each element, leave as much as they can."""
    factors = np.random.default_rng((seed, n)).uniform(0.5, 1, (count, n, n)).astype(np.float32)
    bits = (factors.view(np.uint32) | np.uint32(0x0FFF)) & np.uint32(0xFFFFEFFF)
    factor = np.tril(bits.view(np.float32).astype(np.float64)) + np.eye(n)
    return factor @ factor.swapaxes(1, 2)


def longest_tails(count: int, n: int, seed: int = 5) -> Matrices:
    """Of factors from which tensor cores that are given the first 11 bits as they are leave as much as they can.

    Of products of numbers that are just short of 1 + 2^-10, most of one panel's columns.
    """
    bits = np.random.default_rng((seed, n)).integers(8180, 8190, (count, n, n))
    factor = np.tril(1 + np.ldexp(bits, -23))
    factor[:, :, 8:] /= 32
    return factor @ factor.swapaxes(1, 2)


def integer_factors(count: int, n: int, seed: int = 4) -> Matrices:
    """Unit lower triangular matrices of small integers: their products with themselves factor without rounding."""
    below = np.random.default_rng((seed, n)).integers(-1, 2, (count, n, n))
    return np.tril(below, -1) + np.eye(n)


def with_bad_pivots(a: NDArray[np.floating], minors: NDArray[np.integer], value: float) -> NDArray[np.floating]:
    """The matrices, pivot k of those whose minor is k > 0 being a value, with zeros beside it."""
    bad = a.copy()
    for member in np.flatnonzero(minors):
        pivot = minors[member] - 1
        bad[member, pivot, :] = bad[member, :, pivot] = 0
        bad[member, pivot, pivot] = value
    return bad


DATA: Mapping[str, Callable[[int, int], Matrices]] = {"dominant": dominant, "wishart": wishart}


def lapack_factor(a: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.int32]]:
    """L and info of each matrix by LAPACK's spotrf or dpotrf, whichever is for the dtype."""
    (potrf,) = lapack.get_lapack_funcs(("potrf",), (a,))
    results = [potrf(matrix, lower=1, clean=1) for matrix in a]
    return np.array([l for l, _ in results]), np.array([info for _, info in results], dtype=np.int32)


@dataclass(frozen=True)
class Reference:
    """Matrices rounded to a dtype, what LAPACK makes of them in float64, and their condition in the 1-norm."""

    a: NDArray[np.floating]
    l: Matrices
    condition: NDArray[np.float64]

    def distance(self, l: NDArray[np.floating]) -> NDArray[np.float64]:
        """How far each factor is from LAPACK's, relative to it, in units of (n + 1) * u * condition."""
        away = np.linalg.norm(np.tril(l.astype(np.float64)) - self.l, axis=(1, 2)) / np.linalg.norm(
            self.l, axis=(1, 2)
        )
        scale: NDArray[np.float64] = (l.shape[-1] + 1) * UNIT_ROUNDOFF[l.dtype.name] * self.condition
        return away / scale


@cache
def reference(name: str, count: int, n: int, dtype: str) -> Reference:
    """The first `count` matrices of order n of a kind of `DATA`."""
    a = DATA[name](count, n).astype(dtype)
    exact = a.astype(np.float64)
    l, info = lapack_factor(exact)
    assert not info.any(), f"{name} matrices of order {n} are not positive definite"
    return Reference(a, l, np.linalg.cond(exact, 1))
