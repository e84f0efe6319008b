"""Compiled GPU kernels in the cache: under which keys they are kept, and found again.

Every kernel has two records. One is under a key with the compiler's identity: what this machine's nvcc made. The
other, the carried one, is under a key without it: where there is no nvcc, kernels that another machine compiled are
found by it, those compiled last. The payload, a module of one or several kernels, is stored once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from batchchol.artifacts.cache import Artifact, ArtifactCache, cache_key
from batchchol.artifacts.compilers import Compiler
from batchchol.artifacts.nvcc import Code, Kind, Usage, kernels_in, parse_architecture
from batchchol.artifacts.stats import CompileStats, read_stats
from kernelgen import GENERATOR_VERSION, KernelSource

# The oldest architecture that PTX is looked for: nvcc has made none for older ones since CUDA 12.
_OLDEST = 50


@dataclass(frozen=True)
class Module:
    """A compiled kernel, ready for the driver to load.

    Attributes
    ----------
    path : Path
        The file of its cubin or PTX, which other kernels may share: equal paths are equal modules.
    data : bytes
        The cubin or PTX, verified.
    kind : {"cubin", "ptx"}
        PTX is compiled once more by the driver when it is loaded.
    entry : str
        The kernel's name in it.
    stats : CompileStats
        What compiling took. Seconds of a module of several kernels are divided in proportion to their code; PTX has
        no code, registers, spills, shared and stack bytes yet.
    """

    path: Path
    data: bytes = field(repr=False)
    kind: Kind
    entry: str
    stats: CompileStats


def find_compiled(cache: ArtifactCache, source: KernelSource, arch: str, nvcc: Compiler) -> Module | None:
    """The kernel as this nvcc compiled it, or None."""
    return _module(cache.get(_key(source, arch, nvcc)), source.entry)


def find_carried(cache: ArtifactCache, source: KernelSource, arch: str) -> Module | None:
    """The kernel as any compiler made it last, for `arch` or one whose code runs there, or None."""
    for candidate in runnable_architectures(arch):
        if found := _module(cache.get(_key(source, candidate, None)), source.entry):
            return found
    return None


def runnable_architectures(arch: str) -> Iterator[str]:
    """`arch` and all whose code it runs: cubins of its own generation, PTX of any earlier one, the nearest first."""
    yield arch
    code, number, suffix = parse_architecture(arch)
    if code == "sm":
        newest = number if suffix else number - 1
        yield from (f"sm_{other}" for other in range(newest, number // 10 * 10 - 1, -1))
        yield from (f"compute_{other}" for other in range(number, _OLDEST - 1, -1))


def keep(
    cache: ArtifactCache, sources: Sequence[KernelSource], arch: str, nvcc: Compiler, code: Code
) -> list[Module]:
    """Keep a module's kernels, each under both of its keys.

    Raises
    ------
    CacheError
        If the cache folder cannot be written.
    """
    payload = cache.store(code.data, f".{code.kind}")
    modules = []
    for source, seconds in zip(sources, _shares(sources, code), strict=True):
        metadata = {
            "entry": source.entry,
            "kind": code.kind,
            "arch": arch,
            "target": code.target,
            "flags": list(source.flags),
            "compiler": nvcc.identity,
            "compile_seconds": seconds,
            "code_bytes": code.code_bytes[source.entry],
            "built": datetime.now(UTC).isoformat(timespec="seconds"),
            **asdict(code.usage.get(source.entry, Usage())),
        }
        cache.link(_key(source, arch, nvcc), payload, metadata, source.text, ".cu")
        cache.link(_key(source, arch, None), payload, metadata)
        modules.append(Module(payload, code.data, code.kind, source.entry, read_stats(metadata)))
    return modules


def keys(source: KernelSource, arch: str, nvcc: Compiler | None) -> tuple[str, ...]:
    """The keys of a kernel's records, its own compiler's first; without one that of the carried record alone."""
    compilers = (None,) if nvcc is None else (nvcc, None)
    return tuple(_key(source, arch, compiler) for compiler in compilers)


def _key(source: KernelSource, arch: str, nvcc: Compiler | None) -> str:
    parts = {
        # A digest, since one source may be looked for under many architectures.
        "source": hashlib.sha256(source.text.encode()).hexdigest(),
        "generator": str(GENERATOR_VERSION),
        "flags": " ".join(source.flags),
        "arch": arch,
    }
    return cache_key(parts if nvcc is None else parts | {"compiler": nvcc.identity})


def _shares(sources: Sequence[KernelSource], code: Code) -> list[float]:
    """Each kernel's part of the compile time: proportional to its code, or to its text where there is none."""
    weights = [code.code_bytes[source.entry] or len(source.text) for source in sources]
    return [code.seconds * weight / sum(weights) for weight in weights]


def _module(artifact: Artifact | None, entry: str) -> Module | None:
    """The module of an entry of the cache; None if it is not that of the kernel, though its hash is right."""
    if artifact is None:
        return None
    kind: Any = artifact.metadata.get("kind")
    if artifact.metadata.get("entry") != entry or artifact.path.suffix != f".{kind}":
        return None
    if kind not in get_args(Kind) or entry not in kernels_in(artifact.data, kind):
        return None
    try:
        return Module(artifact.path, artifact.data, kind, entry, read_stats(artifact.metadata))
    except ValueError:
        return None
