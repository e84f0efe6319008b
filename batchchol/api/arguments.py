"""Checks of arguments that the public calls share, in the same words."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.backends import chosen_backend
from batchchol.backends.recorder import current_recorder
from batchchol.batches.batch import Batch, check_dtype, dtype_name
from batchchol.batches.checks import check_unmasked, host_array
from batchchol.batches.host_memory import aligned_empty
from batchchol.batches.packing import assign
from batchchol.plan import check_array_spec
from kernelgen import KernelSpec
from kernelgen.emit.panels.lu_panel import LARGEST
from kernelgen.operations import OPERATIONS
from kernelgen.refusals import whole


def square_matrices(argument: str, a: ArrayLike) -> NDArray[np.floating]:
    """Matrices (..., n, n) as a C-contiguous array of float32 or float64 in native byte order.

    Raises
    ------
    TypeError, ValueError
        If they are no such matrices, or elements of them are masked.
    OutOfMemory
        If a copy has to be made, and would not fit.
    """
    check_unmasked(argument, a)
    given = host_array(a)
    advice = (
        "convert with .astype first" if isinstance(a, np.ndarray) else f"pass np.asarray({argument}, dtype=float)"
    )
    dtype = check_dtype(argument, given.dtype, advice)
    check_square(argument, given.shape)
    return contiguous(argument, given, dtype)


def contiguous(argument: str, given: NDArray[Any], dtype: np.dtype[np.floating]) -> NDArray[np.floating]:
    """The array itself if it is C-contiguous and of this dtype in native byte order, else a copy that is."""
    if given.flags.c_contiguous and given.dtype == dtype:
        return given
    copy = aligned_empty(given.shape, dtype, f"a contiguous copy of {argument}")
    assign(copy, given)
    return copy


def check_square(argument: str, shape: tuple[int, ...]) -> None:
    """Refuse anything but square matrices (..., n, n)."""
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"{argument}: got shape {tuple(shape)}, expected square matrices (..., n, n)")


def is_general(assume_a: Any, **triangular: Any) -> bool:
    """Whether matrices are assumed to be general, "gen", and not symmetric positive definite, "pos".

    Raises
    ------
    ValueError
        If they are assumed to be anything else, or are general and one of the other arguments, which only symmetric
        ones have, is not its default, False or None.
    """
    # Arrays are compared element by element.
    if not (isinstance(assume_a, str) and assume_a in ("pos", "gen")):
        raise ValueError(
            f"assume_a: got {assume_a!r}, expected 'pos' for symmetric positive definite matrices, or 'gen'"
        )
    for name, got in triangular.items() if assume_a == "gen" else ():
        if got is not None and got is not False:
            raise ValueError(
                f"{name}: got {got!r}, expected {name} of assume_a='pos' alone: 'gen' reads whole matrices"
            )
    return assume_a == "gen"


def check_threads(threads: Any) -> None:
    """Refuse anything but a number of threads or None."""
    if threads is not None and (whole(threads) or 0) < 1:
        raise ValueError(f"threads: got {threads!r}, expected a positive integer")


def check_on_gpu(backend: str | None) -> None:
    """Refuse a backend that is not the one of arrays on a GPU.

    Raises
    ------
    ValueError
        If another one is asked for.
    """
    if backend is not None and chosen_backend(backend) != "cuda":
        raise ValueError(f"backend: got {backend!r}, expected 'cuda' for an array on a GPU")


class Wanted(NamedTuple):
    """What a call is to compute by matrices, or factors, and right-hand sides, and how.

    `argument` is what the call names the matrices, `what` what messages call them; see `cho_solve` and `solve`.
    """

    op: str
    argument: str
    what: str
    upper: bool
    spec: KernelSpec | None = None
    math: str | None = None
    threads: int | None = None
    stream: Any = None
    out: Any = None
    overwrite_b: bool = False
    jitter: Any = None
    pivots: Any = None
    overwrite_a: bool = False

    @property
    def factors(self) -> bool:
        """Whether matrices are factored, and have an info."""
        return OPERATIONS[self.op].factors

    @property
    def general(self) -> bool:
        """Whether matrices are general ones, or factors of such, which have pivots."""
        return OPERATIONS[self.op].general

    @property
    def beside(self) -> tuple[Any, ...]:
        """The arguments of a kernel between factors and right-hand sides: the pivots, if there are any."""
        return () if self.pivots is None else (self.pivots,)

    def with_pivots(self, shape: tuple[int, ...]) -> Wanted:
        """The same with the pivots of factors as a C-contiguous array of the host, (count, n), if they have any.

        Raises
        ------
        TypeError, ValueError
            If they are no integers of this shape, or of a step k other than from k to n, counted from 1.
        """
        if self.pivots is None:
            return self
        check_unmasked("pivots", self.pivots)
        given, n = np.asarray(self.pivots), shape[-1]
        if given.dtype.kind not in "iu":
            raise TypeError(f"pivots: got dtype {given.dtype}, expected int32, as lu_factor returns them")
        if given.shape != shape:
            raise ValueError(f"pivots: got shape {given.shape}, expected {shape}, as the factors are")
        if given.size and ((given < np.arange(1, n + 1)) | (given > n)).any():
            raise ValueError(
                f"pivots: got one that is out of range, expected those of step k from k to {n}, counted from 1, as "
                "lu_factor returns them (scipy.linalg.lu_factor counts from 0)"
            )
        return self._replace(pivots=np.ascontiguousarray(given.reshape(prod(shape[:-1]), n), np.int32))

    def by_factors(self) -> Wanted:
        """What is left to do once matrices are factored: solve by their factors, into the same place."""
        return self._replace(op="potrs", spec=None)

    def of_batch(self, batch: Batch, backend: str | None) -> Wanted:
        """The same of a batch, whose triangle is read if one alone has a meaning.

        Raises
        ------
        ValueError
            If it has no triangle that is asked for, or lives on another backend.
        RuntimeError
            If a graph is being recorded in this thread, for a batch on a GPU.
        """
        if backend is not None and chosen_backend(backend) != batch.backend:
            raise ValueError(f"backend: got {backend!r}, expected {batch.backend!r}, where the {self.what} live")
        if self.upper and batch.triangle == "lower":
            raise ValueError(
                f"upper: got True, expected False for {self.what} whose lower triangle alone has a meaning"
            )
        if batch.backend != "cpu" and current_recorder() is not None:
            raise RuntimeError(
                f"{self.argument}: a graph is being recorded in this thread, and a batch of {self.what} may not be "
                "there before that is launched: solve after it"
            )
        return self._replace(upper=not self.general and (self.upper or batch.triangle == "upper"))

    def check_array(self, n: int, dtype: np.dtype[Any]) -> None:
        """Refuse a spec or a math that is not for matrices in an array."""
        check_array_spec(n, dtype_name(dtype), self.upper, self.spec, self.math, self.op)

    def check_general_order(self, n: int) -> None:
        """Refuse general matrices that are too large for a GPU."""
        if self.general and n > LARGEST:
            raise ValueError(
                f"{self.argument}: got {self.what} of order {n}, expected at most {LARGEST} for general matrices on "
                "a GPU: copy them to the host, where LAPACK takes larger ones"
            )

    def check_no_stream(self, where: str) -> None:
        """Refuse a stream where there is none."""
        if self.stream is not None:
            raise ValueError(f"stream: got {self.stream!r}, expected None: {where}")


class Solved(NamedTuple):
    """Solutions and, of matrices, the info of each and what was added to them, if they may be repaired."""

    x: Any
    info: Any
    added: Any = None
