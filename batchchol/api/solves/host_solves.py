"""Solutions by matrices or factors of the host: by a CPU's kernels, by LAPACK, or by a GPU, copied there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.api.arguments import Solved, Wanted, square_matrices
from batchchol.api.columns import Fit, check_columns_dtype, fit, host_columns, host_out
from batchchol.api.factors.factorizations import factor
from batchchol.api.repairs import Members, repair
from batchchol.api.solves import device_solves
from batchchol.artifacts.no_compiler import warn
from batchchol.backends import get_backend, lapack, lapack_lu
from batchchol.backends.base import Form
from batchchol.batches.batch import Batch
from batchchol.batches.host_memory import aligned_empty
from batchchol.errors import CompilerNotFound
from batchchol.parallel import available_threads
from batchchol.plan import chosen_kernel, kernel_choice
from kernelgen import MAX_N, Layout, SpecError

_CANONICAL = Layout.canonical()
Info = NDArray[np.int32]
# A kernel has one lane for one matrix: from this order and number of right-hand sides on LAPACK takes a quarter to a
# half of the time (measured).
_ALONE_ORDER, _ALONE_COLUMNS = 32, 64
# Failed matrices of a batch are copied one by one if they are at most a sixteenth of it.
_FEW = 16


class _Matrices(NamedTuple):
    """The matrices or factors of a call: the memory that they are in, and what is done with them.

    `solve` works on all of them, `members` copies some to an array, `solve_by` works on such an array.
    """

    memory: NDArray[Any]
    solve: Callable[[NDArray[Any], NDArray[Any]], Info | None]
    members: Callable[[Members], NDArray[Any]]
    solve_by: Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], Info | None]


def by_array(a: ArrayLike, b: ArrayLike, backend: str, wanted: Wanted) -> Solved:
    """The solutions by matrices or factors (..., n, n)."""
    given = square_matrices(wanted.argument, a)
    *outer, n, _ = given.shape
    # What is wrong with a call does not depend on how many matrices there are.
    wanted.check_array(n, given.dtype)
    wanted.check_no_stream("arrays of the host have been solved for when the call returns")
    columns = host_columns(b, wanted.what)
    how = fit(tuple(outer), n, columns.shape, wanted.what)
    wanted = wanted.with_pivots((*outer, n))
    solve_by = partial(_by_dense, backend, wanted)
    dense = given.reshape(how.count, n, n)
    matrices = _Matrices(given, partial(solve_by, dense), dense.__getitem__, solve_by)
    x, info, added = _solved(matrices, columns, how, wanted)
    return Solved(x, info.reshape(outer), None if added is None else added.reshape(outer))


def by_batch(batch: Batch, b: ArrayLike, wanted: Wanted) -> Solved:
    """The solutions by a batch of the host."""
    wanted.check_no_stream("backend 'cpu' has none")
    columns = host_columns(b, wanted.what)
    how = fit((batch.batch,), batch.n, columns.shape, wanted.what)
    wanted = wanted.with_pivots((batch.batch, batch.n))

    def solve_by(dense: NDArray[Any], b: NDArray[Any], x: NDArray[Any]) -> Info | None:
        # A spec is of another layout than the matrices that are tried again.
        own = wanted if wanted.spec is None else wanted._replace(spec=None, math=wanted.spec.problem.math)
        return _by_dense("cpu", own, dense, b, x)

    by_lapack = batch.n > MAX_N and wanted.spec is None
    solve = partial(solve_by, batch.to_dense()) if by_lapack else partial(_by_batch, batch, wanted)
    return _solved(_Matrices(batch.data, solve, partial(members_of, batch), solve_by), columns, how, wanted)


def members_of(batch: Batch, chosen: Members) -> NDArray[Any]:
    """A copy of some matrices of a batch, (count, n, n)."""
    if len(chosen) * _FEW > batch.batch:
        return batch.to_dense()[chosen]
    return np.concatenate([batch.get(member, member + 1) for member in chosen.tolist()])


def _by_dense(backend: str, wanted: Wanted, dense: NDArray[Any], b: NDArray[Any], x: NDArray[Any]) -> Info | None:
    """Solve by an array (batch, n, n) for (batch, n, nrhs)."""
    if not dense.size or not (b.size or wanted.factors):
        return None
    count, n, _ = dense.shape
    if backend == "cuda":
        return _on_gpu(dense, wanted, b, x)
    alone = count == 1 and n >= _ALONE_ORDER and b.shape[-1] >= _ALONE_COLUMNS and wanted.spec is None
    if n > MAX_N or alone:
        threads = int(wanted.threads or available_threads())
        if wanted.general:
            return lapack_lu.solve(dense, wanted.pivots, b, x, threads)
        return lapack.solve(wanted.op, dense, b, x, wanted.upper, threads)
    return _by_batch(Batch.over_checked(dense, n, count, _CANONICAL), wanted, b, x)


def _solved(matrices: _Matrices, columns: NDArray[Any], how: Fit, wanted: Wanted) -> Solved:
    """Solve for right-hand sides of any shape and strides, into the array that is asked for."""
    dtype = matrices.memory.dtype
    if columns.dtype != dtype:
        check_columns_dtype(columns.dtype.newbyteorder("="), dtype, wanted.what)
    out = None if wanted.out is None else host_out(wanted.out, how.x, dtype)
    as_it_is = how.plain and columns.flags.c_contiguous and columns.dtype == dtype
    room = room_for(matrices.memory, columns, how, wanted, out, as_it_is)
    work = room.reshape(how.panels)
    if as_it_is:
        panels = columns.reshape(how.panels)
    else:
        how.take(columns, work)
        panels = work
    found, added = matrices.solve(panels, work), None
    info = np.zeros(how.count, np.int32) if found is None else found
    if wanted.jitter is not None:

        def again(members: Members, dense: NDArray[Any]) -> Info:
            b = how.part(columns, members, dtype)
            status = matrices.solve_by(dense, b, b)
            work[members] = b
            assert status is not None
            return status

        added = repair(wanted.jitter, dtype, info, matrices.members, again)
    if how.folded:
        x = aligned_empty(how.x, dtype, f"an array of shape {how.x}") if out is None else out
        how.give(work, x)
    elif out is None:
        x = room.reshape(how.x)
    else:
        x = out
        if room is not out:
            np.copyto(out, room.reshape(how.x))
    return Solved(x, info, added)


def room_for(
    matrices: NDArray[Any],
    columns: NDArray[Any],
    how: Fit,
    wanted: Wanted,
    out: NDArray[Any] | None,
    as_it_is: bool,
) -> NDArray[Any]:
    """Where solutions are written first: the caller's array if kernels can write there without harm, or a new one."""
    # The right-hand sides themselves may be overwritten, but no part of them, and not if jitter may need them again.
    kept = wanted.jitter is not None
    if out is not None:
        same = as_it_is and not kept and out.ctypes.data == columns.ctypes.data
        usable = out.flags.c_contiguous and out.flags.aligned and out.dtype.isnative and not how.folded
        if usable and not np.may_share_memory(out, matrices) and (same or not np.may_share_memory(out, columns)):
            return out
    usable = out is None and not kept and wanted.overwrite_b and as_it_is and columns.flags.writeable
    usable = usable and columns.flags.aligned
    if usable and not np.may_share_memory(columns, matrices):
        return columns
    return aligned_empty(how.panels, matrices.dtype, f"an array of shape {how.x}")


def _by_batch(batch: Batch, wanted: Wanted, b: NDArray[Any], x: NDArray[Any]) -> Info | None:
    """Solve for (batch, n, nrhs): by one kernel or two, or by LAPACK where there is no compiler."""
    threads = int(wanted.threads or available_threads(batch.nbytes + b.nbytes))
    try:
        device, form = get_backend("cpu"), Form.of(batch)
        choice = wanted.op, device, form, wanted.upper, wanted.spec, wanted.math
        if not (b.size or wanted.general):
            if wanted.spec is not None or not wanted.factors:
                kernel_choice(*choice, argument=wanted.argument)
            return _factored(batch, wanted, threads)[1] if wanted.factors and batch.batch else None
        kernel = chosen_kernel(*choice, argument=wanted.argument)
    except CompilerNotFound as error:
        if wanted.spec is not None:
            raise
        warn(error)
        if wanted.general:
            return lapack_lu.solve_batch(batch, wanted.pivots, b, x, threads)
        return lapack.solve_batch(wanted.op, batch, b, x, wanted.upper, threads)
    except SpecError:
        if wanted.spec is not None or not wanted.factors or wanted.general:
            raise
        return _in_two_steps(batch, wanted, b, x, threads)
    if not wanted.factors:
        kernel(batch, *wanted.beside, b, x, threads=threads)
        return None
    info: Info = device.info(batch, kernel.spec, poisoned=False)
    kernel(batch, b, x, info, threads=threads)
    return info[: batch.batch]


def _in_two_steps(batch: Batch, wanted: Wanted, b: NDArray[Any], x: NDArray[Any], threads: int) -> Info:
    """Factor, then solve by the factors: where there is no kernel for both."""
    l, info = _factored(batch, wanted, threads)
    _by_batch(l, wanted.by_factors(), b, x)
    return info


def _factored(batch: Batch, wanted: Wanted, threads: int) -> tuple[Batch, Info]:
    choice = "potrf", get_backend(batch.backend), Form.of(batch), wanted.upper, None, wanted.math
    found = factor(batch, kernel_choice(*choice, argument=wanted.argument), threads=threads)
    return found.L, found.info


def _on_gpu(a: NDArray[Any], wanted: Wanted, b: NDArray[Any], x: NDArray[Any]) -> Info | None:
    """Solve by a GPU, which arrays of the host are copied to and back from, in slices if they do not fit."""
    from batchchol.backends.cuda import memory
    from batchchol.backends.cuda.arrays import dense

    info = np.zeros(len(a), np.int32) if wanted.factors else None
    per_matrix = (a.nbytes + 2 * b.nbytes) // max(len(a), 1) + 4
    on_device = wanted._replace(out=None, overwrite_b=True, stream=None, jitter=None)
    for first, last in dense.slices(len(a), per_matrix):
        there = memory.to_device(a[first:last], f"{last - first:,} matrices")
        columns = memory.to_device(b[first:last], "right-hand sides")
        if wanted.pivots is not None:
            on_device = on_device._replace(pivots=memory.to_device(wanted.pivots[first:last], "pivots"))
        solved = device_solves.solved(there, columns, on_device)
        memory.to_host(solved.x, out=x[first:last])
        if info is not None:
            memory.to_host(solved.info, out=info[first:last])
    return info
