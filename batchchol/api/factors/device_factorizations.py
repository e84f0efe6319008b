"""Factors of arrays on a GPU, which stay there."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from batchchol.api.arguments import check_square
from batchchol.api.arrays.device_places import given_place
from batchchol.api.factors.device_repairs import Repair, nothing_added, repairs_itself
from batchchol.backends import Backend, get_backend
from batchchol.backends.base import Form
from batchchol.batches.batch import dtype_name
from batchchol.defaults.generation import generation
from batchchol.plan import check_array_spec, determining, kept_array_choice
from kernelgen import MAX_N, KernelSpec, Layout

_IN_ROWS = Layout.canonical("row")


@cache
def _dense() -> Any:
    """The module for arrays on a GPU, imported late and once: faster than an import statement at each call."""
    from batchchol.backends.cuda.arrays import dense

    return dense


@cache
def _large() -> Any:
    """The module for larger orders on a GPU, imported late as well."""
    from batchchol.algorithms import large

    return large


@cache
def _repair_larger() -> Any:
    """What repairs larger orders on a GPU, imported late as well."""
    from batchchol.api.factors.larger_repairs import repair_larger

    return repair_larger


class Factored(NamedTuple):
    """Factors and info, with `jitter` what was added to each diagonal, and logarithms of determinants, if asked for:
    arrays on the GPU.
    """

    l: Any
    info: Any
    added: Any = None
    logabsdet: Any = None


def factor_there(
    a: Any,
    upper: bool,
    given: KernelSpec | None,
    math: str | None,
    jitter: float | str | None = None,
    out: Any = None,
    *,
    logdet: bool = False,
) -> Factored:
    """Factors and info of an array (..., n, n) on a GPU, there, in `out` if it is given."""
    device, dense = get_backend("cuda"), _dense()
    matrices = dense.view(a)
    check_square("a", matrices.shape)
    *outer, n, _ = matrices.shape
    batch, dtype = prod(outer), dtype_name(matrices.dtype)
    check_array_spec(n, dtype, upper, given, math)
    room = None if out is None else _given_room(matrices, out, jitter is not None or given is not None)
    if not batch or not n:
        l, info = dense.factor_nothing(matrices)
        nothing = nothing_added(tuple(outer), dtype) if logdet or jitter is not None else None
        added = None if jitter is None else nothing
        return Factored(l if out is None else out, info, added, nothing if logdet else None)
    if n > MAX_N:
        l, info = _large().factor_device(matrices, upper, room=room)
        address = room.address if room else int(l.gpudata)
        added = None if jitter is None else _repair_larger()(jitter, matrices, upper, address, info)
        logs = logarithms(address, info, Form(n, batch, dtype, _IN_ROWS)) if logdet else None
        return Factored(l if out is None else out, info, added, logs)
    same = room is not None and room.address == matrices.address
    spec, layout = kept_array_choice(device, n, dtype, upper, batch, given, math, False, same, generation())
    if logdet:
        return _factor_and_determine(device, matrices, spec, layout, jitter, out, room)
    if jitter is None:
        l, info = dense.factor_device(device, matrices, spec, layout, room)
        return Factored(l if out is None else out, info)
    return _factor_and_repair(device, matrices, spec, layout, jitter, out, room)


def _factor_and_determine(
    device: Backend, a: Any, spec: KernelSpec, layout: Layout, jitter: float | str | None, out: Any, room: Any
) -> Factored:
    """The same with determinants: by the kernel that factors, if it takes arrays as they are, or by the factors."""
    form, both = Form(a.shape[-1], prod(a.shape[:-2]), spec.problem.dtype, _IN_ROWS), determining(spec)
    if both is None or layout != _IN_ROWS:
        if jitter is None:
            found = Factored(*_dense().factor_device(device, a, spec, layout, room))
        else:
            found = _factor_and_repair(device, a, spec, layout, jitter, None, room)
        logs = logarithms(room.address if room else int(found.l.gpudata), found.info, form)
        return found._replace(l=found.l if out is None else out, logabsdet=logs)
    kernel: Any = device.kernel(both)
    l, info = _dense().room_for(a, room)
    logs = new_logarithms(info, form)
    address, status = room.address if room else int(l.gpudata), int(info.gpudata)
    if jitter is not None and repairs_itself(kernel):
        repairing = Repair.of(jitter, a.address, form, spec.problem.uplo == "upper", info)
        repairing.factor(kernel, address, int(logs.gpudata))
        return Factored(l if out is None else out, info, repairing.added, logs)
    with kernel.gpu.queueing():
        kernel.launch((a.address, address, int(logs.gpudata), status), 0, form.batch, _IN_ROWS)
        added = None
        if jitter is not None:
            repairing = Repair.of(jitter, a.address, form, spec.problem.uplo == "upper", info)
            repairing.queue(l=address, logdet=int(logs.gpudata))
            added = repairing.added
    return Factored(l if out is None else out, info, added, logs)


def new_logarithms(info: Any, form: Form) -> Any:
    """Room for the logarithms of determinants, of the shape of the info."""
    from batchchol.backends.cuda import memory

    return memory.empty(info.shape, np.dtype(form.dtype), "the logarithms")


def logarithms(l: int, info: Any, form: Form, stream: Any = None) -> Any:
    """Logarithms of determinants by the factors at an address, which have this form; NaN where an info is not 0."""
    from batchchol.backends.cuda import memory, support
    from batchchol.backends.cuda.device import device

    logs = new_logarithms(info, form)
    if stream is not None:
        memory.share(stream, logs, info)
    if form.batch:
        places = l, int(info.gpudata), 0, int(logs.gpudata)
        support.log_determinants(device(), *places, *form[:2], form.layout, form.dtype, stream=stream)
    return logs


def _factor_and_repair(
    device: Backend, a: Any, spec: KernelSpec, layout: Layout, jitter: float | str, out: Any, room: Any
) -> Factored:
    """The same with repair: by the kernel itself, if it can and works on arrays as they are, or behind it."""
    problem, form = spec.problem, Form(a.shape[-1], prod(a.shape[:-2]), spec.problem.dtype, _IN_ROWS)
    kernel: Any = device.kernel(spec)
    itself = layout == _IN_ROWS and repairs_itself(kernel)
    with kernel.gpu.queueing():
        l, info = _dense().room_for(a, room) if itself else _dense().factor_device(device, a, spec, layout, room)
        repairing = Repair.of(jitter, a.address, form, problem.uplo == "upper", info)
        address = room.address if room else int(l.gpudata)
        if itself:
            repairing.factor(kernel, address)
        else:
            repairing.queue(l=address)
    return Factored(l if out is None else out, info, repairing.added)


def _given_room(a: Any, out: Any, kept: bool) -> Any:
    """Where the caller's array for the factors lies: the matrices themselves, unless they are `kept`, or elsewhere.

    Errors are those of `given_place`.
    """
    from batchchol.backends.cuda import memory

    same = not kept and memory.is_device_array(out) and memory.view(out, "out").address == a.address
    others = [] if same else [(a.address, prod(a.shape) * a.dtype.itemsize)]
    expected = "memory of its own" if kept else "memory of its own, or a itself"
    return given_place(out, a.shape, a.dtype, "factors", others, expected=expected)
