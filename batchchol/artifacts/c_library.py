"""Generated C on this machine: which SIMD it has, compiling, caching and loading."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from batchchol.artifacts import elf
from batchchol.artifacts.c_compiler import compile_shared, find_compiler
from batchchol.artifacts.cache import Artifact, ArtifactCache, cache_key
from batchchol.artifacts.compilers import TIME_LIMIT, Running
from batchchol.artifacts.scratch import scratch_folder
from batchchol.artifacts.stats import CompileStats, read_stats
from batchchol.errors import BackendUnavailable, CompileError
from batchchol.files import system_values
from kernelgen import GENERATOR_VERSION, SIMD_TARGETS, KernelSource

# Contraction is allowed in both accuracy classes (design: ieee rounds roots and quotients correctly, sums may fuse).
# No kernel reads floating-point exceptions or errno.
COMMON_FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wall")

_REQUIRED_FEATURES = {
    "avx512": {"avx512f", "avx512dq", "avx512vl", "avx512bw", "fma"},
    "avx2": {"avx2", "fma"},
    "generic": set[str](),
}


@dataclass(frozen=True)
class Library:
    """A loaded shared object."""

    handle: ctypes.CDLL
    stats: CompileStats

    def function(self, name: str, *argument_types: Any, result: Any = ctypes.c_int) -> Callable[..., int]:
        """The exported function `name`."""
        found = getattr(self.handle, name)
        found.argtypes = argument_types
        found.restype = result
        return found  # type: ignore[no-any-return]


@cache
def cpu_features() -> frozenset[str]:
    """The instruction set extensions of this CPU, as Linux names them; none known elsewhere."""
    return frozenset(system_values(Path("/proc/cpuinfo")).get("flags", "").split())


def supported_targets() -> tuple[str, ...]:
    """The targets whose code runs on this machine, widest SIMD first."""
    return tuple(name for name in SIMD_TARGETS if _REQUIRED_FEATURES[name] <= cpu_features())


def load(
    source: KernelSource, target: str, *, time_limit: float = TIME_LIMIT, running: Running | None = None
) -> Library:
    """Compile, or find in the cache, and load a generated source.

    Parameters
    ----------
    time_limit : float
        Seconds that the compiler may take.
    running : Running, optional
        Ends the compiler when it is stopped.

    Raises
    ------
    Stopped
        If `running` was stopped meanwhile.
    BackendUnavailable
        If this CPU does not have the target's instructions.
    CompilerNotFound, CompileError, CacheError
        If the source cannot be built or kept.
    """
    if target not in supported_targets():
        raise BackendUnavailable(
            f"target={target!r} needs instructions that this CPU does not have: use one of {supported_targets()}"
        )
    compiler = find_compiler()
    flags = (*COMMON_FLAGS, *source.flags)
    kernels, key = ArtifactCache(), key_of(source, compiler.identity)
    if found := kernels.get(key):
        with suppress(ValueError):
            return _library(found, source.entry)
    kernels.prepare()
    compiled = compile_shared(compiler, source.text, flags, time_limit=time_limit, running=running)
    metadata = {
        "entry": source.entry,
        "compile_seconds": compiled.seconds,
        "code_bytes": code_bytes(compiled.data),
        "compiler": compiler.identity,
        "flags": list(flags),
    }
    built = kernels.put(key, compiled.data, ".so", metadata, source.text)
    try:
        return _library(built, source.entry)
    except ValueError as error:
        raise CompileError("compile", f"{built.path} was built but cannot be loaded: {error}") from error


def key_of(source: KernelSource, compiler: str) -> str:
    """The key of a source's entry in the cache, as a compiler of this identity makes it on such a machine."""
    return cache_key(
        {
            "source": source.text,
            "generator": str(GENERATOR_VERSION),
            "flags": " ".join((*COMMON_FLAGS, *source.flags)),
            "compiler": compiler,
            "machine": platform.machine(),
        }
    )


def _library(artifact: Artifact, entry: str) -> Library:
    """The loaded library of an entry.

    Raises
    ------
    ValueError
        If it is not the kernel that it should be, though its hash is right.
    """
    stats = read_stats(artifact.metadata)
    if not elf.is_whole(artifact.data):
        raise ValueError("it is no whole shared object")
    try:
        handle = load_library(artifact.data, entry)
        getattr(handle, entry)
    except (OSError, AttributeError) as error:
        raise ValueError(str(error)) from error
    return Library(handle, stats)


def load_library(data: bytes, name: str) -> ctypes.CDLL:
    """Load a shared object of these bytes; `name` is what debuggers and profilers call it.

    Raises
    ------
    OSError
        If the system's loader refuses it.
    """
    try:
        return _from_memory(data, name)
    except (OSError, AttributeError):
        # Some systems have no memory files, or allow no code in them; or it is the object that is bad.
        return load_copy(data, name)


def _from_memory(data: bytes, name: str) -> ctypes.CDLL:
    # A descriptor is needed until the object is mapped, no longer: there may be thousands of kernels.
    descriptor = os.memfd_create(name[:200], os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        return ctypes.CDLL(f"/proc/self/fd/{_detour(data)}{descriptor}")


def _detour(data: bytes) -> str:
    """A path from a folder to itself that is unique to these bytes.

    The loader takes what has the same path for the same object, and descriptors are used again.
    """
    bits = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
    return "".join("./" if bits >> bit & 1 else "/" for bit in range(64))


def load_copy(data: bytes, name: str) -> ctypes.CDLL:
    """`load_library` from a file of its own: equal bytes are loaded again, as another object."""
    with scratch_folder() as folder:
        path = Path(folder, f"{name[:200]}.so")
        path.write_bytes(data)
        return ctypes.CDLL(str(path))


def code_bytes(data: bytes) -> int:
    """Bytes of executable code in a 64-bit ELF file."""
    return sum(length for _, length in elf.code_sections(data))
