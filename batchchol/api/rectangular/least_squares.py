"""Least squares: the x that has the least |b - A x|."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.api.arguments import check_threads
from batchchol.api.arrays.foreign_arrays import takes_foreign
from batchchol.api.failures import raise_dependent
from batchchol.api.rectangular.observations import beside, beside_batch, beside_there
from batchchol.api.rectangular.rectangles import (
    Asked,
    DeviceRectangles,
    HostRectangles,
    on_device,
    on_host,
    room_for,
    run,
    sides_of,
)
from batchchol.backends import lapack_qr
from batchchol.batches.batch import Batch
from batchchol.batches.checks import check_math
from batchchol.batches.rectangular import RectangularBatch

_INFO = np.dtype(np.int32)


class LeastSquares(NamedTuple):
    """The solutions, and the info of each matrix, int32: where the matrices were."""

    x: Any
    info: Any


def lstsq(
    a: Batch | RectangularBatch | ArrayLike,
    b: ArrayLike,
    *,
    backend: str | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """The least-squares solutions x of A x = b, for matrices with independent columns, by QR factorizations.

    Parameters
    ----------
    a : Batch, RectangularBatch, or array_like of shape (..., m, n), float32 or float64
        The matrices, m >= n. Sizes are those of `qr`.
    b : array_like of shape (m,), (..., m) or (..., m, nrhs)
        The right-hand sides, of the dtype of a: one vector if its shape is (m,), or that of a without the last axis.
        Arrays of the host are broadcast; on a GPU, and of a batch, they have the same axes before the last ones.
    backend, math, threads, stream : optional
        As for `qr`.

    Returns
    -------
    ndarray, of the shape of b with n in place of m
        The solutions; of matrices on a GPU an array of the same library. Residuals are b - a @ x.

    Raises
    ------
    numpy.linalg.LinAlgError
        If an element of R's diagonal is exactly zero: columns of that matrix are linearly dependent. Columns that are
        so up to rounding are not noticed. `lstsq_ex` returns info instead. On a GPU the call waits for the work to
        know.
    TypeError, ValueError
        If an argument is not as above, or does not belong to the others.
    UnknownBackend, BackendUnavailable, CompilerNotFound, CompileError, CacheError, OutOfMemory, SettingError,
    DeviceError
        As `cholesky` does.

    Warns
    -----
    NoCompilerWarning
        As `cholesky` does.

    Notes
    -----
    x solves a problem whose columns are off by a small multiple of (m + n + 4) u of their norms, with u the unit
    roundoff (Higham, "Accuracy and Stability of Numerical Algorithms", theorem 20.3).

    Examples
    --------
    >>> a = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> print(batchchol.lstsq(a, np.array([1.0, 3.0, 5.0])).round(6))
    [1. 2.]
    """
    x, info = lstsq_ex(a, b, backend=backend, math=math, threads=threads, stream=stream)
    raise_dependent(info, "lstsq_ex")
    return x


@takes_foreign(LeastSquares)
def lstsq_ex(
    a: Batch | RectangularBatch | ArrayLike,
    b: ArrayLike,
    *,
    backend: str | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
) -> LeastSquares:
    """As `lstsq`, with LAPACK's info of each matrix; never raises because of the matrices' values.

    info[m] is 0, or k where element k of the diagonal of R, counted from 1, is the first that is exactly zero: x is
    not finite there, or has no meaning. On a GPU the call returns before the work is done.

    Returns
    -------
    LeastSquares
        x : as of `lstsq`; info : int32, of the shape of a without its last two axes, broadcast.
    """
    check_math(math)
    check_threads(threads)
    asked = Asked("a", backend, math, threads, stream)
    if isinstance(a, Batch | RectangularBatch):
        return _of_batch(a, b, asked)
    if there := on_device(a, asked):
        return _there(there, b, asked)
    return _here(on_host(a, asked), b, asked)


def _of_batch(a: Batch | RectangularBatch, b: Any, asked: Asked) -> LeastSquares:
    """Solutions by a batch, of the host or a GPU."""
    asked.check_batch(a)
    _sides((a.batch, *sides_of(a)))
    right, vector = beside_batch(a, b)
    x, info = room_for(a, a.n, right.shape[-1]), room_for(a, dtype=_INFO)

    def by_lapack() -> None:
        info[...] = lapack_qr.gels(a.to_dense(), right, x)

    run("gels", asked, [a, right, x, info], by_lapack, nrhs=right.shape[-1])
    return LeastSquares(x.reshape(a.batch, a.n) if vector else x, info)


def _here(a: HostRectangles, b: ArrayLike, asked: Asked) -> LeastSquares:
    """Solutions by arrays of the host."""
    _, n = _sides(a.shape)
    a, right, vector = beside(a, b)
    nrhs = right.shape[-1]
    if asked.elsewhere:
        x, info = _copied_there(a, right, asked)
    else:
        x, info = a.like(n, nrhs), np.zeros(a.members, _INFO)

        def by_lapack() -> None:
            info[...] = lapack_qr.gels(a.data, right, x)

        run("gels", asked, [a.stacked(), right, x, info], by_lapack, nrhs=nrhs)
    solutions = a.shaped(x)
    return LeastSquares(solutions[..., 0] if vector else solutions, info.reshape(a.outer))


def _copied_there(
    a: HostRectangles, b: NDArray[np.floating], asked: Asked
) -> tuple[NDArray[np.floating], NDArray[np.int32]]:
    """The solutions and the info of arrays of the host, on a GPU."""
    from batchchol.backends.cuda import memory

    there = DeviceRectangles.of(memory.to_device(a.data, f"{a.members:,} matrices"), asked)
    x, info = _there(there, memory.to_device(b, "right-hand sides"), asked)
    return memory.to_host(x), memory.to_host(info)


def _there(a: DeviceRectangles, b: Any, asked: Asked) -> LeastSquares:
    """Solutions by arrays of a GPU."""
    from batchchol.backends.cuda import memory

    m, n = _sides((*a.outer, *a.sides))
    vector, nrhs = beside_there((*a.outer, m, n), a.dtype, b)
    x = a.room(n) if vector else a.room(n, nrhs)
    if not n:
        # Nothing is launched.
        return LeastSquares(x, memory.to_device(np.zeros(a.outer, _INFO), "the info"))
    info = memory.empty(a.outer, _INFO, "the info")
    a.launch("gels", asked, a.sides, a.address, b, x, info, nrhs=nrhs)
    return LeastSquares(x, info)


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns; refuses fewer rows than columns."""
    *_, m, n = shape
    if m < n:
        raise ValueError(
            f"a: got shape {shape}, expected at least as many rows as columns (..., m, n): numpy.linalg.lstsq finds "
            "the solution of least norm"
        )
    return m, n
