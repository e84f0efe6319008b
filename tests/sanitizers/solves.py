"""Solves that run under compute-sanitizer: each choice in turns, odd orders, ragged batches, any right-hand sides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from batchchol.api.factors.device_repairs import Repair
from batchchol.backends.base import Form
from batchchol.defaults.rules.fused import ONE_KERNEL
from batchchol.measure.solves import CHECKS, info_of, room_for
from batchchol.operations import logdet
from batchchol.operations.lu import check_factors as check_lu_factors
from kernelgen import (
    BlockSchedule,
    KernelSpec,
    Layout,
    Problem,
    SpecError,
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
    WholeSchedule,
)
from kernelgen.gpu import WARP
from kernelgen.schedules.stages.general import least_split
from kernelgen.schedules.strip import TILE

from .cases import BATCHES, LAYOUTS, ORDERS, SMALL_BATCHES, Case

NRHS = (1, 3, 2, 9)
# Threads to a matrix, rows of a step, right-hand sides at a time, threads of a block.
STAGED = ((1, 1, 2, 32), (2, 2, 4, 64), (4, 4, 2, 32), (8, 2, 1, 96), (16, 4, 2, 32), (32, 4, 4, 128))
# Threads to a general matrix in shared memory.
PANELS = (32, 64, 128, 96)
# Matrices and warps of a team, teams of a block.
TEAMS = ((1, 1, 2), (2, 1, 4), (4, 1, 1), (1, 1, 8), (1, 2, 1))
# Lanes of a block, groups that have panels at a time, columns that are fetched early, spare warps, folded ones, and
# columns that are ahead.
PIPELINES = (
    *((32, 1, 0, 0, 0, 1), (16, 2, 1, 0, 0, 0), (12, 1, 2, 1, 0, 0)),
    *((8, 2, 0, 0, 1, 2), (4, 1, 1, 0, 0, 0), (2, 1, 0, 0, 0, 0)),
)
OPERATIONS = ("potrs", "posv")
WITHOUT_COLUMNS = ("logdet", "potri", "poinv", "potridet", "poinvdet", "pptri", "ppinv")


def solves() -> Iterator[Case]:
    """Every order several times, by each operation, as far as its triangles fit shared memory."""
    for turn in range(3 * len(ORDERS) * len(OPERATIONS)):
        op, n, layout = OPERATIONS[turn % 2], ORDERS[turn // 2 % len(ORDERS)], LAYOUTS[turn % len(LAYOUTS)]
        dtype, uplo = ("float32", "float32", "float64")[turn % 3], ("lower", "upper")[turn // 5 % 2]
        problem = Problem(n, dtype, uplo, op, ("ieee", "fast")[turn // 3 % 2])
        for schedule in _schedules(op, turn, n):
            try:
                spec = KernelSpec(problem, layout.kind, layout.order, schedule, "cuda")
            except SpecError:
                continue
            yield Case(spec, layout, BATCHES[turn % len(BATCHES)])
            break
    yield from _by_warps()
    yield from _by_blocks()
    yield from _by_strips()
    yield from _whole()
    yield from _with_determinants()
    yield from _factors_with_determinants()
    yield from _general()
    yield from _by_rows()


def _factors_with_determinants() -> Iterator[Case]:
    """Every order that a thread factors: straight-line code, staged in arrays, and tiles."""
    for turn, n in enumerate(ORDERS):
        layout = LAYOUTS[turn % len(LAYOUTS)]
        problem = Problem(n, ("float32", "float64")[turn // 3 % 2], ("lower", "upper")[turn % 2], "potrfdet")
        full = n <= 17 and turn % 4 != 2
        schedule = ThreadSchedule(
            1 if full else min(4, n),
            unroll="full" if full else "tiles",
            staged=True if full and layout.kind == "canonical" else None,
            threads=(32, 96)[turn // 2 % 2],
            pdl=True if turn // 4 % 2 else None,
        )
        yield Case(KernelSpec(problem, layout.kind, layout.order, schedule, "cuda"), layout, BATCHES[turn % 5])


def _with_determinants() -> Iterator[Case]:
    """Every order that one kernel solves by and finds the determinants of."""
    for turn, n in enumerate(order for order in ORDERS if order <= ONE_KERNEL["float32"]):
        layout = LAYOUTS[turn % len(LAYOUTS)]
        problem = Problem(n, "float32", ("lower", "upper")[turn % 2], "posvdet", ("ieee", "fast")[turn // 2 % 2])
        schedule = next(_schedules("posv", turn, n))
        spec = KernelSpec(problem, layout.kind, layout.order, schedule, "cuda")
        yield Case(spec, layout, BATCHES[turn % len(BATCHES)])


def _general() -> Iterator[Case]:
    """Every order by LU factors, by a thread, several, and warps, by panels too; and by QR factors."""
    for turn, n in enumerate(order for order in ORDERS for _ in range(2)):
        layout = LAYOUTS[turn % len(LAYOUTS)]
        problem = Problem(n, ("float32", "float64")[turn // 2 % 2], op="gesv", math=("ieee", "fast")[turn // 4 % 2])
        panels = turn % 3 == 2
        if panels:
            splits: tuple[int | None, ...] = (PANELS[turn // 3 % len(PANELS)],)
        else:
            splits = (None, 4, 8, 16, 32, 256, 384) if turn % 2 else (1, 2, 8, 32, 160, 480)
        for split in splits:
            threads = (32, 64)[turn // 2 % 2] if split is None or split <= WARP else None
            staged = True if split == 1 or panels else None
            schedule = ThreadSchedule(1, "right", "full", threads=threads, split=split, staged=staged)
            with suppress(SpecError):
                spec = KernelSpec(problem, layout.kind, layout.order, schedule, "cuda")
                yield Case(spec, layout, BATCHES[turn % len(BATCHES)])
                break
        if turn % 2:
            yield from _least_squares(turn, replace(problem, op="gels"), layout)


def _least_squares(turn: int, problem: Problem, layout: Layout) -> Iterator[Case]:
    """By the fewest threads, by lanes with whole columns where they have registers for them, and without those."""
    least = least_split(problem)
    for split, staged in dict.fromkeys(((least, None), (4, None), (16, None), (least, True))):
        threads = (32, 64)[turn // 2 % 2] if split is None or split <= WARP else None
        with suppress(SpecError):
            schedule = ThreadSchedule(1, "right", "full", threads=threads, split=split, staged=staged)
            spec = KernelSpec(problem, layout.kind, layout.order, schedule, "cuda")
            yield Case(spec, layout, BATCHES[turn % len(BATCHES)])


def _by_rows() -> Iterator[Case]:
    """Matrices whose rows several threads have: all of them and not, in whole pieces and not, a warp to one too.

    First arrays, then packed ones, in chunks of as many as a warp has at once and of more.
    """
    for turn, (n, split) in enumerate(((16, 4), (32, 8), (12, 4), (23, 8), (33, 16), (31, 32))):
        layout = Layout.canonical(("row", "col")[turn // 3])
        problem = Problem(n, ("float32", "float64")[turn % 3 // 2], op="gesv", math=("ieee", "fast")[turn % 2])
        schedule = ThreadSchedule(1, "right", "full", threads=(64, 32)[turn % 2], split=split)
        yield _shared(problem, layout, schedule, turn)
    for turn, (n, split, chunk) in enumerate(((16, 4, 8), (32, 8, 4), (18, 4, 32), (21, 8, 4), (33, 16, 2))):
        layout = Layout.chunked(chunk, ("row", "col")[turn == 2])
        problem = Problem(n, ("float32", "float64")[turn == 3], op="gesv", math=("fast", "ieee")[turn % 2])
        schedule = ThreadSchedule(1, "right", "full", threads=(128, 64)[turn % 2], split=split, stride=chunk)
        yield _shared(problem, layout, schedule, turn)


def _shared(problem: Problem, layout: Layout, schedule: ThreadSchedule, turn: int) -> Case:
    spec = KernelSpec(problem, layout.kind, layout.order, schedule, "cuda")
    return Case(spec, layout, BATCHES[(turn + 1) % len(BATCHES)])


def _by_warps() -> Iterator[Case]:
    """Every order twice, factored and solved by, with the largest teams in turns that have registers for it."""
    for turn in range(2 * len(ORDERS)):
        n, layout = ORDERS[turn % len(ORDERS)], LAYOUTS[turn % len(LAYOUTS)]
        problem = Problem(n, "float32", ("lower", "upper")[turn // 3 % 2], "posv", ("ieee", "fast")[turn // 2 % 2])
        for matrices, warps, teams in (*TEAMS[turn % len(TEAMS) :], TEAMS[-1]):
            rhs, few = 8 if warps == 1 and turn % 3 == 2 else None, turn // 5 % 2 == 1 or None
            unroll = ("tiles", "full")[turn // 4 % 2]
            schedule = WarpSchedule(matrices, warps, teams, unroll=unroll, rhs=rhs, few=few)
            try:
                spec = KernelSpec(problem, layout.kind, layout.order, schedule, "cuda")
            except SpecError:
                continue
            yield Case(spec, layout, SMALL_BATCHES[turn % len(SMALL_BATCHES)])
            break


def _by_blocks() -> Iterator[Case]:
    """Every order twice, factored and solved by, with the next of the pipelines that it fits."""
    for turn in range(2 * len(ORDERS)):
        n, layout, nb = ORDERS[turn % len(ORDERS)], LAYOUTS[turn % len(LAYOUTS)], (8, 5, 7, 6)[turn % 4]
        dtype, uplo = ("float32", "float32", "float64")[turn % 3], ("lower", "upper")[turn // 3 % 2]
        problem = Problem(n, dtype, uplo, "posv", ("ieee", "fast")[turn // 2 % 2])
        for lanes, pipeline, *rest in (*PIPELINES[turn % len(PIPELINES) :], PIPELINES[-1]):
            numbers = dict(zip(("early", "spare", "fold", "ahead"), rest, strict=True))
            try:
                schedule = BlockSchedule(min(nb, max(n, 4)), lanes, pipeline=pipeline, **numbers)
                spec = KernelSpec(problem, layout.kind, layout.order, schedule, "cuda")
            except SpecError:
                continue
            yield Case(spec, layout, SMALL_BATCHES[turn % len(SMALL_BATCHES)])
            break


def _by_strips() -> Iterator[Case]:
    """Every order twice, packed and in arrays, with one to three warps that solve, strips with as many places."""
    for turn in range(2 * len(ORDERS)):
        n, layout = ORDERS[turn % len(ORDERS)], (Layout.chunked(4), Layout.canonical())[turn // len(ORDERS)]
        problem = Problem(n, "float32", ("lower", "upper")[turn // 3 % 2], "posv", ("ieee", "fast")[turn // 2 % 2])
        side = -(-n // TILE)
        ahead, rhs = min(turn % 4, side - 1), 1 + turn % 3
        third = min(turn // 2 % 3, ahead)
        schedule = StripSchedule(side + turn % 3, ahead, third=third, rhs=rhs, stride=layout.chunk)
        with suppress(SpecError):
            spec = KernelSpec(problem, layout.kind, layout.order, schedule, "cuda")
            yield Case(spec, layout, SMALL_BATCHES[turn % len(SMALL_BATCHES)])


def _whole() -> Iterator[Case]:
    """Every order, by one warp to a matrix and more, and one right-hand side at a time and more."""
    for turn, n in enumerate(ORDERS):
        layout = Layout.canonical("col") if turn % 5 == 4 else Layout.canonical()
        dtype, uplo = ("float32", "float32", "float64")[turn % 3], ("lower", "upper")[turn // 3 % 2]
        problem = Problem(n, dtype, uplo, ("posv", "posv", "potrs")[turn % 5 % 3], ("ieee", "fast")[turn // 2 % 2])
        schedule = WholeSchedule(1 + turn % 4, rhs=(1, 2, 8)[turn % 3], pdl=True if turn % 2 else None)
        spec = KernelSpec(problem, layout.kind, layout.order, schedule, "cuda")
        yield Case(spec, layout, SMALL_BATCHES[turn % len(SMALL_BATCHES)])


def inversions() -> Iterator[Case]:
    """Every order twice, by each operation without right-hand sides, as far as its triangles fit shared memory."""
    for turn in range(2 * len(ORDERS) * len(WITHOUT_COLUMNS)):
        op, n = WITHOUT_COLUMNS[turn % len(WITHOUT_COLUMNS)], ORDERS[turn // len(WITHOUT_COLUMNS) % len(ORDERS)]
        layout, threads = LAYOUTS[turn % len(LAYOUTS)], (32, 64)[turn // 2 % 2]
        dtype, uplo = ("float32", "float32", "float64")[turn // 2 % 3], ("lower", "upper")[turn // 5 % 2]
        problem = Problem(n, dtype, uplo, op, ("ieee", "fast")[turn // 4 % 2])
        pdl = True if turn // 7 % 2 else None
        straight = ThreadSchedule(1, unroll="full", threads=threads, pdl=pdl)
        tiles = ThreadSchedule(min(4, n), threads=threads, pdl=pdl)
        for schedule in (tiles, straight) if turn % 2 else (straight, tiles):
            try:
                spec = KernelSpec(problem, layout.kind, layout.order, schedule, "cuda")
            except SpecError:
                continue
            yield Case(spec, layout, BATCHES[turn % len(BATCHES)])
            break


def _schedules(op: str, turn: int, n: int) -> Iterator[ThreadSchedule]:
    """The choices whose turn it is, then such as larger matrices leave room for."""
    if op == "posv":
        rhs = (1, 2, 4)[turn // 2 % 3] if n < 24 else 1 + turn // 2 % 2
        common: dict[str, Any] = {"rhs": rhs, "threads": (32, 64)[turn // 4 % 2]}
        common["pdl"] = True if turn // 8 % 2 else None
        yield ThreadSchedule(1, unroll="full", staged=(None, True)[turn // 6 % 2], **common)
        yield ThreadSchedule(min((8, 4, 3)[turn % 3], n), staged=True, **common)
        return
    for split, nb, rhs, threads in STAGED[turn // 2 % len(STAGED) :]:
        yield ThreadSchedule(min(nb, n), unroll="full", staged=True, split=split, rhs=rhs, threads=threads)
    yield ThreadSchedule(min(8, n), rhs=(1, 4)[turn % 2])


def check_inversion(backend: Any, case: Case, a: Any) -> None:
    """An inversion, or a determinant, into memory of its own size, checked."""
    problem, given = case.spec.problem, _triangles(backend, case, a)
    room, status = room_for(backend, case.spec, given), info_of(backend, case.spec, given)
    backend.kernel(case.spec)(given, room, *status, threads=1)
    CHECKS[problem.op](given, room, *status, problem.math, upper=problem.uplo == "upper", host=backend.host)


def _triangles(backend: Any, case: Case, a: Any) -> Any:
    """The matrices, or their factors, in the layout and the triangle of a case."""
    problem = case.spec.problem
    triangles = a if problem.operation.factors else np.linalg.cholesky(a.astype(float)).astype(a.dtype)
    if problem.uplo == "upper":
        triangles = np.ascontiguousarray(triangles.swapaxes(1, 2))
    return backend.from_dense(triangles, case.layout)


def check_solve(backend: Any, case: Case, a: Any) -> None:
    """A solve for right-hand sides in memory of its own size, checked."""
    problem, given = case.spec.problem, _triangles(backend, case, a)
    shape = case.batch, problem.n, NRHS[case.batch % len(NRHS)]
    b = backend.place(np.random.default_rng(case.batch).standard_normal(shape).astype(a.dtype))
    x = backend.place(np.full(shape, np.nan, a.dtype))
    status = info_of(backend, case.spec, given)
    backend.kernel(case.spec)(given, b, x, *status, threads=1)
    upper = problem.uplo == "upper"
    CHECKS[problem.op](given, b, x, *status, problem.math, upper=upper, host=backend.host)
    if problem.op in ("posv", "posvdet") and backend.name == "cuda":
        check_repair(backend, case, a, b)
    if problem.op == "gesv":
        check_factors(backend, case, given, b)


def by_factors(spec: KernelSpec) -> tuple[KernelSpec, KernelSpec]:
    """The kernels of LU factors and of solves by them that go with one that does both."""
    schedule = spec.schedule
    assert isinstance(schedule, ThreadSchedule)
    threads = schedule.threads if (schedule.split or 1) <= WARP else None
    alone = replace(schedule, threads=threads)
    panels = schedule.staged and schedule.split
    schedules = {
        "getrf": replace(alone, rhs=None),
        "getrs": alone if panels else replace(alone, staged=None, split=least_split(spec.problem)),
    }
    factor, solve = (
        replace(spec, problem=replace(spec.problem, op=op), schedule=each) for op, each in schedules.items()
    )
    return factor, solve


def check_factors(backend: Any, case: Case, a: Any, b: Any) -> None:
    """LU factors, and solutions by them, by kernels of the schedule of one that does both."""
    math, (factor, solve) = case.spec.problem.math, by_factors(case.spec)
    lu, pivots = a.like(), backend.place(np.zeros((case.batch, case.spec.problem.n), np.int32))
    info, x = backend.info(a, factor), backend.place(np.full(b.shape, np.nan, a.dtype))
    backend.kernel(factor)(a, lu, pivots, info, threads=1)
    check_lu_factors(a, lu, pivots, info, math, host=backend.host)
    backend.kernel(solve)(lu, pivots, b, x, threads=1)
    CHECKS["gesv"](a, b, x, info, math, host=backend.host)


def check_determined_factors(backend: Any, case: Case, a: Any) -> None:
    """Factors and determinants, in memory of their own sizes, checked, and those of what is repaired."""
    problem, given = case.spec.problem, _triangles(backend, case, a)
    l, (logs, info) = (
        backend.empty(problem.n, case.batch, case.layout, problem.dtype),
        info_of(backend, case.spec, given),
    )
    backend.kernel(case.spec)(given, l, logs, info, threads=1)
    upper = problem.uplo == "upper"
    backend.check(given, l.marked(problem.uplo), info, problem.math)
    logdet.check(given, logs, info, problem.math, upper=upper, host=backend.host)
    if backend.name == "cuda" and backend.kernel(case.spec).repairing is not None:
        check_repaired_factors(backend, case, a)


def check_repaired_factors(backend: Any, case: Case, a: Any) -> None:
    """Every third matrix, less of which is there than it needs, is repaired by the kernel that factors arrays."""
    problem, (failing, broken) = case.spec.problem, _broken(case, a)
    kernel, given = backend.kernel(case.spec), _triangles(backend, case, broken)
    l, (*logs, info) = backend.place(np.full(a.shape, np.nan, a.dtype)), info_of(backend, case.spec, given)
    again = Repair.of(1e-2, given.address, Form.of(given), problem.uplo == "upper", info)
    again.factor(kernel, int(l.gpudata), *(int(each.gpudata) for each in logs))
    _check_repaired(backend, case, failing, info, again)


def check_repair(backend: Any, case: Case, a: Any, b: Any) -> None:
    """Every third matrix, less of which is there than it needs, is repaired, by its kernel and by one behind it."""
    problem, (failing, broken) = case.spec.problem, _broken(case, a)
    kernel, given = backend.kernel(case.spec), _triangles(backend, case, broken)
    for itself in (True, False):
        x, (*logs, info) = backend.place(backend.host(b)), info_of(backend, case.spec, given)
        again = Repair.of(1e-2, given.address, Form.of(given), problem.uplo == "upper", info)
        addresses = (given.address, *(int(array.gpudata) for array in (b, x, *logs, info)))
        if itself and kernel.repairing is not None:
            again.solve(kernel, addresses, b.shape[-1])
        else:
            kernel.launch(addresses, b.shape[-1], case.batch, case.layout)
            determinants = addresses[3] if logs else 0
            again.queue(b=addresses[1], x=addresses[2], logdet=determinants, nrhs=b.shape[-1])
        _check_repaired(backend, case, failing, info, again)


def _broken(case: Case, a: Any) -> tuple[Any, Any]:
    """Which of the matrices fail, and the matrices."""
    n, failing, broken = case.spec.problem.n, np.zeros(case.batch, bool), a.copy()
    failing[::3] = True
    broken[failing, n - 1, :] = broken[failing, :, n - 1] = 0
    broken[failing, n - 1, n - 1] = -1e-3 * np.trace(broken[failing], axis1=1, axis2=2) / n
    return failing, broken


def _check_repaired(backend: Any, case: Case, failing: Any, info: Any, again: Repair) -> None:
    """Fail unless those that failed were repaired, and no others."""
    # A matrix of order 1 has nothing else on its diagonal.
    alone = case.spec.problem.n == 1
    assert (backend.host(info) != 0).tolist() == (failing & alone).tolist(), case.spec.name
    assert ((backend.host(again.added) > 0) == (failing & (not alone))).all(), case.spec.name
