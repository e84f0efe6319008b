"""cuSOLVER: its batched routines through CuPy, in place, on arrays of pointers made ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

from batchchol.backends.cuda import memory
from batchchol.compare.contenders import Arena, Contender
from batchchol.compare.peers.base import (
    LOOPED,
    Peer,
    addresses_of,
    first_pointer,
    in_a_loop,
    lapack_name,
    on_pointers,
    pointers_to,
)
from batchchol.compare.solves import BaseSolveArena, FusedArena, SolveArena
from batchchol.errors import BatchcholError
from kernelgen import MAX_N, Layout
from kernelgen.targets import ELEMENT_BYTES

_LOWER, _UPPER = 0, 1  # CUBLAS_FILL_MODE_LOWER, CUBLAS_FILL_MODE_UPPER
_MODES = {_LOWER: "lower", _UPPER: "upper"}
_DEFAULT_STREAM = 0


def contenders(arena: Arena) -> list[Contender]:
    """Either triangle of column-major matrices; above order 128 `potrf` in a loop as well."""
    batched = [_batched(arena, mode, f"{_MODES[mode]}, in place") for mode in _MODES]
    if arena.n <= MAX_N:
        return batched
    return batched + [_in_a_loop(arena, mode) for mode in _MODES if arena.batch <= LOOPED]


def _batched(arena: Arena, mode: int, how: str) -> Contender:
    name, handle = lapack_name("potrfBatched", arena.dtype), _handle()
    function = getattr(_library(), name)

    def factor(pointers: int, info: int) -> None:
        function(handle, mode, arena.n, pointers, arena.n, info, arena.batch)

    # The upper triangle of a matrix in columns is the lower one in rows.
    order = "row" if mode == _UPPER else "col"
    return on_pointers(arena, f"cusolverDn{name.capitalize()}, {how}", factor, order)


def _in_a_loop(arena: Arena, mode: int) -> Contender:
    """`potrf` on one matrix of a set after the other."""
    info, addresses = arena.info(), addresses_of(arena)
    status = [int(info.gpudata) + member % arena.batch * info.dtype.itemsize for member in range(len(addresses))]
    each = potrf(addresses, arena.n, arena.dtype, status, mode)
    order, name = "row" if mode == _UPPER else "col", lapack_name("potrf", arena.dtype)
    return in_a_loop(arena, f"cusolverDn{name.capitalize()}, {_MODES[mode]}, in place", each, info, order)


def solvers(arena: SolveArena) -> list[Contender]:
    """In place, by factors of either fill mode: column by column the lower ones in rows are upper ones.

    Raises
    ------
    BatchcholError
        If there are several right-hand sides of a matrix.
    """
    name = _solver_name(arena)
    return [
        _solver(arena, name, _UPPER, arena.inputs.data),
        _solver(arena, name, _LOWER, arena.inputs.to_layout(Layout.canonical("col")).data),
    ]


def _solver(arena: SolveArena, name: str, mode: int, factors: Any) -> Contender:
    function, handle, info = getattr(_library(), name), _handle(), arena.info()
    given, solutions = pointers_to(arena, factors), pointers_to(arena, arena.room)

    def call(index: int) -> None:
        l, x = (first_pointer(arena, each, index) for each in (given, solutions))
        # The order is that of the factors, so that the call holds on to them.
        n = factors.shape[-1]
        function(handle, mode, n, arena.nrhs, l, n, x, n, int(info.gpudata), arena.batch)

    spec = f"cusolverDn{name.capitalize()}, {'upper' if mode else 'lower'}, in place"
    return Contender(spec, arena.calls(call), arena.solved, arena.restore)


def fused(arena: FusedArena) -> list[Contender]:
    """`potrfBatched` and `potrsBatched` in place, on copies of the matrices; by columns of either fill mode.

    Raises
    ------
    BatchcholError
        If there are several right-hand sides of a matrix.
    """
    return [_fused(arena, _solver_name(arena), mode) for mode in (_UPPER, _LOWER)]


def _fused(arena: FusedArena, solver: str, mode: int) -> Contender:
    factorizer, handle, n, info = lapack_name("potrfBatched", arena.dtype), _handle(), arena.n, arena.info()
    factor, solve, matrices = getattr(_library(), factorizer), getattr(_library(), solver), arena.inputs.copy()
    given, solutions = pointers_to(arena, matrices.data), pointers_to(arena, arena.room)
    ignored = arena.info()

    def call(index: int) -> None:
        a, x = (first_pointer(arena, each, index) for each in (given, solutions))
        factor(handle, mode, n, a, n, int(info.gpudata), arena.batch)
        solve(handle, mode, n, arena.nrhs, a, n, x, n, int(ignored.gpudata), arena.batch)

    def restore() -> None:
        memory.copy_on_device(arena.inputs.data, matrices.data)
        arena.restore()

    spec = f"cusolverDn{factorizer.capitalize()} and {solver}, {'upper' if mode else 'lower'}, in place"
    return Contender(spec, arena.calls(call), lambda index: arena.solved(index, info=info), restore)


def _solver_name(arena: BaseSolveArena) -> str:
    name = lapack_name("potrsBatched", arena.dtype)
    if arena.nrhs != 1:
        raise BatchcholError(f"cusolverDn{name.capitalize()} takes nrhs = 1 alone, got {arena.nrhs}")
    return name


def potrf(
    addresses: Sequence[int], n: int, dtype: str, status: Sequence[int], mode: int = _LOWER
) -> list[Callable[[], None]]:
    """Calls of `cusolverDnSpotrf` (float64: `Dpotrf`), each on one column-major matrix: a triangle, in place.

    `status` are the addresses of an int32 each for LAPACK's info.

    Raises
    ------
    ImportError
        If there is no CuPy.
    """
    name, library, handle = lapack_name("potrf", dtype), _library(), _handle()
    elements = int(getattr(library, f"{name}_bufferSize")(handle, mode, n, addresses[0], n))
    # Each call holds on to it.
    work = memory.room(max(elements, 1) * ELEMENT_BYTES[dtype], "cuSOLVER's workspace")
    function = getattr(library, name)
    pairs = zip(addresses, status, strict=True)
    return [partial(function, handle, mode, n, address, n, work, elements, each) for address, each in pairs]


@cache
def _library() -> Any:
    return import_module("cupy_backends.cuda.libs.cusolver")


@cache
def _handle() -> int:
    """A handle whose work goes to the default stream."""
    handle = int(_library().create())
    _library().setStream(handle, _DEFAULT_STREAM)
    return handle


def _version() -> str:
    cupy: Any = import_module("cupy")
    return f"cuSOLVER {'.'.join(map(str, _library()._getVersion()))}, CuPy {cupy.__version__}"


PEER = Peer(
    "cusolver",
    "cuda",
    _version,
    {"potrf": contenders, "potrs": solvers, "posv": fused},
    missing="CuPy cannot be used ({error})",
    hint="pip install cupy-cuda13x",
)
