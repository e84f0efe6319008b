"""Generated CUDA kernels as programs of the CPU: compiled behind cuda_emulation.h, run on fenced memory.

`launch(source, items, *arguments)` runs one kernel; `compile_program(sources)` compiles many at once, for less time.
Arguments are arrays (for pointers; what the kernel writes is in them afterwards) and numbers. An argument that does
not fit the kernel's parameter is refused, as is a write to an array that the kernel declares constant.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from batchchol.artifacts.c_library import cpu_features
from batchchol.artifacts.cache import ArtifactCache, cache_key
from batchchol.artifacts.scratch import scratch_folder
from kernelgen import KernelSource, Launch

from ..fenced_memory import SECTOR_BYTES, VECTOR_BYTES, Array
from ..system_headers import faster_linker
from .arguments import EmulationError, check_arguments, fence

_FOLDER = Path(__file__).parent
_HEADER = _FOLDER / "cuda_emulation.h"

# The orders in which the threads of a block take turns: a result that depends on it lacks a barrier.
ORDERS = ("ascending", "descending")
# One in which threads of a warp are far apart: what they need of each other before one speaks for all comes too late.
ACROSS_WARPS = "across warps"

# Code that runs once or twice: optimizing it takes longer than it saves. What is undefined traps.
_QUICK = ("-O0",)
# Where rounding is the question: contraction as nvcc does it, which GCC counts as expensive.
FUSED = ("-O1", "-fexpensive-optimizations")
# GCC's passes that take a quarter of the time, and make code that runs once or twice hardly faster.
_LEFT_OUT = (
    "-fira-algorithm=priority",
    "-fno-caller-saves",
    "-fno-cprop-registers",
    "-fno-guess-branch-probability",
    "-fno-if-conversion",
    "-fno-if-conversion2",
    "-fno-ipa-pure-const",
    "-fno-ipa-reference",
    "-fno-reorder-blocks",
    "-fno-rerun-cse-after-loop",
    "-fno-shrink-wrap",
    "-fno-thread-jumps",
    "-fno-tree-bit-ccp",
    "-fno-tree-ch",
    "-fno-tree-copy-prop",
    "-fno-tree-dominator-opts",
    "-fno-tree-dse",
    "-fno-tree-forwprop",
    "-fno-tree-loop-optimize",
    "-fno-tree-pta",  # knows which pointers alias
    "-fno-tree-sink",
    "-fno-tree-slsr",
    "-fno-tree-sra",
)
_FLAGS = (
    "-std=c++17",
    *_QUICK,
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-U_FORTIFY_SOURCE",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-warning-option",  # GCC and clang each have options that the other has not
    "-Wno-ignored-optimization-argument",
    "-Wno-maybe-uninitialized",  # guesses, other ones at every level of optimization
    "-Wno-ignored-attributes",  # of elements' types as arguments of templates
    "-Wno-unknown-pragmas",
    "-Wno-unused-parameter",  # every kernel of a kind has the same parameters, used or not
    "-fsanitize=bounds,signed-integer-overflow,shift,integer-divide-by-zero",
    "-fsanitize-undefined-trap-on-error",
)
# nvcc's flags as the C++ compiler's; denormals are flushed while a kernel runs.
_FLUSH_DENORMALS = "-ftz=true"
_CONTRACT = "-ffp-contract=fast"
_TRANSLATED: Mapping[str, tuple[str, ...]] = {_FLUSH_DENORMALS: (), "-fmad=false": ("-ffp-contract=off",)}
# All that programs need: where a C++ compiler is, its library may be missing.
_LIBRARIES = ("-nodefaultlibs", "-Wl,-z,defs", "-lm", "-lc", "-lgcc")
_COMPILE_SECONDS = 300
# Whether addresses are aligned is asked where something wider than an element is loaded: each question costs.
_WIDE = re.compile(r"alignas|__align__|\b(?:float|double|int|uint|longlong|ulonglong)[24]\b")
_CHECK_ALIGNMENT = "-fsanitize=alignment"
# Elements, which only arrays of bytes hold misaligned, are not asked, unless a kernel has such arrays.
_ELEMENTS = re.compile(r"^typedef (?:float|double) (?P<names>scalar(?:, vec)?);$", re.MULTILINE)
_BYTES = re.compile(r"\bunsigned char\b")

# A declaration of dynamic shared memory, which C++ cannot express; the emulation has one array for all of them.
_DYNAMIC_SHARED = re.compile(
    r"\bextern\s+(?=[^;]*__shared__)(?:(?:__shared__|__align__\(\w+\)|alignas\(\w+\))\s+)+"
    r"(?P<type>\w[\w: ]*?)\s+(?P<name>\w+)\s*\[\s*\]\s*;"
)


class _Geometry(ctypes.Structure):
    """`cuda_emulation::Geometry`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("first_block", ctypes.c_uint64),
        ("last_block", ctypes.c_uint64),
        ("shared_bytes", ctypes.c_uint64),
        ("descending", ctypes.c_int),
        ("across_warps", ctypes.c_int),
        ("flush_denormals", ctypes.c_int),
    )


@dataclass(frozen=True)
class CudaProgram:
    """Kernels in one shared object."""

    library: ctypes.CDLL
    # The one that ran last has its threads' stacks still, for its next launch: mapping them takes longer than most.
    ran_last: ClassVar[list[CudaProgram]] = []

    def launch(self, source: KernelSource, items: int, *arguments: Any, orders: Sequence[str] = ORDERS) -> None:
        """Run a kernel on `items` items, and write what it made into the arrays among its arguments.

        It runs once for each order of its threads, on copies of the arrays between fences; the results must be the
        same bits.

        Raises
        ------
        EmulationError
            If it is called with what it does not take, lacks or misplaces a barrier, reads or writes beside an
            array, writes to a constant one, or overflows an integer.
        """
        codes = self.parameters(source.entry)
        check_arguments(source.entry, codes, arguments)
        arrays = {argument.ctypes.data: argument for argument in arguments if isinstance(argument, np.ndarray)}
        results: list[dict[int, Array]] = []
        for order in orders:
            alignment = SECTOR_BYTES if "_strip_" in source.entry else VECTOR_BYTES
            fenced = fence(arrays, codes, arguments, at_end=order == ORDERS[0], alignment=alignment)
            pointers = [
                fenced[argument.ctypes.data].array.ctypes.data if isinstance(argument, np.ndarray) else argument
                for argument in arguments
            ]
            self.launch_unfenced(source, items, *pointers, order=order)
            for memory in fenced.values():
                if where := memory.damage():
                    raise EmulationError(
                        f"{source.entry}: something was written {where} an array of {memory.array.shape}"
                    )
            results.append({address: memory.array for address, memory in fenced.items()})
        for address, array in arrays.items():
            same = {result[address].tobytes() for result in results}
            if len(same) > 1:
                raise EmulationError(f"{source.entry}: the result depends on the order in which threads run")
            if array.flags.writeable:
                array[...] = results[0][address]

    def launch_unfenced(
        self,
        source: KernelSource,
        items: int,
        *arguments: int | float | np.generic,
        order: str = ORDERS[0],
        blocks: tuple[int, int] | None = None,
    ) -> None:
        """Run a kernel as it is, pointers as integers; of the grid only blocks first, ..., last - 1 if so asked."""
        assert source.launch is not None, f"{source.entry} is not a GPU kernel"
        geometry = _geometry(source.launch, source.flags, items, order, blocks)
        values = [
            np.array(argument, np.uint64 if code.startswith("*") else code)
            for code, argument in zip(self.parameters(source.entry), arguments, strict=True)
        ]
        addresses = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        function = getattr(self.library, f"launch_{source.entry}")
        function.restype = ctypes.c_char_p
        for other in self.ran_last:
            if other is not self:
                other.library.give_back_stacks()
        self.ran_last[:] = [self]
        message = function(ctypes.byref(geometry), addresses)
        if message is not None:
            raise EmulationError(f"{source.entry}: {message.decode()}")

    def parameters(self, entry: str) -> list[str]:
        """The kernel's parameters: NumPy's codes of their types, after * for pointers, *c for those to constants."""
        function = getattr(self.library, f"parameters_of_{entry}")
        function.restype = ctypes.c_char_p
        return [str(code) for code in function().decode().split()]


def launch(
    source: KernelSource,
    items: int,
    *arguments: Any,
    orders: Sequence[str] = ORDERS,
    options: tuple[str, ...] = (),
) -> None:
    """Compile a kernel, once, and run it: see `CudaProgram.launch`."""
    compile_program((source,), options).launch(source, items, *arguments, orders=orders)


@lru_cache(maxsize=256)
def compile_program(sources: tuple[KernelSource, ...], options: tuple[str, ...] = ()) -> CudaProgram:
    """Compile kernels of equal flags as one translation unit; the session's cache keeps it. `options` come last."""
    (flags,) = {source.flags for source in sources}
    text = _program_text(sources)
    checks = (_CHECK_ALIGNMENT,) if any(_WIDE.search(source.text) for source in sources) else ()
    command = (*_compiler(), *_FLAGS, *_left_out(), *checks, *_translate(flags), *options)
    key = cache_key({"text": text, "command": " ".join(command), "headers": _header_text()})
    store = ArtifactCache()
    artifact = store.get(key) or store.put(key, _build(command, text), ".so", {}, text, ".cpp")
    return CudaProgram(ctypes.CDLL(str(artifact.path)))


def _program_text(sources: Sequence[KernelSource]) -> str:
    """Messages of the compiler and of barriers count the lines of each kernel's own text."""
    parts = [f'#include "{_HEADER}"\n']
    for source in sources:
        text = _DYNAMIC_SHARED.sub(_dynamic_shared, source.text)
        if not _BYTES.search(text):
            text = _ELEMENTS.sub(_unasked, text)
        parts.append(f'#line 1 "{source.entry}"\n{text}\nCUDA_EMULATION_EXPORT({source.entry})\n')
    return "".join(parts)


def _dynamic_shared(declaration: re.Match[str]) -> str:
    scalar, name = declaration["type"], declaration["name"]
    array = "::cuda_emulation::dynamic_shared + ::cuda_emulation::SHARED_GUARD"
    return f"{scalar} *const {name} = reinterpret_cast<{scalar} *>({array});"


def _unasked(declaration: re.Match[str]) -> str:
    """Names of the elements' type, which may be anywhere: asking of each takes a third of a program's time."""
    whole, names = declaration[0], declaration["names"]
    return whole.replace(names, ", ".join(f"{name} __attribute__((aligned(1)))" for name in names.split(", ")))


def _build(command: tuple[str, ...], text: str) -> bytes:
    inputs = ("-x", "c++", "-", "-x", "none", _runtime())
    words = (*command, *_header_options(command), *faster_linker(), "-shared", *inputs, *_LIBRARIES)
    with scratch_folder() as folder:
        output = folder / "program.so"
        message = _compile(words, text, output)
        if message:
            raise EmulationError(f"not C++: {' '.join(command)}\n{message[:4000]}")
        return output.read_bytes()


def _compile(command: Sequence[str], text: str, output: Path) -> str:
    """Compile a text; what the compiler said, if it failed."""
    done = subprocess.run(
        [*command, "-o", output],
        input=text,
        capture_output=True,
        text=True,
        timeout=_COMPILE_SECONDS,
        check=False,
    )
    return done.stderr or "nothing was said" if done.returncode else ""


@cache
def _runtime() -> str:
    """What all programs have in common, as an object file: compiling it takes half of a small one's time."""
    command, text = (*_compiler(), *_FLAGS, *FUSED), f'#define CUDA_EMULATION_RUNTIME\n#include "{_HEADER}"\n'
    key = cache_key({"runtime": text, "command": " ".join(command), "headers": _header_text()})
    store = ArtifactCache()
    if not (artifact := store.get(key)):
        with scratch_folder() as folder:
            output = folder / "runtime.o"
            if message := _compile((*command, "-c", "-x", "c++", "-"), text, output):
                raise EmulationError(f"not C++: {' '.join(command)}\n{message[:4000]}")
            artifact = store.put(key, output.read_bytes(), ".o", {}, text, ".cpp")
    return str(artifact.path)


@lru_cache(maxsize=64)
def _header_options(command: tuple[str, ...]) -> tuple[str, ...]:
    """What has the emulation's header read as it was understood before: that is half of a small program's time."""
    key = cache_key({"precompiled": " ".join(command), "headers": _header_text()})
    store = ArtifactCache()
    header = (store.get(key) or store.put(key, *_precompile(command), ".h")).path
    return ("-include", str(header.with_suffix(""))) if header.stat().st_size else ()


def _precompile(command: tuple[str, ...]) -> tuple[bytes, str, dict[str, str], str]:
    """The header, precompiled, for the cache; empty where the compiler cannot, or cannot use it."""
    with scratch_folder() as folder:
        header, text = folder / "header.gch", f'#include "{_HEADER}"\n'
        (folder / "read.h").write_text(text)
        message = _compile((*command, "-x", "c++-header", str(folder / "read.h")), "", header)
        used = (*command, "-include", str(folder / "header"), "-fsyntax-only", "-x", "c++", "-")
        message = message or _compile(used, text, folder / "nothing")
        return b"" if message else header.read_bytes(), ".gch", {}, text + message


@cache
def _left_out() -> tuple[str, ...]:
    """Nothing, if the compiler is not GCC."""
    command = (*_compiler(), "-Werror", *_LEFT_OUT, "-fsyntax-only", "-x", "c++", "-")
    return () if _compile(command, "", Path(os.devnull)) else _LEFT_OUT


def _compiler() -> tuple[str, ...]:
    for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        if name and shutil.which(name.split()[0]):
            return tuple(name.split())
    pytest.skip("needs a C++ compiler: CXX names none, and neither g++, clang++ nor c++ is on the PATH")


def _translate(flags: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := [flag for flag in flags if flag not in _TRANSLATED]:
        raise EmulationError(f"flags {unknown} have no translation: the emulation knows {list(_TRANSLATED)}")
    fused = ("-mfma",) if "fma" in cpu_features() else ()
    return (*fused, _CONTRACT, *(translated for flag in flags for translated in _TRANSLATED[flag]))


@cache
def _header_text() -> str:
    return "".join(path.read_text() for path in sorted(_FOLDER.glob("cuda_*.h")))


def _geometry(
    launched: Launch, flags: tuple[str, ...], items: int, order: str, blocks: tuple[int, int] | None
) -> _Geometry:
    # Of blocks that go on to further items there are few, so that each does; all of them if some are asked for.
    count = launched.blocks(items) if blocks else launched.grid(items, multiprocessors=1)
    first, last = blocks or (0, count)
    return _Geometry(
        (count, 1, 1),
        (launched.threads, 1, 1),
        first,
        last,
        launched.shared_bytes,
        order == "descending",
        order == ACROSS_WARPS,
        _FLUSH_DENORMALS in flags,
    )
