"""What is said of matrices that are not positive definite, are singular or have dependent columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.batch import Batch

_INFO = np.dtype(np.int32)


def raise_failures(info: Any, a: Any, upper: bool, instead: str) -> None:
    """Refuse matrices whose info is not 0; `a` holds them, None if it does not any more.

    `instead` is the function that does not raise.

    Raises
    ------
    numpy.linalg.LinAlgError
        If there are any; names the first.
    """
    known = _on_host(info)
    # Twice as fast as `any`.
    if np.count_nonzero(known):
        on_host = known is info and a is not None and not isinstance(a, Batch)
        raise np.linalg.LinAlgError(_describe(known, np.asarray(a) if on_host else None, upper, instead))


def raise_singular(info: Any, instead: str) -> None:
    """Refuse general matrices whose info is not 0: a pivot of their LU factorization is zero.

    Raises
    ------
    numpy.linalg.LinAlgError
        If there are any; names the first.
    """
    _raise_first(_on_host(info), "is singular: pivot {} of its LU factorization is zero", instead)


def raise_dependent(info: Any, instead: str) -> None:
    """Refuse matrices of least squares whose info is not 0: an element of R's diagonal is zero.

    Raises
    ------
    numpy.linalg.LinAlgError
        If there are any; names the first.
    """
    what = "has linearly dependent columns: element {} of the diagonal of R is zero"
    _raise_first(_on_host(info), what, instead)


def _on_host(info: Any) -> NDArray[np.int32]:
    """The info itself, or a copy of one on a GPU."""
    if isinstance(info, np.ndarray):
        return info
    from batchchol.backends.cuda import gpus, memory
    from batchchol.backends.cuda.arrays.libraries import library_of

    library = library_of(info)
    seen = None if library is None else library.seen(info)
    if seen is not None:
        address, shape, _, gpu = seen
        with gpus.on(gpu):
            return memory.fetched(address, tuple(shape), _INFO)
    with gpus.on(memory.gpu_of(info)):
        return memory.to_host(memory.as_gpuarray(info, "info"))


def _raise_first(info: NDArray[np.int32], what: str, instead: str) -> None:
    """Raise what is said of the first matrix whose info is not 0, with that info in it, if there is one."""
    if info.any():
        failed, first, place = _first(info)
        raise np.linalg.LinAlgError(
            f"{_called(first)} {what.format(place)} ({failed} of {info.size} matrices failed; {instead} returns info "
            "in place of raising)"
        )


def _first(info: NDArray[np.int32]) -> tuple[int, tuple[int, ...], int]:
    """How many matrices failed, the index of the first of them, and its info."""
    failed = np.argwhere(info)
    first = tuple(int(index) for index in failed[0])
    return len(failed), first, int(info[first])


def _called(index: tuple[int, ...]) -> str:
    """What messages call a matrix."""
    return "the matrix" if not index else f"matrix {index[0] if len(index) == 1 else index}"


def _describe(info: NDArray[np.int32], a: NDArray[np.floating] | None, upper: bool, instead: str) -> str:
    failed, first, order = _first(info)
    reason = "is not" if a is None or not _has_nan(a[first], order, upper) else "has a NaN"
    return (
        f"{_called(first)} is not positive definite: its leading minor of order {order} {reason} "
        f"({failed} of {info.size} matrices failed; {instead} returns info in place of raising)"
    )


def _has_nan(matrix: NDArray[np.floating], order: int, upper: bool) -> bool:
    """Whether the first leading minor that failed did so for a NaN; those before it have none."""
    last = matrix[:order, order - 1] if upper else matrix[order - 1, :order]
    return bool(np.isnan(last).any())
