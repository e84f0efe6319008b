"""Everyone who is timed side by side: one interface for the library's own kernels and for its peers.

All get the same matrices, the same clock (one call, from its start to its end), cold data and the same check.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

import batchchol
from batchchol.api import cholesky
from batchchol.backends import Backend
from batchchol.batches.batch import Batch
from batchchol.batches.host_memory import aligned_empty, last_level_cache_bytes
from batchchol.defaults.lookup import default_spec
from batchchol.errors import ResidualError
from batchchol.operations import residual
from kernelgen import KernelSpec, Layout

THREADS_VARIABLE = "BATCHCHOL_THREADS"
# All that are compared are of this accuracy class; a speedup between classes means nothing.
MATH = "ieee"


@dataclass(frozen=True)
class Outcome:
    """One timed factorization: seconds by the clock, the factors, and the info of each matrix."""

    seconds: float
    factors: Batch
    info: NDArray[np.int32]


@dataclass(frozen=True)
class Contender:
    """Someone who factors a workload.

    Attributes
    ----------
    name, version : str
        Who, and which.
    spec : str
        The kernel, or the function that is called.
    layout : Layout
        Where the matrices lie: it decides the compulsory bytes.
    sets : int
        How many sets of buffers there are; together they exceed the last-level cache by far.
    run : callable
        Factor set i once.
    restore : callable, optional
        Undo all factorizations that overwrote their input: outside the clock, before set 0 is used again.
    limit : callable
        A context that holds the library to its number of threads.
    """

    name: str
    version: str
    spec: str
    layout: Layout
    sets: int
    run: Callable[[int], Outcome]
    restore: Callable[[], None] | None = None
    limit: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True)
class Workload:
    """SPD matrices to factor, (batch, n, n), float32 or float64, C-contiguous.

    `inputs` holds them; where `cold`, also copies of them that with as many results exceed four times the
    last-level cache: whoever goes round them finds nothing in the cache. Not to be written to.
    """

    dense: NDArray[np.floating]
    cold: bool = True
    inputs: tuple[NDArray[np.floating], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        copies = (_copy(self.dense) for _ in range(self.sets(2 * self.dense.nbytes) - 1))
        object.__setattr__(self, "inputs", (self.dense, *copies))

    @property
    def n(self) -> int:
        return int(self.dense.shape[-1])

    @property
    def batch(self) -> int:
        return len(self.dense)

    @property
    def dtype(self) -> str:
        return self.dense.dtype.name

    def sets(self, bytes_per_call: int) -> int:
        """How many sets of buffers it takes: together four times the last-level cache if cold, as in `timing`."""
        return -(-4 * last_level_cache_bytes() // bytes_per_call) if self.cold else 1


def touched(shape: tuple[int, ...], dtype: str, purpose: str) -> NDArray[np.floating]:
    """An aligned array whose pages are there: a first touch is not part of a factorization."""
    array = aligned_empty(shape, dtype, purpose)
    array[...] = 0
    return array


def canonical(data: NDArray[np.floating], order: str = "row") -> Batch:
    """Dense factors (batch, n, n) as a batch, without a copy."""
    return Batch(data, data.shape[-1], len(data), Layout.canonical(order), "lower")


def verify(contender: Contender, outcome: Outcome, a: NDArray[np.floating]) -> float:
    """The largest residual ratio seen.

    Raises
    ------
    ResidualError
        If the result is wrong, naming whose it is: no number of this contender may be kept.
    """
    try:
        return residual.check(canonical(a), outcome.factors, outcome.info, MATH)
    except ResidualError as error:
        raise ResidualError(f"{contender.name} ({contender.spec}, {contender.version}): {error}") from error


def kernels(backend: Backend, specs: Sequence[KernelSpec], workload: Workload, threads: int) -> Iterator[Contender]:
    """The library's kernels of one layout on packed batches, out of place; they share their buffers."""
    layout = _layout_of(specs[0])
    first = Batch.from_dense(workload.dense, layout)
    copies = workload.sets(2 * first.nbytes) - 1
    inputs = [first, *(Batch(_copy(first.data), first.n, first.batch, layout) for _ in range(copies))]
    outputs = [Batch(_copy(first.data), first.n, first.batch, layout, "lower") for _ in inputs]
    for spec in specs:
        yield _kernel(backend, spec, inputs, outputs, threads)


def _kernel(
    backend: Backend, spec: KernelSpec, inputs: Sequence[Batch], outputs: Sequence[Batch], threads: int
) -> Contender:
    kernel = backend.kernel(spec)
    info = backend.info(inputs[0], spec)

    def run(index: int) -> Outcome:
        call = partial(kernel, inputs[index], outputs[index], info, threads)
        (seconds,) = backend.seconds([call], samples=1, protocol="single", warm_up=0)
        return Outcome(seconds, outputs[index], info)

    return Contender("batchchol factor", _version(backend), spec.name, inputs[0].layout, len(inputs), run)


def whole_call(backend: Backend, workload: Workload, threads: int) -> Contender:
    """`batchchol.cholesky`, from NumPy array to NumPy array, by the library's own choice of a spec."""
    spec = default_spec(workload.n, target=backend.target, dtype=workload.dtype, layout="canonical", order="row")
    info = np.zeros(workload.batch, np.int32)

    def run(index: int) -> Outcome:
        start = time.perf_counter()
        factors = cholesky(workload.inputs[index], backend=backend.name)
        seconds = time.perf_counter() - start
        return Outcome(seconds, canonical(factors), info)

    return Contender(
        "batchchol cholesky",
        _version(backend),
        spec.name,
        Layout.canonical(),
        len(workload.inputs),
        run,
        limit=lambda: _own_threads(threads),
    )


@contextmanager
def _own_threads(threads: int) -> Iterator[None]:
    """Hold `cholesky` to a number of threads: it has no such argument, as it is NumPy's signature."""
    before = os.environ.get(THREADS_VARIABLE)
    os.environ[THREADS_VARIABLE] = str(threads)
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS_VARIABLE]
        else:
            os.environ[THREADS_VARIABLE] = before


def _version(backend: Backend) -> str:
    return f"batchchol {batchchol.__version__}, {backend.device()['compiler']}"


def _layout_of(spec: KernelSpec) -> Layout:
    return Layout(spec.layout, spec.lanes if spec.layout == "chunked" else None, spec.order)


def _copy(array: NDArray[np.floating]) -> NDArray[np.floating]:
    copy = aligned_empty(array.shape, array.dtype, "a copy of the batch, so that every call finds its data cold")
    copy[...] = array
    return copy
