"""Samples of solves by given factors, by the rules of the house: warm code, cold data, checked results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.backends import Backend
from batchchol.backends.base import check_protocol, check_runnable
from batchchol.batches.batch import Batch
from batchchol.measure.timing import CACHES, Sample, timed
from batchchol.operations import potrs
from kernelgen import KernelSpec


def sample_solve(
    backend: Backend,
    spec: KernelSpec,
    l: Batch,
    nrhs: int = 1,
    *,
    samples: int = 20,
    threads: int | None = None,
    protocol: str | None = None,
) -> Sample:
    """Time `samples` solves by a batch of factors for random right-hand sides, cold, and check the solutions.

    Calls rotate over copies that together exceed four times the last-level cache.

    Raises
    ------
    ValueError
        If the spec is not of a solve by these factors.
    OutOfMemory
        If the copies would not fit.
    ResidualError
        If a solution is wrong; no number is returned then.
    """
    check_runnable(backend, spec, l, "potrs")
    chosen = check_protocol(backend, protocol)
    given = np.random.default_rng(0).standard_normal((l.batch, l.n, nrhs)).astype(l.dtype)
    buffers, kernel, count = rotating_buffers(backend, l, given), backend.kernel(spec), threads or backend.threads
    calls = [partial(kernel, *each, threads=count) for each in buffers]
    seconds, conditions = timed(backend, calls, samples, chosen)
    solved = buffers[(samples - 1) % len(buffers)]
    upper = spec.problem.uplo == "upper"
    ratio = potrs.check(*solved, spec.problem.math, upper=upper, host=backend.host)
    return Sample(tuple(seconds), ratio, chosen, backend.floor(chosen), conditions)


def rotating_buffers(backend: Backend, l: Batch, b: NDArray[Any]) -> Sequence[tuple[Batch, Any, Any]]:
    """Factors, right-hand sides, and as room for solutions copies of those, for cold calls.

    Raises
    ------
    OutOfMemory
        If they would not fit.
    """
    sets = -(-CACHES * backend.last_level_cache_bytes() // (l.nbytes + 2 * b.nbytes))
    return [(l.copy() if index else l, backend.place(b), backend.place(b)) for index in range(sets)]
