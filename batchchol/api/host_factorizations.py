"""Factors of arrays of the host: by its cores, by a GPU that they are copied to, or by LAPACK."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.api.columns import host_out
from batchchol.artifacts.no_compiler import warn
from batchchol.backends import Backend, get_backend, lapack
from batchchol.backends.recorder import current_recorder
from batchchol.batches.batch import Batch, dtype_name
from batchchol.batches.host_memory import aligned_empty
from batchchol.defaults.lookup import generation
from batchchol.errors import CompilerNotFound
from batchchol.parallel import available_threads
from batchchol.plan import kept_array_choice
from kernelgen import MAX_N, KernelSpec, Layout

Factored = tuple[NDArray[Any], NDArray[np.int32]]
_CANONICAL = Layout.canonical()


def checked_out(out: Any, a: NDArray[np.floating]) -> NDArray[Any] | None:
    """The caller's array for factors, of any strides and either byte order; None if there is none.

    Raises
    ------
    TypeError, ValueError
        If it is no writeable array of the host of the shape and dtype of the matrices.
    """
    return None if out is None else host_out(out, a.shape, a.dtype, "factors")


def room_for(out: NDArray[Any] | None, dense: NDArray[np.floating], *, kept: bool) -> NDArray[Any] | None:
    """The memory of `out` as (batch, n, n), if a kernel can write there: not over matrices that are kept."""
    if out is None or not (out.flags.c_contiguous and out.flags.aligned and out.dtype.isnative):
        return None
    same = not kept and out.ctypes.data == dense.ctypes.data
    return out.reshape(dense.shape) if same or not np.may_share_memory(out, dense) else None


def factor_host(
    name: str,
    dense: NDArray[np.floating],
    upper: bool,
    given: KernelSpec | None,
    math: str | None,
    room: NDArray[Any] | None = None,
) -> Factored:
    """Factors (batch, n, n) and info of matrices (batch, n, n) of the host, by a kernel or else LAPACK.

    The factors are in `room`, which may be the matrices themselves, if what factors them can write there.
    """
    batch, n, _ = dense.shape
    if n <= MAX_N:
        try:
            device = get_backend(name)
            same = room is not None and room.ctypes.data == dense.ctypes.data
            asked = n, dtype_name(dense.dtype), upper, batch, given, math, True, same and given is None
            spec, layout = kept_array_choice(device, *asked, generation())
            if name == "cuda":
                return _on_gpu(device, dense, spec, layout, room)
            if layout != _CANONICAL:
                return _packed(device, dense, spec, layout)
            return _as_they_are(device, dense, spec, None if same and not spec.in_place else room)
        except CompilerNotFound as error:
            if given is not None or name != "cpu":
                raise
            warn(error)
    elif name == "cuda":
        get_backend(name)
        # Not at the top: for larger orders on a GPU alone.
        from batchchol.algorithms import large

        factored: Factored = large.factor_host(dense, upper)
        return factored
    return lapack.potrf(dense, upper, available_threads())


def _on_gpu(
    device: Backend, dense: NDArray[np.floating], spec: KernelSpec, layout: Layout, room: NDArray[Any] | None
) -> Factored:
    # Not at the top: importing the library initialises no GPU.
    from batchchol.backends.cuda.streaming import factor_host

    return factor_host(device, dense, spec, layout, room)


def _as_they_are(
    device: Backend, dense: NDArray[np.floating], spec: KernelSpec, room: NDArray[Any] | None
) -> Factored:
    batch = Batch.over_checked(dense, dense.shape[-1], len(dense), _CANONICAL)
    l = aligned_empty(dense.shape, dense.dtype, f"an array of shape {dense.shape}") if room is None else room
    info = device.info(batch, spec, poisoned=False)
    _run(device, spec, batch, Batch.over_checked(l, batch.n, batch.batch, _CANONICAL), info)
    return l, info if len(info) == len(dense) else info[: len(dense)]


def _packed(device: Backend, dense: NDArray[np.floating], spec: KernelSpec, layout: Layout) -> Factored:
    """By a kernel that works in another layout than the array's."""
    batch = Batch.from_dense(dense, layout)
    result = batch if spec.in_place else batch.like(spec.problem.uplo)
    info = device.info(batch, spec, poisoned=False)
    _run(device, spec, batch, result, info)
    return result.marked(spec.problem.uplo).to_dense(), info[: len(dense)]


def _run(device: Backend, spec: KernelSpec, a: Batch, l: Batch, info: NDArray[np.int32]) -> None:
    if (recorder := current_recorder()) is not None:
        # It refuses what is not on the GPU.
        recorder.add(device.kernel(spec), a, l, info, None)
    device.kernel(spec)(a, l, info, threads=available_threads(2 * a.nbytes))
