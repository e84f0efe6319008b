"""Kernels of QR factorizations on guarded memory, and matrices of many kinds for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchchol.backends import Kernel
from batchchol.batches.layouts import array_shape, dense_view
from batchchol.batches.stack import Stack
from kernelgen import KernelSpec

from .kernel_runs import UNTOUCHED, Array, GuardedMemory, kernel_of, layout_of

# Kinds of which every column has full rank whatever the rounding, and others.
KINDS = ("normal", "graded columns", "graded rows", "triangular", "dependent", "zero column")


def matrices(kind: str, random: np.random.Generator, count: int, m: int, n: int) -> Array:
    """Matrices of a kind, (count, m, n), in float64."""
    a = random.standard_normal((count, m, n))
    if kind == "graded columns":
        return a * np.exp2(random.integers(-12, 13, (count, 1, n)))
    if kind == "graded rows":
        return a * np.exp2(random.integers(-12, 13, (count, m, 1)))
    if kind == "triangular":
        return np.triu(a)
    if kind == "dependent":
        a[..., -1] = a[..., 0]
    if kind == "zero column":
        a[np.arange(count), :, np.arange(count) % n] = 0
    return a


def run(spec: KernelSpec, a: Array, *beside: Array, chunk: int | None = None, kernel: Kernel | None = None) -> Any:
    """What a kernel makes of matrices (batch, m, n), and of tau or the right-hand sides that it reads besides.

    Returns its results in the order of its arguments, an array each. What it reads stays as it is, and so does all
    memory around its arrays.
    """
    problem, layout, batch = spec.problem, layout_of(spec, chunk), len(a)
    nrhs = beside[-1].shape[-1] if beside else 0
    shapes = {
        "rectangle": array_shape(problem.n, batch, layout, problem.m),
        "reflectors": (batch, min(problem.rows, problem.n)),
        "observations": (batch, problem.rows, nrhs),
        "columns": (batch, problem.n, nrhs),
        "info": (batch,),
    }
    given, memory, arguments = iter((a, *beside)), [], []
    for argument in problem.operation.arguments:
        integers = argument.shape == "info"
        room = GuardedMemory(shapes[argument.shape], np.int32 if integers else problem.dtype)
        room.array[...] = -1 if integers else UNTOUCHED
        memory.append(room)
        if not argument.written:
            _members(room.array, layout, argument.in_batch)[:batch] = next(given)
        arguments.append(Stack(room.array, batch, layout) if argument.in_batch else room.array)
    before = [room.array.tobytes() for room in memory]
    (kernel or kernel_of(spec))(*arguments, threads=2)
    results = []
    for argument, room, was in zip(problem.operation.arguments, memory, before, strict=True):
        room.check()
        assert argument.written or room.array.tobytes() == was, f"{argument.name} was changed"
        if argument.written:
            results.append(_members(room.array, layout, argument.in_batch)[:batch].copy())
    return results[0] if len(results) == 1 else tuple(results)


class _Members:
    """Matrices of an array in a layout, by their numbers."""

    def __init__(self, view: Array) -> None:
        self._view = view

    def __getitem__(self, members: slice) -> Array:
        return self._view.reshape(-1, *self._view.shape[2:])[members]

    def __setitem__(self, members: slice, values: Array) -> None:
        each, apart = np.arange(len(values)), self._view.shape[1]
        self._view[each // apart, each % apart] = values


def _members(array: Array, layout: Any, in_batch: bool) -> Any:
    return _Members(dense_view(array, layout)) if in_batch else array
