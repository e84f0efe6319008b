"""Factors of arrays of the host: by its cores, by a GPU that they are copied to, or by LAPACK."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchchol.api.columns import host_out
from batchchol.artifacts.no_compiler import warn
from batchchol.backends import Backend, get_backend, lapack
from batchchol.backends.recorder import current_recorder
from batchchol.batches.batch import Batch, dtype_name
from batchchol.batches.host_memory import aligned_empty
from batchchol.batches.layouts import dense_view
from batchchol.defaults.generation import generation
from batchchol.errors import CompilerNotFound
from batchchol.parallel import available_threads
from batchchol.plan import determining, kept_array_choice
from kernelgen import MAX_N, KernelSpec, Layout

_CANONICAL = Layout.canonical()


class Factored(NamedTuple):
    """Factors and info and, if they are asked for, the logarithms of the determinants."""

    l: NDArray[Any]
    info: NDArray[np.int32]
    logabsdet: NDArray[Any] | None = None


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
    *,
    logdet: bool = False,
) -> Factored:
    """Factors (batch, n, n) and info of matrices (batch, n, n) of the host, by a kernel or else LAPACK.

    The factors are in `room`, which may be the matrices themselves, if what factors them can write there. With
    `logdet` a kernel of the CPU finds the logarithms on the way, else the factors tell them.
    """
    found = _factored(name, dense, upper, given, math, room, logdet)
    if logdet and found.logabsdet is None:
        return found._replace(logabsdet=logarithms(np.diagonal(found.l, axis1=-2, axis2=-1), found.info))
    return found


def logarithms(diagonals: NDArray[Any], info: NDArray[np.int32]) -> NDArray[Any]:
    """Logarithms of determinants by the diagonals (batch, n) of the factors; NaN where an info is not 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = 2 * np.log(np.abs(diagonals)).sum(-1, dtype=np.float64)
    return np.where(info != 0, np.nan, logs).astype(diagonals.dtype)


def diagonal(batch: Batch) -> NDArray[Any]:
    """The diagonals (batch, n) of a batch of the host."""
    found = np.diagonal(dense_view(batch.data, batch.layout), axis1=-2, axis2=-1)
    return found.reshape(-1, batch.n)[: batch.batch]


def _factored(
    name: str,
    dense: NDArray[np.floating],
    upper: bool,
    given: KernelSpec | None,
    math: str | None,
    room: NDArray[Any] | None,
    logdet: bool,
) -> Factored:
    batch, n, _ = dense.shape
    if n <= MAX_N:
        try:
            device = get_backend(name)
            same = room is not None and room.ctypes.data == dense.ctypes.data
            asked = n, dtype_name(dense.dtype), upper, batch, given, math, True, same and given is None
            spec, layout = kept_array_choice(device, *asked, generation())
            if name == "cuda":
                return _on_gpu(dense, spec, layout, room)
            if layout != _CANONICAL:
                return _packed(device, dense, spec, layout, logdet)
            return _as_they_are(device, dense, spec, None if same and not spec.in_place else room, logdet)
        except CompilerNotFound as error:
            if given is not None or name != "cpu":
                raise
            warn(error)
    elif name == "cuda":
        get_backend(name)
        # Not at the top: for larger orders on a GPU alone.
        from batchchol.algorithms import large

        return Factored(*large.factor_host(dense, upper))
    return Factored(*lapack.potrf(dense, upper, available_threads()))


def _on_gpu(dense: NDArray[np.floating], spec: KernelSpec, layout: Layout, room: NDArray[Any] | None) -> Factored:
    # Not at the top: importing the library initialises no GPU.
    from batchchol.backends.cuda.arrays.streaming import factor_host

    return Factored(*factor_host(dense, spec, layout, room))


def _as_they_are(
    device: Backend, dense: NDArray[np.floating], spec: KernelSpec, room: NDArray[Any] | None, logdet: bool
) -> Factored:
    batch = Batch.over_checked(dense, dense.shape[-1], len(dense), _CANONICAL)
    l = aligned_empty(dense.shape, dense.dtype, f"an array of shape {dense.shape}") if room is None else room
    return Factored(l, *_run(device, spec, batch, Batch.over_checked(l, batch.n, batch.batch, _CANONICAL), logdet))


def _packed(device: Backend, dense: NDArray[np.floating], spec: KernelSpec, layout: Layout, logdet: bool) -> Factored:
    """Factors by a kernel that works in another layout than the array's."""
    batch = Batch.from_dense(dense, layout)
    result = batch if spec.in_place else batch.like(spec.problem.uplo)
    found = _run(device, spec, batch, result, logdet)
    return Factored(result.marked(spec.problem.uplo).to_dense(), *found)


def _run(
    device: Backend, spec: KernelSpec, a: Batch, l: Batch, logdet: bool
) -> tuple[NDArray[np.int32], NDArray[Any] | None]:
    """The info and, if they are asked for, the logarithms."""
    info = device.info(a, spec, poisoned=False)
    if (recorder := current_recorder()) is not None:
        # It refuses what is not on the GPU.
        recorder.add(device.kernel(spec), a, l, info, None)
    both = determining(spec) if logdet else None
    logs = None if both is None else np.empty(a.batch, a.dtype)
    beside = () if logs is None else (logs,)
    device.kernel(both or spec)(a, l, *beside, info, threads=available_threads(2 * a.nbytes))
    return (info if len(info) == a.batch else info[: a.batch]), logs
