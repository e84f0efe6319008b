"""From CUDA sources to modules that the driver can load: from the cache, or compiled; one, or all of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

from batchchol.artifacts.builds import Build, Outcome
from batchchol.artifacts.cache import ArtifactCache
from batchchol.artifacts.compilers import TIME_LIMIT, Compiler, Running
from batchchol.artifacts.cuda_cache import Module, find_carried, find_compiled, keep
from batchchol.artifacts.nvcc import compile_code, find_nvcc, parse_architecture
from batchchol.errors import CompileError, CompilerNotFound
from batchchol.parallel import available_threads
from batchchol.progress import Show
from kernelgen import KernelSource

__all__ = ["Module", "Outcome", "build", "build_all", "find", "module_groups", "rebuild", "reused"]

Group = tuple[KernelSource, ...]

# Together, kernels save the compiler's start (0.3 s); long ones take far longer, and would only bring
# their module near its time limit.
MODULE_CHARACTERS = 400_000


def build(source: KernelSource, arch: str, *, time_limit: float = TIME_LIMIT) -> Module:
    """One kernel for one architecture: from the cache, or compiled and kept there.

    Without nvcc a kernel that was compiled elsewhere and carried here is taken, whatever compiler made it, for
    `arch` or for an architecture whose code `arch` runs.

    Parameters
    ----------
    source : KernelSource
        A kernel of the target "cuda".
    arch : str
        Such as ``"sm_90"``. For one that this nvcc does not know it is PTX of the nearest earlier one.
    time_limit : float
        Seconds that the compiler may take.

    Raises
    ------
    ValueError
        If `arch` is not an architecture's name.
    CompilerNotFound
        If there is no nvcc, and no carried kernel either.
    CompileError
        If it does not compile (status "compile") or not in time ("timeout").
    CacheError
        If the cache folder cannot be written.
    """
    return find(source, arch) or rebuild(source, arch, time_limit=time_limit)


def rebuild(source: KernelSource, arch: str, *, time_limit: float = TIME_LIMIT) -> Module:
    """Compile one kernel, whether the cache has it or not, and keep it; see :func:`build`."""
    parse_architecture(arch)
    cache = ArtifactCache()
    try:
        nvcc = find_nvcc()
    except CompilerNotFound as error:
        raise CompilerNotFound(_not_carried(source, arch, cache, error)) from error
    cache.prepare()
    return compile_module(cache, (source,), arch, nvcc, time_limit)[0]


def find(source: KernelSource, arch: str, *, cache: ArtifactCache | None = None) -> Module | None:
    """The kernel that :func:`build` would return without compiling, or None.

    Raises
    ------
    ValueError
        If `arch` is not an architecture's name.
    """
    parse_architecture(arch)
    kernels = cache or ArtifactCache()
    try:
        return find_compiled(kernels, source, arch, find_nvcc())
    except CompilerNotFound:
        return find_carried(kernels, source, arch)


def build_all(
    sources: Sequence[KernelSource],
    arch: str,
    *,
    jobs: int | None = None,
    per_module: int = 8,
    time_limit: float = TIME_LIMIT,
    progress: Show = lambda _: None,
) -> list[Outcome]:
    """Compile every kernel that the cache lacks, several to a module and modules in parallel.

    A module that does not compile, or not in time, is tried again kernel by kernel, so that one bad kernel costs
    only itself. What is finished is in the cache at once: after an interrupt, or any other end, the next call goes
    on where this one was.

    Parameters
    ----------
    sources : sequence of KernelSource
        Kernels of the target "cuda"; equal ones are compiled once.
    arch : str
        Such as ``"sm_90"``.
    jobs : int or None
        Compilers at a time; None is as many as :func:`batchchol.parallel.available_threads`.
    per_module : int
        Kernels in a module at most.
    time_limit : float
        Seconds that one run of the compiler may take: for a module, and again for each kernel of one that failed.
    progress : callable
        Called with a :class:`Progress` about every second and whenever something is done, in this thread.

    Returns
    -------
    list of Outcome
        One for each source, in their order.

    Raises
    ------
    ValueError
        If `arch` is not an architecture's name, or `jobs` or `per_module` is less than 1.
    CacheError
        If the cache folder cannot be written.
    """
    parse_architecture(arch)
    jobs = available_threads() if jobs is None else jobs
    for name, value in (("jobs", jobs), ("per_module", per_module)):
        if value < 1:
            raise ValueError(f"{name}: got {value}, expected a positive integer")
    cache, running = ArtifactCache(), Running()
    build = Build(len(set(sources)), progress)
    missing, nvcc = _look_up(cache, build, sources, arch)
    if missing and nvcc is not None:
        cache.prepare()
        # Only as full as leaves every compiler something to do.
        groups = module_groups(missing, min(per_module, -(-len(missing) // jobs)))
        attempt = partial(attempt_module, cache, arch, nvcc, time_limit, running)
        build.run(groups, attempt, jobs=jobs, stop=running.stop)
    return [build.outcomes[source] for source in sources]


def _look_up(
    cache: ArtifactCache, build: Build, sources: Sequence[KernelSource], arch: str
) -> tuple[list[KernelSource], Compiler | None]:
    """The kernels that the cache lacks, and the compiler for them; without nvcc they have failed already."""
    build.outcomes |= reused(sources, partial(find, arch=arch, cache=cache))
    missing, nvcc = [source for source in dict.fromkeys(sources) if source not in build.outcomes], None
    try:
        nvcc = find_nvcc() if missing else None
    except CompilerNotFound as error:
        for source in missing:
            build.outcomes[source] = Outcome(source.entry, "compile", _not_carried(source, arch, cache, error))
    build.report()
    return missing, nvcc


def reused(
    sources: Iterable[KernelSource], look_up: Callable[[KernelSource], Module | None]
) -> dict[KernelSource, Outcome]:
    """The outcomes of kernels that need not be compiled."""
    found = ((source, look_up(source)) for source in dict.fromkeys(sources))
    return {source: Outcome(source.entry, "built", "", module.stats, True) for source, module in found if module}


def attempt_module(
    cache: ArtifactCache, arch: str, nvcc: Compiler, time_limit: float, running: Running, group: Group
) -> list[Outcome]:
    """The outcomes of a module's kernels; none if there are several and their module failed."""
    try:
        modules = compile_module(cache, group, arch, nvcc, time_limit, running)
    except CompileError as error:
        return [Outcome(group[0].entry, error.status, str(error))] if len(group) == 1 else []
    return [Outcome(module.entry, "built", "", module.stats) for module in modules]


def module_groups(sources: Sequence[KernelSource], per_module: int) -> list[Group]:
    """Kernels that share a module: of the same flags, of like length, of different names; the longest first.

    The longest first keeps all compilers busy to the end.
    """
    by_flags = sorted(sources, key=lambda source: (source.flags, -len(source.text)))
    groups = [
        group
        for _, same in groupby(by_flags, key=lambda source: source.flags)
        for group in _cut(list(same), per_module)
    ]
    return sorted(groups, key=_characters, reverse=True)


def _cut(sources: list[KernelSource], per_module: int) -> Iterator[Group]:
    group: list[KernelSource] = []
    for source in sources:
        full = len(group) == per_module or _characters((*group, source)) > MODULE_CHARACTERS
        if group and (full or any(source.entry == other.entry for other in group)):
            yield tuple(group)
            group = []
        group.append(source)
    if group:
        yield tuple(group)


def _characters(group: Sequence[KernelSource]) -> int:
    return sum(len(source.text) for source in group)


def compile_module(
    cache: ArtifactCache, group: Group, arch: str, nvcc: Compiler, time_limit: float, running: Running | None = None
) -> list[Module]:
    """Compile kernels into one module, and keep it.

    Raises
    ------
    CompileError
        If one of them does not compile, or all together not in time.
    CacheError
        If the cache folder cannot be written.
    Stopped
        If `running` was stopped meanwhile.
    """
    text = "\n".join(source.text for source in group)
    entries = [source.entry for source in group]
    code = compile_code(
        nvcc, text, entries, arch, group[0].flags, time_limit=time_limit, keep=len(group) == 1, running=running
    )
    return keep(cache, group, arch, nvcc, code)


def _not_carried(source: KernelSource, arch: str, cache: ArtifactCache, error: CompilerNotFound) -> str:
    return (
        f"{source.entry} is not in the cache folder {cache.folder} for {arch}, and cannot be compiled: {error}. "
        f"Or compile it on another machine (python -m batchchol compile --arch {arch} ...) and carry it here "
        "(python -m batchchol cache pack, cache unpack)"
    )
