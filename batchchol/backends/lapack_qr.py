"""LAPACK's QR factorizations and least squares in place of generated kernels; see `batchchol.backends.lapack`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Info = NDArray[np.int32]


def geqrf(a: NDArray[np.floating], qr: NDArray[np.floating], tau: NDArray[np.floating]) -> None:
    """Factor matrices (batch, m, n) into qr, which may be a, and tau (batch, min(m, n))."""
    factor = _routine("geqrf", a)
    for member, matrix in enumerate(a):
        qr[member], tau[member], _, _ = factor(matrix)


def orgqr(qr: NDArray[np.floating], tau: NDArray[np.floating], q: NDArray[np.floating]) -> None:
    """Write the first n columns of Q, by factors (batch, m, n) with m >= n, to q, which may be qr."""
    generate = _routine("orgqr", qr)
    for member, matrix in enumerate(qr):
        q[member], _, _ = generate(matrix, tau[member])


def ormqr(
    qr: NDArray[np.floating], tau: NDArray[np.floating], b: NDArray[np.floating], x: NDArray[np.floating]
) -> None:
    """Write Q^T b, by factors (batch, m, n), for right-hand sides (batch, m, nrhs) to x, which may be b."""
    multiply, count = _routine("ormqr", qr), tau.shape[-1]
    for member, matrix in enumerate(qr):
        x[member], _, _ = multiply("L", "T", matrix[:, :count], tau[member], b[member], max(1, 64 * b.shape[-1]))


def gels(a: NDArray[np.floating], b: NDArray[np.floating], x: NDArray[np.floating]) -> Info:
    """Solve by matrices (batch, m, n) for right-hand sides (batch, m, nrhs) into x (batch, n, nrhs); the info.

    As kernels do, but not LAPACK, which scales by norms: a matrix of zeros has info 1, one with an infinity NaN in x.
    """
    solve, n = _routine("gels", a), a.shape[-1]
    info = np.zeros(len(a), np.int32)
    for member, matrix in enumerate(a):
        if not matrix.any() or np.isinf(matrix).any():
            x[member], info[member] = np.nan, not matrix.any()
            continue
        _, found, info[member] = solve(matrix, b[member])
        x[member] = found[:n]
    return info


def _routine(name: str, of: NDArray[np.floating]) -> Any:
    from scipy.linalg import lapack

    return lapack.get_lapack_funcs(name, (of,))
