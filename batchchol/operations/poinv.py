"""Factoring and inverting at once: the oracle, and the residual that counts, componentwise, in float64."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

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


check = partial(potri.check_members, ratios)
"""`potri.check_members` of inverses by matrices."""
