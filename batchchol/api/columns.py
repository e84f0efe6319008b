"""Right-hand sides beside matrices: by which rule they belong together, and where solutions are written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.batches.checks import check_unmasked, host_array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Fit:
    """How right-hand sides belong to `count` matrices of order `n`: kernels take arrays (count, n, nrhs).

    A matrix that is broadcast is factored once: all that it is to solve for are right-hand sides of one call.

    Attributes
    ----------
    x : tuple of int
        The shape of the solutions.
    given, whole : tuple of int
        Those of the right-hand sides as (..., n, k), and of what they are broadcast to.
    axes : tuple of int
        The axes of `whole` in the order of a kernel's array: those of the matrices, n, those that the matrices are
        broadcast along, k.
    plain : bool
        Whether the right-hand sides are a kernel's array as they lie in memory.
    folded : bool
        Whether matrices are broadcast, and so solutions are in another order than a kernel writes them.
    """

    x: Shape
    count: int
    n: int
    nrhs: int
    given: Shape
    whole: Shape
    axes: tuple[int, ...]
    plain: bool
    folded: bool

    @cached_property
    def panels(self) -> Shape:
        """The shape of a kernel's array."""
        return self.count, self.n, self.nrhs

    @cached_property
    def apart(self) -> Shape:
        """The shape of a kernel's array with all axes of `whole`."""
        return tuple(self.whole[axis] for axis in self.axes)

    @cached_property
    def back(self) -> tuple[int, ...]:
        """The axes of a kernel's array in the order of `whole`."""
        return tuple(self.axes.index(axis) for axis in range(len(self.axes)))

    def take(self, b: NDArray[Any], room: NDArray[Any]) -> None:
        """Copy right-hand sides into a kernel's array."""
        columns = np.broadcast_to(b.reshape(self.given), self.whole)
        np.copyto(room.reshape(self.apart), columns.transpose(self.axes))

    def part(self, b: NDArray[Any], members: NDArray[np.intp], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The right-hand sides of some of the matrices, as a kernel's array of their own."""
        columns = np.broadcast_to(b.reshape(self.given), self.whole).transpose(self.axes)
        kept = self.apart[: self.axes.index(len(self.whole) - 2)]
        chosen = columns[np.unravel_index(members, kept)] if kept else columns[np.newaxis]
        return np.ascontiguousarray(chosen, dtype).reshape(len(members), self.n, self.nrhs)

    @cached_property
    def taking(self) -> tuple[Shape, Shape]:
        """The sizes of a kernel's array, and the steps between its elements in C-contiguous right-hand sides."""
        missing = len(self.whole) - len(self.given)
        steps = (0,) * missing + _steps(self.given)
        moving = [
            0 if size != whole else step
            for size, whole, step in zip((1,) * missing + self.given, self.whole, steps, strict=True)
        ]
        return self.apart, tuple(moving[axis] for axis in self.axes)

    @cached_property
    def giving(self) -> tuple[Shape, Shape]:
        """The sizes of the solutions, and the steps between their elements in a kernel's array."""
        steps = _steps(self.apart)
        return self.whole, tuple(steps[axis] for axis in self.back)

    def give(self, room: NDArray[Any], x: NDArray[Any]) -> None:
        """Copy solutions out of a kernel's array."""
        np.copyto(x, room.reshape(self.apart).transpose(self.back).reshape(self.x))


def _steps(shape: Shape) -> tuple[int, ...]:
    """Elements between neighbours along each axis of a C-contiguous array."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


@lru_cache(maxsize=4096)
def fit(outer: Shape, n: int, b: Shape, what: str) -> Fit:
    """How right-hand sides of shape `b` belong to matrices of shape (*outer, n, n), which messages call `what`.

    They are one vector for each matrix if their shape is (n,) or (*outer, n), as in torch.linalg.solve, and else
    matrices (..., n, k), which are broadcast by NumPy's rules.

    Raises
    ------
    ValueError
        If they do not belong together.
    """
    columns = (*b, 1) if b in ((n,), (*outer, n)) else b
    whole = _broadcast(outer, columns[:-2])
    if len(columns) < 2 or columns[-2] != n or whole is None:
        raise ValueError(_refusal(outer, n, b, what))
    sizes = (1,) * (len(whole) - len(outer)) + outer
    kept = [axis for axis, size in enumerate(sizes) if size == whole[axis]]
    apart = [axis for axis, size in enumerate(sizes) if size != whole[axis]]
    rows, last = len(whole), len(whole) + 1
    return Fit(
        (*whole, n) if columns is not b else (*whole, n, columns[-1]),
        prod(outer),
        n,
        prod(whole[axis] for axis in apart) * columns[-1],
        columns,
        (*whole, n, columns[-1]),
        (*kept, rows, *apart, last),
        plain=not apart and prod(whole) == prod(columns[:-2]),
        folded=bool(apart),
    )


def _broadcast(outer: Shape, b: Shape) -> Shape | None:
    try:
        return np.broadcast_shapes(outer, b)
    except ValueError:
        return None


def _refusal(outer: Shape, n: int, b: Shape, what: str) -> str:
    several = ", ".join(map(str, (*outer, n, "nrhs")))
    said = f"b: got shape {b}, expected {(*outer, n)} or ({several}), as the {what} are, or matrices that broadcast"
    # A rule that took these for vectors would take them for a matrix where two numbers happen to be the same.
    vectors = len(b) > 1 and b[-1] == n and _broadcast(outer, b[:-1]) is not None
    return f"{said}: use b[..., None] for one right-hand side each" if vectors else said


def host_columns(b: ArrayLike, what: str) -> NDArray[Any]:
    """Right-hand sides as an array of the host; the caller's own memory if they are one."""
    if hasattr(b, "__cuda_array_interface__"):
        raise TypeError(f"b: got an array on a GPU, expected one of the host, where the {what} are: copy one of them")
    check_unmasked("b", b)
    given = host_array(b)
    if given.dtype.kind not in "biufc":
        raise TypeError(f"b: got dtype {given.dtype}, expected that of the {what}")
    return given


def check_columns_dtype(got: np.dtype[Any], wanted: np.dtype[Any], what: str) -> None:
    """Refuse right-hand sides of another dtype than the matrices'."""
    if got != wanted:
        raise TypeError(f"b: got dtype {got}, expected {wanted}, as the {what} are: convert with .astype first")


def check_out(
    shape: Shape, dtype: np.dtype[Any], wanted_shape: Shape, wanted_dtype: np.dtype[Any], what: str = "solutions"
) -> None:
    """Refuse a place for solutions, or what else they are, of another shape or dtype than theirs."""
    if shape != wanted_shape:
        raise ValueError(f"out: got shape {shape}, expected {wanted_shape}, that of the {what}")
    if dtype != wanted_dtype:
        raise TypeError(f"out: got dtype {dtype}, expected {wanted_dtype}, that of the {what}")


def host_out(out: Any, shape: Shape, dtype: np.dtype[Any], what: str = "solutions") -> NDArray[Any]:
    """The caller's array for solutions, or what else they are, of any strides and either byte order."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out: got {type(out).__name__}, expected an array of the host, NumPy's")
    check_unmasked("out", out)
    check_out(out.shape, out.dtype.newbyteorder("="), shape, dtype, what)
    if not out.flags.writeable:
        raise ValueError("out: got a read-only array, expected one that can be written: copy it")
    if out.size and any(size > 1 and not step for size, step in zip(shape, out.strides, strict=True)):
        raise ValueError("out: got an array of which elements share their memory, expected one place each: copy it")
    return out
