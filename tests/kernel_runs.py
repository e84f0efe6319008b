"""Kernels on guarded memory: every run proves that nothing was written where nothing should be."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from batchchol.artifacts import c_library
from batchchol.artifacts.c_library import load, supported_targets
from batchchol.backends import Kernel, get_backend
from batchchol.backends.cpu import CpuKernel, signature
from batchchol.batches.batch import Batch, info_array
from batchchol.batches.layouts import array_shape, dense_view
from kernelgen import FAMILIES, TARGETS, KernelSource, KernelSpec, Layout, Problem
from kernelgen.gpu import WARP

from .emulation.kernels import EmulatedKernel

Array = NDArray[Any]

_GUARD_BYTES = 4096
_GUARD = 0xA5
# Where what is asked is whether the text is right: GCC takes half the time of the library's own flags.
QUICK_FLAGS = ("-Og", *c_library.COMMON_FLAGS[1:])
# What the triangle that nobody asked for holds in the result: not a number that a factorization makes.
UNTOUCHED = -54321.0


class GuardedMemory:
    """An array between two stretches of guard bytes, `offset` bytes past a cache line."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, offset: int = 0) -> None:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._bytes = np.full(size + 2 * _GUARD_BYTES + 128, _GUARD, np.uint8)
        self._start = _GUARD_BYTES + -(self._bytes.ctypes.data + _GUARD_BYTES) % 64 + offset
        self._stop = self._start + size
        self.array: Array = self._bytes[self._start : self._stop].view(dtype).reshape(shape)

    def check(self) -> None:
        """Fail if a guard byte changed."""
        before, after = self._bytes[: self._start], self._bytes[self._stop :]
        assert (before == _GUARD).all(), "something was written before the array"
        assert (after == _GUARD).all(), "something was written after the array"


@dataclass(frozen=True)
class Run:
    """What a kernel made of a batch.

    `l` holds the lower factors, (batch, n, n), transposed if the kernel's triangle is the upper one, with what the
    kernel left in the other triangle; `info` is that of the batch.
    """

    l: Array
    info: NDArray[np.int32]


def make_spec(n: int, nb: int | None = None, **choices: Any) -> KernelSpec:
    """A spec by the names of its fields, wherever they belong; the widest target of this machine by default."""
    family = FAMILIES[choices.pop("family", "thread")]
    choices = {"math": "ieee", **choices}
    names = ("dtype", "uplo", "op", "math", "m")
    problem = Problem(n, **{name: choices.pop(name) for name in names if name in choices})
    schedule_fields = {field.name for field in fields(family)} & choices.keys()
    tile = {} if nb is None else {"nb": nb}
    schedule = family(**tile, **{name: choices.pop(name) for name in schedule_fields})
    rest = {"layout": "chunked", "order": "col", "target": supported_targets()[0], **choices}
    return KernelSpec(problem, schedule=schedule, **rest)


def require_target(target: str) -> None:
    """Skip the test where the machine cannot run a target's code."""
    if target not in supported_targets():
        pytest.skip(f"this CPU does not have the instructions of target {target!r}: {supported_targets()} run here")


def kernel_of(spec: KernelSpec) -> Kernel:
    """The kernel of a spec as the cpu backend has it, or emulated if it is one of GPUs."""
    return EmulatedKernel.of(spec) if TARGETS[spec.target].gpu else get_backend("cpu").kernel(spec)


def build_kernel(spec: KernelSpec, source: KernelSource, flags: tuple[str, ...] = QUICK_FLAGS) -> Kernel:
    """The kernel of a source that need not be the one that the spec generates, by the compiler of the moment.

    For a CPU, `flags` take the place of the library's own.
    """
    if TARGETS[spec.target].gpu:
        return EmulatedKernel.of(spec, source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c_library, "COMMON_FLAGS", flags)
        library = load(source, spec.target)
    return CpuKernel(spec, library.stats, library.function(source.entry, *signature(spec.problem.operation)))


def layout_of(spec: KernelSpec, chunk: int | None = None) -> Layout:
    """The layout of a spec's kind and order; the smallest chunk (a GPU's warp) unless another is asked for."""
    smallest = WARP if TARGETS[spec.target].gpu else spec.lanes
    return Layout(spec.layout, (chunk or smallest) if spec.layout == "chunked" else None, spec.order)


def run_kernel(
    spec: KernelSpec,
    a: Array,
    chunk: int | None = None,
    *,
    kernel: Kernel | None = None,
    threads: int = 2,
    offset: int = 0,
) -> Run:
    """Factor the lower triangles of `a`, (batch, n, n), and check all that no factorization may change.

    The kernel finds NaN in the triangle that it must not read. `offset` shifts the arrays off their cache lines.
    """
    kernel = kernel or kernel_of(spec)
    layout, dtype, n = layout_of(spec, chunk), spec.problem.dtype, spec.problem.n
    memory = [GuardedMemory(array_shape(n, len(a), layout), dtype, offset) for _ in range(2)]
    given = Batch(memory[0].array, n, len(a), layout)
    _fill(given, spec, a)
    original = given.data.copy()
    result = given if spec.in_place else Batch(memory[1].array, n, len(a), layout)
    if not spec.in_place:
        result.data[...] = UNTOUCHED
    padding = _matrices(result)[len(a) :]
    info_memory = GuardedMemory(_info_shape(spec, given), np.int32)
    kernel(given, result, info_memory.array, threads=threads)
    for guarded in (*memory, info_memory):
        guarded.check()
    if not spec.in_place:
        assert given.data.tobytes() == original.tobytes(), "an input was changed out of place"
    _check_padding(result, spec, info_memory.array, padding)
    return Run(_lower(_matrices(result)[: len(a)], spec), info_memory.array[: len(a)].copy())


@dataclass(frozen=True)
class Solved:
    """What a kernel made of a batch and right-hand sides: the solutions, (batch, n, nrhs), and the info, if any."""

    x: Array
    info: NDArray[np.int32]


def run_solver(spec: KernelSpec, l: Array, b: Array, chunk: int | None = None, **how: Any) -> Array:
    """Solve by lower factors (batch, n, n) for (batch, n, nrhs), as `run_posv` does by matrices."""
    return run_posv(spec, l, b, chunk, **how).x


def run_posv(
    spec: KernelSpec,
    a: Array,
    b: Array,
    chunk: int | None = None,
    *,
    solver: Kernel | None = None,
    threads: int = 2,
    offset: int = 0,
    in_place: bool = False,
) -> Solved:
    """Solve by the lower triangles of `a`, (batch, n, n), for (batch, n, nrhs), and check all that no solve may
    change.

    The kernel finds NaN in the triangle that it must not read, and in the padding. With `in_place` the solutions go
    where the right-hand sides were. `offset` shifts the arrays off their cache lines.
    """
    solver = solver or kernel_of(spec)
    layout, dtype, n = layout_of(spec, chunk), spec.problem.dtype, spec.problem.n
    memory = [GuardedMemory(shape, dtype, offset) for shape in (array_shape(n, len(a), layout), b.shape, b.shape)]
    info = GuardedMemory((len(a) * spec.problem.operation.factors,), np.int32)
    triangles, given, solution = (each.array for each in memory)
    batch = Batch(triangles, n, len(a), layout)
    _fill(batch, spec, a, padding=np.full((n, n), np.nan))
    given[...] = b
    solution[...] = UNTOUCHED
    before = [array.tobytes() for array in (triangles, given, solution)]
    arguments = (batch, given, given if in_place else solution, *([info.array] if info.array.size else []))
    solver(*arguments, threads=threads)
    for guarded in (*memory, info):
        guarded.check()
    assert triangles.tobytes() == before[0], "a matrix was changed"
    if in_place:
        assert solution.tobytes() == before[2], "something was written elsewhere"
    else:
        assert given.tobytes() == before[1], "a right-hand side was changed"
    return Solved((given if in_place else solution).copy(), info.array.copy())


def run_logdet(spec: KernelSpec, a: Array, chunk: int | None = None, *, threads: int = 2) -> tuple[Array, Array]:
    """The logarithms of the determinants of lower triangles (batch, n, n) and the info, guarded as in `run_posv`."""
    layout, dtype, n = layout_of(spec, chunk), spec.problem.dtype, spec.problem.n
    triangles, logdet, info = (
        GuardedMemory(shape, element)
        for shape, element in ((array_shape(n, len(a), layout), dtype), ((len(a),), dtype), ((len(a),), np.int32))
    )
    batch = Batch(triangles.array, n, len(a), layout)
    _fill(batch, spec, a, padding=np.full((n, n), np.nan))
    before = triangles.array.tobytes()
    kernel_of(spec)(batch, logdet.array, info.array, threads=threads)
    for guarded in (triangles, logdet, info):
        guarded.check()
    assert triangles.array.tobytes() == before, "a matrix was changed"
    return logdet.array.copy(), info.array.copy()


def run_inverse(
    spec: KernelSpec, given: Array, chunk: int | None = None, *, threads: int = 2
) -> tuple[Array, NDArray[np.int32]]:
    """The inverses by lower triangles (batch, n, n) of factors or matrices and the info, guarded as in `run_posv`."""
    layout, dtype, n = layout_of(spec, chunk), spec.problem.dtype, spec.problem.n
    shapes = ((array_shape(n, len(given), layout), dtype), (given.shape, dtype), ((len(given),), np.int32))
    triangles, x, info = (GuardedMemory(shape, element) for shape, element in shapes)
    batch = Batch(triangles.array, n, len(given), layout)
    _fill(batch, spec, given, padding=np.full((n, n), np.nan))
    before = triangles.array.tobytes()
    kernel_of(spec)(batch, x.array, info.array, threads=threads)
    for guarded in (triangles, x, info):
        guarded.check()
    assert triangles.array.tobytes() == before, "a matrix was changed"
    return x.array.copy(), info.array.copy()


def check_other_triangle(spec: KernelSpec, l: Array) -> None:
    """Fail unless the triangle not asked for is zero in canonical arrays, and was left alone in packed ones.

    Strips may have put zeros, out of place, beside the first and the last element of a column of four matrices.
    """
    rows, columns = np.triu_indices(spec.problem.n, 1)
    other = l[:, rows, columns]
    if spec.layout == "canonical":
        assert (other == 0).all(), "the other triangle of a canonical result is not zero"
    elif spec.in_place:
        assert np.isnan(other).all(), "the other triangle was touched in place"
    else:
        by_columns = (spec.order == "col") == (spec.problem.uplo == "lower")
        completes = spec.family == "strip" and spec.schedule.stride == 4 and by_columns
        completed = (other == 0) & ((columns == rows + 1) | (rows == 0)) & completes
        assert ((other == UNTOUCHED) | completed).all(), "the other triangle was touched"


def _fill(batch: Batch, spec: KernelSpec, a: Array, padding: Array | None = None) -> None:
    """Put lower triangles into a batch; identities behind them, unless something else is given."""
    matrices = dense_view(batch.data, batch.layout)
    matrices[...] = np.eye(batch.n, dtype=batch.dtype) if padding is None else padding
    stored = np.where(np.tri(batch.n, dtype=bool), a, np.nan).astype(batch.dtype)
    apart = matrices.shape[1]
    members = np.arange(batch.batch)
    matrices[members // apart, members % apart] = _lower(stored, spec)


def _matrices(batch: Batch) -> Array:
    """All matrices of a batch, (room, n, n), padding included."""
    return np.ascontiguousarray(dense_view(batch.data, batch.layout)).reshape(-1, batch.n, batch.n)


def _lower(matrices: Array, spec: KernelSpec) -> Array:
    """The upper triangle of a matrix is the lower one of its transpose."""
    return matrices if spec.problem.uplo == "lower" else matrices.swapaxes(1, 2)


def _info_shape(spec: KernelSpec, batch: Batch) -> tuple[int, ...]:
    """Of whole groups of SIMD lanes; a GPU has a thread for every matrix, and no others."""
    return (batch.batch,) if TARGETS[spec.target].gpu else info_array(batch, spec.lanes).shape


def _check_padding(result: Batch, spec: KernelSpec, info: NDArray[np.int32], before: Array) -> None:
    padding = _matrices(result)[result.batch :]
    if TARGETS[spec.target].gpu:
        assert padding.tobytes() == before.tobytes(), "the padding was touched"
        return
    assert (np.tril(_lower(padding, spec)) == np.eye(result.n)).all(), "the padding is not the factor of identities"
    assert not info[result.batch :].any(), "the padding has an info"
