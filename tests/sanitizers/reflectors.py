"""QR factorizations under compute-sanitizer: one thread to a matrix and several, every operation in turns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from batchchol.backends import lapack_qr
from batchchol.operations.qr import BOUND, factor_ratios, orthogonal, orthogonality_ratios
from kernelgen import KernelSpec, Problem, SpecError, ThreadSchedule
from kernelgen.gpu import WARP
from kernelgen.schedules.stages.reflectors import SPLITS

from .cases import LAYOUTS, ORDERS, SMALL_BATCHES, Case

OPERATIONS = ("geqrf", "orgqr", "ormqr")
NRHS = 3


def reflections() -> Iterator[Case]:
    """Every order by each operation: by a thread where it has registers for it in odd turns, else by few or more."""
    for turn in range(len(OPERATIONS) * len(ORDERS)):
        op, n, layout = OPERATIONS[turn % 3], ORDERS[turn // 3], LAYOUTS[turn % len(LAYOUTS)]
        problem = Problem(n, ("float32", "float64")[turn // 2 % 2], op=op, math=("ieee", "fast")[turn // 4 % 2])
        splits = (None, 2, *SPLITS) if turn % 2 else (2, *SPLITS)[turn // 2 % 3 :]
        # Columns shown in shared memory, where lanes can have whole ones, in every other case.
        ways = [*product(splits, (True,) * (turn // 2 % 2)), *product(splits, (None,))]
        for split, staged in ways:
            try:
                # As many matrices as are read together, and fewer.
                threads = 8 * split if split and split <= WARP and turn % 2 else None
                pdl = turn // 3 % 2 > 0
                schedule = ThreadSchedule(1, "right", "full", staged=staged, split=split, threads=threads, pdl=pdl)
                spec = KernelSpec(problem, layout.kind, layout.order, schedule, "cuda")
            except SpecError:
                continue
            yield Case(spec, layout, SMALL_BATCHES[turn % len(SMALL_BATCHES)])
            break


def check_reflection(backend: Any, case: Case, a: Any) -> None:
    """Factors of matrices, or what LAPACK's are made into, in memory of its own size, checked."""
    problem, kernel, (batch, n, _) = case.spec.problem, backend.kernel(case.spec), a.shape
    bound = BOUND[problem.math]
    if problem.op == "geqrf":
        given, tau = backend.from_dense(a, case.layout), backend.place(np.full((batch, n), np.nan, a.dtype))
        factors = given.like()
        kernel(given, factors, tau, threads=1)
        made, scalars = backend.host(factors.to_dense()), backend.host(tau)
        assert factor_ratios(a, made, scalars).max() <= bound, case
        assert orthogonality_ratios(orthogonal(made, scalars), a.dtype).max() <= bound, case
        return
    factors, scalars = np.empty_like(a), np.empty((batch, n), a.dtype)
    lapack_qr.geqrf(a, factors, scalars)
    given, tau, q = backend.from_dense(factors, case.layout), backend.place(scalars), orthogonal(factors, scalars)
    near = 4 * bound * (n + 2) * float(np.finfo(a.dtype).eps)
    if problem.op == "orgqr":
        made = given.like()
        kernel(given, tau, made, threads=1)
        assert np.abs(backend.host(made.to_dense()) - q).max() <= near, case
        return
    b = np.random.default_rng(batch).uniform(-1, 1, (batch, n, NRHS)).astype(a.dtype)
    x = backend.place(np.full_like(b, np.nan))
    kernel(given, tau, backend.place(b), x, threads=1)
    assert np.abs(backend.host(x) - q.swapaxes(-1, -2) @ b).max() <= near * np.sqrt(n), case
