"""QR factorizations by panels: their kernels emulated, the products by NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import get_backend, lstsq, lstsq_ex
from batchchol.algorithms.reflections import QrCalls, Rectangles, factor, generate, project
from batchchol.operations.qr import BOUND, factor_ratios, orthogonal, orthogonality_ratios, solve_ratios
from kernelgen.emit.panels import qr_panel as kernels
from kernelgen.emit.panels.lu_panel import LuPanel

from ...emulation.programs import compile_program
from ...fakes.cublas import FakeCublas, forget, install
from ...fakes.pycuda import FakeGpu
from ..backends.cuda.test_batches import on_device

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


@pytest.fixture
def fake_blas(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCublas]:
    yield install(monkeypatch, fake_gpu)
    forget()


def test_least_squares(fake_blas: FakeCublas) -> None:
    """Of several matrices at once, and of one on a stream."""
    random, host, stream = np.random.default_rng(4), get_backend("cuda").host, 0x77
    a, b = random.standard_normal((2, 140, 130)), random.standard_normal((2, 140, 3))
    x, info = map(host, lstsq_ex(on_device(a), on_device(b)))
    assert not info.any()
    assert solve_ratios(a, b, x).max() <= BOUND["ieee"]
    square = random.standard_normal((129, 129)).astype(np.float32)
    fake_blas.calls.clear()
    x = host(lstsq(on_device(square), on_device(square[:, 0].copy()), stream=stream))
    assert np.abs(x - np.eye(129)[0]).max() < 1e-3
    assert {each for _, each in fake_blas.calls} == {stream}


def test_zeros_of_the_diagonal() -> None:
    a, info = np.ones((4, 75, 70)), np.full(4, -1, np.int32)
    a[1, 69, 69] = a[2, 40, 40] = a[2, 3, 3] = a[3, 40, 3] = 0
    source = kernels.zeros("float64")
    compile_program((source,)).launch(source, 4, a, info, np.int64(75), np.int64(70))
    assert info.tolist() == [0, 70, 4, 0]
