"""Generated C on this machine: which SIMD it has, compiling, caching and loading."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from batchchol import elf
from batchchol.cache import Artifact, ArtifactCache, Built, cache_key
from batchchol.compiler import Compiler, compile_shared, find_compiler
from batchchol.errors import BackendUnavailable, CompileError
from batchchol.stats import CompileStats
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
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.split(":")[0].strip() == "flags":
                return frozenset(line.split(":", 1)[1].split())
    except OSError:
        pass
    return frozenset()


def supported_targets() -> tuple[str, ...]:
    """The targets whose code runs on this machine, widest SIMD first."""
    return tuple(name for name in SIMD_TARGETS if _REQUIRED_FEATURES[name] <= cpu_features())


def load(source: KernelSource, target: str) -> Library:
    """Compile, or find in the cache, and load a generated source.

    Raises
    ------
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
    cache_folder, key = ArtifactCache(), key_of(source, compiler.identity)
    artifact = cache_folder.get_or_build(key, lambda folder: _build(source, compiler, flags, folder))
    try:
        return Library(ctypes.CDLL(str(artifact.path)), _stats(artifact))
    except OSError as error:
        raise CompileError("compile", f"{artifact.path} was built but cannot be loaded: {error}") from error


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


def _build(source: KernelSource, compiler: Compiler, flags: tuple[str, ...], folder: Path) -> Built:
    output = folder / "kernel.so"
    seconds = compile_shared(compiler, source.text, output, flags)
    metadata = {
        "entry": source.entry,
        "compile_seconds": seconds,
        "code_bytes": code_bytes(output),
        "compiler": compiler.identity,
        "flags": list(flags),
    }
    return Built(output, ".so", metadata, source.text)


def _stats(artifact: Artifact) -> CompileStats:
    metadata = artifact.metadata
    return CompileStats(metadata["compile_seconds"], metadata["code_bytes"], metadata["compiler"])


def code_bytes(path: Path) -> int:
    """Bytes of executable code in a 64-bit ELF file."""
    return sum(length for _, length in elf.code_sections(path.read_bytes()))
