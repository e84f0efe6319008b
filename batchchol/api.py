"""The public functions: cholesky, cholesky_ex and factor."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.backends import Backend, get_backend
from batchchol.backends.base import check_runnable
from batchchol.batch import Batch, check_dtype, info_array
from batchchol.defaults import default_spec
from batchchol.memory import aligned_empty
from kernelgen import MAX_N, TARGETS, KernelSpec, Layout


class Cholesky(NamedTuple):
    """Dense factors, (..., n, n), and the info of each matrix, (...), int32."""

    L: NDArray[np.floating]
    info: NDArray[np.int32]


class Factor(NamedTuple):
    """A factored batch and the info of each matrix, (batch,), int32."""

    L: Batch
    info: NDArray[np.int32]


def cholesky(
    a: ArrayLike, *, upper: bool = False, backend: str | None = None, spec: KernelSpec | None = None
) -> NDArray[np.floating]:
    """Cholesky factors of symmetric positive definite matrices.

    Parameters
    ----------
    a : array_like, shape (..., n, n), float32 or float64, n at most 128
        The matrices. Only the lower triangle is used, or the upper one if `upper` is set. Not changed.
    upper : bool
        Return U with A = U^T U in place of L with A = L L^T.
    backend : str, optional
        "cpu"; by default BATCHCHOL_BACKEND, else the first that works.
    spec : KernelSpec, optional
        The kernel to use; by default the one measured to be fastest.

    Returns
    -------
    ndarray, shape (..., n, n)
        The factors, strictly triangular.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix is not positive definite; names the first such matrix, its order k and how many there are.
    TypeError, ValueError
        If the dtype or the shape is not as above, or the spec is of another problem.
    """
    factors, info = cholesky_ex(a, upper=upper, backend=backend, spec=spec)
    if info.any():
        raise np.linalg.LinAlgError(describe_failures(info))
    return factors


def cholesky_ex(
    a: ArrayLike, *, upper: bool = False, backend: str | None = None, spec: KernelSpec | None = None
) -> Cholesky:
    """Cholesky factors and LAPACK's info of each matrix; never raises for the values of numbers.

    As `cholesky`, but info[m] is 0, or k where the leading minor of order k of matrix m is not positive definite:
    then columns (rows if `upper`) before k of its factor are valid and the rest is unspecified. A NaN counts as
    not positive.

    Returns
    -------
    Cholesky
        L : ndarray, shape (..., n, n); info : ndarray of int32, shape (...).
    """
    matrices = _checked(a)
    n = matrices.shape[-1]
    if matrices.size == 0:
        return Cholesky(np.empty_like(matrices), np.zeros(matrices.shape[:-2], dtype=np.int32))
    device = get_backend(backend)
    if not isinstance(spec, KernelSpec | None):
        raise TypeError(f"spec: got {type(spec).__name__}, expected a KernelSpec: start from default_spec")
    spec = spec or default_spec(
        n,
        target=device.target,
        dtype=str(matrices.dtype),
        layout="canonical",
        order="row",
        uplo="upper" if upper else "lower",
    )
    if upper != (spec.problem.uplo == "upper"):
        raise ValueError(f"spec: got the {spec.problem.uplo} triangle, expected the one that upper={upper} asks for")
    if spec.in_place:
        raise ValueError("spec: got in_place=True, expected False: the input is left as it was; use factor(out=)")
    factors, info = factor(_as_batch(matrices, spec), spec, backend=backend)
    whole = factors.data if factors.layout == Layout.canonical() else factors.to_dense()
    return Cholesky(whole.reshape(matrices.shape), info.reshape(matrices.shape[:-2]))


def factor(
    batch: Batch,
    spec: KernelSpec | None = None,
    *,
    out: Batch | None = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Factor:
    """Factor a batch in its own layout, without packing.

    Parameters
    ----------
    batch : Batch
        The matrices.
    spec : KernelSpec, optional
        The kernel to use; by default the one measured to be fastest, for the lower triangle.
    out : Batch, optional
        Where the factors go: a batch of the same shape and layout, or `batch` itself to factor in place. By
        default a new one. In packed layouts the other triangle of `out` is left as it was; it reads as zero
        through the returned batch's `to_dense`.
    backend : str, optional
        As for `cholesky`.
    threads : int, optional
        How many cores to use at most; by default BATCHCHOL_THREADS, else all of them.

    Returns
    -------
    Factor
        L : Batch, the factors; info : ndarray of int32, shape (batch,), as for `cholesky_ex`.

    Raises
    ------
    ValueError
        If `spec` or `out` does not belong to `batch`, or the backend cannot run the spec on its layout.
    OutOfMemory
        If the factors would not fit.
    """
    device = get_backend(backend)
    if not isinstance(batch, Batch) or not isinstance(out, Batch | None):
        raise TypeError("batch, out: expected a Batch: make one with Batch.from_dense, or use cholesky for arrays")
    if threads is not None and (not isinstance(threads, Integral) or threads < 1):
        raise ValueError(f"threads: got {threads!r}, expected a positive integer")
    in_place = out is not None and np.may_share_memory(out.data, batch.data)
    if spec is None:
        spec = default_spec(
            batch.n,
            target=_fitting_target(device, batch),
            dtype=batch.dtype_name,
            layout=batch.layout.kind,
            order=batch.layout.order,
            in_place=in_place,
        )
    check_runnable(device, spec, batch)
    result = _result(batch, out, spec, in_place)
    info = info_array(batch, spec.lanes)
    if batch.batch:
        device.kernel(spec)(batch, result, info, int(threads or device.threads))
    return Factor(replace(result, triangle=spec.problem.uplo), info[: batch.batch])


def describe_failures(info: NDArray[np.int32]) -> str:
    """What an exception says of the matrices whose info is not 0."""
    failed = np.argwhere(info)
    first = tuple(int(index) for index in failed[0])
    name = "the matrix" if not first else f"matrix {first[0] if len(first) == 1 else first}"
    return (
        f"{name} is not positive definite: its leading minor of order {info[first]} is not "
        f"({len(failed)} of {info.size} matrices failed; cholesky_ex returns info in place of raising)"
    )


def _checked(a: ArrayLike) -> NDArray[np.floating]:
    """The array, C-contiguous and in native byte order, once its dtype and shape are known to be right."""
    given = np.asarray(a)
    dtype = check_dtype("a", given.dtype)
    if given.ndim < 2 or given.shape[-1] != given.shape[-2]:
        raise ValueError(f"a: got shape {given.shape}, expected square matrices (..., n, n)")
    if given.shape[-1] > MAX_N:
        raise ValueError(
            f"a: got matrices of order {given.shape[-1]}, expected at most {MAX_N}: larger ones are "
            "numpy.linalg.cholesky's job"
        )
    if given.flags.c_contiguous and given.dtype == dtype:
        return given
    copy = aligned_empty(given.shape, dtype, "a contiguous copy of a")
    copy[...] = given
    return copy


def _as_batch(matrices: NDArray[np.floating], spec: KernelSpec) -> Batch:
    """The matrices in the layout that a spec works on; the smallest chunk, which is the fastest."""
    n = matrices.shape[-1]
    dense = matrices.reshape(-1, n, n)
    if spec.problem.n != n or spec.problem.dtype != str(dense.dtype):
        raise ValueError(
            f"spec: got a kernel for {spec.problem.dtype} matrices of order {spec.problem.n}, expected "
            f"{dense.dtype} and {n}"
        )
    layout = Layout(spec.layout, spec.lanes if spec.layout == "chunked" else None, spec.order)
    if layout == Layout.canonical():
        return Batch(dense, n, len(dense), layout)
    return Batch.from_dense(dense, layout)


def _fitting_target(device: Backend, batch: Batch) -> str:
    """The backend's widest SIMD whose groups fill the batch's chunks."""
    chunk = batch.layout.chunk
    for target in device.targets:
        if chunk is None or chunk % TARGETS[target].lanes(batch.dtype_name) == 0:
            return target
    lanes = {target: TARGETS[target].lanes(batch.dtype_name) for target in device.targets}
    raise ValueError(f"batch: got chunk={chunk}, expected a multiple of the SIMD lanes of one of {lanes}")


def _result(batch: Batch, out: Batch | None, spec: KernelSpec, in_place: bool) -> Batch:
    if out is None:
        out = batch if spec.in_place else Batch.empty(batch.n, batch.batch, batch.layout, batch.dtype)
        in_place = spec.in_place
    if (out.n, out.batch, out.layout, out.dtype) != (batch.n, batch.batch, batch.layout, batch.dtype):
        raise ValueError(
            f"out: got {out.batch} {out.dtype} matrices of order {out.n} in {out.layout}, expected those of the "
            f"batch: {batch.batch}, {batch.dtype}, {batch.n}, {batch.layout}"
        )
    if not out.data.flags.writeable:
        raise ValueError("out: its array is read-only: use one that can be written, such as Batch.empty's")
    if in_place and out.data.ctypes.data != batch.data.ctypes.data:
        raise ValueError("out: shares memory with the batch without being it: use the batch itself, or other memory")
    if spec.in_place != in_place:
        raise ValueError(f"spec: got in_place={spec.in_place}, expected {in_place} for this out")
    return out
