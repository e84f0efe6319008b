"""Samples of solves by given factors, by the rules of the house: warm code, cold data, checked results."""

from __future__ import annotations

from functools import partial

import numpy as np

from batchchol.backends import Backend
from batchchol.backends.base import check_protocol, check_runnable
from batchchol.batches.batch import Batch
from batchchol.measure.timing import CACHES, Sample, timed
from batchchol.operations import potrs
from kernelgen import KernelSpec, Layout


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
    sets = -(-CACHES * backend.last_level_cache_bytes() // (l.nbytes + 2 * given.nbytes))
    factors = [l, *(l.copy() for _ in range(sets - 1))]
    columns, solutions = ([backend.place(given) for _ in factors] for _ in range(2))
    solver, count = backend.solver(spec), threads or backend.threads
    calls = [partial(solver, *each, count) for each in zip(factors, columns, solutions, strict=True)]
    seconds, conditions = timed(backend, calls, samples, chosen)
    solved = backend.host(solutions[(samples - 1) % sets])
    here = l.backend == "cpu"
    on_host = l if here else Batch(backend.host(l.to_dense()), l.n, l.batch, Layout.canonical(), l.triangle)
    ratio = potrs.check(on_host, given, solved, spec.problem.math, upper=spec.problem.uplo == "upper")
    return Sample(tuple(seconds), ratio, chosen, backend.floor(chosen), conditions)
