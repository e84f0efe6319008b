"""Inverses by one kernel, by matrices or by factors, where they are: of the host, and of a GPU."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchchol.api.arguments import Wanted, check_on_gpu, square_matrices
from batchchol.api.arrays.device_places import given_place
from batchchol.api.columns import host_out
from batchchol.api.factors.device_factorizations import new_logarithms
from batchchol.api.factors.device_repairs import Repair
from batchchol.api.inverses.packed_inversions import inverted_in_place_of
from batchchol.api.repairs import Members, repair
from batchchol.api.solves import device_solves
from batchchol.api.solves.host_solves import members_of
from batchchol.artifacts.no_compiler import warn
from batchchol.backends import DEFAULT_BACKEND, chosen_backend, get_backend
from batchchol.backends.base import Form, Kernel
from batchchol.batches.batch import Batch
from batchchol.batches.host_memory import aligned_empty
from batchchol.errors import CompilerNotFound
from batchchol.parallel import available_threads
from batchchol.plan import chosen_kernel
from kernelgen import MAX_N, Layout, SpecError
from kernelgen.operations import OPERATIONS

# A kernel has one lane for one matrix: from this order on LAPACK takes a quarter to a half of the time (measured for
# solutions with as many right-hand sides).
_ALONE_ORDER = 64
_CANONICAL = Layout.canonical()


class Inverted(NamedTuple):
    """Inverses (..., n, n), the info of each matrix or factor, int32, and what is asked for besides."""

    inverse: Any
    info: Any
    added: Any = None
    logabsdet: Any = None

    def reshaped(self, outer: tuple[int, ...]) -> Inverted:
        """The same with what is known of each matrix in this shape."""
        return Inverted(self[0], *(None if each is None else each.reshape(outer) for each in self[1:]))


def inverted(given: Any, backend: str | None, wanted: Wanted) -> Inverted | None:
    """The inverses by a batch, an array of the host or one of a GPU; None where there is no kernel for them.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as `inv` and `cho_inverse` say.
    """
    if isinstance(given, Batch):
        wanted = wanted.of_batch(given, backend)
        if isinstance(wanted.out, Batch):
            return Inverted(*inverted_in_place_of(given, wanted))
        return _on_gpu(given, wanted) if given.backend != "cpu" else _of_batch(given, wanted)
    if hasattr(given, "__cuda_array_interface__"):
        check_on_gpu(backend)
        return _on_gpu(given, wanted)
    where = chosen_backend(backend) or DEFAULT_BACKEND
    return _of_array(square_matrices(wanted.argument, given), where, wanted)


def _of_array(given: NDArray[Any], backend: str, wanted: Wanted) -> Inverted | None:
    *outer, n, _ = given.shape
    wanted.check_array(n, given.dtype)
    wanted.check_no_stream("arrays of the host have been inverted when the call returns")
    count = prod(outer)
    alone = backend == "cpu" and count == 1 and n >= _ALONE_ORDER and wanted.spec is None
    if not given.size or n > MAX_N or alone:
        return None
    dense = given.reshape(count, n, n)
    if backend == "cuda":
        found = _copied_to_gpu(dense, wanted, given.shape)
    else:
        found = _of_batch(Batch.over_checked(dense, n, count, _CANONICAL), wanted, tuple(outer))
    if found is None:
        return None
    inverse = found.inverse.reshape(given.shape) if wanted.out is None else wanted.out
    return found._replace(inverse=inverse).reshaped(tuple(outer))


def _of_batch(batch: Batch, wanted: Wanted, outer: tuple[int, ...] | None = None) -> Inverted | None:
    """Inverses by a CPU's kernel, of which `outer` is the shape that the caller sees."""
    wanted.check_no_stream("backend 'cpu' has none")
    if not batch.batch or (batch.n > MAX_N and wanted.spec is None):
        return None
    shape = (batch.batch, batch.n, batch.n)
    out = (
        None
        if wanted.out is None
        else host_out(wanted.out, (*(shape[:1] if outer is None else outer), *shape[1:]), batch.dtype, "inverses")
    )
    device = _cpu_or_none()
    if device is None:
        return None
    choice = wanted.op, device, Form.of(batch), wanted.upper, wanted.spec, wanted.math
    kernel = chosen_kernel(*choice, argument=wanted.argument)
    x = _host_room(batch, out, wanted)
    threads = int(wanted.threads or available_threads(batch.nbytes + x.nbytes))
    info, logs = _run(kernel, batch, x, threads)
    added = None
    if wanted.jitter is not None:
        once = kernel if batch.layout == _CANONICAL else _kernel_of_arrays(batch, wanted)

        def again(members: Members, dense: NDArray[Any]) -> NDArray[np.int32]:
            inverses = np.empty_like(dense)
            status, found = _run(once, Batch.over_checked(dense, batch.n, len(dense), _CANONICAL), inverses, threads)
            x[members] = inverses
            if logs is not None:
                logs[members] = found
            return status

        added = repair(wanted.jitter, batch.dtype, info, partial(members_of, batch), again)
    if out is not None and not np.may_share_memory(out, x):
        np.copyto(out, x.reshape(out.shape))
    return Inverted(x if out is None else out, info, added, logs)


def _writeable_by_kernels(out: NDArray[Any]) -> bool:
    return out.flags.c_contiguous and out.flags.aligned and out.dtype.isnative


def _host_room(batch: Batch, out: NDArray[Any] | None, wanted: Wanted) -> NDArray[Any]:
    """Where a CPU's kernel writes inverses (batch, n, n): the caller's array, the matrices' own, or a new one."""
    shape = batch.batch, batch.n, batch.n
    if out is None:
        # A group of matrices is read before its inverses are written. What fails is inverted again.
        taken = wanted.overwrite_a and wanted.jitter is None and batch.layout == _CANONICAL
        if taken and batch.data.flags.writeable and batch.data.flags.aligned:
            return batch.data.reshape(shape)
    elif _writeable_by_kernels(out) and not np.may_share_memory(out, batch.data):
        return out.reshape(shape)
    return aligned_empty(shape, batch.dtype, f"an array of shape {shape}")


def _run(
    kernel: Kernel, batch: Batch, x: NDArray[Any], threads: int
) -> tuple[NDArray[np.int32], NDArray[Any] | None]:
    """The info and, by a kernel that finds them, the logarithms of determinants."""
    info = np.zeros(batch.batch, np.int32)
    logs = np.empty(batch.batch, batch.dtype) if kernel.spec.problem.operation.multiplies else None
    kernel(batch, x, *(() if logs is None else (logs,)), info, threads=threads)
    return info, logs


def _kernel_of_arrays(batch: Batch, wanted: Wanted) -> Kernel:
    """The kernel for matrices of a batch that are copied to an array."""
    form = Form.of(batch)._replace(layout=_CANONICAL, triangle=None)
    math = wanted.math if wanted.spec is None else wanted.spec.problem.math
    return chosen_kernel(wanted.op, get_backend("cpu"), form, wanted.upper, None, math, argument=wanted.argument)


def _cpu_or_none() -> Any:
    """The backend of CPUs, or None with a warning where there is no compiler."""
    try:
        return get_backend("cpu")
    except CompilerNotFound as error:
        warn(error)
        return None


def _copied_to_gpu(dense: NDArray[Any], wanted: Wanted, seen: tuple[int, ...]) -> Inverted | None:
    """Inverses by a GPU, which arrays of shape `seen` are copied to and back from, in slices if they do not fit."""
    from batchchol.backends.cuda import memory
    from batchchol.backends.cuda.arrays.dense import slices

    shape = dense.shape
    out = None if wanted.out is None else host_out(wanted.out, seen, dense.dtype, "inverses")
    x, info = aligned_empty(shape, dense.dtype, f"an array of shape {shape}"), np.empty(len(dense), np.int32)
    numbers = np.empty(len(dense), dense.dtype)
    added = None if wanted.jitter is None else numbers
    logs = numbers.copy() if OPERATIONS[wanted.op].multiplies else None
    for first, last in slices(len(dense), 3 * dense[0].nbytes + info.itemsize + 2 * numbers.itemsize):
        there = memory.to_device(dense[first:last], f"{last - first:,} {wanted.what}")
        found = _on_gpu(there, wanted._replace(out=None))
        if found is None:
            return None
        for mine, its in zip((x, info, added, logs), found, strict=True):
            if mine is not None:
                memory.to_host(its, out=mine[first:last])
    if out is not None:
        np.copyto(out, x.reshape(out.shape))
    return Inverted(x, info, added, logs)


def _on_gpu(given: Any, wanted: Wanted) -> Inverted | None:
    """Inverses by a kernel of a GPU, where the matrices or factors are."""
    from batchchol.backends.cuda import memory

    matrices = device_solves.located(given, wanted)
    form = matrices.form
    if not form.batch or not form.n:
        return None
    try:
        choice = wanted.op, get_backend("cuda"), form, wanted.upper, wanted.spec, wanted.math
        kernel: Any = chosen_kernel(*choice, argument=wanted.argument)
    except SpecError:
        if wanted.spec is not None:
            raise
        return None
    x, address = _device_room(matrices, wanted)
    info = memory.empty(matrices.outer, np.dtype(np.int32), "the info")
    logs = new_logarithms(info, form) if kernel.spec.problem.operation.multiplies else None
    beside = [] if logs is None else [logs]
    if wanted.stream is not None:
        owner = matrices.owner.data if isinstance(matrices.owner, Batch) else matrices.owner
        memory.share(wanted.stream, owner, x, info, *beside)
    places = (matrices.address, address, *(int(each.gpudata) for each in (*beside, info)))
    if wanted.jitter is None:
        kernel.launch(places, 0, form.batch, form.layout, wanted.stream)
        return Inverted(x, info, None, logs)
    again = Repair.of(wanted.jitter, matrices.address, form, wanted.upper, info)
    with kernel.gpu.queueing():
        kernel.launch(places, 0, form.batch, form.layout, wanted.stream)
        again.queue(x=address, nrhs=form.n, logdet=0 if logs is None else places[2], stream=wanted.stream)
    return Inverted(x, info, again.added, logs)


def _device_room(matrices: device_solves.Matrices, wanted: Wanted) -> tuple[Any, int]:
    """Where inverses go and its address: the caller's array, or a new one."""
    from batchchol.backends.cuda import memory

    shape, dtype = (*matrices.outer, *(matrices.form.n,) * 2), np.dtype(matrices.form.dtype)
    if wanted.out is None:
        x = memory.empty(shape, dtype, f"an array of shape {shape}")
        return x, int(x.gpudata)
    found = given_place(wanted.out, shape, dtype, "inverses", [(matrices.address, matrices.nbytes)])
    return wanted.out, found.address
