"""Kernels of LU factorizations on guarded memory, matrices of many kinds for them, and a reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.backends import Kernel
from batchchol.batches.batch import Batch
from batchchol.batches.layouts import array_shape, dense_view
from kernelgen import KernelSpec

from .kernel_runs import UNTOUCHED, Array, GuardedMemory, kernel_of, layout_of


def matrices(kind: str, random: np.random.Generator, count: int, n: int) -> Array:
    """Square matrices of a kind, (count, n, n), in float64."""
    a = random.standard_normal((count, n, n))
    if kind == "graded":
        return a * np.exp2(random.integers(-12, 13, (count, n, 1)))
    if kind == "ties":
        return random.integers(-1, 2, (count, n, n)).astype(float)
    if kind == "permutations":
        return np.eye(n)[np.array([random.permutation(n) for _ in range(count)])]
    if kind == "singular":
        dependent = np.arange(count) % n
        a = np.triu(random.integers(1, 4, (count, n, n)).astype(float))
        a[np.arange(count), dependent, dependent] = 0
        return a
    return a


@np.errstate(all="ignore")
def reference(a: Array) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Pivots, info and, how clear the choices were, of reference LAPACK's getf2, in the dtype of the matrices.

    The last is the least of all quotients of the second largest element and the largest of a step, subtracted from 1.
    """
    work, (count, n, _) = a.copy(), a.shape
    pivots, info, clear = np.zeros((count, n), np.int32), np.zeros(count, np.int32), np.ones(count)
    members = np.arange(count)
    for k in range(n):
        sizes = np.abs(work[:, k:, k])
        # NaN is larger than nothing, and nothing is larger than NaN.
        rows = np.where(np.isnan(sizes[:, 0]), 0, np.nan_to_num(sizes, nan=-1, posinf=np.inf).argmax(1)) + k
        ordered = np.sort(sizes, axis=1)
        if n - k > 1:
            clear = np.fmin(clear, 1 - ordered[:, -2] / ordered[:, -1])
        work[members, rows], work[:, k] = work[:, k].copy(), work[members, rows]
        pivots[:, k] = rows + 1
        pivot = work[:, k, k]
        info[(info == 0) & (pivot == 0)] = k + 1
        work[:, k + 1 :, k] /= np.where(pivot == 0, 1, pivot)[:, None]
        work[:, k + 1 :, k + 1 :] -= work[:, k + 1 :, k, None] * work[:, k, None, k + 1 :]
    return pivots, info, clear


def run(spec: KernelSpec, a: Array, *beside: Array, chunk: int | None = None, kernel: Kernel | None = None) -> Any:
    """What a kernel makes of matrices (batch, n, n), and of the pivots and right-hand sides that it reads besides.

    Returns its results in the order of its arguments, an array each. What it reads stays as it is, and so does all
    memory around its arrays.
    """
    operation, layout, n = spec.problem.operation, layout_of(spec, chunk), spec.problem.n
    shapes = {
        "square": array_shape(n, len(a), layout),
        "pivots": (len(a), n),
        "info": (len(a),),
        "columns": beside[-1].shape if beside else (),
    }
    given, memory, arguments = iter((a, *beside)), [], []
    for argument in operation.arguments:
        integers = argument.shape in ("pivots", "info")
        room = GuardedMemory(shapes[argument.shape], np.int32 if integers else spec.problem.dtype)
        room.array[...] = -1 if integers else UNTOUCHED
        memory.append(room)
        in_batch = Batch(room.array, n, len(a), layout) if argument.in_batch else None
        if not argument.written:
            values = next(given)
            if in_batch is not None:
                _fill(in_batch, values)
            else:
                room.array[...] = values
        arguments.append(room.array if in_batch is None else in_batch)
    before = [room.array.tobytes() for room in memory]
    (kernel or kernel_of(spec))(*arguments, threads=2)
    for argument, room, was in zip(operation.arguments, memory, before, strict=True):
        room.check()
        assert argument.written or room.array.tobytes() == was, f"{argument.name} was changed"
    results = [
        _members(each)[: len(a)] if isinstance(each, Batch) else each.copy()
        for argument, each in zip(operation.arguments, arguments, strict=True)
        if argument.written
    ]
    return results[0] if len(results) == 1 else tuple(results)


def _members(batch: Batch) -> Array:
    view = dense_view(batch.data, batch.layout)
    return view.reshape(-1, batch.n, batch.n)


def _fill(batch: Batch, values: Array) -> None:
    chunks = dense_view(batch.data, batch.layout)
    chunks[...] = np.eye(batch.n, dtype=batch.dtype)
    members, apart = np.arange(batch.batch), chunks.shape[1]
    chunks[members // apart, members % apart] = values
