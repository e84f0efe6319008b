"""Rectangular matrices in the public calls: where they are, and the kernels that work on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.api.arguments import contiguous
from batchchol.artifacts.no_compiler import warn
from batchchol.backends import chosen_backend, get_backend
from batchchol.backends.base import Form
from batchchol.backends.recorder import current_recorder
from batchchol.batches.batch import Batch, check_dtype, dtype_name
from batchchol.batches.checks import check_unmasked, host_array
from batchchol.batches.host_memory import aligned_empty
from batchchol.batches.rectangular import RectangularBatch
from batchchol.batches.stack import Stack
from batchchol.errors import CompilerNotFound
from batchchol.parallel import available_threads
from batchchol.plan import chosen_kernel
from kernelgen import MAX_N, Layout

_CANONICAL = Layout.canonical()


class Asked(NamedTuple):
    """How a call on rectangular matrices, its argument of that name, is to be done."""

    argument: str
    backend: str | None
    math: str | None
    threads: int | None
    stream: Any

    @property
    def elsewhere(self) -> bool:
        """Whether what is on the host is to be done on a GPU."""
        return chosen_backend(self.backend) == "cuda"

    def check_batch(self, batch: Batch | RectangularBatch) -> None:
        """Refuse a batch that lives elsewhere than is asked for, or of which only a triangle has a meaning."""
        if self.backend is not None and chosen_backend(self.backend) != batch.backend:
            raise ValueError(f"backend: got {self.backend!r}, expected {batch.backend!r}, where the matrices live")
        if batch.backend == "cpu" and self.stream is not None:
            raise ValueError(f"stream: got {self.stream!r}, expected None: backend 'cpu' has none")
        if batch.backend != "cpu":
            if current_recorder() is not None:
                raise RuntimeError(f"{self.argument}: a graph is being recorded in this thread: call this after it")
            check_sides(self.argument, *sides_of(batch))


class HostRectangles(NamedTuple):
    """Matrices (count, m, n) of the host, C-contiguous, that were an array (..., m, n)."""

    data: NDArray[np.floating]
    outer: tuple[int, ...]

    @property
    def members(self) -> int:
        return len(self.data)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return *self.outer, *self.data.shape[1:]

    def like(self, *sides: int) -> NDArray[np.floating]:
        """Room for as many matrices with these sides."""
        shape = (self.members, *sides)
        return aligned_empty(shape, self.data.dtype, f"an array of shape {shape}")

    def shaped(self, found: NDArray[Any]) -> NDArray[Any]:
        """Results (count, ...) in the shape of the array."""
        return found.reshape(*self.outer, *found.shape[1:])

    def stacked(self, data: NDArray[Any] | None = None) -> Stack:
        """What a kernel takes of the matrices, or of as many others."""
        return Stack(self.data if data is None else data, self.members, _CANONICAL)


def on_host(a: ArrayLike, asked: Asked) -> HostRectangles:
    """An array (..., m, n) of the host.

    Raises
    ------
    TypeError, ValueError
        If it is no such array of float32 or float64, or elements of it are masked.
    """
    argument = asked.argument
    check_unmasked(argument, a)
    given = host_array(a)
    advice = (
        "convert with .astype first" if isinstance(a, np.ndarray) else f"pass np.asarray({argument}, dtype=float)"
    )
    dtype = check_dtype(argument, given.dtype, advice)
    check_matrices(argument, given.shape)
    if asked.stream is not None:
        raise ValueError(
            f"stream: got {asked.stream!r}, expected None: arrays of the host are done when this returns"
        )
    *outer, m, n = given.shape
    return HostRectangles(contiguous(argument, given, dtype).reshape(prod(outer), m, n), tuple(outer))


def run(op: str, asked: Asked, arguments: Sequence[Any], by_lapack: Callable[[], object], nrhs: int = 1) -> None:
    """Have a kernel, or else LAPACK, do an operation on its arguments, the first of which are matrices."""
    matrices: Batch | RectangularBatch | Stack = arguments[0]
    m, n = matrices.data.shape[1:] if isinstance(matrices, Stack) else sides_of(matrices)
    if not matrices.batch or not m * n:
        return
    if max(m, n) > MAX_N:
        by_lapack()
        return
    backend, triangle = ("cpu", None) if isinstance(matrices, Stack) else (matrices.backend, matrices.triangle)
    rows = None if m == n else m
    form = Form(n, matrices.batch, dtype_name(matrices.data.dtype), matrices.layout, triangle, rows)
    try:
        choice = op, get_backend(backend), form, False, None, asked.math
        kernel = chosen_kernel(*choice, argument=asked.argument, nrhs=nrhs)
    except CompilerNotFound as error:
        if backend != "cpu":
            raise
        warn(error)
        by_lapack()
        return
    threads = int(asked.threads or available_threads(matrices.data.nbytes))
    kernel(*arguments, threads=threads, stream=asked.stream)


class DeviceRectangles(NamedTuple):
    """Matrices (..., m, n) in an array of a GPU, which `owner` keeps alive."""

    owner: Any
    address: int
    outer: tuple[int, ...]
    sides: tuple[int, int]
    dtype: np.dtype[np.floating]

    @classmethod
    def of(cls, a: Any, asked: Asked) -> Self:
        """The matrices of an array of a GPU.

        Raises
        ------
        TypeError, ValueError
            If it is no such array of float32 or float64, or its matrices are too large for kernels.
        """
        from batchchol.backends.cuda import memory

        if asked.backend is not None and chosen_backend(asked.backend) != "cuda":
            raise ValueError(f"backend: got {asked.backend!r}, expected 'cuda' for an array on a GPU")
        given = memory.view(a, asked.argument)
        dtype = check_dtype(asked.argument, given.dtype)
        if dtype != given.dtype:
            raise TypeError(f"{asked.argument}: got dtype {given.dtype}, expected native byte order")
        check_matrices(asked.argument, given.shape)
        *outer, m, n = given.shape
        return cls(a, given.address, tuple(outer), (m, n), dtype)

    @property
    def members(self) -> int:
        return prod(self.outer)

    def room(self, *sides: int) -> Any:
        """Room for as many matrices with these sides."""
        from batchchol.backends.cuda import memory

        shape = (*self.outer, *sides)
        return memory.empty(shape, self.dtype, f"an array of shape {shape}")

    def launch(
        self, op: str, asked: Asked, sides: tuple[int, int], matrices: int, *beside: Any, nrhs: int = 0
    ) -> None:
        """Queue an operation on matrices with these sides at an address, and on the arrays that follow them."""
        from batchchol.backends.cuda import memory

        m, n = sides
        if not self.members or not m * n:
            return
        kernel = self._kernel(op, asked, m, n, nrhs)
        if asked.stream is not None:
            memory.share(asked.stream, self.owner, *beside)
        places = [int(memory.view(each).address) for each in beside]
        kernel.launch((matrices, *places), nrhs, self.members, _CANONICAL, asked.stream)

    def _kernel(self, op: str, asked: Asked, m: int, n: int, nrhs: int) -> Any:
        """What does an operation on matrices with these sides: a kernel, or panels of larger ones."""
        if max(m, n) > MAX_N:
            from batchchol.algorithms.reflections import LARGEST, Reflections

            check_sides(asked.argument, m, n, LARGEST)
            return Reflections(op, m, n, dtype_name(self.dtype))
        check_sides(asked.argument, m, n)
        form = Form(n, self.members, dtype_name(self.dtype), _CANONICAL, m=None if m == n else m)
        choice = op, get_backend("cuda"), form, False, None, asked.math
        return chosen_kernel(*choice, argument=asked.argument, nrhs=nrhs)

    def part(
        self,
        source: Any,
        target: Any,
        given: tuple[int, int],
        wanted: tuple[int, int],
        asked: Asked,
        *,
        upper: bool = False,
        signs: tuple[int, int, int] = (0, 0, 0),
        by_columns: bool = False,
    ) -> None:
        """Queue `support.part` on as many matrices in arrays of the GPU."""
        from batchchol.backends.cuda import memory, support
        from batchchol.backends.cuda.device import device

        if asked.stream is not None:
            memory.share(asked.stream, source, target)
        start, end = (int(each.gpudata or 0) for each in (source, target))
        support.part(
            device(),
            start,
            end,
            given,
            wanted,
            self.members,
            dtype_name(self.dtype),
            upper=upper,
            signs=signs,
            by_columns=by_columns,
            stream=asked.stream,
        )


def on_device(a: Any, asked: Asked) -> DeviceRectangles | None:
    """An array (..., m, n) of a GPU; None if it is not there."""
    return DeviceRectangles.of(a, asked) if hasattr(a, "__cuda_array_interface__") else None


def sides_of(batch: Batch | RectangularBatch) -> tuple[int, int]:
    """Rows and columns of the matrices of a batch."""
    return batch.m if isinstance(batch, RectangularBatch) else batch.n, batch.n


def room_for(batch: Batch | RectangularBatch, *sides: int, dtype: np.dtype[Any] | None = None) -> Any:
    """Room for an array (batch, *sides) where a batch lives, by default of its dtype."""
    shape, kind = (batch.batch, *sides), dtype or batch.dtype
    if batch.backend == "cpu":
        return aligned_empty(shape, kind, f"an array of shape {shape}")
    from batchchol.backends.cuda import memory

    return memory.empty(shape, kind, f"an array of shape {shape}")


def check_matrices(argument: str, shape: tuple[int, ...]) -> None:
    """Refuse anything but matrices."""
    if len(shape) < 2:
        raise ValueError(f"{argument}: got shape {tuple(shape)}, expected matrices (..., m, n)")


def check_sides(argument: str, m: int, n: int, most: int = MAX_N) -> None:
    """Refuse matrices that are too large for such work on a GPU."""
    if max(m, n) > most:
        raise ValueError(
            f"{argument}: got matrices of {m} x {n}, expected at most {most:,} rows and columns on a GPU: copy them "
            "to the host, where LAPACK takes larger ones"
        )
