"""Solutions by matrices or factors on a GPU, which stay there."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from batchchol.api.arguments import Solved, Wanted, check_square
from batchchol.api.arrays.device_places import given_place, overlap
from batchchol.api.columns import Fit, check_columns_dtype, fit
from batchchol.api.factors.device_factorizations import factor_there
from batchchol.api.factors.device_repairs import Repair, nothing_added, repairs_itself
from batchchol.api.factors.factorizations import factor
from batchchol.backends import get_backend
from batchchol.backends.base import Form
from batchchol.batches.batch import Batch, check_dtype, dtype_name
from batchchol.plan import chosen_kernel, kernel_choice
from kernelgen import MAX_N, Layout, SpecError
from kernelgen.targets import ELEMENT_BYTES

_INFO, _CANONICAL = np.dtype(np.int32), Layout.canonical()


class Matrices(NamedTuple):
    """Where the matrices, or factors, of a call are, and what keeps them alive: an array or a batch."""

    owner: Any
    address: int
    nbytes: int
    outer: tuple[int, ...]
    form: Form


class _Memory(NamedTuple):
    """Memory on the GPU, and what keeps it alive."""

    owner: Any
    address: int


def solved(a: Any, b: Any, wanted: Wanted) -> Solved:
    """The solutions by matrices or factors, (..., n, n) or a batch; of matrices the info of each besides."""
    return _solved(located(a, wanted), b, wanted)


def located(a: Any, wanted: Wanted) -> Matrices:
    """Where an array (..., n, n) or a batch of the GPU is, once what is wanted is known to be for it."""
    if isinstance(a, Batch):
        # Larger ones are arrays in rows, and no kernel's.
        return Matrices(a if a.n <= MAX_N else a.data, a.address, a.nbytes, (a.batch,), Form.of(a))
    given = _memory().view(a, wanted.argument)
    if check_dtype(wanted.argument, given.dtype) != given.dtype:
        raise TypeError(f"{wanted.argument}: got dtype {given.dtype}, expected native byte order")
    check_square(wanted.argument, given.shape)
    *outer, n, _ = given.shape
    wanted.check_general_order(n)
    wanted.check_array(n, given.dtype)
    count = prod(outer)
    form = Form(n, count, dtype_name(given.dtype), _CANONICAL)
    return Matrices(a, given.address, count * n * n * given.dtype.itemsize, tuple(outer), form)


def _solved(matrices: Matrices, b: Any, wanted: Wanted, again: Repair | None = None) -> Solved:
    """Solve by matrices, or by their factors and, where those failed, by the matrices that are tried again."""
    memory, form = _memory(), matrices.form
    if not memory.is_device_array(b):
        raise TypeError(
            f"b: got {type(b).__name__}, expected an array on the GPU, where the {wanted.what} are: copy one of them"
        )
    columns = memory.view(b, "b")
    how = fit(matrices.outer, form.n, columns.shape, wanted.what)
    check_columns_dtype(columns.dtype, np.dtype(form.dtype), wanted.what)
    x = room_for(matrices, b, columns.address, how, wanted)
    if not form.batch or not form.n:
        info = memory.to_device(np.zeros(matrices.outer, np.int32), "the info") if wanted.factors else None
        added = None if wanted.jitter is None else nothing_added(matrices.outer, form.dtype)
        return Solved(x.owner, info, added)
    device = get_backend("cuda")
    choice = wanted.op, device, form, wanted.upper, wanted.spec, wanted.math
    if not (how.nrhs or wanted.general):
        if form.n <= MAX_N and (wanted.spec is not None or not wanted.factors):
            kernel_choice(*choice, argument=wanted.argument)
        if not wanted.factors:
            return Solved(x.owner, None)
        _, info, added = factored(matrices, wanted)
        again = _repair(matrices, info, wanted)
        if again is not None:
            again.queue(stream=wanted.stream)
        return Solved(x.owner, info, again.added if again else added)
    try:
        if form.n > MAX_N and (wanted.general or not wanted.factors):
            kernel = _larger(form, wanted)
        else:
            kernel = chosen_kernel(*choice, argument=wanted.argument, nrhs=how.nrhs)
    except SpecError:
        if wanted.spec is not None or not wanted.factors or wanted.general:
            raise
        l, info, added = factored(matrices, wanted)
        again = _repair(matrices, info, wanted)
        return Solved(_solved(l, b, wanted.by_factors(), again).x, info, again.added if again else added)
    info = memory.empty(matrices.outer, _INFO, "the info") if wanted.factors else None
    if wanted.factors:
        again = _repair(matrices, info, wanted)
    pivots = _pivots(matrices, wanted)
    _launch(kernel, matrices, pivots, _Memory(b, columns.address), x, info, how, wanted.stream, again)
    return Solved(x.owner, info, again and again.added)


def _larger(form: Form, wanted: Wanted) -> Any:
    """What solves by factors, or by general matrices, of an order that no kernel has."""
    from batchchol.algorithms import general, large

    if wanted.general:
        made = general.LuFactorThenSolve.by_panels if wanted.factors else general.LuSolution
        return made(form.n, form.dtype)
    return large.Substitution(form.n, form.dtype, wanted.upper)


def _repair(matrices: Matrices, info: Any, wanted: Wanted) -> Repair | None:
    """The repair of matrices that fail, if `jitter` asks for it; `factored` has repaired those no kernel is for."""
    if wanted.jitter is None or matrices.form.n > MAX_N:
        return None
    return Repair.of(wanted.jitter, matrices.address, matrices.form, wanted.upper, info)


def _pivots(matrices: Matrices, wanted: Wanted) -> tuple[_Memory, ...]:
    """The pivots of factors on the GPU, if they have any."""
    if wanted.pivots is None:
        return ()
    memory, shape = _memory(), (*matrices.outer, matrices.form.n)
    if not memory.is_device_array(wanted.pivots):
        raise TypeError(
            f"pivots: got {type(wanted.pivots).__name__}, expected an array on the GPU, where the factors are"
        )
    found = memory.view(wanted.pivots, "pivots")
    if found.dtype != _INFO:
        raise TypeError(f"pivots: got dtype {found.dtype}, expected int32, as lu_factor returns them")
    if prod(found.shape) != prod(shape) or found.shape[-1:] != shape[-1:]:
        raise ValueError(f"pivots: got shape {found.shape}, expected {shape}, as the factors are")
    return (_Memory(wanted.pivots, found.address),)


def _launch(
    kernel: Any,
    matrices: Matrices,
    pivots: tuple[_Memory, ...],
    b: _Memory,
    x: _Memory,
    info: Any,
    how: Fit,
    stream: Any,
    again: Repair | None,
) -> None:
    """Queue the kernel, and the copies from and to right-hand sides and solutions in another order than its own.

    What may be solved for again is not overwritten.
    """
    from batchchol.backends.cuda import support

    memory, form, work, source = _memory(), matrices.form, x, b
    kept = again is not None and not repairs_itself(kernel)
    if how.folded or (kept and x.address == b.address):
        work = _new_room(how, form)
    if not how.plain:
        source = _new_room(how, form) if kept else work
    if stream is not None:
        owner = matrices.owner.data if isinstance(matrices.owner, Batch) else matrices.owner
        arrays = (owner, *(each.owner for each in pivots), b.owner, x.owner, work.owner, source.owner)
        memory.share(stream, *arrays, *([] if info is None else [info]))
    if not how.plain:
        support.gather(kernel.gpu, b.address, source.address, *how.taking, form.dtype, stream=stream)
    status = () if info is None else (int(info.gpudata),)
    addresses = (matrices.address, *(each.address for each in pivots), source.address, work.address, *status)
    if again is None:
        workspace = kernel.launch(addresses, how.nrhs, form.batch, form.layout, stream)
    else:
        workspace = again.solve(kernel, addresses, how.nrhs, stream)
    if stream is not None and info is not None:
        # Memory that other streams use is not used again: it lives as long as the results.
        info.__dict__["workspace"] = workspace
    if how.folded:
        support.gather(kernel.gpu, work.address, x.address, *how.giving, form.dtype, stream=stream)
    elif work is not x:
        nbytes = prod(how.x) * ELEMENT_BYTES[form.dtype]
        support.copy(kernel.gpu, work.address, x.address, nbytes, stream=stream)


def _new_room(how: Fit, form: Form) -> _Memory:
    """Room for right-hand sides in the order of kernels."""
    room = _memory().empty(how.panels, np.dtype(form.dtype), "right-hand sides in another place")
    return _Memory(room, int(room.gpudata))


def room_for(matrices: Matrices, b: Any, b_address: int, how: Fit, wanted: Wanted) -> _Memory:
    """Where the solutions go: the array that is given, that of the right-hand sides if it may, or a new one."""
    memory, dtype = _memory(), np.dtype(matrices.form.dtype)
    if wanted.out is not None:
        return _given_room(matrices, wanted.out, _Memory(b, b_address), how)
    size = prod(how.x) * dtype.itemsize
    usable = wanted.overwrite_b and wanted.jitter is None and how.plain and memory.is_writeable(b)
    if usable and not overlap(b_address, size, matrices.address, matrices.nbytes):
        return _Memory(memory.as_gpuarray(b, "b"), b_address)
    x = memory.empty(how.x, dtype, f"an array of shape {how.x}")
    return _Memory(x, int(x.gpudata or 0))


def _given_room(matrices: Matrices, out: Any, b: _Memory, how: Fit) -> _Memory:
    from_b = b.address, prod(how.given) * ELEMENT_BYTES[matrices.form.dtype]
    # The right-hand sides themselves may be overwritten, but no part of them.
    same = how.plain and _memory().is_device_array(out) and _memory().view(out, "out").address == b.address
    others = ((matrices.address, matrices.nbytes), *(() if same else (from_b,)))
    expected = "memory of its own, or b itself"
    found = given_place(out, how.x, np.dtype(matrices.form.dtype), "solutions", others, expected=expected)
    return _Memory(out, found.address)


def factored(matrices: Matrices, wanted: Wanted) -> tuple[Matrices, Any, Any]:
    """The factors, where they are, and the info of each matrix; of larger ones what `jitter` added to each."""
    form = matrices.form
    if isinstance(matrices.owner, Batch):
        choice = "potrf", get_backend("cuda"), form, wanted.upper, None, wanted.math
        spec = kernel_choice(*choice, argument=wanted.argument)
        found = factor(matrices.owner, spec, stream=wanted.stream)
        return Matrices(found.L, found.L.address, found.L.nbytes, matrices.outer, Form.of(found.L)), found.info, None
    if wanted.stream is not None:
        # Arrays are factored on the default stream, and may still be written to on this one.
        _memory().wait_for(wanted.stream)
    jitter = wanted.jitter if form.n > MAX_N else None
    there = factor_there(matrices.owner, wanted.upper, None, wanted.math, jitter)
    return matrices._replace(owner=there.l, address=int(there.l.gpudata or 0)), there.info, there.added


@cache
def _memory() -> Any:
    """The module, imported late and once: faster than an import statement at each call."""
    from batchchol.backends.cuda import memory

    return memory
