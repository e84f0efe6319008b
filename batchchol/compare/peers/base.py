"""What a peer is: an optional library that factors the same matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from batchchol.backends import Availability
from batchchol.compare.contenders import Arena, Contender

_POINTER_BYTES = 8


@dataclass(frozen=True)
class Peer:
    """One way into an optional library, on one backend.

    Attributes
    ----------
    name, backend : str
        What it is called, and the backend whose batches it factors.
    version : callable
        Says which is installed; an error says why none can be used.
    contenders : callable
        Makes ready to factor the matrices of an arena, in all the ways of which the fastest is to count; it may only
        be called where `survey` found the library.
    prepare : callable, optional
        Does ahead, for all orders, what takes long.
    limit : callable
        A context that holds the library to a number of threads.
    missing, hint : str
        What is said of a library that cannot be used, of which "{error}" is replaced, and how to get it.
    """

    name: str
    backend: str
    version: Callable[[], str]
    contenders: Callable[[Arena], Sequence[Contender]]
    prepare: Callable[[Iterable[int], str], None] | None = None
    limit: Callable[[int], AbstractContextManager[object]] = nullcontext
    missing: str = "{error}"
    hint: str = ""

    def survey(self) -> Availability:
        """Whether it is installed, which version (`detail`), and else how to get it."""
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


def on_pointers(arena: Arena, spec: str, factor: Callable[[int, int], None]) -> Contender:
    """A routine on an array of pointers that is there before: column-major lower triangles, in place, on a GPU.

    `factor` is called with the addresses of a set's first pointer and of its info.
    """
    addresses = arena.room.address + arena.matrix_bytes * np.arange(arena.room.batch, dtype=np.uint64)
    pointers, info = arena.upload(addresses), arena.info()

    def call(index: int) -> None:
        # Looked up here, so that the call holds on to the pointers.
        factor(int(pointers.gpudata) + index * _POINTER_BYTES * arena.batch, int(info.gpudata))

    return Contender(
        spec, arena.calls(call), lambda index: arena.result(index, info=info, order="col"), restore=arena.restore
    )
