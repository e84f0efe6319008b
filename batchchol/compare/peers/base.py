"""What a peer is: an optional library that computes the same operations on the same matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from batchchol.backends import Availability
from batchchol.compare.contenders import Arena, BaseArena, Contender
from kernelgen.operations import OPERATIONS

_POINTER_BYTES = 8


@dataclass(frozen=True)
class Peer:
    """One way into an optional library, on one backend.

    Attributes
    ----------
    name, backend : str
        What it is called, and the backend whose batches it works on.
    version : callable
        Says which is installed; an error says why none can be used.
    ways : mapping of str to callable
        By operation, what makes ready to compute it in an arena, in all the ways of which the fastest is to count.
    prepare : callable, optional
        Does ahead, for all orders, a dtype, a number of right-hand sides that matrices are factored and solved for
        (else 0) and an operation, what takes long.
    limit : callable
        A context that holds the library to a number of threads.
    missing, hint : str
        What is said of a library that cannot be used, of which "{error}" is replaced, and how to get it.
    """

    name: str
    backend: str
    version: Callable[[], str]
    ways: Mapping[str, Callable[[Any], Sequence[Contender]]]
    prepare: Callable[[Iterable[int], str, int, str], None] | None = None
    limit: Callable[[int], AbstractContextManager[object]] = nullcontext
    missing: str = "{error}"
    hint: str = ""

    def contenders(self, arena: BaseArena) -> Sequence[Contender]:
        """Its ways of computing the operation of an arena; only to be called where `survey` found them."""
        return self.ways[arena.op](arena)

    def survey(self, op: str = Arena.op) -> Availability:
        """Whether it has the operation and is installed, which version (`detail`), and else how to get it."""
        if op not in self.ways:
            reason = f"it takes no part in {op}: compare calls no function of it for {OPERATIONS[op].does}"
            return Availability(self.name, False, reason)
        try:
            return Availability(self.name, True, self.version())
        except (ImportError, AttributeError, OSError, RuntimeError) as error:
            return Availability(self.name, False, self.missing.format(error=error), self.hint)


def lapack_name(routine: str, dtype: str) -> str:
    """LAPACK's name of a routine for a dtype, such as "spotrf"."""
    return {"float32": "s", "float64": "d"}[dtype] + routine


def blas_limit(threads: int) -> AbstractContextManager[object]:
    """Hold the BLAS libraries of this process to a number of threads."""
    limit: AbstractContextManager[object] = threadpool_limits(threads, user_api="blas")
    return limit


def on_pointers(arena: Arena, spec: str, factor: Callable[[int, int], None], order: str = "col") -> Contender:
    """A routine on an array of pointers made ahead: lower triangles, by default column-major, in place, on a GPU.

    `factor` is called with the addresses of a set's first pointer and of its info.
    """
    pointers, info = pointers_to(arena, arena.room.data), arena.info()

    def call(index: int) -> None:
        # Looked up here, so that the call holds on to the pointers.
        factor(first_pointer(arena, pointers, index), int(info.gpudata))

    return Contender(
        spec, arena.calls(call), lambda index: arena.result(index, info=info, order=order), restore=arena.restore
    )


LOOPED = 64
"""Matrices of a set that a routine for one matrix is called for in a loop at most."""


def in_a_loop(
    arena: Arena, spec: str, each: Sequence[Callable[[], object]], info: Any, order: str = "col", **how: Any
) -> Contender:
    """A routine for one matrix, called for those of a set in turn, in place; `each` has a call for every matrix.

    `info` is the device array that they write; None if they raise errors. `how` are further attributes.
    """

    def call(index: int) -> None:
        for factor in each[index * arena.batch : (index + 1) * arena.batch]:
            factor()

    def result(index: int) -> Any:
        return arena.result(index, info=info, order=order)

    return Contender(spec, arena.calls(call), result, **{"restore": arena.restore, **how})


def addresses_of(arena: Arena) -> list[int]:
    """The addresses of all matrices of an arena's room."""
    room: Any = arena.room.data
    return [int(room.gpudata) + member * arena.matrix_bytes for member in range(arena.sets * arena.batch)]


def pointers_to(arena: BaseArena, array: Any) -> Any:
    """The addresses of the parts of a device array that belong to each matrix of an arena, on the device."""
    count = int(array.shape[0])
    return arena.upload(int(array.gpudata) + array.nbytes // count * np.arange(count, dtype=np.uint64))


def first_pointer(arena: BaseArena, pointers: Any, index: int) -> int:
    """The address of the first of the pointers of set `index`."""
    return int(pointers.gpudata) + index * _POINTER_BYTES * arena.batch
