"""QR factorizations of matrices of any shape."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.api.arguments import check_threads
from batchchol.api.arrays.foreign_arrays import takes_foreign
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
from batchchol.batches.checks import check_math, flag
from batchchol.batches.packing import assign_upper
from batchchol.batches.rectangular import RectangularBatch

MODES = ("reduced", "complete", "r", "raw")


class QR(NamedTuple):
    """Q, with orthonormal columns, and R, upper triangular."""

    Q: Any
    R: Any


class Reflectors(NamedTuple):
    """R and, below its diagonal, Householder reflectors, in one array or batch, and tau, as LAPACK has them."""

    qr: Any
    tau: Any


@takes_foreign(QR, Reflectors)
def qr(
    a: Batch | RectangularBatch | ArrayLike,
    mode: str = "reduced",
    *,
    positive: bool = False,
    backend: str | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """QR factorizations A = Q R by Householder reflectors.

    Parameters
    ----------
    a : Batch, RectangularBatch, or array_like of shape (..., m, n), float32 or float64
        The matrices; a batch in any layout. Kernels are for up to 128 rows and columns;
        larger matrices are factored by LAPACK on the host, and by panels in arrays of a GPU, up to 8,192.
    mode : {"reduced", "complete", "r", "raw"}
        As of numpy.linalg.qr, with k = min(m, n): "reduced" is Q (..., m, k) and R (..., k, n), "complete" Q
        (..., m, m) and R (..., m, n), "r" R (..., k, n) alone, "raw" the factors that LAPACK makes.
    positive : bool
        Whether the diagonal of R has no negative element, or else LAPACK's signs. Then Q and R are unique if the
        columns of A are independent. A batch is copied to an array, and what is made of it back, for that; for
        "complete" and of m < n, but for "raw", as well.
    backend : str, optional
        For arrays of the host, "cpu" or "cuda", as for `lu_factor`.
    math : str, optional
        "ieee", the default, or "fast", for elements whose squares are normal numbers: float32 from 1e-18 to 1e17.
    threads : int, optional
        How many cores to use at most; by default BATCHCHOL_THREADS, else all of them.
    stream : optional
        As for `factor`, for matrices on a GPU.

    Returns
    -------
    QR or Reflectors or array
        As `a`, arrays or batches of its layout, on the host or the GPU; square matrices are in a Batch. "r": R alone.
        "raw": qr, of the shape of `a`, and tau (..., k), an array: reflector j is I - tau_j v v^T, where v is 1 in
        row j and below it column j of qr.
        (numpy.linalg.qr returns the transpose of qr.)

    Raises
    ------
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
    |A - Q R| is at most 2 (m + n + 4) u |A| in each column, and |I - Q^T Q| at most 2 (m + n + 4) u in each element,
    with u the unit roundoff, and 4 in place of 2 in "fast". What is not finite stays in its matrix.

    Examples
    --------
    >>> q, r = batchchol.qr(np.array([[3.0, 0.0], [4.0, 5.0]]), positive=True)
    >>> print(q.round(6), r.round(6))
    [[ 0.6 -0.8]
     [ 0.8  0.6]] [[5. 4.]
     [0. 3.]]
    """
    if not isinstance(mode, str) or mode not in MODES:
        raise ValueError(f"mode: got {mode!r}, expected one of {', '.join(map(repr, MODES))}")
    if flag("positive", positive) and mode == "raw":
        raise ValueError("positive: got True, expected False for mode='raw': reflectors have the signs of LAPACK")
    check_math(math)
    check_threads(threads)
    asked = Asked("a", backend, math, threads, stream)
    if isinstance(a, Batch | RectangularBatch):
        return _of_batch(a, mode, positive, asked)
    if there := on_device(a, asked):
        return _there(there, mode, positive, asked)
    return _here(on_host(a, asked), mode, positive, asked)


def _here(a: HostRectangles, mode: str, positive: bool, asked: Asked) -> Any:
    """The factorizations of an array of the host."""
    if asked.elsewhere:
        return _copied_there(a, mode, positive, asked)
    (*_, m, n), k = a.shape, min(a.shape[-2:])
    factors = a.like(m, n)
    tau = np.empty((a.members, k), a.data.dtype)
    run("geqrf", asked, [a.stacked(), a.stacked(factors), tau], lambda: lapack_qr.geqrf(a.data, factors, tau))
    if mode == "raw":
        return Reflectors(a.shaped(factors), tau.reshape(*a.outer, k))
    r = a.like(m if mode == "complete" else k, n)
    assign_upper(r, factors)
    signs = np.where(np.diagonal(factors, axis1=1, axis2=2) < 0, -1, 1).astype(tau.dtype) if positive else None
    if signs is not None:
        r[:, :k] *= signs[..., None]
    if mode == "r":
        return a.shaped(r)
    columns = m if mode == "complete" else k
    reflectors, scalars = factors, tau
    if columns != n:
        reflectors, scalars = np.zeros((a.members, m, columns), tau.dtype), np.zeros((a.members, columns), tau.dtype)
        reflectors[..., :k], scalars[:, :k] = factors[..., :k], tau
    # Q in place of its reflectors: memory that is new takes longer to touch than to compute with.
    q = reflectors
    arguments = [a.stacked(reflectors), scalars, a.stacked(q)]
    run("orgqr", asked, arguments, lambda: lapack_qr.orgqr(reflectors, scalars, q))
    if signs is not None:
        q[..., :k] *= signs[:, None]
    return QR(a.shaped(q), a.shaped(r))


def _copied_there(a: HostRectangles, mode: str, positive: bool, asked: Asked) -> Any:
    """The factorizations of an array of the host, on a GPU."""
    from batchchol.backends.cuda import memory

    there = memory.to_device(a.data.reshape(a.shape), f"{a.members:,} matrices")
    found = _there(DeviceRectangles.of(there, asked), mode, positive, asked)
    if mode == "r":
        return memory.to_host(found)
    return type(found)(*(memory.to_host(each) for each in found))


def _there(a: DeviceRectangles, mode: str, positive: bool, asked: Asked) -> Any:
    """The factorizations of an array of a GPU."""
    (m, n), k = a.sides, min(a.sides)
    factors, tau = a.room(m, n), a.room(k)
    a.launch("geqrf", asked, a.sides, a.address, factors, tau)
    if mode == "raw":
        return Reflectors(factors, tau)
    signs = (int(factors.gpudata or 0), m, n) if positive else (0, 0, 0)
    rows, columns = (m, m) if mode == "complete" else (k, k)
    r = a.room(rows, n)
    a.part(factors, r, a.sides, (rows, n), asked, upper=True, signs=signs)
    if mode == "r":
        return r
    q, scalars = a.room(m, columns), tau
    if columns == n:
        kept = factors
    else:
        kept, scalars = q, a.room(columns)
        a.part(factors, q, a.sides, (m, columns), asked)
        a.part(tau, scalars, (1, k), (1, columns), asked)
    a.launch("orgqr", asked, (m, columns), int(kept.gpudata or 0), scalars, q)
    if positive:
        a.part(q, q, (m, columns), (m, columns), asked, signs=signs, by_columns=True)
    return QR(q, r)


def _of_batch(a: Batch | RectangularBatch, mode: str, positive: bool, asked: Asked) -> Any:
    """The factorizations of a batch, of the host or a GPU."""
    asked.check_batch(a)
    m, n = sides_of(a)
    if mode != "raw" and (positive or m < n or (mode == "complete" and m > n)):
        return _by_arrays(a, mode, positive, asked)
    factors = a.like()
    tau = room_for(a, min(m, n))
    run("geqrf", asked, [a, factors, tau], lambda: _by_lapack(a, factors, tau))
    if mode == "raw":
        return Reflectors(factors, tau)
    r = factors.squares() if isinstance(factors, RectangularBatch) else factors.marked("upper")
    if mode == "r":
        return r
    q = a.like()
    run("orgqr", asked, [factors, tau, q], lambda: _generate_by_lapack(factors, tau, q))
    return QR(q, r)


def _by_arrays(a: Batch | RectangularBatch, mode: str, positive: bool, asked: Asked) -> Any:
    """R of a batch, with Q unless the mode is "r": of a copy as an array."""
    if asked.stream is not None:
        raise ValueError(f"stream: got {asked.stream!r}, expected None for what a batch is copied to an array for")
    dense = a.to_dense()
    there = on_device(dense, asked)
    found = _there(there, mode, positive, asked) if there else _here(on_host(dense, asked), mode, positive, asked)
    r = _like(a, found if mode == "r" else found.R)
    r = r.marked("upper") if isinstance(r, Batch) else r
    return r if mode == "r" else QR(_like(a, found.Q), r)


def _like(a: Batch | RectangularBatch, dense: Any) -> Any:
    """An array as a batch of the layout of another one."""
    return a.packed(dense) if isinstance(a, RectangularBatch) else type(a).from_dense(dense, a.layout)


def _by_lapack(a: Batch | RectangularBatch, factors: Batch | RectangularBatch, tau: NDArray[Any]) -> None:
    dense = a.to_dense()
    lapack_qr.geqrf(dense, dense, tau)
    _put(factors, dense)


def _generate_by_lapack(factors: Batch | RectangularBatch, tau: NDArray[Any], q: Batch | RectangularBatch) -> None:
    dense = factors.to_dense()
    lapack_qr.orgqr(dense, tau, dense)
    _put(q, dense)


def _put(batch: Batch | RectangularBatch, dense: NDArray[Any]) -> None:
    """Write all matrices of a batch of the host."""
    if isinstance(batch, RectangularBatch):
        batch.fill(dense)
    else:
        batch.put(0, dense)
