"""What is compared: what a case gives to an operation on a backend, and calls that compute it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from batchchol.backends import Backend
from batchchol.backends.cuda import memory
from batchchol.batches.batch import Batch
from batchchol.errors import BatchcholError
from batchchol.measure.stopwatch import FOREIGN_CALLS
from batchchol.measure.timing import CACHES, rotating_buffers
from kernelgen import KernelSpec, Layout

# How calls were timed on a GPU: in its file, and beside every number.
QUEUED = "queued: bursts between two events on the default stream, behind a gate where launching takes longer"
WAITING = "single: events on the default stream around a call that waits for its own stream"
BOTH, SINGLE = ("queued", "single"), ("single",)

# What an optional library may fail with without ending the comparison of the others.
PEER_ERRORS = (
    BatchcholError,
    ImportError,
    AttributeError,
    OSError,
    RuntimeError,
    MemoryError,
    TypeError,
    ValueError,
)

Call = Callable[[], None]


class Result(Protocol):
    """What a call made, with what it was given."""

    @property
    def layout(self) -> Layout:
        """The layout of the factors, which were written or read."""

    def ratio(self, backend: Backend, math: str) -> float:
        """The largest residual ratio.

        Raises
        ------
        ResidualError
            If it is over the bound of an accuracy class.
        """


@dataclass(frozen=True)
class Factored:
    """A finished factorization: the matrices, their factors, and the info of each where the backend has it.

    `info` is None of a library that has none: its factors are then not finite where it failed.
    """

    a: Batch
    l: Batch
    info: Any = None

    @property
    def layout(self) -> Layout:
        return self.l.layout

    def ratio(self, backend: Backend, math: str) -> float:
        info = backend.place(np.zeros(self.a.batch, np.int32)) if self.info is None else self.info
        return backend.check(self.a, self.l, info, math)


@dataclass(frozen=True)
class Contender:
    """A way of computing an operation on all that is in an arena.

    Attributes
    ----------
    spec : str
        The kernel, or the function that is called.
    calls : sequence of callables
        Each works on one set of buffers; together they exceed the last-level cache by far.
    result : callable
        What call i made.
    restore : callable, optional
        Makes all buffers inputs again, for calls that overwrite theirs.
    poison : callable, optional
        Makes NaN of what calls are to write, before they are timed, where they have room of their own for it.
    forget : callable, optional
        Frees what the latest call made, outside the clock: of calls on the host that return new arrays.
    protocols : tuple of str
        How it can be timed.
    most : int
        Calls of a burst at most.
    math : str, optional
        The accuracy class whose bound its results are held to; by default the arena's.
    """

    spec: str
    calls: Sequence[Call]
    result: Callable[[int], Result]
    restore: Call | None = None
    poison: Call | None = None
    forget: Call | None = None
    protocols: tuple[str, ...] = BOTH
    most: int = FOREIGN_CALLS
    math: str | None = None


@dataclass(frozen=True)
class Entrant:
    """A library, or a part of this one, that takes part in a comparison.

    Attributes
    ----------
    name, version : str
        Who, and which.
    make : callable
        The ways in which it computes the operation of an arena, of which the fastest counts.
    specs : tuple of KernelSpec
        This library's kernels among them; empty of a peer.
    tolerated : tuple of exception types
        The errors that keep it out of a case without ending the comparison.
    limit : callable
        A context that holds it to a number of the host's threads.
    """

    name: str
    version: str
    make: Callable[[Any], Sequence[Contender]]
    specs: tuple[KernelSpec, ...] = ()
    tolerated: tuple[type[Exception], ...] = PEER_ERRORS
    limit: Callable[[int], AbstractContextManager[object]] = nullcontext


class Latest:
    """Calls of a function that returns new arrays; `value` is what the latest of them returned."""

    def __init__(self, function: Callable[[Any], Any], inputs: Iterable[Any]) -> None:
        self.value: Any = None
        self.calls = [partial(self._call, function, a) for a in inputs]

    def _call(self, function: Callable[[Any], Any], a: Any) -> None:
        self.value = function(a)

    def forget(self) -> None:
        """Free it."""
        self.value = None


def poison(batch: Batch) -> None:
    """Fill the array of a batch with NaN: what is found there later is what calls have written."""
    if isinstance(batch.data, np.ndarray):
        batch.data.fill(np.nan)
    else:
        memory.poison(batch.data)


@dataclass(frozen=True)
class BaseArena:
    """What an operation is given on a backend: sets of `batch` matrices, and room for the results of all sets.

    The triangles of all sets together, without the room, exceed four times the last-level cache if `cold`: calls that
    go round them find nothing in the cache, although some of them touch nothing else. Arrays are the backend's, of
    shape (batch, n, n). They are made at their first use.

    Attributes
    ----------
    op : str
        The operation.
    recipe, n, batch, dtype
        What the SPD matrices are.
    math : str
        The accuracy class whose bound results are held to by default.
    threads : int
        Threads of the host that a call may use.
    nrhs : int
        Right-hand sides of each matrix, where the operation has any.
    """

    op: ClassVar[str]
    backend: Backend
    recipe: str
    n: int
    batch: int
    dtype: str
    math: str = "ieee"
    cold: bool = True
    threads: int = 1
    nrhs: int = 1

    @property
    def matrix_bytes(self) -> int:
        return self.n**2 * np.dtype(self.dtype).itemsize

    @property
    def triangle_bytes(self) -> int:
        """Bytes of a matrix's triangle, the least that is touched."""
        return self.n * (self.n + 1) // 2 * np.dtype(self.dtype).itemsize

    @property
    def sets(self) -> int:
        return self.inputs.batch // self.batch

    def changed(self, **changes: Any) -> Self:
        """The same arrays, if there are any yet, for calls on other threads or in sets of another size."""
        # Not `replace`, which would have the arrays made again.
        changed = copy(self)
        changed.__dict__.update(changes)
        return changed

    @cached_property
    def inputs(self) -> Batch:
        """The matrices of all sets, canonical. Not to be written to.

        Raises
        ------
        OutOfMemory
            If they would not fit.
        """
        cache = CACHES * self.backend.last_level_cache_bytes()
        sets = -(-cache // (self.batch * self.triangle_bytes)) if self.cold else 1
        made = self.backend.empty(self.n, sets * self.batch, Layout.canonical(), self.dtype)
        self.backend.fill(made, self.recipe)
        return made

    def input(self, index: int) -> Any:
        """The matrices of set `index`, not to be written to."""
        return self._of_set(self.inputs.data, index)

    def each(self, array: Callable[[int], Any]) -> list[Any]:
        """Such as `input`, of every set."""
        return [array(index) for index in range(self.sets)]

    def calls(self, call: Callable[[int], None]) -> list[Call]:
        """The calls of a function of a set's index."""
        return [partial(call, index) for index in range(self.sets)]

    def upload(self, array: NDArray[Any]) -> Any:
        """An array of the host where the backend's libraries use it: on a CPU, itself."""
        return array if self.backend.name == "cpu" else memory.to_device(array, "an array of the comparison")

    def info(self) -> Any:
        """Room for the info of one set: -1 until a call has written it."""
        return self.upload(np.full(self.batch, -1, np.int32))

    def verify(self, contender: Contender, call: int) -> float:
        """The largest residual ratio of a call that was made.

        Raises
        ------
        ResidualError
            If the result is wrong: no number of this contender may be kept.
        """
        return contender.result(call).ratio(self.backend, contender.math or self.math)

    def _of_set(self, array: Any, index: int) -> Any:
        return array[index * self.batch : (index + 1) * self.batch]


@dataclass(frozen=True)
class FactorArena(BaseArena):
    """Matrices on a backend, and room for their factors."""

    @cached_property
    def room(self) -> Batch:
        """Room for the factors of all sets, made at its first use; it holds the matrices until then."""
        return self.inputs.copy()

    def restore(self) -> None:
        """Copy all matrices into the room for factors, for calls that overwrite their input."""
        self.room.put(0, self.inputs.data)

    def output(self, index: int) -> Any:
        """The room for the factors of set `index`."""
        return self._of_set(self.room.data, index)


@dataclass(frozen=True)
class Arena(FactorArena):
    """SPD matrices on a backend, and room for their factors."""

    op: ClassVar[str] = "potrf"

    def poison(self) -> None:
        """Fill the room for factors with NaN, for calls that write into it."""
        poison(self.room)

    def result(self, index: int, factors: Any = None, info: Any = None, order: str = "row") -> Factored:
        """The result of set `index`: lower factors of an order, by default in the room for them."""
        layout, found = Layout.canonical(order), self.output(index) if factors is None else factors
        # The matrices are symmetric: rows are columns.
        a = type(self.inputs)(self.input(index), self.n, self.batch, layout)
        return Factored(a, type(self.inputs)(found, self.n, self.batch, layout, "lower"), info)

    def packed(self, layout: Layout) -> Sequence[tuple[Batch, Batch]]:
        """The first set in another layout: pairs of input and output, cold or hot as the arena is."""
        batch = self.backend.from_dense(self.input(0), layout)
        return rotating_buffers(self.backend, batch) if self.cold else [(batch, batch.copy())]
