"""Factoring and inverting at once: the oracle, and the residual that counts, componentwise, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.batch import Batch
from batchchol.operations import potri


def oracle(a: NDArray[np.floating], upper: bool = False) -> NDArray[np.float64]:
    """The inverses (batch, n, n) of A (batch, n, n), of which a triangle is read: LAPACK's potrf and potri."""
    lower = a.swapaxes(-1, -2) if upper else a
    return potri.oracle(np.linalg.cholesky(lower.astype(np.float64)))


def ratios(a: NDArray[np.floating], x: NDArray[np.floating]) -> NDArray[np.float64]:
    """The componentwise residual of each inverse, A X - I, evaluated in float64 and in units as those of potri.

    Parameters
    ----------
    a : ndarray, shape (batch, n, n)
        The matrices, of which the lower triangle is read; positive definite.
    x : ndarray, shape (batch, n, n)
        The inverses, both triangles.

    Returns
    -------
    ndarray of float64, shape (batch,)
        Infinite where an inverse is not finite.
    """
    lower = np.tril(a.astype(np.float64))
    matrices = lower + np.tril(lower, -1).swapaxes(-1, -2)
    return potri.within_scale(matrices, np.linalg.cholesky(matrices), x)


def check(
    a: Batch,
    x: Any,
    info: Any,
    math: str,
    *,
    upper: bool = False,
    samples: int = 128,
    host: Callable[[Any], NDArray[Any]] = np.asarray,
) -> float:
    """Check inverses of a batch of SPD matrices: every info is 0, and those of evenly spread members are within
    the bound of their class.

    Parameters
    ----------
    a : Batch
        The matrices, in any layout.
    x : array, shape (batch, n, n)
        The inverses.
    info : array of int32, shape (batch,)
        What the kernel said of each matrix.
    math, upper, samples, host
        As for `posv.check`.

    Returns
    -------
    float
        The largest ratio seen.

    Raises
    ------
    ResidualError
        If the check fails: the numbers measured with this result must not be stored.
    """
    return potri.check_members(ratios, a, x, info, math, upper=upper, samples=samples, host=host)
