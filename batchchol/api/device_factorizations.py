"""Factors of arrays on a GPU, which stay there."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any, NamedTuple

from batchchol.api.arguments import check_square
from batchchol.api.device_places import given_place
from batchchol.api.device_repairs import Repair, nothing_added, repairs_itself
from batchchol.backends import Backend, get_backend
from batchchol.backends.base import Form
from batchchol.batches.batch import dtype_name
from batchchol.defaults.lookup import generation
from batchchol.plan import check_array_spec, kept_array_choice
from kernelgen import MAX_N, KernelSpec, Layout

_IN_ROWS = Layout.canonical("row")


@cache
def _dense() -> Any:
    """The module for arrays on a GPU: imported late, and once, which is more than a statement does at each call."""
    from batchchol.backends.cuda import dense

    return dense


@cache
def _large() -> Any:
    """The module for larger orders on a GPU, imported late as well."""
    from batchchol.algorithms import large

    return large


@cache
def _repair_larger() -> Any:
    """What repairs larger orders on a GPU, imported late as well."""
    from batchchol.api.larger_repairs import repair_larger

    return repair_larger


class Factored(NamedTuple):
    """Factors, info and, with `jitter`, what was added to each diagonal: arrays on the GPU."""

    l: Any
    info: Any
    added: Any = None


def factor_there(
    a: Any,
    upper: bool,
    given: KernelSpec | None,
    math: str | None,
    jitter: float | str | None = None,
    out: Any = None,
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
        added = None if jitter is None else nothing_added(tuple(outer), dtype)
        return Factored(l if out is None else out, info, added)
    if n > MAX_N:
        l, info = _large().factor_device(matrices, upper, room=room)
        address = room.address if room else int(l.gpudata)
        added = None if jitter is None else _repair_larger()(jitter, matrices, upper, address, info)
        return Factored(l if out is None else out, info, added)
    same = room is not None and room.address == matrices.address
    spec, layout = kept_array_choice(device, n, dtype, upper, batch, given, math, False, same, generation())
    if jitter is None:
        l, info = dense.factor_device(device, matrices, spec, layout, room)
        return Factored(l if out is None else out, info)
    return _factor_and_repair(device, matrices, spec, layout, jitter, out, room)


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
