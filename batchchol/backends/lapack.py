"""LAPACK in place of generated kernels: for orders above 128, and where there is no C compiler.

It is SciPy's, called by its address: SciPy's own wrappers hold the interpreter's lock, so that threads would wait for
each other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchchol.backends import blas
from batchchol.batches.batch import Batch
from batchchol.batches.host_memory import aligned_empty
from batchchol.parallel import over_ranges

# Bytes that are copied, factored and cleaned at a time: they stay in cache.
_BLOCK_BYTES = 1 << 18
# Below this order BLAS's threads do not pay. At 512, on two cores, two of them took 0.8 of the time of one,
# and up to 90 times as long where other processes used the cores too (measured).
_LARGE_ORDER = 1024
# Matrices of a batch that are unpacked at a time: whole groups of every layout.
_SLICE_BYTES, _SLICE_STEP = 1 << 24, 512


class _Routine(NamedTuple):
    """A routine of LAPACK for one dtype, its arguments by address, and the integers that it takes."""

    call: Callable[..., None]
    integer: type[np.signedinteger]


def potrf(dense: NDArray[np.floating], upper: bool, threads: int) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Factors (batch, n, n), whose other triangle is zero, and info (batch,) of matrices (batch, n, n) in row order.

    `info` and what is valid in a factor are as `cholesky_ex` says. Takes a C-contiguous array of any order and batch.

    Raises
    ------
    OutOfMemory
        If the factors would not fit.
    """
    batch, n, _ = dense.shape
    l = aligned_empty(dense.shape, dense.dtype, f"an array of shape {dense.shape}")
    info = np.zeros(batch, np.int32)
    routine, other = routine_of(dense.dtype.name, "potrf"), _other_triangle(n, upper)
    one_by_one = is_one_by_one(n, batch, threads)

    def work(block: slice) -> None:
        _factor(routine, dense[block], l[block], info[block], other, upper)

    with blas.at_most(threads if one_by_one else 1):
        over_blocks(work, (dense, l, info), 1 if one_by_one else threads, dense.nbytes)
    return l, info


def potrf_in_place(a: NDArray[np.floating], upper: bool, threads: int) -> int:
    """Factor one matrix (n, n), C-contiguous, in place; its info. The other triangle is neither read nor written."""
    routine = routine_of(a.dtype.name, "potrf")
    n, status = np.array(len(a), routine.integer), np.zeros(1, routine.integer)
    # A matrix in row order is its transpose to LAPACK.
    with blas.at_most(threads):
        routine.call(b"L" if upper else b"U", n.ctypes.data, a.ctypes.data, n.ctypes.data, status.ctypes.data)
    return int(_with_unnoticed(status, a[np.newaxis])[0])


def factor_batch(batch: Batch, out: Batch, threads: int) -> NDArray[np.int32]:
    """Factor the lower triangles of a batch of any layout into `out`, which may be the batch itself; their info.

    Raises
    ------
    OutOfMemory
        If a slice of the matrices, unpacked, would not fit.
    """
    info = np.zeros(batch.batch, np.int32)
    for start, stop in each_slice(batch):
        l, info[start:stop] = potrf(batch.get(start, stop), False, threads)
        out.put(start, l)
    return info


def solve(
    op: str, a: NDArray[np.floating], b: NDArray[np.floating], x: NDArray[np.floating], upper: bool, threads: int
) -> NDArray[np.int32] | None:
    """`posv`, or `potrs`, which has no info: `op` says which."""
    if op == "posv":
        return posv(a, b, x, upper, threads)
    potrs(a, b, x, upper, threads)
    return None


def potrs(
    l: NDArray[np.floating], b: NDArray[np.floating], x: NDArray[np.floating], upper: bool, threads: int
) -> None:
    """Solve by factors (batch, n, n) for right-hand sides (batch, n, nrhs) into x, all C-contiguous; x may be b."""
    routine = routine_of(l.dtype.name, "potrs")

    def work(block: slice) -> None:
        _solve(routine, l[block], b[block], x[block], upper)

    with blas.at_most(1 if len(l) > 1 else threads):
        over_blocks(work, (l, b, x), threads, l.nbytes + 2 * b.nbytes)


def posv(
    a: NDArray[np.floating], b: NDArray[np.floating], x: NDArray[np.floating], upper: bool, threads: int
) -> NDArray[np.int32]:
    """Solve by matrices (batch, n, n) for right-hand sides (batch, n, nrhs) into x, all C-contiguous; x may be b.

    Returns the info (batch,), as `solve_ex` says; where it is not 0 the solutions are NaN.
    """
    info = np.zeros(len(a), np.int32)
    routine = routine_of(a.dtype.name, "posv")
    one_by_one = is_one_by_one(max(b.shape[1:]), len(a), threads)

    def work(block: slice) -> None:
        # Factored in place.
        matrices, found = a[block].copy(), info[block]
        _solve(routine, matrices, b[block], x[block], upper, found)
        for m in _infinite(matrices):
            found[m] = _factor_carefully(a[block][m], upper)[1]
        found[...] = _with_unnoticed(found, matrices)
        x[block][found != 0] = np.nan

    with blas.at_most(threads if one_by_one else 1):
        over_blocks(work, (a, b, x, info), 1 if one_by_one else threads, a.nbytes + 2 * b.nbytes)
    return info


def solve_batch(
    op: str, batch: Batch, b: NDArray[np.floating], x: NDArray[np.floating], upper: bool, threads: int
) -> NDArray[np.int32] | None:
    """`solve` by a batch of matrices or factors of any layout."""
    found = [
        solve(op, batch.get(start, stop), b[start:stop], x[start:stop], upper, threads)
        for start, stop in each_slice(batch)
    ]
    infos = [each for each in found if each is not None]
    return np.concatenate([np.zeros(0, np.int32), *infos]) if op == "posv" else None


def is_one_by_one(n: int, batch: int, threads: int) -> bool:
    """Whether matrices are few and large: worked on one after another, each by BLAS's threads."""
    return n >= _LARGE_ORDER and batch < threads


def over_blocks(
    work: Callable[[slice], None], arrays: tuple[NDArray[Any], ...], threads: int, work_bytes: int
) -> None:
    """Do the work on blocks of matrices, of which those in the first of the arrays stay in cache."""
    _, n, _ = arrays[0].shape
    step = max(1, _BLOCK_BYTES // (n * n * arrays[0].itemsize))

    def blocks(first: int, last: int) -> int:
        for begin in range(first, last, step):
            work(slice(begin, min(begin + step, last)))
        return 0

    over_ranges(blocks, len(arrays[0]), threads, work_bytes, arrays=arrays)


def each_slice(batch: Batch) -> Iterator[tuple[int, int]]:
    """The first matrix of each slice of a batch, and the one after its last."""
    size = max(1, _SLICE_BYTES // (batch.n**2 * batch.dtype.itemsize * _SLICE_STEP)) * _SLICE_STEP
    return ((start, min(start + size, batch.batch)) for start in range(0, batch.batch, size))


def _solve(
    routine: _Routine,
    a: NDArray[np.floating],
    b: NDArray[np.floating],
    x: NDArray[np.floating],
    upper: bool,
    info: NDArray[np.int32] | None = None,
) -> None:
    """Solve by a few factors, or by matrices that become factors, in this thread."""
    count, n, nrhs = b.shape
    # To LAPACK an array in row order is its transpose. It solves in place, and b may look the same either way.
    columns = np.swapaxes(b, -1, -2).copy()
    sizes = np.array([n, nrhs], routine.integer)
    status = np.zeros(count, routine.integer)
    order, right_hand_sides = sizes.ctypes.data, sizes.ctypes.data + sizes.itemsize
    first, solutions, reported = a.ctypes.data, columns.ctypes.data, status.ctypes.data
    uplo = b"L" if upper else b"U"
    for m in range(count):
        matrix, solution = first + m * a.strides[0], solutions + m * columns.strides[0]
        said = reported + m * status.itemsize
        routine.call(uplo, order, right_hand_sides, matrix, order, solution, order, said)
    np.copyto(x, np.swapaxes(columns, -1, -2))
    if info is not None:
        info[...] = status


def _factor(
    routine: _Routine,
    a: NDArray[np.floating],
    l: NDArray[np.floating],
    info: NDArray[np.int32],
    other: NDArray[np.bool_],
    upper: bool,
) -> None:
    """Factor a few matrices in this thread."""
    np.copyto(l, a)
    n = np.array(a.shape[-1], routine.integer)
    status = np.zeros(len(a), routine.integer)
    order, first, reported = n.ctypes.data, l.ctypes.data, status.ctypes.data
    # A matrix in row order is its transpose to LAPACK.
    uplo = b"L" if upper else b"U"
    for m in range(len(a)):
        routine.call(uplo, order, first + m * l.strides[0], order, reported + m * status.itemsize)
    for m in np.flatnonzero(status).tolist():
        _complete(a[m], l[m], int(status[m]) - 1, upper)
    for m in _infinite(l):
        l[m], status[m] = _factor_carefully(a[m], upper)
    info[...] = _with_unnoticed(status, l)
    np.copyto(l, 0, where=other)


def _with_unnoticed(status: NDArray[np.signedinteger], l: NDArray[np.floating]) -> NDArray[np.signedinteger]:
    """The info of factors, of which OpenBLAS takes no notice of a pivot that is NaN; all that follow are NaN too."""
    nans = np.isnan(np.diagonal(l, axis1=1, axis2=2))
    unnoticed = nans.any(1) & (status == 0)
    return np.where(unnoticed, nans.argmax(1) + 1, status)


def _infinite(l: NDArray[np.floating]) -> list[int]:
    """The factors with an infinite pivot, by whose reciprocal, zero, OpenBLAS makes zeros of NaN."""
    found: list[int] = np.flatnonzero(np.isinf(np.diagonal(l, axis1=1, axis2=2)).any(1)).tolist()
    return found


@np.errstate(all="ignore")
def _factor_carefully(a: NDArray[np.floating], upper: bool) -> tuple[NDArray[np.floating], int]:
    """The factor of one matrix, and its info, as reference LAPACK has them, which divides by infinite pivots."""
    l = (a.T if upper else a).copy()
    for k in range(len(l)):
        l[k:, k] -= (l[k:, :k] * l[k, :k]).sum(1)
        if not l[k, k] > 0:
            return (l.T if upper else l), k + 1
        l[k, k] = np.sqrt(l[k, k])
        l[k + 1 :, k] /= l[k, k]
    return (l.T if upper else l), 0


def _complete(a: NDArray[np.floating], l: NDArray[np.floating], k: int, upper: bool) -> None:
    """Complete the first k columns (rows if `upper`) of a factor: LAPACK stops in the middle of a block."""
    from scipy.linalg import solve_triangular

    if not k:
        return
    corner = l[:k, :k]
    if upper:
        l[:k, k:] = solve_triangular(corner, a[:k, k:], trans="T", check_finite=False)
    else:
        l[k:, :k] = solve_triangular(corner, a[k:, :k].T, lower=True, check_finite=False).T


def _other_triangle(n: int, upper: bool) -> NDArray[np.bool_]:
    """Where the factor is zero."""
    below = np.tri(n, k=-1, dtype=np.bool_)
    return below if upper else below.T


@cache
def routine_of(dtype: str, name: str) -> _Routine:
    """Look a routine up in the table that SciPy exports to Cython."""
    from scipy import LowLevelCallable
    from scipy.linalg import cython_lapack

    found: Any = LowLevelCallable.from_cython(cython_lapack, {"float32": "s", "float64": "d"}[dtype] + name)
    address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )(found.function, found.signature.encode())
    # SciPy may be built for LAPACK with integers of 64 bits, which have a name of their own.
    arguments = found.signature.partition("(")[2].rstrip(")").split(", ")
    integer: type[np.signedinteger] = np.intc if "int *" in arguments else np.int64
    types = (ctypes.c_char_p if argument == "char *" else ctypes.c_void_p for argument in arguments)
    return _Routine(ctypes.CFUNCTYPE(None, *types)(address), integer)
