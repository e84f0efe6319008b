"""cuSOLVERDx's factorizations and solves as kernels: libmathdx makes the code of a block, NVRTC that of the
kernel around it, and nvJitLink links them. All three are libraries of pip's wheels or of the CUDA toolkit; no GPU is
needed.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from batchchol.artifacts.nvcc import find_nvcc
from batchchol.compare.peers.mathdx_source import LU, QR, SOLVER, SOURCE
from batchchol.errors import BatchcholError
from kernelgen.targets import ELEMENT_BYTES

VARIABLE = "BATCHCHOL_MATHDX"
# What libmathdx calls things: operators, traits, values, options.
_SIZE, _TYPE, _PRECISION, _SM, _EXECUTION, _BLOCK_DIM, _API, _FUNCTION, _ARRANGEMENT, _FILL, _LEADING, _PER_BLOCK = (
    *range(10),
    13,
    14,
)
_SYMBOL_NAME, _SUGGESTED_BLOCK_DIM, _SUGGESTED_PER_BLOCK = 2, 5, 6
_REAL, _BLOCK, _SHARED_MEMORY, _COLUMN_MAJOR, _ROW_MAJOR, _LOWER = 0, 1, 0, 0, 1, 1
_POTRF, _GETRF_PARTIAL_PIVOT, _GEQRF, _POSV, _GESV_PARTIAL_PIVOT, _GELS = 2, 5, 7, 11, 13, 14
_PRECISIONS = {"float32": 5, "float64": 6}
_TARGET_SM = 1
# What nvJitLink calls its inputs.
_LTOIR, _FATBIN = 3, 4


@dataclass(frozen=True)
class Shape:
    """What a kernel of cuSOLVERDx is: `threads` of a block, which factors `matrices` of order `n`.

    In shared memory their rows are `padding` elements longer. The factors are in rows with `by_rows`, else in
    columns. With `pdl` it may be launched before its predecessors have ended. If there are right-hand sides, `nrhs`
    of each matrix, it solves for them too, and does not write the factors. Matrices may be any if `general`;
    it works by Householder reflectors if `reflects` as well.
    """

    n: int
    dtype: str
    threads: int
    matrices: int
    architecture: str
    pdl: bool = False
    nrhs: int = 0
    padding: int = 0
    by_rows: bool = False
    general: bool = False
    reflects: bool = False

    @property
    def lda(self) -> int:
        """Elements from one row to the next in shared memory."""
        return self.n + self.padding

    @property
    def entry(self) -> str:
        """The kernel's name."""
        columns = f"_rhs{self.nrhs}" if self.nrhs else ""
        block = f"_t{self.threads}_m{self.matrices}{f'_pad{self.padding}' * bool(self.padding)}"
        kind = "_reflects" if self.reflects else "_general" * self.general
        return f"cusolverdx_{self.dtype}_n{self.n}{kind}{columns}{block}{'_rows' * self.by_rows}{'_pdl' * self.pdl}"

    @property
    def source(self) -> str:
        """The text of the kernel around the device function."""
        if self.nrhs:
            return SOLVER
        return QR if self.reflects else LU if self.general else SOURCE

    @property
    def function(self) -> int:
        """What libmathdx calls the function."""
        solves, factors = (_POSV, _GESV_PARTIAL_PIVOT, _GELS), (_POTRF, _GETRF_PARTIAL_PIVOT, _GEQRF)
        return (solves if self.nrhs else factors)[self.general + self.reflects]

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        elements = self.matrices * self.n * self.lda
        if self.nrhs:
            elements = -(-elements // 4) * 4 + self.matrices * self.n * self.nrhs
        return elements * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class Libraries:
    """libmathdx, NVRTC and nvJitLink, loaded."""

    mathdx: ctypes.CDLL
    nvrtc: ctypes.CDLL
    linker: ctypes.CDLL


@cache
def libraries() -> Libraries:
    """The three libraries.

    Raises
    ------
    OSError
        If one cannot be loaded.
    """
    # libmathdx finds NVRTC, and NVRTC its own other half, among what is loaded already.
    with suppress(OSError):
        _load("libnvrtc-builtins.so.13.*")
    nvrtc = _load("libnvrtc.so.1[23]")
    return Libraries(_load("libmathdx.so.0", os.environ.get(VARIABLE)), nvrtc, _load("libnvJitLink.so.1[23]"))


def version() -> str:
    """The version, such as "libmathdx 0.4.1"."""
    numbers = [ctypes.c_int() for _ in range(3)]
    _check(libraries().mathdx.mathdxGetVersionEx(*map(ctypes.byref, numbers)), "asking for the version")
    return f"libmathdx {'.'.join(str(number.value) for number in numbers)}"


def suggestion(shape: Shape) -> tuple[int, int]:
    """The threads and matrices of a block that cuSOLVERDx suggests; the shape's own are not looked at."""
    with _descriptor(replace(shape, threads=0, matrices=0)) as plain:
        matrices = _trait(plain, _SUGGESTED_PER_BLOCK, 1)[0]
    with _descriptor(replace(shape, threads=0, matrices=matrices)) as several:
        x, y, z = _trait(several, _SUGGESTED_BLOCK_DIM, 3)
    return x * y * z, matrices


def cubin(shape: Shape) -> bytes:
    """The kernel `shape.entry` for its architecture.

    Raises
    ------
    BatchcholError
        If a library refuses.
    """
    with _descriptor(shape) as solver:
        code = _code(solver, shape.architecture)
        functions = _sized(libraries().mathdx, "cusolverdxGetUniversalFATBIN", solver)
        symbol = _sized(libraries().mathdx, "cusolverdxGetTraitStr", solver, _SYMBOL_NAME).rstrip(b"\0").decode()
    return _linked(shape.architecture, [(_LTOIR, _kernel(shape, symbol)), (_LTOIR, code), (_FATBIN, functions)])


def _load(pattern: str, path: str | None = None) -> ctypes.CDLL:
    if path:
        return ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    found = [file for folder in _folders() for file in sorted(folder.glob(pattern), reverse=True)]
    name = pattern.replace("1[23]", "13").removesuffix(".*")
    return ctypes.CDLL(str(found[0]) if found else name, ctypes.RTLD_GLOBAL)


def _folders() -> Iterator[Path]:
    """Where wheels of NVIDIA's put their libraries, and where the toolkit has them."""
    for entry in sys.path:
        yield from sorted(Path(entry, "nvidia").glob("*/lib"))
    with suppress(BatchcholError):
        toolkit = Path(find_nvcc().path).resolve().parents[1]
        yield from (toolkit / "lib64", toolkit / "targets" / "x86_64-linux" / "lib")


@contextmanager
def _descriptor(shape: Shape) -> Iterator[ctypes.c_longlong]:
    """What libmathdx knows of a kernel; threads and matrices of 0 are left for it to suggest."""
    mathdx, handle = libraries().mathdx, ctypes.c_longlong()
    _check(mathdx.cusolverdxCreateDescriptor(ctypes.byref(handle)), "describing a solver")
    numbers = {
        _FUNCTION: shape.function,
        _PRECISION: _PRECISIONS[shape.dtype],
        _EXECUTION: _BLOCK,
        _TYPE: _REAL,
        _SM: _sm(shape.architecture),
        **({} if shape.general else {_FILL: _LOWER}),
        _API: _SHARED_MEMORY,
        **({_PER_BLOCK: shape.matrices} if shape.matrices else {}),
    }
    arrays = {
        _SIZE: (shape.n, shape.n, shape.nrhs or 1),
        # Rows are columns, unless matrices are general.
        _ARRANGEMENT: (
            _ROW_MAJOR if shape.by_rows or shape.general else _COLUMN_MAJOR,
            *[_ROW_MAJOR] * bool(shape.nrhs),
        ),
        **({_BLOCK_DIM: (shape.threads, 1, 1)} if shape.threads else {}),
        **({_LEADING: (shape.lda, shape.nrhs) if shape.nrhs else (shape.lda,)} if shape.padding else {}),
    }
    try:
        for operator, value in numbers.items():
            status = mathdx.cusolverdxSetOperatorInt64(handle, operator, ctypes.c_longlong(value))
            _check(status, f"setting operator {operator} to {value}")
        for operator, values in arrays.items():
            array = (ctypes.c_longlong * len(values))(*values)
            status = mathdx.cusolverdxSetOperatorInt64s(handle, operator, ctypes.c_size_t(len(values)), array)
            _check(status, f"setting operator {operator} to {values}")
        yield handle
    finally:
        mathdx.cusolverdxDestroyDescriptor(handle)


def _trait(solver: ctypes.c_longlong, trait: int, count: int) -> list[int]:
    values = (ctypes.c_longlong * count)()
    mathdx = libraries().mathdx
    if count == 1:
        status = mathdx.cusolverdxGetTraitInt64(solver, trait, values)
    else:
        status = mathdx.cusolverdxGetTraitInt64s(solver, trait, ctypes.c_size_t(count), values)
    _check(status, f"asking for trait {trait}")
    return [int(value) for value in values]


def _code(solver: ctypes.c_longlong, architecture: str) -> bytes:
    """The device function, for linking."""
    mathdx, code = libraries().mathdx, ctypes.c_longlong()
    _check(mathdx.commondxCreateCode(ctypes.byref(code)), "making code")
    try:
        target = ctypes.c_longlong(_sm(architecture))
        _check(mathdx.commondxSetCodeOptionInt64(code, _TARGET_SM, target), "choosing the architecture")
        _check(mathdx.cusolverdxFinalizeCode(code, solver), "compiling the solver")
        return _sized(mathdx, "commondxGetCodeLTOIR", code)
    finally:
        mathdx.commondxDestroyCode(code)


def macros(shape: Shape, symbol: str) -> dict[str, str]:
    """What the text of the kernels leaves open; `symbol` is the device function that factors."""
    scalar = {"float32": "float", "float64": "double"}[shape.dtype]
    numbers = {"N": shape.n, "LDA": shape.lda, "THREADS": shape.threads, "MATRICES": shape.matrices}
    numbers |= {"PDL": int(shape.pdl)}
    numbers |= (
        {"NRHS": shape.nrhs, "GENERAL": int(shape.general), "REFLECTS": int(shape.reflects)} if shape.nrhs else {}
    )
    return {name: str(number) for name, number in numbers.items()} | {
        "SCALAR": scalar,
        "SYMBOL": symbol,
        "ENTRY": shape.entry,
    }


def _kernel(shape: Shape, symbol: str) -> bytes:
    """The kernel around the device function, for linking."""
    options = [f"-D{name}={value}" for name, value in macros(shape, symbol).items()]
    options += [f"--gpu-architecture={shape.architecture}", "-dlto", "--relocatable-device-code=true"]
    nvrtc, program = libraries().nvrtc, ctypes.c_void_p()
    text, name = shape.source.encode(), f"{shape.entry}.cu".encode()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None), "making a program")
    try:
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), array):
            log = _sized(nvrtc, "nvrtcGetProgramLog", program, separate=True)
            raise BatchcholError(f"{shape.entry}: NVRTC says {log.decode(errors='replace')}")
        return _sized(nvrtc, "nvrtcGetLTOIR", program, separate=True)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _linked(architecture: str, parts: list[tuple[int, bytes]]) -> bytes:
    linker, handle = libraries().linker, ctypes.c_void_p()
    options = (ctypes.c_char_p * 2)(f"-arch={architecture}".encode(), b"-lto")
    _check(linker.nvJitLinkCreate(ctypes.byref(handle), 2, options), "starting the linker")
    try:
        for kind, data in parts:
            status = linker.nvJitLinkAddData(handle, kind, data, ctypes.c_size_t(len(data)), b"part")
            _check(status, f"linking {len(data):,} bytes", lambda: _log(handle))
        _check(linker.nvJitLinkComplete(handle), "linking", lambda: _log(handle))
        return _sized(linker, "nvJitLinkGetLinkedCubin", handle, separate=True)
    finally:
        linker.nvJitLinkDestroy(ctypes.byref(handle))


def _log(handle: ctypes.c_void_p) -> str:
    return _sized(libraries().linker, "nvJitLinkGetErrorLog", handle, separate=True).decode(errors="replace")


def _sized(library: Any, name: str, handle: Any, *key: int, separate: bool = False) -> bytes:
    """What a library hands out by size and then content; `separate` if the second call is not told the size."""
    size = ctypes.c_size_t()
    _check(getattr(library, f"{name}Size")(handle, *key, ctypes.byref(size)), name)
    room = ctypes.create_string_buffer(size.value)
    told = () if separate else (size,)
    _check(getattr(library, name)(handle, *key, *told, room), name)
    return room.raw


def _sm(architecture: str) -> int:
    """Compute capability 9.0, "sm_90", is 900 to libmathdx."""
    return int("".join(filter(str.isdigit, architecture))) * 10


def _check(status: int, doing: str, why: Callable[[], str] = str) -> None:
    if status:
        raise BatchcholError(f"cuSOLVERDx: {doing}: status {status} {why()}".rstrip())
