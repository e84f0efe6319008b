"""Samples of solves and of what else is done with factors: warm code, cold data, checked results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.backends import Backend
from batchchol.backends.base import check_protocol, check_runnable
from batchchol.batches.batch import Batch
from batchchol.measure.timing import CACHES, Sample, timed
from batchchol.operations import byproducts, logdet, lu, poinv, posv, potri, potrs, qr
from kernelgen import KernelSpec

CHECKS: Mapping[str, Callable[..., float]] = MappingProxyType(
    {
        "potrs": potrs.check,
        "posv": posv.check,
        "posvdet": byproducts.check_solutions,
        "potri": potri.check,
        "potridet": byproducts.check_inverses_by_factors,
        "pptri": partial(potri.check_packed, potri.check),
        "poinv": poinv.check,
        "ppinv": partial(potri.check_packed, poinv.check),
        "poinvdet": byproducts.check_inverses,
        "logdet": logdet.check,
        "gesv": lu.check,
        "getrf": lu.check_factors,
        "geqrf": qr.check_factors,
        "gels": qr.check,
    }
)
"""By operation, what checks the arguments of a call that was made, in their order."""


def sample_solve(
    backend: Backend,
    spec: KernelSpec,
    matrices: Batch,
    nrhs: int = 1,
    *,
    samples: int = 20,
    threads: int | None = None,
    protocol: str | None = None,
) -> Sample:
    """Time `samples` solves for random right-hand sides, inversions, determinants or QR factorizations, cold; check.

    By a batch of factors or, where the spec is of an operation that factors, of matrices. Calls rotate over copies
    that together exceed four times the last-level cache.

    Raises
    ------
    ValueError
        If the spec is not of such an operation on these matrices.
    OutOfMemory
        If the copies would not fit.
    ResidualError
        If a result is wrong; no number is returned then.
    """
    asked = getattr(spec, "problem", None)
    op = asked.op if asked is not None and asked.op in CHECKS else "potrs"
    check_runnable(backend, spec, matrices, op)
    chosen = check_protocol(backend, protocol)
    if spec.problem.operation.has_columns:
        given = np.random.default_rng(0).standard_normal((matrices.batch, matrices.n, nrhs)).astype(matrices.dtype)
        buffers: Sequence[tuple[Any, ...]] = rotating_buffers(backend, matrices, given)
    elif op == "getrf":
        buffers = buffers_with_factors(backend, matrices)
    else:
        buffers = buffers_with_room(backend, spec, matrices)
    count = threads or backend.threads
    status = info_of(backend, spec, matrices)
    calls = [partial(backend.kernel(spec), *each, *status, threads=count) for each in buffers]
    seconds, conditions = timed(backend, calls, samples, chosen)
    solved = buffers[(samples - 1) % len(buffers)]
    upper = spec.problem.uplo == "upper"
    ratio = CHECKS[op](*solved, *status, spec.problem.math, upper=upper, host=backend.host)
    return Sample(tuple(seconds), ratio, chosen, backend.floor(chosen), conditions)


def info_of(backend: Backend, spec: KernelSpec, matrices: Batch) -> tuple[Any, ...]:
    """The last arguments of a kernel: room for logarithms of determinants as by-products, and for an info."""
    operation = spec.problem.operation
    logarithms = (_room(backend, (matrices.batch,), matrices),) if operation.multiplies_besides else ()
    return (*logarithms, *((backend.info(matrices, spec),) if operation.has_info else ()))


def room_for(backend: Backend, spec: KernelSpec, matrices: Batch) -> Any:
    """Room for what an operation without right-hand sides makes of each matrix, its inverse or a number."""
    if spec.problem.operation.packs:
        return backend.empty(matrices.n, matrices.batch, matrices.layout, matrices.dtype).marked(spec.problem.uplo)
    shape = (matrices.batch, matrices.n, matrices.n) if spec.problem.operation.inverts else (matrices.batch,)
    return _room(backend, shape, matrices)


def _room(backend: Backend, shape: tuple[int, ...], matrices: Batch) -> Any:
    return backend.place(np.full(shape, np.nan, matrices.dtype))


def results_for(backend: Backend, spec: KernelSpec, matrices: Batch) -> tuple[Any, ...]:
    """Room for all that an operation without right-hand sides makes, an info aside: of geqrf factors and tau."""
    if spec.problem.operation.rectangular:
        return matrices.like(), backend.place(np.full((matrices.batch, matrices.n), np.nan, matrices.dtype))
    return (room_for(backend, spec, matrices),)


def buffers_with_room(backend: Backend, spec: KernelSpec, matrices: Batch) -> Sequence[tuple[Any, ...]]:
    """Matrices or factors, and room for results, for cold calls; errors are those of `rotating_buffers`."""
    first = results_for(backend, spec, matrices)
    nbytes = matrices.nbytes + sum(each.nbytes for each in first)
    sets = -(-CACHES * backend.last_level_cache_bytes() // nbytes)
    return [(matrices, *first), *((matrices.copy(), *results_for(backend, spec, matrices)) for _ in range(1, sets))]


def buffers_with_factors(backend: Backend, matrices: Batch) -> Sequence[tuple[Batch, Batch, Any]]:
    """Matrices, and room for LU factors and pivots, for cold calls; errors are those of `rotating_buffers`."""
    sets = -(-CACHES * backend.last_level_cache_bytes() // (2 * matrices.nbytes))
    pivots = np.zeros((matrices.batch, matrices.n), np.int32)
    return [
        (matrices.copy() if index else matrices, matrices.like(), backend.place(pivots.copy()))
        for index in range(sets)
    ]


def rotating_buffers(backend: Backend, matrices: Batch, b: NDArray[Any]) -> Sequence[tuple[Batch, Any, Any]]:
    """Matrices or factors, right-hand sides, and as room for solutions copies of those, for cold calls.

    Raises
    ------
    OutOfMemory
        If they would not fit.
    """
    sets = -(-CACHES * backend.last_level_cache_bytes() // (matrices.nbytes + 2 * b.nbytes))
    return [(matrices.copy() if index else matrices, backend.place(b), backend.place(b)) for index in range(sets)]
