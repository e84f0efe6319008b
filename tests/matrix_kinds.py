"""Nineteen kinds of matrices, SPD, failing and not finite, and what LAPACK's info of each is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .matrices import UNIT_ROUNDOFF, lapack_factor

Array = NDArray[Any]
Random = np.random.Generator

# Two factorizations of one matrix differ by the sum of what both promise: LAPACK a residual ratio of 1, `fast` 4.
_RATIOS = 5.0
# The exponent of two by which a matrix of kind "denormal" is scaled: even, and exact integers times it are exact.
_DENORMAL = {"float32": -140, "float64": -1060}
_LEAST_NORMAL = {"float32": -126, "float64": -1022}
_LARGEST = {"float32": 128, "float64": 1024}


def make(kind: str, random: Random, count: int, n: int, dtype: str) -> Array:
    """Symmetric matrices of a kind, (count, n, n)."""
    a = KINDS[kind](random, count, n, dtype).astype(dtype)
    return np.asarray(np.tril(a) + np.tril(a, -1).swapaxes(1, 2))


def lapack_info(a: Array) -> NDArray[np.int32]:
    """LAPACK's info of symmetric matrices.

    Of finite ones spotrf or dpotrf is asked. OpenBLAS lets NaN pass as a pivot, so that others are factored here, by
    the reference's algorithm: a pivot fails unless it is > 0, and the column below a good one is divided by its root.
    """
    finite = np.isfinite(a).all(axis=(1, 2))
    info = np.empty(len(a), np.int32)
    if finite.any():
        info[finite] = lapack_factor(a[finite])[1]
    info[~finite] = reference_info(a[~finite])
    return info


def certain(kinds: Iterable[str], a: Array) -> NDArray[np.bool_]:
    """Whether the info of each matrix must be LAPACK's: it is not finite, or nothing rounds, or not by enough."""
    sure = np.array([kind == "denormal" for kind in kinds], bool) | ~np.isfinite(a).all(axis=(1, 2))
    sure[~sure] = is_decided(a[~sure])
    return sure


@np.errstate(all="ignore")
def reference_info(a: Array) -> NDArray[np.int32]:
    """The info of reference LAPACK's potf2, in the dtype of the matrices."""
    work, info = a.copy(), np.zeros(len(a), np.int32)
    for k in range(a.shape[-1]):
        pivot = work[:, k, k]
        info[(info == 0) & ~(pivot > 0)] = k + 1
        column = work[:, k + 1 :, k] / np.sqrt(pivot)[:, None]
        work[:, k + 1 :, k + 1 :] -= column[:, :, None] * column[:, None, :]
    return info


@np.errstate(all="ignore")
def is_decided(a: Array) -> NDArray[np.bool_]:
    """Whether each pivot, to the first that is not positive, is further from zero than backward errors can move it.

    An error E of the matrix moves pivot k by w^T E w to first order, w being row k of the inverse of the unit lower
    factor. |E| is at most (n + 1) u times the residual ratio times |L| |L|^T, of which element (i, j) is at most the
    root of a_ii a_jj.
    """
    n = a.shape[-1]
    unit = UNIT_ROUNDOFF[a.dtype.name]
    work = a.astype(np.float64 if a.dtype == np.float32 else np.longdouble)
    roots = np.sqrt(np.abs(np.einsum("bii->bi", work)))
    inverse = np.broadcast_to(np.eye(n, dtype=work.dtype), a.shape).copy()
    decided, going = np.ones(len(a), bool), np.ones(len(a), bool)
    for k in range(n):
        pivot = work[:, k, k].copy()
        reach = (n + 1) * unit * (np.abs(inverse[:, k]) * roots).sum(1) ** 2
        decided &= ~going | (np.abs(pivot) > _RATIOS * reach) | (reach == 0)
        going &= pivot > 0
        ratio = work[:, k + 1 :, k] / pivot[:, None]
        work[:, k + 1 :, k + 1 :] -= ratio[:, :, None] * work[:, None, k + 1 :, k]
        inverse[:, k + 1 :] -= ratio[:, :, None] * inverse[:, None, k]
    return decided


def _dominant(random: Random, count: int, n: int, _dtype: str) -> Array:
    uniform = random.random((count, n, n))
    return np.asarray((uniform + uniform.swapaxes(1, 2)) / 2 + n * np.eye(n))


def _wishart(random: Random, count: int, n: int, _dtype: str) -> Array:
    normal = random.standard_normal((count, n, 2 * n))
    return np.asarray(normal @ normal.swapaxes(1, 2) / (2 * n))


def _condition_1e6(random: Random, count: int, n: int, _dtype: str) -> Array:
    basis, _ = np.linalg.qr(random.standard_normal((count, n, n)))
    return np.asarray((basis * np.logspace(0, -6, n)) @ basis.swapaxes(1, 2))


def _near_singular(random: Random, count: int, n: int, dtype: str) -> Array:
    """Rounding decides whether some of them are positive definite."""
    basis, _ = np.linalg.qr(random.standard_normal((count, n, n)))
    values = np.ones((count, 1, n))
    values[:, 0, -1] = 2 * n * UNIT_ROUNDOFF[dtype] * np.exp2(random.uniform(-4, 10, count))
    return np.asarray((basis * values) @ basis.swapaxes(1, 2))


def _hilbert(random: Random, count: int, n: int, _dtype: str) -> Array:
    """Those of Hilbert, and some whose first rows are left out."""
    places = np.arange(n)
    return np.asarray(1 / (places[:, None] + places + random.integers(1, 4, (count, 1, 1))))


def _graded(random: Random, count: int, n: int, dtype: str) -> Array:
    scales = np.logspace(4, -4, n)
    return _wishart(random, count, n, dtype) * scales[:, None] * scales


def _badly_scaled(random: Random, count: int, n: int, dtype: str) -> Array:
    scales = np.exp2(random.integers(-15, 16, (count, n)))
    return np.asarray(_dominant(random, count, n, dtype) * scales[:, :, None] * scales[:, None, :])


def _diagonal(random: Random, count: int, n: int, _dtype: str) -> Array:
    return np.asarray(np.exp2(random.uniform(-60, 60, (count, n)))[:, None] * np.eye(n))


def _tiny(random: Random, count: int, n: int, dtype: str) -> Array:
    return np.ldexp(_dominant(random, count, n, dtype), _LEAST_NORMAL[dtype] + 26)


def _huge(random: Random, count: int, n: int, dtype: str) -> Array:
    return np.ldexp(_dominant(random, count, n, dtype), _LARGEST[dtype] - 1 - (n + 1).bit_length())


def _denormal(random: Random, count: int, n: int, dtype: str) -> Array:
    """Products of small integers: nothing rounds."""
    factors = np.tril(random.integers(-1, 2, (count, n, n)), -1) + np.eye(n)
    return np.ldexp(factors @ factors.swapaxes(1, 2), _DENORMAL[dtype])


def _zero_pivot(random: Random, count: int, n: int, dtype: str) -> Array:
    return _with_pivots(random, _dominant(random, count, n, dtype), [0.0, -0.0], clear=True)


def _negative_pivot(random: Random, count: int, n: int, dtype: str) -> Array:
    return _with_pivots(random, _dominant(random, count, n, dtype), [-1.0, -1e-3, -1e3])


def _indefinite(random: Random, count: int, n: int, dtype: str) -> Array:
    """Less than a Gram matrix of too few vectors by so much that rounding cannot hide it."""
    normal = random.standard_normal((count, n, max(n - 1, 1)))
    return np.asarray(normal @ normal.swapaxes(1, 2) / n - 1e-3 * np.eye(n))


def _infinite_pivot(random: Random, count: int, n: int, dtype: str) -> Array:
    return _with_pivots(random, _dominant(random, count, n, dtype), [np.inf])


def _minus_infinite_pivot(random: Random, count: int, n: int, dtype: str) -> Array:
    return _with_pivots(random, _dominant(random, count, n, dtype), [-np.inf])


def _nan_pivot(random: Random, count: int, n: int, dtype: str) -> Array:
    return _with_pivots(random, _dominant(random, count, n, dtype), [np.nan])


def _infinite_elements(random: Random, count: int, n: int, dtype: str) -> Array:
    """One or two below the diagonal; in half of the matrices some pivot is infinite as well."""
    a = _dominant(random, count, n, dtype)
    a[::2] = _with_pivots(random, a[::2], [np.inf])
    return _with_elements(random, a, [np.inf, -np.inf])


def _nan_elements(random: Random, count: int, n: int, dtype: str) -> Array:
    a = _dominant(random, count, n, dtype)
    a[::2] = _with_pivots(random, a[::2], [np.inf])
    return _with_elements(random, a, [np.nan])


def _places(random: Random, count: int, n: int) -> NDArray[np.int64]:
    """Of every three the first pivot, one in the middle and the last."""
    third = np.arange(count) % 3
    return np.where(third == 0, 0, np.where(third == 1, random.integers(0, n, count), n - 1))


def _with_pivots(random: Random, a: Array, values: list[float], *, clear: bool = False) -> Array:
    members, places = np.arange(len(a)), _places(random, len(a), a.shape[-1])
    if clear:
        a[members, places, :] = a[members, :, places] = 0
    a[members, places, places] = random.choice(values, len(a))
    return a


def _with_elements(random: Random, a: Array, values: list[float]) -> Array:
    """Matrices of order 1 have no other place than the diagonal, and the value there."""
    members, n = np.arange(len(a)), a.shape[-1]
    for _ in range(2):
        row = np.maximum(_places(random, len(a), n), min(1, n - 1))
        a[members, row, (random.random(len(a)) * row).astype(int)] = random.choice(values, len(a))
    return a


KINDS: Mapping[str, Callable[[Random, int, int, str], Array]] = {
    "dominant": _dominant,
    "wishart": _wishart,
    "condition 1e6": _condition_1e6,
    "near singular": _near_singular,
    "Hilbert": _hilbert,
    "graded": _graded,
    "badly scaled": _badly_scaled,
    "diagonal": _diagonal,
    "tiny": _tiny,
    "huge": _huge,
    "denormal": _denormal,
    "zero pivot": _zero_pivot,
    "negative pivot": _negative_pivot,
    "indefinite": _indefinite,
    "infinite pivot": _infinite_pivot,
    "minus infinite pivot": _minus_infinite_pivot,
    "NaN pivot": _nan_pivot,
    "infinite elements": _infinite_elements,
    "NaN elements": _nan_elements,
}
# What `fast` may take for zero, or has products of that it may.
FLUSHED_KINDS = frozenset({"tiny", "denormal"})
