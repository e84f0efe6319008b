"""Products with the orthogonal matrix of a QR factorization that is kept as reflectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.api.arguments import check_threads, contiguous
from batchchol.api.arrays.foreign_arrays import takes_foreign
from batchchol.api.rectangular.observations import beside, beside_batch, beside_there
from batchchol.api.rectangular.qr_factorizations import Reflectors
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
from batchchol.batches.checks import check_math, check_unmasked
from batchchol.batches.rectangular import RectangularBatch


def ormqr(
    factors: Reflectors | tuple[Any, Any],
    b: ArrayLike,
    *,
    backend: str | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """The products Q^T B, by the reflectors of Q: LAPACK's ormqr, from the left and transposed.

    Parameters
    ----------
    factors : Reflectors
        What `qr` returns in the mode "raw": qr (..., m, n), an array of the host or a GPU or a batch, and tau (...,
        min(m, n)).
    b : array_like of shape (m,), (..., m) or (..., m, nrhs)
        As for `lstsq`.
    backend, math, threads, stream : optional
        As for `qr`.

    Returns
    -------
    ndarray, of the shape of b, broadcast
        Of factors on a GPU an array of the same library. The first n rows of Q^T b and R are what least squares are
        solved by, and the others the residual's.

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
    """
    check_math(math)
    check_threads(threads)
    if not isinstance(factors, tuple | list) or len(factors) != 2:
        got = f"{len(factors)} of them" if isinstance(factors, tuple | list) else type(factors).__name__
        raise TypeError(f"factors: got {got}, expected the pair (qr, tau) that qr(a, 'raw') returns")
    qr, tau = factors
    return _products(qr, tau, b, backend=backend, math=math, threads=threads, stream=stream)


@takes_foreign()
def _products(
    qr: Any,
    tau: Any,
    b: Any,
    *,
    backend: str | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    asked = Asked("factors", backend, math, threads, stream)
    if isinstance(qr, Batch | RectangularBatch):
        return _of_batch(qr, tau, b, asked)
    if there := on_device(qr, asked):
        return _there(there, tau, b, asked)
    return _here(on_host(qr, asked), tau, b, asked)


def _of_batch(qr: Batch | RectangularBatch, tau: Any, b: Any, asked: Asked) -> Any:
    """The products with factors in a batch, of the host or a GPU."""
    asked.check_batch(qr)
    m, n = sides_of(qr)
    shape = qr.batch, min(m, n)
    if qr.backend == "cpu":
        check_unmasked("factors", tau)
        scalars: Any = np.asarray(tau)
        _check_tau(scalars.shape, scalars.dtype, shape, qr.dtype)
        scalars = contiguous("factors", scalars, qr.dtype)
    else:
        from batchchol.backends.cuda import memory

        there = memory.view(tau, "factors")
        _check_tau(there.shape, there.dtype, shape, qr.dtype)
        scalars = memory.as_gpuarray(tau, "factors")
    right, vector = beside_batch(qr, b)
    x = room_for(qr, m, right.shape[-1])
    run("ormqr", asked, [qr, scalars, right, x], lambda: lapack_qr.ormqr(qr.to_dense(), scalars, right, x))
    return x.reshape(qr.batch, m) if vector else x


def _here(qr: HostRectangles, tau: ArrayLike, b: ArrayLike, asked: Asked) -> Any:
    """The products of arrays of the host."""
    *_, m, n = qr.shape
    check_unmasked("factors", tau)
    given = np.asarray(tau)
    _check_tau(given.shape, given.dtype, (*qr.outer, min(m, n)), qr.data.dtype)
    outer = qr.outer
    qr, right, vector = beside(qr, b)
    scalars = given if qr.outer == outer else np.broadcast_to(given, (*qr.outer, min(m, n)))
    scalars = contiguous("factors", scalars, qr.data.dtype).reshape(qr.members, min(m, n))
    if asked.elsewhere:
        x = _copied_there(qr, scalars, right, asked)
    else:
        x = qr.like(m, right.shape[-1])
        if not m * n:
            x[...] = right
        arguments = [qr.stacked(), scalars, right, x]
        run("ormqr", asked, arguments, lambda: lapack_qr.ormqr(qr.data, scalars, right, x))
    products = qr.shaped(x)
    return products[..., 0] if vector else products


def _copied_there(
    qr: HostRectangles, tau: NDArray[np.floating], b: NDArray[np.floating], asked: Asked
) -> NDArray[np.floating]:
    """The products of arrays of the host, on a GPU."""
    from batchchol.backends.cuda import memory

    there = DeviceRectangles.of(memory.to_device(qr.data, f"{qr.members:,} matrices"), asked)
    scalars, right = memory.to_device(tau, "scalars of reflectors"), memory.to_device(b, "right-hand sides")
    return memory.to_host(_there(there, scalars, right, asked))


def _there(qr: DeviceRectangles, tau: Any, b: Any, asked: Asked) -> Any:
    """The products of arrays of a GPU."""
    from batchchol.backends.cuda import memory

    m, n = qr.sides
    if not memory.is_device_array(tau):
        raise TypeError(f"factors: got a {type(tau).__name__} as tau, expected an array on the GPU, where qr is")
    scalars = memory.view(tau, "factors")
    _check_tau(scalars.shape, scalars.dtype, (*qr.outer, min(m, n)), qr.dtype)
    vector, nrhs = beside_there((*qr.outer, m, n), qr.dtype, b)
    x = qr.room(m) if vector else qr.room(m, nrhs)
    if not n:
        raise ValueError(f"factors: got qr of shape {(*qr.outer, m, n)}, expected columns: b itself is the product")
    qr.launch("ormqr", asked, qr.sides, qr.address, tau, b, x, nrhs=nrhs)
    return x


def _check_tau(
    shape: tuple[int, ...], dtype: np.dtype[Any], expected: tuple[int, ...], expected_dtype: np.dtype[Any]
) -> None:
    """Refuse anything but the scalars of the reflectors."""
    if shape != expected or dtype != expected_dtype:
        raise ValueError(
            f"factors: got tau of shape {shape} and dtype {dtype}, expected {expected} and {expected_dtype}: what "
            "qr(a, 'raw') returns"
        )
