"""The compile stage on a cluster: every kernel once, on any worker, and then in the client's cache."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from batchchol.artifacts import cuda_cache, cuda_modules
from batchchol.artifacts.archive import unpack_bytes
from batchchol.artifacts.builds import Build, Group, Outcome
from batchchol.artifacts.c_library import key_of
from batchchol.artifacts.cache import ArtifactCache
from batchchol.artifacts.compilers import Compiler
from batchchol.artifacts.nvcc import find_nvcc
from batchchol.errors import CompilerNotFound
from batchchol.measure import shared_code
from batchchol.measure.point import Point
from batchchol.measure.process import MachineFailure
from batchchol.progress import Progress, Show
from batchchol.tune.cluster.remote import Made, Member
from batchchol.tune.cluster.workers import Crew, WorkersLost
from batchchol.tune.compile import compile_here
from kernelgen import KernelSource, KernelSpec, generate

_FETCHED_AT_ONCE = 64
# For each task that compiles, one more waits for a worker, or for one that joins.
_WAITING = 2


class ClusterCompilers:
    """Compiles on the workers of a cluster; see `batchchol.tune.compile.Compilers`.

    All workers that compile have the same compiler: the client's where any has that, else the most common one. What
    it made is kept in the client's cache, whichever worker it was.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._arch: str | None = None

    @cached_property
    def nvcc(self) -> Compiler | None:
        """The CUDA compiler whose kernels are measured; None if there is none anywhere."""
        try:
            own: Compiler | None = find_nvcc()
        except CompilerNotFound:
            own = None
        found = [member.nvcc for member in self._crew.members.values() if member.nvcc]
        counts = Counter(nvcc.identity for nvcc in found)
        if own is None or (found and own.identity not in counts):
            return max(found, key=lambda nvcc: counts[nvcc.identity], default=None)
        return own

    @cached_property
    def compiler(self) -> str | None:
        """The identity of the C compiler that most workers have."""
        found = [member.compiler for member in self._crew.members.values() if member.compiler]
        return Counter(found).most_common(1)[0][0] if found else None

    def keys(self, point: Point) -> tuple[str, ...]:
        """The keys of the cache under which a point's kernel is found."""
        if self._arch is None:
            return (key_of(generate(point.spec), self.compiler or ""),)
        return cuda_cache.keys(shared_code.code_of(point).source, self._arch, self.nvcc)

    def cuda(
        self,
        sources: Sequence[KernelSource],
        arch: str,
        *,
        jobs: int | None,
        per_module: int,
        time_limit: float,
        progress: Show,
    ) -> list[Outcome]:
        """See `batchchol.artifacts.cuda_modules.build_all`; `jobs` are those of this machine."""
        self._arch, nvcc, wanted = arch, self.nvcc, list(dict.fromkeys(sources))
        self._gather(key for source in wanted for key in cuda_cache.keys(source, arch, nvcc))
        if nvcc is None or not (able := _able(self._crew, nvcc.identity)):
            # Either all is here already, or only this machine may have a compiler.
            return compile_here(
                sources, arch, jobs=jobs, per_module=per_module, time_limit=time_limit, progress=progress
            )
        run = _Compiling(self._crew, nvcc.identity, arch, time_limit)
        cache = ArtifactCache()
        found = cuda_modules.reused(wanted, lambda source: cuda_cache.find_compiled(cache, source, arch, nvcc))
        missing = [source for source in wanted if source not in found]
        share = -(-len(missing) // sum(member.threads for member in able))
        groups = cuda_modules.module_groups(missing, min(per_module, share))
        outcomes = run.outcomes(Build(len(wanted), run.watched(progress), found), groups)
        return [outcomes[source] for source in sources]

    def cpu(self, specs: Sequence[KernelSpec], *, time_limit: float, progress: Show) -> list[Outcome]:
        """See `batchchol.backends.base.Backend.build`."""
        run = _Compiling(self._crew, self.compiler or "", "", time_limit)
        found = run.outcomes(Build(len(specs), run.watched(progress)), [(spec,) for spec in specs])
        return [found[spec] for spec in specs]

    def _gather(self, keys: Iterable[str]) -> None:
        """Fetch kernels that the local cache lacks from the workers' caches."""
        cache, wanted = ArtifactCache(), list(keys)
        others = [member.address for member in self._crew.members.values() if not member.shares_cache]
        for worker in others:
            missing = [key for key in wanted if cache.get(key) is None]
            for start in range(0, len(missing), _FETCHED_AT_ONCE):
                some = missing[start : start + _FETCHED_AT_ONCE]
                # Whatever a failing worker does not send is compiled.
                with suppress(MachineFailure):
                    unpack_bytes(self._crew.result(self._crew.submit("fetch", some, worker=worker)), cache)


class _Compiling:
    """One build by one compiler: each attempt waits, in a thread, for a worker that has the compiler."""

    def __init__(self, crew: Crew, compiler: str, arch: str, time_limit: float) -> None:
        self._crew = crew
        self._compiler = compiler
        self._arguments = arch, time_limit
        self._unable: set[str] = set()
        self._giving_up = threading.Lock()
        self._suspecting = threading.Lock()
        self._stopped = threading.Event()

    def outcomes(self, build: Build, groups: Sequence[Group]) -> dict[Any, Outcome]:
        """The outcomes of all kernels."""
        jobs = _WAITING * sum(member.threads for member in self._able())
        build.run(groups, self._attempt, jobs=max(1, jobs), stop=self._stop)
        return build.outcomes

    def watched(self, show: Show) -> Show:
        """Look for workers whenever progress is shown."""

        def watch(progress: Progress) -> None:
            self._crew.look()
            self._crew.wait(bool(self._able()))
            show(progress)

        return watch

    def _able(self) -> list[Member]:
        return [each for each in _able(self._crew, self._compiler) if each.address not in self._unable]

    def _attempt(self, group: Group) -> Sequence[Outcome]:
        """The outcomes of a group; a kernel whose workers are lost is tried again, one such kernel at a time."""
        try:
            return self._made(group)
        except WorkersLost:
            if len(group) > 1:
                return []
        with self._suspecting:
            try:
                return self._made(group)
            except WorkersLost as error:
                return [Outcome("", "compile", str(error))]

    def _made(self, group: Group) -> Sequence[Outcome]:
        while True:
            future = self._crew.submit("compile", group, *self._arguments, needs=self._compiler)
            if self._stopped.is_set():
                future.cancel()
            made: Made = self._crew.result(future)
            if not made.failure:
                unpack_bytes(made.packed, ArtifactCache())
                return made.outcomes
            self._give_up(made)

    def _give_up(self, made: Made) -> None:
        """Exclude a worker from compiling."""
        with self._giving_up:
            if made.worker not in self._unable:
                self._unable.add(made.worker)
                self._crew.withdraw(made.worker, self._compiler, made.failure)
            if not self._able():
                raise MachineFailure(f"no worker of the cluster can compile any more: {made.failure}")

    def _stop(self) -> None:
        self._stopped.set()
        self._crew.cancel()


def _able(crew: Crew, compiler: str) -> list[Member]:
    """The members that have a compiler; others may come and go meanwhile."""
    return [member for member in crew.members.copy().values() if compiler in member.compilers]
