"""The call that is made most: factors of a plain array of the host, by a kernel that takes it as it is.

A call on few matrices is over before the checks of any argument that there may be: what depends on the shape alone is
found once, and all that is not plain is left to `cholesky_ex`.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchchol.backends import DEFAULT_BACKEND, chosen_backend, get_backend
from batchchol.backends.cpu import CpuKernel
from batchchol.backends.recorder import current_recorder
from batchchol.batches.host_memory import address_of
from batchchol.batches.reuse import RESULTS
from batchchol.defaults.generation import generation
from batchchol.errors import CompilerNotFound
from batchchol.plan import kept_array_choice
from kernelgen import MAX_N
from kernelgen.problem import MATHS

_ALIGNED_BYTES = 1 << 12
_DTYPES = {np.dtype(name): name for name in ("float32", "float64")}


class PlainCall(NamedTuple):
    """How arrays of one shape are factored: by which kernel, and the shape of info."""

    kernel: CpuKernel
    batch: int
    outer: tuple[int, ...]


def factor_plain(
    a: Any, upper: Any, backend: Any, math: Any, out: Any
) -> tuple[NDArray[Any], NDArray[np.int32]] | None:
    """Factors and info of `cholesky_ex`; None where an argument is not plain, or no kernel takes the array as it is.

    Raises
    ------
    BackendUnavailable, CompileError, CacheError, OutOfMemory, SettingError
        As `cholesky` does.
    """
    # Subclasses, and flags and words that are none, have rules and refusals of their own.
    plain = type(a) is np.ndarray and type(upper) is bool and (math is None or type(math) is str)
    # The address of other kinds, such as of dates, cannot be asked for so.
    plain = plain and a.dtype.kind == "f" and a.flags.c_contiguous
    if not plain or (chosen_backend(backend) or DEFAULT_BACKEND) != "cpu":
        return None
    source = address_of(a)
    target = source if out is None else _place(out, a, source)
    try:
        call = _call(a.shape, a.dtype, upper, math, out is not None and target == source, generation())
    except CompilerNotFound:
        return None
    if target is None or call is None or current_recorder() is not None:
        return None
    l, used = out, True
    if out is None:
        l, used = _new(a)
        target = address_of(l)
    info = call.kernel.factor_arrays(source, target, call.batch, (a, l), used=used)
    return l, info.reshape(call.outer)


def _place(out: Any, a: NDArray[Any], source: int) -> int | None:
    """Where factors of `a` go in the caller's array, if a kernel can write there: to the matrices or apart."""
    if type(out) is not np.ndarray or out.shape != a.shape or out.dtype != a.dtype or not out.flags.carray:
        return None
    target = address_of(out)
    return None if 0 < abs(target - source) < a.nbytes else target


def _new(a: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """An array for factors of `a`, and whether its memory has been used; few cache lines need no alignment."""
    if a.nbytes < _ALIGNED_BYTES:
        return np.empty_like(a), False
    return RESULTS.empty(a.shape, a.dtype, a.nbytes)


@lru_cache(maxsize=1024)
def _call(
    shape: tuple[int, ...], dtype: np.dtype[Any], upper: bool, math: str | None, same: bool, key: object
) -> PlainCall | None:
    """How arrays of a shape are factored, until other tables are read; None where that takes more than a kernel.

    Raises
    ------
    CompilerNotFound, CompileError, CacheError
        If the kernel is not in the cache, and cannot be built or kept.
    """
    name, outer, batch = _DTYPES.get(dtype), shape[:-2], prod(shape[:-2])
    if name is None or math not in (None, *MATHS) or len(shape) < 2:
        return None
    rows, n = shape[-2:]
    if rows != n or not 0 < n <= MAX_N or not batch:
        return None
    device = get_backend("cpu")
    spec, layout = kept_array_choice(device, n, name, upper, batch, None, math, True, same, key)
    if layout.kind != "canonical":
        return None
    kernel = device.kernel(spec)
    return PlainCall(kernel, batch, outer) if isinstance(kernel, CpuKernel) else None
