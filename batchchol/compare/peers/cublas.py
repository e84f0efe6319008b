"""cuBLAS: its batched LU and QR factorizations and solves, in place, on arrays of pointers made ahead."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from batchchol.backends.cuda import memory
from batchchol.compare.contenders import Contender
from batchchol.compare.factors import LuArena, LuFactored
from batchchol.compare.peers.base import Peer, first_pointer, lapack_name, pointers_to
from batchchol.compare.reflections import LeastSquaresArena, QrArena, QrFactored
from batchchol.compare.solves import GeneralArena
from batchchol.errors import BatchcholError

_TRANSPOSED = 1  # CUBLAS_OP_T
_DEFAULT_STREAM = 0


def general(arena: GeneralArena) -> list[Contender]:
    """`getrfBatched` and `getrsBatched` on copies of the matrices, in rows, whose transposes cuBLAS factors.

    Raises
    ------
    BatchcholError
        If there are several right-hand sides of a matrix, whose rows are not in the order that cuBLAS takes.
    """
    if arena.nrhs != 1:
        raise BatchcholError(f"cuBLAS takes right-hand sides in columns, nrhs = 1 alone here, got {arena.nrhs}")
    names = [lapack_name(f"{routine}Batched", arena.dtype) for routine in ("getrf", "getrs")]
    factor, solve = (getattr(_library(), name) for name in names)
    handle, n, info, matrices = _handle(), arena.n, arena.info(), arena.inputs.copy()
    given, pivots = pointers_to(arena, matrices.data), arena.upload(np.zeros(arena.batch * n, np.int32))
    solutions, status = pointers_to(arena, arena.room), np.zeros(1, np.int32)

    def call(index: int) -> None:
        a, x = (first_pointer(arena, each, index) for each in (given, solutions))
        rows = int(pivots.gpudata)
        factor(handle, n, a, n, rows, int(info.gpudata), arena.batch)
        solve(handle, _TRANSPOSED, n, 1, a, n, rows, x, n, status.ctypes.data, arena.batch)

    def restore() -> None:
        memory.copy_on_device(arena.inputs.data, matrices.data)
        arena.restore()

    spec = f"cublas{names[0][0].upper()}{names[0][1:]} and {names[1]}, in place"
    return [Contender(spec, arena.calls(call), lambda index: arena.solved(index, info=info), restore)]


def factors(arena: LuArena) -> list[Contender]:
    """`getrfBatched` on copies of the matrices, in rows, whose transposes cuBLAS factors."""
    name = lapack_name("getrfBatched", arena.dtype)
    factor, handle, n, info, pivots = getattr(_library(), name), _handle(), arena.n, arena.info(), arena.pivots()
    given = pointers_to(arena, arena.room.data)

    def call(index: int) -> None:
        factor(handle, n, first_pointer(arena, given, index), n, int(pivots.gpudata), int(info.gpudata), arena.batch)

    def result(index: int) -> LuFactored:
        return arena.factored(index, arena.output(index), pivots, info, order="col")

    return [Contender(f"cublas{name[0].upper()}{name[1:]}, in place", arena.calls(call), result, arena.restore)]


def reflectors(arena: QrArena) -> list[Contender]:
    """`geqrfBatched` on copies of the matrices, in rows, whose transposes cuBLAS factors."""
    name = _native_name("geqrfBatched", arena.dtype)
    factor, handle, n, tau, status = getattr(_native(), name), _handle(), arena.n, arena.tau(), ctypes.c_int()
    given, scalars = pointers_to(arena, arena.room.data), pointers_to(arena, tau)

    def call(index: int) -> None:
        a, first = (ctypes.c_void_p(each) for each in (first_pointer(arena, given, index), int(scalars.gpudata)))
        _check(name, factor(ctypes.c_void_p(handle), n, n, a, n, first, ctypes.byref(status), arena.batch))

    def result(index: int) -> QrFactored:
        return arena.reflected(index, arena.output(index), tau, order="col")

    return [Contender(f"{name}, in place", arena.calls(call), result, arena.restore)]


def least_squares(arena: LeastSquaresArena) -> list[Contender]:
    """`gelsBatched` on transposed copies of the matrices, which it takes in columns.

    Raises
    ------
    BatchcholError
        If there are several right-hand sides of a matrix, whose rows are not in the order that cuBLAS takes.
    """
    if arena.nrhs != 1:
        raise BatchcholError(f"cuBLAS takes right-hand sides in columns, nrhs = 1 alone here, got {arena.nrhs}")
    name = _native_name("gelsBatched", arena.dtype)
    solve, handle, n, status = getattr(_native(), name), _handle(), arena.n, ctypes.c_int()
    transposed = np.ascontiguousarray(arena.backend.host(arena.inputs.data).swapaxes(1, 2))
    columns, matrices, info = arena.backend.place(transposed), arena.backend.place(transposed), arena.info()
    given, solutions = pointers_to(arena, matrices), pointers_to(arena, arena.room)

    def call(index: int) -> None:
        a, x = (ctypes.c_void_p(first_pointer(arena, each, index)) for each in (given, solutions))
        where = ctypes.byref(status), ctypes.c_void_p(int(info.gpudata))
        _check(name, solve(ctypes.c_void_p(handle), 0, n, n, 1, a, n, x, n, *where, arena.batch))

    def restore() -> None:
        memory.copy_on_device(columns, matrices)
        arena.restore()

    spec = f"{name}, in place"
    return [Contender(spec, arena.calls(call), lambda index: arena.solved(index, info=info), restore)]


def _native_name(routine: str, dtype: str) -> str:
    """cuBLAS's name of a routine that CuPy has no function for."""
    name = lapack_name(routine, dtype)
    return f"cublas{name[0].upper()}{name[1:]}"


def _check(name: str, status: int) -> None:
    if status:
        raise BatchcholError(f"{name} returned status {status}")


@cache
def _native() -> Any:
    """The library that CuPy has loaded, for what CuPy has no functions for."""
    return ctypes.CDLL(f"libcublas.so.{_library().getVersion(_handle()) // 10_000}")


@cache
def _library() -> Any:
    return import_module("cupy_backends.cuda.libs.cublas")


@cache
def _handle() -> int:
    """A handle whose work goes to the default stream."""
    handle = int(_library().create())
    _library().setStream(handle, _DEFAULT_STREAM)
    return handle


def _version() -> str:
    cupy: Any = import_module("cupy")
    return f"cuBLAS {_library().getVersion(_handle())}, CuPy {cupy.__version__}"


PEER = Peer(
    "cublas",
    "cuda",
    _version,
    {"gesv": general, "getrf": factors, "geqrf": reflectors, "gels": least_squares},
    missing="CuPy cannot be used ({error})",
    hint="pip install cupy-cuda13x",
)
