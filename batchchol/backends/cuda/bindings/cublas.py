"""cuBLAS: the level-3 routines of the blocked algorithms, by CuPy's binding of them.

CuPy has cuBLAS work on its own current stream, whatever a handle's is, so that is set around calls for another one. A
handle takes a workspace of its own at its first use: 32 MiB on GPUs of compute capability 9.0, else 4 MiB (cuBLAS
Library, "cublasSetWorkspace").
"""

from __future__ import annotations

import ctypes
import re
import threading
import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from batchchol.backends.cuda.device import Device, device, stream_address
from batchchol.errors import DeviceError, OutOfMemory, optional

WORKSPACE_BYTES = 32 << 20
# CuPy gives the handle its thread's stream and then calls the routine: threads on different streams take turns.
_TURN = threading.Lock()

# cublasOperation_t, cublasFillMode_t, cublasSideMode_t, cublasDiagType_t.
_AS_IT_IS, _TRANSPOSED = 0, 1
_LOWER, _UPPER = 0, 1
_LEFT, _RIGHT = 0, 1
_NON_UNIT, _UNIT = 0, 1
# cublasStatus_t: there is no memory for the workspace.
_ALLOCATION_FAILED = 3
# The arguments behind the handle: integers, addresses, and distances between matrices.
_TYPES = MappingProxyType({"i": ctypes.c_int, "a": ctypes.c_void_p, "d": ctypes.c_longlong})
_ARGUMENTS = MappingProxyType(
    {
        "gemm": "iiiiiaaiaiaai",
        "gemmStridedBatched": "iiiiiaaidaidaaidi",
        "syrk": "iiiiaaiaai",
        "trsm": "iiiiiiaaiai",
        "trsmBatched": "iiiiiiaaiaii",
    }
)
_LETTERS = MappingProxyType({"float32": "s", "float64": "d"})
_NUMBERS = MappingProxyType({"float32": ctypes.c_float, "float64": ctypes.c_double})


class Cublas:
    """The routines for one dtype and matrices in one order, "row" or "col"; addresses are of first elements.

    Every call queues its work on `stream` and returns. Products are made in the precision of the dtype. What is done
    beside other work, on another stream, is done by routines that are made with `side`: they have a workspace of
    their own.

    Raises
    ------
    BatchcholError
        If CuPy cannot be imported; says how to get it.
    """

    def __init__(self, dtype: str, order: str, *, side: bool = False) -> None:
        self._letter, number = _LETTERS[dtype], _NUMBERS[dtype]
        self._rows, self._side = order == "row", side
        self._routines = {name: getattr(_library(), self._letter + name) for name in _ARGUMENTS}
        # cuBLAS reads them when it is called; kept here, so that they stay where they are.
        self._scalars = number(-1), number(1), number(0)
        self._minus_one, self._one, self._zero = map(ctypes.addressof, self._scalars)

    def gemm(
        self,
        c: int,
        a: int,
        b: int,
        rows: int,
        columns: int,
        inner: int,
        leading: int,
        *,
        batch: int = 1,
        apart: int = 0,
        transposed: bool = True,
        stream: Any = None,
    ) -> None:
        """C - A B^T in place of C (rows, columns), by A (rows, inner) and B (columns, inner).

        Or C - A B, by B (inner, columns), unless it is `transposed`. All three are parts of matrices of the same
        leading dimension, of which there are `batch`, `apart` elements from each other.
        """
        # What is in rows is its transpose to cuBLAS, and the transpose of A B^T is B A^T.
        of_b = _TRANSPOSED if transposed else _AS_IT_IS
        if self._rows:
            sizes = of_b, _AS_IT_IS, columns, rows, inner
            left, right = b, a
        else:
            sizes = _AS_IT_IS, of_b, rows, columns, inner
            left, right = a, b
        if batch == 1:
            numbers: tuple[int, ...] = (self._minus_one, left, leading, right, leading, self._one, c, leading)
            self._call("gemm", stream, *sizes, *numbers)
            return
        numbers = (self._minus_one, left, leading, apart, right, leading, apart, self._one, c, leading, apart, batch)
        self._call("gemmStridedBatched", stream, *sizes, *numbers)

    def product(
        self,
        c: tuple[int, int, int],
        a: tuple[int, int, int],
        b: tuple[int, int, int],
        sizes: tuple[int, int, int],
        *,
        transposed: bool = False,
        subtracts: bool = False,
        batch: int = 1,
        stream: Any = None,
    ) -> None:
        """A B in place of C (rows, columns), or A^T B if `transposed`, or C less that, if it `subtracts`; in rows.

        Each is an address, a leading dimension, and how far a matrix is from the next; sizes are rows, columns and
        what is summed over.
        """
        rows, columns, inner = sizes
        how = _AS_IT_IS, _TRANSPOSED if transposed else _AS_IT_IS, columns, rows, inner
        of_product, of_c = (self._minus_one, self._one) if subtracts else (self._one, self._zero)
        self._call("gemmStridedBatched", stream, *how, of_product, *b, *a, of_c, *c, batch)

    def syrk(self, c: int, a: int, n: int, inner: int, leading: int, *, stream: Any = None) -> None:
        """C - A A^T in place of the lower triangle of C (n, n), by A (n, inner)."""
        how = (_UPPER, _TRANSPOSED) if self._rows else (_LOWER, _AS_IT_IS)
        self._call("syrk", stream, *how, n, inner, self._minus_one, a, leading, self._one, c, leading)

    def solve(
        self,
        l: int,
        x: int,
        n: int,
        nrhs: int,
        leading: int,
        *,
        transposed: bool = False,
        upper: bool = False,
        unit: bool = False,
        batch: int | None = None,
        stream: Any = None,
    ) -> None:
        """The solutions of L X = B, or of L^T X = B, in place of B (n, nrhs), which is C-contiguous.

        L may be `upper` in place of lower, and the diagonal of a `unit` one is ones, and not read. With `batch`, `l`
        and `x` are device arrays of `batch` addresses, one per matrix.
        """
        # To cuBLAS X is X^T: X^T L^T = B^T.
        mode, operation = (_UPPER, _AS_IT_IS) if self._rows else (_LOWER, _TRANSPOSED)
        if transposed:
            operation = _TRANSPOSED - operation
        if upper:
            mode = _UPPER + _LOWER - mode
        how = _RIGHT, mode, operation, _UNIT if unit else _NON_UNIT, nrhs, n, self._one, l, leading, x, nrhs
        if batch is None:
            self._call("trsm", stream, *how)
        else:
            self._call("trsmBatched", stream, *how, batch)

    def trsm(self, l: int, b: int, rows: int, n: int, leading: int, *, stream: Any = None) -> None:
        """The solutions of X L^T = B in place of B (rows, n), by L (n, n); both are parts of matrices as `gemm`'s."""
        how: tuple[int, ...]
        if self._rows:
            how = _LEFT, _UPPER, _TRANSPOSED, _NON_UNIT, n, rows
        else:
            how = _RIGHT, _LOWER, _TRANSPOSED, _NON_UNIT, rows, n
        self._call("trsm", stream, *how, self._one, l, leading, b, leading)

    def _call(self, name: str, stream: Any, *arguments: int) -> None:
        gpu = device()
        with gpu.at_hand(), _TURN:
            if stream is not None and gpu.driver.is_capturing(queue := stream_address(stream)):
                _captured(self._letter, name, _handle(self._side), queue, arguments)
                return
            try:
                with _on(stream):
                    self._routines[name](_handle(self._side), *arguments)
            except RuntimeError as error:
                raise _understood(error) from error


def _captured(letter: str, name: str, handle: int, stream: int, arguments: tuple[int, ...]) -> None:
    """Call a routine of cuBLAS itself: CuPy refuses to while a stream is captured."""
    library = _loaded()
    routine = getattr(library, f"cublas{letter.upper()}{name}{'' if 'Batched' in name else '_v2'}")
    routine.argtypes = (ctypes.c_void_p, *(_TYPES[each] for each in _ARGUMENTS[name]))
    library.cublasSetStream_v2.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    if status := library.cublasSetStream_v2(handle, stream) or routine(handle, *arguments):
        raise DeviceError(status, f"cuBLAS: {letter}{name} returned {status}, expected 0, in a capture")


def prepare(*, side: bool = False) -> None:
    """Make cuBLAS ready, also for work beside other work, so that what is missing is known before anything is queued.

    Raises
    ------
    BatchcholError
        If CuPy cannot be imported; says how to get it.
    OutOfMemory
        If there is no memory for a handle.
    """
    with device().at_hand():
        for each in (False, True) if side else (False,):
            _handle(each)


@cache
def _library() -> Any:
    # CuPy itself comes first: it knows where the libraries are.
    cupy_cuda()
    return import_module("cupy_backends.cuda.libs.cublas")


@cache
def _loaded() -> ctypes.CDLL:
    """The library that CuPy has loaded."""
    found = re.search(r"\S*/libcublas\.so\S*", Path("/proc/self/maps").read_text(encoding="utf-8"))
    return ctypes.CDLL(found[0] if found else "libcublas.so")


def _handle(side: bool) -> int:
    return _handle_of(device(), side)


@cache
def _handle_of(gpu: Device, side: bool) -> int:
    """A GPU's, whose context is current.

    One for work on other streams than the default one is apart from it: they would share a workspace.
    """
    try:
        return int(_library().create())
    except RuntimeError as error:
        raise _understood(error) from error


def _understood(error: RuntimeError) -> Exception:
    """CuPy's error as one of this library's."""
    status = int(getattr(error, "status", 0) or 0)
    if status != _ALLOCATION_FAILED:
        return DeviceError(status, f"cuBLAS: {error}")
    gpu = device()
    return OutOfMemory("cuBLAS's workspace, on the GPU,", WORKSPACE_BYTES, int(gpu.pycuda.mem_get_info()[0]))


def _on(stream: Any) -> AbstractContextManager[object]:
    """Make a stream CuPy's current one during a call; by default the default stream."""
    cuda, address = cupy_cuda(), 0 if stream is None else stream_address(stream)
    if cuda.get_current_stream().ptr == address:
        return nullcontext()
    context: AbstractContextManager[object] = _external(address) if address else cuda.Stream.null
    return context


@lru_cache(maxsize=64)
def _external(address: int) -> Any:
    """CuPy's stream of an address, which CuPy 14 calls deprecated in favour of what older ones lack."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return cupy_cuda().ExternalStream(address)


@cache
def cupy_cuda() -> Any:
    """CuPy's module of that name.

    Raises
    ------
    BatchcholError
        If it cannot be imported; says how to get it.
    """
    remedy = "; or, for matrices of the host, backend='cpu', where LAPACK does it"
    return optional("cupy.cuda", "factoring and solving larger matrices on a GPU", "large", remedy)
