"""Right-hand sides beside rectangular matrices: one vector or several columns of m rows for each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.api.arguments import contiguous
from batchchol.api.rectangular.rectangles import HostRectangles, sides_of
from batchchol.batches.batch import Batch
from batchchol.batches.checks import check_unmasked, host_array
from batchchol.batches.rectangular import RectangularBatch


def beside(a: HostRectangles, b: ArrayLike) -> tuple[HostRectangles, NDArray[np.floating], bool]:
    """Matrices and right-hand sides (members, m, nrhs) of the host, broadcast, and whether each is a vector.

    Raises
    ------
    TypeError, ValueError
        If b is no array of the dtype of a that goes with it.
    """
    check_unmasked("b", b)
    *_, m, n = a.shape
    given = host_array(b)
    _check_dtype(given.dtype.newbyteorder("="), a.data.dtype)
    vector, outer, nrhs = _fit(a.shape, given.shape, np.broadcast_shapes)
    columns = np.broadcast_to(given[..., None] if vector else given, (*outer, m, nrhs))
    if outer != a.outer:
        whole = np.broadcast_to(a.data.reshape(a.shape), (*outer, m, n))
        a = HostRectangles(contiguous("a", whole, a.data.dtype).reshape(-1, m, n), outer)
    return a, contiguous("b", columns, a.data.dtype).reshape(a.members, m, nrhs), vector


def beside_there(a: tuple[int, ...], dtype: np.dtype[Any], b: Any) -> tuple[bool, int]:
    """Whether right-hand sides on a GPU, beside matrices of a shape there, are a vector each, and how many there are.

    Raises
    ------
    TypeError, ValueError
        If b is no such array of the dtype that goes with the matrices.
    """
    from batchchol.backends.cuda import memory

    if not memory.is_device_array(b):
        raise TypeError(f"b: got {type(b).__name__}, expected an array on the GPU, where the matrices are")
    columns = memory.view(b, "b")
    vector, _, nrhs = _fit(a, columns.shape, _equal)
    _check_dtype(columns.dtype, dtype)
    return vector, nrhs


def beside_batch(a: Batch | RectangularBatch, b: Any) -> tuple[Any, bool]:
    """Right-hand sides (batch, m, nrhs) beside a batch, where it lives, and whether each is a vector.

    Raises
    ------
    TypeError, ValueError
        If b is no such array of the dtype of a: it is not broadcast.
    """
    m, n = sides_of(a)
    shape = a.batch, m, n
    if a.backend == "cuda":
        from batchchol.backends.cuda import memory

        vector, nrhs = beside_there(shape, a.dtype, b)
        given: Any = memory.as_gpuarray(b, "b")
    else:
        check_unmasked("b", b)
        given = host_array(b)
        _check_dtype(given.dtype.newbyteorder("="), a.dtype)
        vector, _, nrhs = _fit(shape, given.shape, _equal)
        given = contiguous("b", given, a.dtype)
    return given.reshape(a.batch, m, nrhs), vector


def _check_dtype(got: np.dtype[Any], expected: np.dtype[Any]) -> None:
    if got != expected:
        raise TypeError(f"b: got dtype {got}, expected {expected}, as the matrices have: convert one")


def _equal(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Refuse two shapes that differ; return them."""
    if one != other:
        raise ValueError("they differ")
    return one


def _fit(a: tuple[int, ...], b: tuple[int, ...], together: Any) -> tuple[bool, tuple[int, ...], int]:
    """Whether right-hand sides are a vector each, the axes before the last ones, and how many right-hand sides."""
    *outer, m, _ = a
    vector = b in ((m,), (*outer, m)) if together is not _equal else b == (*outer, m)
    columns = (*b, 1) if vector else b
    try:
        if len(columns) < 2 or columns[-2] != m:
            raise ValueError("no rows")
        return vector, tuple(together(tuple(outer), columns[:-2])), columns[-1]
    except ValueError:
        vectors = ", ".join(map(str, dict.fromkeys(((m,), (*outer, m)))))
        several = ", ".join(map(str, (*outer, m, "nrhs")))
        raise ValueError(f"b: got shape {b}, expected {vectors} or ({several}) for matrices of shape {a}") from None
