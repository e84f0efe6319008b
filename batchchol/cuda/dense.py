"""Factors of whole arrays (batch, n, n), of the host or the GPU, in slices.

They are factored where they lie, by a kernel for canonical arrays, or packed, factored and unpacked. A slice is as
many matrices as the free memory takes: all of them, if it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.backends.base import Backend
from batchchol.batch import check_dtype
from batchchol.cuda import memory
from batchchol.cuda.arrays import DeviceBatch
from batchchol.memory import aligned_empty
from kernelgen import KernelSpec, Layout
from kernelgen.schedules import MAX_CHUNK
from kernelgen.targets import ELEMENT_BYTES

# What is free is not free in one piece, and others use the GPU too.
_USABLE = 0.9
# Less is not worth asking how much is free: that takes longer than the work (measured).
_SMALL_BYTES = 64 << 20
# Whole chunks, whatever their size.
_STEP = MAX_CHUNK
# What C-contiguous arrays are without being packed. Kernels for it write the other triangle too, with zeros.
_AS_THEY_ARE = Layout.canonical("row")


def as_matrices(a: Any) -> Any:
    """A device array of matrices as a GPUArray of the same memory, once its dtype is known to be right."""
    matrices = memory.as_gpuarray(a, "a")
    if check_dtype("a", matrices.dtype) != matrices.dtype:
        raise TypeError(f"a: got dtype {matrices.dtype}, expected native byte order")
    return matrices


def factor_host(
    backend: Backend, a: NDArray[np.floating], spec: KernelSpec, layout: Layout
) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Factors and info of an array of the host, as arrays of the host."""
    l = aligned_empty(a.shape, a.dtype, f"an array of shape {a.shape}")
    info = np.empty(len(a), np.int32)
    apart = layout == _AS_THEY_ARE and not spec.in_place
    for first, last in _slices(len(a), _matrix_bytes(spec, layout, dense=2 if apart else 1)):
        dense = memory.to_device(a[first:last], f"{last - first:,} matrices")
        factors = memory.empty(dense.shape, a.dtype, f"{last - first:,} factors") if apart else dense
        status = memory.info_array(last - first)
        _factor_slice(backend, dense, factors, spec, layout, status)
        memory.to_host(factors, out=l[first:last])
        memory.to_host(status, out=info[first:last])
    return l, info


def factor_device(backend: Backend, a: Any, spec: KernelSpec, layout: Layout) -> tuple[Any, Any]:
    """Factors and info of a GPUArray, as GPUArrays; all is queued on the default stream."""
    l = memory.empty(a.shape, a.dtype, f"an array of shape {a.shape}")
    info = memory.info_array(a.shape[0])
    parts = list(_slices(a.shape[0], _matrix_bytes(spec, layout, dense=0)))
    if len(parts) == 1:
        _factor_slice(backend, a, l, spec, layout, info)
        return l, info
    for first, last in parts:
        _factor_slice(backend, a[first:last], l[first:last], spec, layout, info[first:last])
    return l, info


def factor_nothing(a: Any) -> tuple[Any, Any]:
    """Factors and info of a GPUArray (..., n, n) without elements: no matrices, or matrices of order 0."""
    l = memory.empty(a.shape, a.dtype, f"an array of shape {a.shape}")
    return l, memory.to_device(np.zeros(a.shape[:-2], np.int32), "the info")


def _factor_slice(backend: Backend, a: Any, l: Any, spec: KernelSpec, layout: Layout, info: Any) -> None:
    """From dense matrices (batch, n, n) in rows to dense factors, which may be written over them."""
    batch, n, _ = a.shape
    kernel = backend.kernel(spec)
    if layout == _AS_THEY_ARE:
        kernel(DeviceBatch(a, n, batch, layout), DeviceBatch(l, n, batch, layout), info, backend.threads)
        return
    packed = DeviceBatch.empty(n, batch, layout, a.dtype)
    packed.pack_from(int(a.gpudata), 0, batch)
    result = packed if spec.in_place else DeviceBatch.empty(n, batch, layout, a.dtype)
    kernel(packed, result, info, backend.threads)
    result.marked(spec.problem.uplo).unpack_to(int(l.gpudata), 0, batch)


def _matrix_bytes(spec: KernelSpec, layout: Layout, dense: int) -> int:
    """Bytes that each matrix of a slice takes on the GPU: so many dense copies, packed ones, and its info."""
    packed = 0 if layout == _AS_THEY_ARE else 1 if spec.in_place else 2
    copies = dense + packed
    return copies * spec.problem.n**2 * ELEMENT_BYTES[spec.problem.dtype] + np.dtype(np.int32).itemsize


def _slices(batch: int, matrix_bytes: int) -> Iterator[tuple[int, int]]:
    """First and last of each slice; as equal in size as whole steps allow."""
    if batch * matrix_bytes <= _SMALL_BYTES:
        return iter([(0, batch)] * bool(batch))
    most = max(int(memory.free_bytes() * _USABLE) // matrix_bytes // _STEP, 1) * _STEP
    count = max(1, -(-batch // most))
    length = max(-(-batch // (count * _STEP)), 1) * _STEP
    return ((first, min(first + length, batch)) for first in range(0, batch, length))
