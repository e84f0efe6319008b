"""A batch of matrices in one of the layouts."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from batchchol.artifacts.c_library import supported_targets
from batchchol.batches.checks import check_unmasked, integer
from batchchol.batches.host_memory import aligned_empty
from batchchol.batches.layouts import LARGER, array_shape, checked_sizes, dense_view, padded
from batchchol.batches.packing import Slots, assign, check_writeable, pack, unpack
from kernelgen import MAX_N, SIMD_TARGETS, Layout

DTYPES = ("float32", "float64")
# NumPy makes a dtype's name anew each time it is asked: a third of a small call's cost (measured).
_NAMES = {np.dtype(name): name for name in DTYPES}
# Of what kinds of elements more is lost in a conversion than digits.
_ADVICE = {
    "c": "numpy.linalg takes complex matrices",
    "V": "use a field of the records, such as a['x']",
}


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """`batch` matrices of order `n` in one array; `len` is how many there are.

    Attributes
    ----------
    data : ndarray, float32 or float64, C-contiguous
        canonical (batch, n, n); interleaved (n, n, padded batch); chunked (chunks, n, n, chunk). For order "col"
        the two axes of length n are (column, row). Room beyond the batch holds identities.
    n, batch : int
        The order of each matrix, and how many there are.
    layout : Layout
        Where their elements lie. Above n = 128 only canonical, in rows.
    triangle : {None, "lower", "upper"}
        The triangle that has a meaning; None if both have. The other one reads as zeros in `to_dense` and `get`.
    backend : str
        The name of the backend whose memory holds it.

    Raises
    ------
    TypeError, ValueError
        If the array is not what the other arguments say.
    """

    backend: ClassVar[str] = "cpu"
    # Slices that stay in cache between the two copies of `to_layout`.
    _slice_bytes: ClassVar[int] = 1 << 20

    data: NDArray[np.floating]
    n: int
    batch: int
    layout: Layout
    triangle: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What calls remember in a batch belongs to this process alone.
        return {each.name: self.__dict__[each.name] for each in fields(self)}

    def __post_init__(self) -> None:
        self._check_data(self.data)
        if check_dtype("data", self.data.dtype) != self.data.dtype:
            raise TypeError(f"data: got dtype {self.data.dtype}, expected native byte order: use Batch.from_dense")
        _check_triangle(self.triangle)
        n, batch = checked_sizes(self.n, self.batch)
        # The class is frozen: plain ints take the places of NumPy's, which ctypes does not know.
        self.__dict__.update(n=n, batch=batch)
        expected = array_shape(n, batch, self.layout)
        if self.data.shape != expected or not self.data.flags.c_contiguous:
            raise ValueError(
                f"data: got shape {self.data.shape}, C-contiguous {self.data.flags.c_contiguous}; expected a "
                f"C-contiguous array of shape {expected} for {self.batch} matrices of order {self.n} in layout "
                f"{self.layout}: make one with Batch.empty or Batch.from_dense"
            )

    @staticmethod
    def _check_data(data: Any) -> None:
        """Refuse what is no array of this backend."""
        if not isinstance(data, np.ndarray):
            raise TypeError(
                f"data: got {type(data).__name__}, expected a NumPy array: make a batch with Batch.empty or "
                "Batch.from_dense"
            )
        check_unmasked("data", data)

    @classmethod
    def over_checked(cls, data: Any, n: int, batch: int, layout: Layout, triangle: str | None = None) -> Self:
        """A batch over an array that is known to hold one: nothing is checked, which took a tenth of a small call."""
        made = object.__new__(cls)
        made.__dict__.update(data=data, n=n, batch=batch, layout=layout, triangle=triangle)
        return made

    def __repr__(self) -> str:
        triangle = f", triangle={self.triangle}" if self.triangle else ""
        return f"{type(self).__name__}({self.contents}{triangle})"

    def __len__(self) -> int:
        return self.batch

    # Not annotated as what NumPy calls an array: type checkers refuse a batch where one is expected.
    def __array__(self, dtype: object = None, copy: object = None) -> None:
        raise TypeError(
            f"got a {type(self).__name__}, expected an array: use to_dense() for its matrices as one, or factor() to "
            "factor it"
        )

    @classmethod
    def empty(cls, n: int, batch: int, layout: Layout | None = None, dtype: DTypeLike = "float32") -> Self:
        """A batch whose matrices are yet to be written; its padding is there already.

        The default layout is this machine's `default_layout`.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another type, or out of range.
        OutOfMemory
            If it would not fit.
        """
        element = element_dtype("dtype", dtype)
        n, batch = checked_sizes(n, batch)
        layout = default_layout(element, n) if layout is None else layout
        shape = array_shape(n, batch, layout)
        data = aligned_empty(shape, element, f"a batch of shape {shape}")
        if missing := padded(batch, layout) - batch:
            chunks = dense_view(data, layout)
            chunks[-1, -missing:] = np.eye(n, dtype=data.dtype)
        return cls(data, n, batch, layout)

    @classmethod
    def from_dense(cls, a: NDArray[np.floating], layout: Layout | None = None) -> Batch:
        """Copy an array of shape (batch, n, n), float32 or float64, into a layout, by default `default_layout`.

        Raises
        ------
        TypeError, ValueError
            If it is no such array, or elements of it are masked.
        OutOfMemory
            If the copy would not fit.
        """
        if not isinstance(a, np.ndarray):
            raise TypeError(
                f"a: got {type(a).__name__}, expected an array of the host, NumPy's, of shape (batch, n, n); "
                'get_backend("cuda").from_dense takes those of a GPU too'
            )
        check_unmasked("a", a)
        element = check_dtype("a", a.dtype)
        check_stack(a.shape)
        packed = cls.empty(a.shape[1], a.shape[0], layout, element)
        packed.put(0, a.astype(element, copy=False))
        return packed

    @property
    def dtype(self) -> np.dtype[np.floating]:
        return self.data.dtype

    @property
    def dtype_name(self) -> str:
        """The dtype as specs spell it."""
        return dtype_name(self.data.dtype)

    @property
    def contents(self) -> str:
        """How many matrices of which order and dtype, and their layout: what messages say of a batch."""
        return f"{self.batch} × {self.n}×{self.n} {self.dtype}, {self.layout}"

    @property
    def nbytes(self) -> int:
        """Bytes of the array, padding included."""
        return int(self.data.nbytes)

    @property
    def address(self) -> int:
        """Where the array begins in the backend's memory."""
        return self.data.ctypes.data

    @property
    def gpu(self) -> int | None:
        """The number of the GPU that it lives on; None on the host."""
        return None

    @property
    def writeable(self) -> bool:
        """Whether factors may be written to it."""
        return self.data.flags.writeable

    @property
    def cleared(self) -> str | None:
        """The triangle that reads as zeros."""
        return {None: None, "lower": "upper", "upper": "lower"}[self.triangle]

    def shares_memory(self, other: Batch) -> bool:
        """Whether a write to one may change the other."""
        apart = self.address + self.nbytes <= other.address or other.address + other.nbytes <= self.address
        return other.backend == self.backend and not apart

    def marked(self, triangle: str | None) -> Self:
        """The same batch, of which that triangle has a meaning."""
        _check_triangle(triangle)
        if triangle == self.triangle:
            return self
        marked = object.__new__(type(self))
        marked.__dict__.update(self.__dict__, triangle=triangle)
        return marked

    def like(self, triangle: str | None = None) -> Self:
        """A batch of as many matrices of the same kind, yet to be written, of which that triangle has a meaning."""
        return type(self).empty(self.n, self.batch, self.layout, self.dtype).marked(triangle)

    def copy(self) -> Self:
        """A batch of its own with the same matrices."""
        data = aligned_empty(self.data.shape, self.dtype, "a copy of a batch")
        assign(data, self.data)
        return replace(self, data=data)

    def put(self, start: int, dense: NDArray[np.floating]) -> None:
        """Write matrices start, start + 1, ... from an array of shape (count, n, n) and the batch's dtype.

        Raises
        ------
        TypeError, ValueError
            If it is no such array, elements of it are masked, or the batch is read-only.
        IndexError
            If they are not all in the batch.
        """
        if not isinstance(dense, np.ndarray):
            raise TypeError(f"dense: got {type(dense).__name__}, expected an array of shape (count, n, n)")
        check_unmasked("dense", dense)
        self._check_dense(dense.shape, dense.dtype)
        start = integer("start", start)
        slots = self._slots(start, start + len(dense))
        if self.layout.kind == "canonical":
            check_writeable(self.data)
            dense_view(self.data, self.layout)[0, slots.first : slots.last] = dense
        elif len(dense):
            pack(np.ascontiguousarray(dense), slots)

    def get(self, start: int, stop: int) -> NDArray[np.floating]:
        """Matrices start, ..., stop - 1 as a new array of shape (stop - start, n, n) in row order.

        Raises
        ------
        TypeError, IndexError
            If one is not an integer, or they are outside the batch.
        OutOfMemory
            If the array would not fit.
        """
        slots = self._slots(start, stop)
        shape = (slots.last - slots.first, self.n, self.n)
        dense = aligned_empty(shape, self.dtype, f"an array of shape {shape}")
        clear = self.cleared
        if self.layout.kind == "canonical":
            view = dense_view(self.data, self.layout)[0, slots.first : slots.last]
            assign(dense, view, {None: None, "upper": np.tril, "lower": np.triu}[clear])
        elif len(dense):
            unpack(slots, dense, clear)
        return dense

    def to_dense(self) -> NDArray[np.floating]:
        """All matrices as a new array of shape (batch, n, n) in row order."""
        return self.get(0, self.batch)

    def to_layout(self, layout: Layout) -> Self:
        """A copy of the batch in another layout; the same triangle has a meaning."""
        packed = type(self).empty(self.n, self.batch, layout, self.dtype)
        # Whole groups of every layout.
        size = max(512, self._slice_bytes // (self.n**2 * self.dtype.itemsize) // 512 * 512)
        for start in range(0, self.batch, size):
            packed.put(start, self.get(start, min(start + size, self.batch)))
        return packed.marked(self.triangle)

    def _check_dense(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Refuse arrays whose matrices are not like the batch's."""
        if len(shape) != 3 or shape[1:] != (self.n, self.n) or dtype != self.dtype:
            raise ValueError(
                f"dense: got {dtype} of shape {tuple(shape)}, expected {self.dtype} of shape "
                f"(count, {self.n}, {self.n})"
            )

    def _slots(self, start: int, stop: int) -> Slots:
        first, last = integer("start", start), integer("stop", stop)
        if not 0 <= first <= last <= self.batch:
            raise IndexError(f"matrices {first} to {last} are outside a batch of {self.batch}")
        return Slots(self.data, self.n, self.batch, self.layout, first, last)


def default_layout(dtype: DTypeLike = "float32", n: int = 1) -> Layout:
    """The layout in which this machine factors fastest: chunks of as many matrices as its widest SIMD holds.

    A group is then one contiguous block; larger chunks and the interleaved layout spread it (measured: 1.2 to 2.7
    times slower). Above the orders of kernels matrices lie one after the other, in rows.
    """
    if n > MAX_N:
        return LARGER
    return Layout.chunked(SIMD_TARGETS[supported_targets()[0]].lanes(dtype_name(element_dtype("dtype", dtype))))


def info_array(batch: Batch, lanes: int, *, poisoned: bool = True) -> NDArray[np.int32]:
    """Room for the info of whole groups of `lanes` matrices, padding included; if `poisoned`, -1 until written."""
    count = -(-padded(batch.batch, batch.layout) // lanes) * lanes
    return np.full(count, -1, np.int32) if poisoned else np.empty(count, np.int32)


def dtype_name(dtype: np.dtype[np.generic]) -> str:
    """A dtype that `check_dtype` returned as specs spell it."""
    return _NAMES[dtype]


def element_dtype(argument: str, asked: DTypeLike) -> np.dtype[np.floating]:
    """A dtype, given by its name or otherwise, in native byte order.

    Raises
    ------
    TypeError
        If it is neither float32 nor float64.
    """
    try:
        native = np.dtype(asked).newbyteorder("=")
    except (TypeError, ValueError):
        native = None
    if native not in _NAMES:
        raise TypeError(f"{argument}: got {asked!r}, expected 'float32' or 'float64'")
    return native  # type: ignore[return-value]


def check_dtype(
    argument: str, dtype: np.dtype[np.generic], advice: str = "convert with .astype first"
) -> np.dtype[np.floating]:
    """The dtype of an array in native byte order.

    Raises
    ------
    TypeError
        If it is neither float32 nor float64; ends with the advice, where conversion makes sense.
    """
    native = dtype.newbyteorder("=")
    if native not in _NAMES:
        advice = _ADVICE.get(dtype.kind, advice)
        raise TypeError(f"{argument}: got dtype {dtype}, expected float32 or float64: {advice}")
    return native  # type: ignore[return-value]


def check_stack(shape: tuple[int, ...]) -> None:
    """Refuse an array `a` that is not of shape (batch, n, n), or whose matrices are empty."""
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ValueError(f"a: got shape {tuple(shape)}, expected (batch, n, n): reshape it")
    if not shape[1]:
        raise ValueError("a: got matrices of order 0, expected 1 or more: cholesky takes empty ones too")


def _check_triangle(triangle: str | None) -> None:
    if triangle is not None and not (isinstance(triangle, str) and triangle in ("lower", "upper")):
        raise ValueError(f"triangle: got {triangle!r}, expected None, 'lower' or 'upper'")
