"""QR factorizations by panels: their kernels emulated, the products by NumPy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol.algorithms.reflections import QrCalls, Rectangles, factor, generate, project
from batchchol.operations.qr import BOUND, factor_ratios, orthogonal, orthogonality_ratios
from kernelgen.emit import qr_panel as kernels
from kernelgen.emit.lu_panel import LuPanel

from ...cuda_programs import compile_program

Array = NDArray[Any]
SCALARS = {"float32": ctypes.c_float, "float64": ctypes.c_double}


class Emulated:
    """A GPU whose kernels run on the host, and its cuBLAS."""

    def __init__(self, dtype: str, nb: int, height: int) -> None:
        self.dtype = dtype
        copies = kernels.vectors(dtype, nb), kernels.triangles(dtype, nb), kernels.identities(dtype)
        self.program = compile_program((kernels.factor(LuPanel(dtype, nb, height)), *copies))

    def launch(self, source: Any, items: int, arguments: tuple[int, ...], stream: Any) -> None:
        self.program.launch_unfenced(source, items, *arguments)

    def product(self, c: Any, a: Any, b: Any, sizes: Any, *, batch: int, stream: Any, **how: bool) -> None:
        rows, columns, inner = sizes
        left = self._part(a, batch, *((inner, rows) if how.get("transposed") else (rows, inner)))
        made = (left.swapaxes(1, 2) if how.get("transposed") else left) @ self._part(b, batch, inner, columns)
        target = self._part(c, batch, rows, columns)
        target[...] = target - made if how.get("subtracts") else made

    def _part(self, where: tuple[int, int, int], batch: int, rows: int, columns: int) -> Array:
        address, leading, apart = where
        count = (batch - 1) * apart + (rows - 1) * leading + columns
        flat = np.ctypeslib.as_array((SCALARS[self.dtype] * count).from_address(address))
        strides = apart * flat.itemsize, leading * flat.itemsize, flat.itemsize
        return np.lib.stride_tricks.as_strided(flat, (batch, rows, columns), strides)


def calls_of(gpu: Emulated, a: Array, tau: Array, nb: int, columns: int) -> tuple[QrCalls, Array]:
    where = Rectangles(a.ctypes.data, *a.shape[1:])
    given: Any = gpu, gpu.dtype, where, len(a), tau.ctypes.data, columns
    room = np.full(len(a) * QrCalls(*given, nb=nb).scalars, np.nan, a.dtype)
    calls = QrCalls(*given, room.ctypes.data, nb=nb)
    calls.__dict__["blas"] = gpu
    return calls, room


@pytest.mark.parametrize(
    ("dtype", "m", "n", "nb"),
    [("float32", 19, 19, 8), ("float64", 21, 10, 4), ("float32", 9, 14, 4), ("float64", 7, 1, 2)],
)
def test_factors_products_and_q(dtype: str, m: int, n: int, nb: int) -> None:
    """Square, tall and wide; columns of any size, one without anything below its diagonal, and a zero one."""
    random, batch, k = np.random.default_rng(m), 3, min(m, n)
    a = random.standard_normal((batch, m, n)) * np.exp2(random.integers(-60, 60, (batch, 1, n)))
    a[1, 1:, 0], a[2, :, n - 1] = 0, 0
    a = a.astype(dtype)
    gpu = Emulated(dtype, nb, m)
    made, tau = a.copy(), np.full((batch, k), np.nan, dtype)
    calls, _room = calls_of(gpu, made, tau, nb, n)
    factor(calls)
    exact = orthogonal(made, tau)
    assert factor_ratios(a, made, tau).max() <= BOUND["ieee"]
    assert orthogonality_ratios(exact, dtype).max() <= BOUND["ieee"]
    q = np.full((batch, m, k), np.nan, dtype)
    generate(calls, Rectangles(q.ctypes.data, m, k))
    near = 40 * m * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(q, exact[..., :k], rtol=0, atol=near)
    x = random.standard_normal((batch, m, 2)).astype(dtype)
    expected = exact.swapaxes(1, 2) @ x
    calls, _room = calls_of(gpu, made, tau, nb, 2)
    project(calls, Rectangles(x.ctypes.data, m, 2))
    np.testing.assert_allclose(x, expected, rtol=0, atol=near)
