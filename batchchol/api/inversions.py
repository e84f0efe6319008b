"""Inverses by one kernel, by matrices or by factors, where they are: of the host, and of a GPU."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchchol.api import device_solves
from batchchol.api.arguments import Wanted, check_on_gpu, square_matrices
from batchchol.api.columns import host_out
from batchchol.api.device_places import given_place
from batchchol.artifacts.no_compiler import warn
from batchchol.backends import DEFAULT_BACKEND, chosen_backend, get_backend
from batchchol.backends.base import Form
from batchchol.batches.batch import Batch
from batchchol.batches.host_memory import aligned_empty
from batchchol.errors import CompilerNotFound
from batchchol.parallel import available_threads
from batchchol.plan import chosen_kernel
from kernelgen import MAX_N, Layout, SpecError

# A kernel has one lane for one matrix: from this order on LAPACK takes a quarter to a half of the time (measured for
# solutions with as many right-hand sides).
_ALONE_ORDER = 64


class Inverted(NamedTuple):
    """Inverses (..., n, n), and the info of each matrix or factor, int32."""

    inverse: Any
    info: Any


def inverted(given: Any, backend: str | None, wanted: Wanted) -> Inverted | None:
    """The inverses by a batch, an array of the host or one of a GPU; None where there is no kernel for them.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as `inv` and `cho_inverse` say.
    """
    if isinstance(given, Batch):
        wanted = wanted.of_batch(given, backend)
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
    if not given.size or n > MAX_N or (backend == "cpu" and count == 1 and n >= _ALONE_ORDER):
        return None
    dense = given.reshape(count, n, n)
    if backend == "cuda":
        found = _copied_to_gpu(dense, wanted, given.shape)
    else:
        found = _of_batch(Batch.over_checked(dense, n, count, Layout.canonical()), wanted, tuple(outer))
    if found is None:
        return None
    return Inverted(
        found.inverse.reshape(given.shape) if wanted.out is None else wanted.out, found.info.reshape(outer)
    )


def _of_batch(batch: Batch, wanted: Wanted, outer: tuple[int, ...] | None = None) -> Inverted | None:
    """By a CPU's kernel, of which `outer` is the shape that the caller sees."""
    wanted.check_no_stream("backend 'cpu' has none")
    if not batch.batch:
        return None
    shape = (batch.batch, batch.n, batch.n)
    out = (
        None
        if wanted.out is None
        else host_out(wanted.out, (*(shape[:1] if outer is None else outer), *shape[1:]), batch.dtype)
    )
    device = _cpu_or_none()
    if device is None:
        return None
    choice = wanted.op, device, Form.of(batch), wanted.upper, wanted.spec, wanted.math
    kernel = chosen_kernel(*choice, argument=wanted.argument)
    usable = out is not None and out.flags.c_contiguous and out.flags.aligned and out.dtype.isnative
    if out is None or not usable or np.may_share_memory(out, batch.data):
        x = aligned_empty(shape, batch.dtype, f"an array of shape {shape}")
    else:
        x = out.reshape(shape)
    info = np.zeros(batch.batch, np.int32)
    kernel(batch, x, info, threads=int(wanted.threads or available_threads(batch.nbytes + x.nbytes)))
    if out is not None and not np.may_share_memory(out, x):
        np.copyto(out, x.reshape(out.shape))
    return Inverted(x if out is None else out, info)


def _cpu_or_none() -> Any:
    """The backend of CPUs, or None with a warning where there is no compiler."""
    try:
        return get_backend("cpu")
    except CompilerNotFound as error:
        warn(error)
        return None


def _copied_to_gpu(dense: NDArray[Any], wanted: Wanted, seen: tuple[int, ...]) -> Inverted | None:
    """By a GPU, which arrays of shape `seen` are copied to and back from, in slices if they do not fit."""
    from batchchol.backends.cuda import memory
    from batchchol.backends.cuda.dense import slices

    shape = dense.shape
    out = None if wanted.out is None else host_out(wanted.out, seen, dense.dtype)
    x, info = aligned_empty(shape, dense.dtype, f"an array of shape {shape}"), np.empty(len(dense), np.int32)
    for first, last in slices(len(dense), 3 * dense[0].nbytes + info.itemsize):
        there = memory.to_device(dense[first:last], f"{last - first:,} {wanted.what}")
        found = _on_gpu(there, wanted._replace(out=None))
        if found is None:
            return None
        memory.to_host(found.inverse, out=x[first:last])
        memory.to_host(found.info, out=info[first:last])
    if out is not None:
        np.copyto(out, x.reshape(out.shape))
    return Inverted(x, info)


def _on_gpu(given: Any, wanted: Wanted) -> Inverted | None:
    """By a kernel of a GPU, where the matrices or factors are."""
    from batchchol.backends.cuda import memory

    matrices = device_solves.located(given, wanted)
    form = matrices.form
    if not form.batch or not form.n:
        return None
    try:
        choice = wanted.op, get_backend("cuda"), form, wanted.upper, wanted.spec, wanted.math
        kernel: Any = chosen_kernel(*choice, argument=wanted.argument)
    except SpecError:
        return None
    shape, dtype = (*matrices.outer, form.n, form.n), np.dtype(form.dtype)
    if wanted.out is None:
        x = memory.empty(shape, dtype, f"an array of shape {shape}")
        address = int(x.gpudata)
    else:
        x = wanted.out
        address = given_place(x, shape, dtype, "inverses", [(matrices.address, matrices.nbytes)]).address
    info = memory.empty(matrices.outer, np.dtype(np.int32), "the info")
    if wanted.stream is not None:
        owner = matrices.owner.data if isinstance(matrices.owner, Batch) else matrices.owner
        memory.share(wanted.stream, owner, x, info)
    kernel.launch((matrices.address, address, int(info.gpudata)), 0, form.batch, form.layout, wanted.stream)
    return Inverted(x, info)
