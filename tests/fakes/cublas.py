"""CuPy's binding of cuBLAS on a machine that has neither: the routines that are used, on the memory of the fake GPU.

Matrices are in columns, as cuBLAS has them. Of a triangle that is not used nothing is used here either.
"""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol.backends.cuda.bindings import cublas, host_block

from .gpu import FakeGpu

SIDE = 0x6000
TYPES = {"s": np.dtype(np.float32), "d": np.dtype(np.float64)}


class CublasError(RuntimeError):
    """CuPy's."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cuBLAS Error {status}")
        self.status = status


class FakeStream:
    """CuPy's: the current one of the process, while it is entered."""

    current: ClassVar[list[int]] = [0]

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def __enter__(self) -> FakeStream:
        self.current.append(self.ptr)
        return self

    def __exit__(self, *_: object) -> None:
        self.current.pop()


class FakeCapture(FakeStream):
    """A stream that captures, as then that beside it does: what they are given runs, the graph's launches count."""

    launched: ClassVar[list[int]] = []
    gpu: ClassVar[FakeGpu]

    def __init__(self, non_blocking: bool) -> None:
        assert non_blocking
        super().__init__(0xCA97)

    def begin_capture(self) -> None:
        self.gpu.capturing.update((self.ptr, SIDE))

    def end_capture(self) -> SimpleNamespace:
        self.gpu.capturing.clear()
        return SimpleNamespace(launch=lambda stream: self.launched.append(stream.ptr))


class FakeRuntime:
    """Copies of blocks between the memory of the fake GPU and the host's."""

    def memcpy2DAsync(self, to: int, pitch: int, source: int, source_pitch: int, width: int, *rest: int) -> None:
        rows, kind, stream = rest
        assert kind in (1, 2)
        assert stream
        for row in range(rows):
            ctypes.memmove(to + row * pitch, source + row * source_pitch, width)

    def streamSynchronize(self, stream: int) -> None:
        assert stream


class FakePinned(bytearray):
    """Page-locked memory."""

    @property
    def ptr(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self))


class Routine:
    """A function of a C library, whose arguments have types."""

    argtypes: tuple[Any, ...] = ()

    def __init__(self, work: Any) -> None:
        self.work = work

    def __call__(self, *given: int) -> int:
        assert len(given) == len(self.argtypes)
        self.work(*(kind(each).value or 0 for kind, each in zip(self.argtypes, given, strict=True)))
        return 0


class FakeCublas(ModuleType):
    """The routines; `calls` has their names and the streams that they work on."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__("cupy_backends.cuda.libs.cublas")
        self.gpu, self.status = gpu, 0
        self.calls: list[tuple[str, int]] = []
        for letter, dtype in TYPES.items():
            for routine in (self.gemm, self.gemmStridedBatched, self.syrk, self.trsm, self.trsmBatched):
                name = f"{letter}{routine.__name__}"
                setattr(
                    self,
                    name,
                    lambda *given, name=name, work=routine, dtype=dtype: self._do(name, work, dtype, given),
                )

    def __getattr__(self, name: str) -> Any:
        """cuBLAS's own functions, which are called while a stream is captured."""
        if not name.startswith("cublas"):
            raise AttributeError(name)
        if name == "cublasSetStream_v2":
            made = Routine(lambda _, stream: FakeStream.current.append(stream))
        else:
            routine = getattr(self, name[6].lower() + name[7:].removesuffix("_v2"))
            made = Routine(lambda *given: (routine(*given), FakeStream.current.pop()))
        setattr(self, name, made)
        return made

    def create(self) -> int:
        if self.status:
            raise CublasError(self.status)
        return 0xB1A5

    def _do(self, name: str, work: Any, dtype: np.dtype[Any], given: tuple[int, ...]) -> None:
        self.gpu.require(pushed=True)
        handle, *arguments = given
        assert handle == 0xB1A5
        self.calls.append((name, FakeStream.current[-1]))
        if self.status:
            raise CublasError(self.status)
        work(dtype, *arguments)

    def gemm(self, dtype: Any, ta: int, tb: int, m: int, n: int, k: int, alpha: int, *rest: int) -> None:
        a, lda, b, ldb, beta, c, ldc = rest
        left = columns(a, dtype, *((k, m) if ta else (m, k)), lda)
        right = columns(b, dtype, *((n, k) if tb else (k, n)), ldb)
        result = columns(c, dtype, m, n, ldc)
        product = (left.T if ta else left) @ (right.T if tb else right)
        result[...] = number(alpha, dtype) * product + number(beta, dtype) * result

    def gemmStridedBatched(self, dtype: Any, ta: int, tb: int, *rest: int) -> None:
        m, n, k, alpha, a, lda, step_a, b, ldb, step_b, beta, c, ldc, step_c, count = rest
        for x in range(count):
            parts = (each + x * step * dtype.itemsize for each, step in ((a, step_a), (b, step_b), (c, step_c)))
            at_a, at_b, at_c = parts
            self.gemm(dtype, ta, tb, m, n, k, alpha, at_a, lda, at_b, ldb, beta, at_c, ldc)

    def syrk(self, dtype: Any, upper: int, t: int, n: int, k: int, alpha: int, *rest: int) -> None:
        a, lda, beta, c, ldc = rest
        part = columns(a, dtype, *((k, n) if t else (n, k)), lda)
        result = columns(c, dtype, n, n, ldc)
        product = number(alpha, dtype) * (part.T @ part if t else part @ part.T)
        kept = np.triu_indices(n) if upper else np.tril_indices(n)
        result[kept] = product[kept] + number(beta, dtype) * result[kept]

    def trsm(
        self, dtype: Any, right: int, upper: int, t: int, unit: int, m: int, n: int, alpha: int, *rest: int
    ) -> None:
        a, lda, b, ldb = rest
        order = n if right else m
        factor, result = columns(a, dtype, order, order, lda), columns(b, dtype, m, n, ldb)
        triangle = (np.triu if upper else np.tril)(factor)
        if unit:
            triangle = triangle - np.diag(np.diag(triangle)) + np.eye(order, dtype=dtype)
        if right:
            result[...] = number(alpha, dtype) * np.linalg.solve(triangle if t else triangle.T, result.T).T
        else:
            result[...] = number(alpha, dtype) * np.linalg.solve(triangle.T if t else triangle, result)

    def trsmBatched(self, dtype: Any, *given: int) -> None:
        *how, a, lda, b, ldb, count = given
        places = [columns(each, np.dtype(np.uint64), count, 1, count)[:, 0].tolist() for each in (a, b)]
        for factor, result in zip(*places, strict=True):
            self.trsm(dtype, *how, factor, lda, result, ldb)


def columns(address: int, dtype: np.dtype[Any], rows: int, cols: int, leading: int) -> NDArray[Any]:
    """A matrix in columns at an address."""
    assert leading >= max(rows, 1)
    count = (cols - 1) * leading + rows
    buffer = (ctypes.c_byte * (count * dtype.itemsize)).from_address(address)
    flat: NDArray[Any] = np.frombuffer(buffer, dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, cols), (dtype.itemsize, leading * dtype.itemsize))


def number(address: int, dtype: np.dtype[Any]) -> float:
    """A scalar in the host's memory."""
    return float(columns(address, dtype, 1, 1, 1)[0, 0])


def install(monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu) -> FakeCublas:
    """Put it in CuPy's place."""
    library = FakeCublas(gpu)
    FakeCapture.null, FakeCapture.launched, FakeCapture.gpu = FakeStream(0), [], gpu  # type: ignore[attr-defined]
    monkeypatch.setattr(cublas, "_loaded", lambda: library)
    cuda = SimpleNamespace(
        get_current_stream=lambda: SimpleNamespace(ptr=FakeStream.current[-1]),
        ExternalStream=FakeStream,
        Stream=FakeCapture,
        runtime=FakeRuntime(),
        alloc_pinned_memory=FakePinned,
    )
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)  # type: ignore[arg-type]
    for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.libs", "cupy"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, library.__name__, library)
    forget()
    return library


def forget() -> None:
    """Have the library look for CuPy again."""
    for each in (cublas._library, cublas._handle_of, cublas.cupy_cuda, host_block.host_block):
        each.cache_clear()
