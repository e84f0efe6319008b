"""A batch of rectangular matrices in one of the layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from batchchol.batches.batch import Batch, check_dtype, default_layout, dtype_name, element_dtype
from batchchol.batches.checks import check_unmasked, integer
from batchchol.batches.host_memory import aligned_empty
from batchchol.batches.layouts import array_shape, dense_view, padded
from kernelgen import MAX_N, Layout


# Compared by identity, as batches are.
@dataclass(frozen=True, eq=False, repr=False)
class RectangularBatch:
    """`batch` matrices of `m` rows and `n` columns in one array, for `qr`, `ormqr` and `lstsq`; `len` is how many.

    Attributes
    ----------
    data : ndarray, float32 or float64, C-contiguous
        canonical (batch, m, n); interleaved (m, n, padded batch); chunked (chunks, m, n, chunk). For order "col" the
        axes of the sides are (n, m). Room beyond the batch holds zeros.
    m, n, batch : int
        The sides of each matrix, 1 to 128, and how many there are.
    layout : Layout
        Where their elements lie.
    backend : str
        The name of the backend whose memory holds it.

    Raises
    ------
    TypeError, ValueError
        If the array is not what the other arguments say.
    """

    backend: ClassVar[str] = "cpu"

    data: Any
    m: int
    n: int
    batch: int
    layout: Layout

    def __post_init__(self) -> None:
        self._check_data(self.data)
        if check_dtype("data", self.data.dtype) != self.data.dtype:
            raise TypeError(f"data: got dtype {self.data.dtype}, expected native byte order: use from_dense")
        m, n, batch = _checked(self.m, self.n, self.batch)
        self.__dict__.update(m=m, n=n, batch=batch)
        expected = array_shape(n, batch, self.layout, m)
        if self.data.shape != expected or not self.data.flags.c_contiguous:
            raise ValueError(
                f"data: got shape {self.data.shape}, C-contiguous {self.data.flags.c_contiguous}; expected a "
                f"C-contiguous array of shape {expected} for {batch} matrices of {m} x {n} in layout {self.layout}"
            )

    @staticmethod
    def _check_data(data: Any) -> None:
        """Refuse what is no array of this backend."""
        if not isinstance(data, np.ndarray):
            raise TypeError(f"data: got {type(data).__name__}, expected a NumPy array: use from_dense")
        check_unmasked("data", data)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.batch} × {self.m}×{self.n} {self.dtype}, {self.layout})"

    def __len__(self) -> int:
        return self.batch

    def __array__(self, dtype: object = None, copy: object = None) -> None:
        raise TypeError(f"got a {type(self).__name__}, expected an array: use to_dense() for its matrices as one")

    @classmethod
    def empty(cls, m: int, n: int, batch: int, layout: Layout | None = None, dtype: DTypeLike = "float32") -> Self:
        """A batch whose matrices are yet to be written; by default in this machine's `default_layout`.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another type, or out of range.
        OutOfMemory
            If it would not fit.
        """
        element = element_dtype("dtype", dtype)
        m, n, batch = _checked(m, n, batch)
        layout = default_layout(element, n) if layout is None else layout
        shape = array_shape(n, batch, layout, m)
        data = aligned_empty(shape, element, f"a batch of shape {shape}")
        if missing := padded(batch, layout) - batch:
            dense_view(data, layout)[-1, -missing:] = 0
        return cls(data, m, n, batch, layout)

    @classmethod
    def from_dense(cls, a: Any, layout: Layout | None = None) -> Self:
        """Copy an array of shape (batch, m, n), float32 or float64, into a layout, by default `default_layout`.

        Raises
        ------
        TypeError, ValueError
            If it is no such array, or elements of it are masked.
        OutOfMemory
            If the copy would not fit.
        """
        if not isinstance(a, np.ndarray):
            raise TypeError(f"a: got {type(a).__name__}, expected a NumPy array of shape (batch, m, n)")
        check_unmasked("a", a)
        element = check_dtype("a", a.dtype)
        check_rectangles(a.shape)
        count, m, n = a.shape
        packed = cls.empty(m, n, count, layout, element)
        packed.fill(a)
        return packed

    @property
    def dtype(self) -> np.dtype[np.floating]:
        return self.data.dtype  # type: ignore[no-any-return]

    @property
    def dtype_name(self) -> str:
        """The dtype as specs spell it."""
        return dtype_name(self.data.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the array, padding included."""
        return int(self.data.nbytes)

    @property
    def gpu(self) -> int | None:
        """The number of the GPU that it lives on; None on the host."""
        return None

    @property
    def triangle(self) -> None:
        """Both triangles have a meaning, as in a `Batch` of which none is marked."""
        return

    def like(self) -> Self:
        """A batch of as many matrices of the same kind, yet to be written."""
        return type(self).empty(self.m, self.n, self.batch, self.layout, self.dtype)

    def to_dense(self) -> Any:
        """All matrices as a new array of shape (batch, m, n) in row order."""
        shape = (self.batch, self.m, self.n)
        dense = aligned_empty(shape, self.dtype, f"an array of shape {shape}")
        view, members = self._members()
        dense[...] = view[members]
        return dense

    def squares(self) -> Batch:
        """The first n rows, of matrices that have as many, in the same layout: the upper triangles have a meaning."""
        target = Batch.empty(self.n, self.batch, self.layout, self.dtype)
        if self.batch:
            rows, wide, narrow = self._runs()
            target.data.reshape(rows, narrow)[...] = self.data.reshape(rows, wide)[:, :narrow]
        return target.marked("upper")

    def packed(self, dense: Any) -> Batch | Self:
        """An array of as many matrices as a batch in the same layout."""
        square = dense.shape[1] == dense.shape[2]
        return Batch.from_dense(dense, self.layout) if square else type(self).from_dense(dense, self.layout)

    def fill(self, dense: NDArray[np.floating]) -> None:
        """Write all matrices from an array of shape (batch, m, n)."""
        view, members = self._members()
        view[members] = dense

    def _members(self) -> tuple[NDArray[np.floating], tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """The array as (chunks, chunk, row, column), and the chunk and the place in it of every matrix."""
        view, matrices = dense_view(self.data, self.layout), np.arange(self.batch)
        apart = max(1, view.shape[1])
        return view, (matrices // apart, matrices % apart)

    def _runs(self) -> tuple[int, int, int]:
        """The array as runs of memory: how many, how long, and how much of each belongs to the first n rows."""
        inner = 1 if self.layout.kind == "canonical" else self.data.shape[-1]
        across = self.n if self.layout.order == "row" else 1
        wide, narrow = self.m * inner * across, self.n * inner * across
        return self.data.size // wide, wide, narrow


def check_rectangles(shape: tuple[int, ...]) -> None:
    """Refuse an array `a` that is not of shape (batch, m, n)."""
    if len(shape) != 3:
        raise ValueError(f"a: got shape {tuple(shape)}, expected (batch, m, n): reshape it")


def _checked(m: object, n: object, batch: object) -> tuple[int, int, int]:
    """The sides of matrices, and how many there are, as plain ints."""
    sides = integer("m", m), integer("n", n)
    for name, got in zip("mn", sides, strict=True):
        if not 1 <= got <= MAX_N:
            raise ValueError(f"{name}: got {got}, expected 1 to {MAX_N} in a batch: arrays may have others")
    count = integer("batch", batch)
    if count < 0:
        raise ValueError(f"batch: got {count} matrices, expected 0 or more")
    return *sides, count
