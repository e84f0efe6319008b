"""The compile stage on a cluster: every kernel once, on any worker, and then in the client's cache."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from batchchol.artifacts import cuda_cache, cuda_modules
from batchchol.artifacts.c_library import key_of
from batchchol.artifacts.cache import ArtifactCache
from batchchol.artifacts.cuda_modules import Outcome
from batchchol.artifacts.nvcc import Nvcc, find_nvcc
from batchchol.backends import BuildOutcome
from batchchol.errors import CompilerNotFound
from batchchol.measure import shared_code
from batchchol.measure.point import Point
from batchchol.measure.process import MachineFailure
from batchchol.progress import Progress
from batchchol.tune.cluster import remote
from batchchol.tune.cluster.dispatch import Item, Task
from batchchol.tune.cluster.parcels import lacking
from batchchol.tune.compile import compile_here
from kernelgen import KernelSource, KernelSpec, generate

if TYPE_CHECKING:
    from batchchol.tune.cluster.workers import Crew, Member

Group = tuple[Any, ...]
Show = Callable[[Progress], None]

_FETCHED_AT_ONCE = 64


class ClusterCompilers:
    """Compiles on the workers of a cluster; see `building.Compilers`.

    All workers that compile have the same compiler: the client's where any has that, else the most common one. What
    it made is kept in the client's cache, whichever worker it was.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._arch: str | None = None

    @cached_property
    def nvcc(self) -> Nvcc | None:
        """The CUDA compiler whose kernels are measured; None if there is none anywhere."""
        try:
            own: Nvcc | None = find_nvcc()
        except CompilerNotFound:
            own = None
        found = [member.about.nvcc for member in self._crew.members.values() if member.about.nvcc]
        counts = Counter(nvcc.identity for nvcc in found)
        if own is None or (found and own.identity not in counts):
            return max(found, key=lambda nvcc: counts[nvcc.identity], default=None)
        return own

    @cached_property
    def compiler(self) -> str | None:
        """The identity of the C compiler that most workers have."""
        found = [member.about.compiler for member in self._crew.members.values() if member.about.compiler]
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
        able = _Able(self._crew, lambda member: _name(member.about.nvcc) == _name(nvcc))
        if nvcc is None or not able:
            # Either all is here already, or nobody has a compiler, unless it is this machine.
            return compile_here(
                sources, arch, jobs=jobs, per_module=per_module, time_limit=time_limit, progress=progress
            )
        found = _found(wanted, arch, nvcc)
        missing = [source for source in wanted if source not in found]
        slots = sum(member.threads for member in able)
        groups = cuda_modules.module_groups(missing, min(per_module, -(-len(missing) // slots) or 1))

        def task(member: Member, group: Group) -> Task:
            send = not member.about.shares_cache
            return Task(remote.compile_cuda, (self._crew.name, group, arch, time_limit, send), (group,))

        feed = _Compiling(self._crew, able, groups, task, progress, found)
        self._crew.work(feed)
        return [feed.outcomes[source] for source in sources]

    def cpu(self, specs: Sequence[KernelSpec], progress: Show, time_limit: float) -> list[BuildOutcome]:
        """See `batchchol.backends.base.Backend.build`."""
        compiler = self.compiler
        able = _Able(self._crew, lambda member: member.about.compiler == compiler)

        def task(member: Member, group: Group) -> Task:
            send = not member.about.shares_cache
            return Task(remote.compile_cpu, (self._crew.name, group, time_limit, send), (group,))

        feed = _Compiling(self._crew, able, [(spec,) for spec in specs], task, progress, {})
        self._crew.work(feed)
        found = feed.outcomes
        return [BuildOutcome(spec, found[spec].status, found[spec].message) for spec in specs]

    def _gather(self, keys: Iterable[str]) -> None:
        """Fetch into the cache here what it lacks and workers have."""
        cache = ArtifactCache()
        missing = lacking(cache, keys)
        others = [member.address for member in self._crew.members.values() if not member.about.shares_cache]
        if not missing or not others:
            return
        found, _ = self._crew.ask({address: Task(remote.stock, (missing,)) for address in others})
        for address, theirs in found.items():
            wanted = sorted(theirs & missing)
            missing -= theirs
            for start in range(0, len(wanted), _FETCHED_AT_ONCE):
                task = Task(remote.fetch, (wanted[start : start + _FETCHED_AT_ONCE],))
                for parcel in self._crew.ask({address: task})[0].values():
                    parcel.unpack(cache)


class _Able:
    """The members, now, that can do something."""

    def __init__(self, crew: Crew, test: Callable[[Member], bool]) -> None:
        self._crew = crew
        self._test = test
        self._unable: set[str] = set()

    def __contains__(self, member: Member) -> bool:
        return member.address not in self._unable and self._test(member)

    def __iter__(self) -> Any:
        return (member for member in self._crew.members.values() if member in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def remove(self, member: Member) -> None:
        """It cannot any more."""
        self._unable.add(member.address)


class _Compiling:
    """The feed of kernels: each item is a group that is compiled together."""

    def __init__(
        self,
        crew: Crew,
        able: _Able,
        groups: Iterable[Group],
        task: Callable[[Member, Group], Task],
        show: Show,
        outcomes: dict[Any, Outcome],
    ) -> None:
        self._crew = crew
        self._able = able
        self._groups = deque(groups)
        self._task = task
        self._show = show
        self._begin = time.monotonic()
        self._work = self._left = sum(map(_work, self._groups))
        self._total = len(outcomes) + sum(map(len, self._groups))
        self._reused = len(outcomes)
        self.outcomes = outcomes
        self.over = False
        self._report()

    @property
    def waiting(self) -> bool:
        return bool(self._groups)

    def depth(self, member: Member) -> int:
        return member.threads if member in self._able else 0

    def next(self, member: Member) -> Task | None:
        return self._task(member, self._groups.popleft()) if self._groups else None

    def fit(self, member: Member) -> bool:
        return member in self._able

    def alone(self, member: Member, item: Item) -> Task:
        assert isinstance(item, tuple)
        return self._task(member, item)

    def done(self, member: Member, task: Task, value: remote.Made) -> None:
        value.parcel.unpack(ArtifactCache())
        (group,) = task.items
        assert isinstance(group, tuple)
        for kernel, outcome in zip(group, value.outcomes, strict=True):
            self._note(kernel, outcome)

    def failed(self, member: Member, task: Task, reason: str) -> None:
        (group,) = task.items
        assert isinstance(group, tuple)
        self._groups.appendleft(group)
        self._able.remove(member)
        self._crew.say(f"worker {member.address} ({member.about.host}) compiles no more: {reason}")
        if not self._able:
            raise MachineFailure(f"no worker of the cluster can compile any more: {reason}")

    def lost(self, address: str) -> None:
        pass

    def killed(self, item: Item, reason: str) -> None:
        assert isinstance(item, tuple)
        for kernel in item:
            self._note(kernel, None if len(item) > 1 else Outcome("", "compile", reason))

    def _note(self, kernel: Any, outcome: Outcome | None) -> None:
        if outcome is None:
            self._groups.appendleft((kernel,))
        else:
            self.outcomes[kernel] = outcome
            self._left -= _work((kernel,))
            self._report()

    def _report(self) -> None:
        found, seconds = self.outcomes.values(), time.monotonic() - self._begin
        done = self._work - self._left
        self._show(
            Progress(
                done=len(found),
                total=self._total,
                reused=self._reused,
                failed=sum(outcome.status != "built" for outcome in found),
                seconds=seconds,
                seconds_left=seconds * self._left / done if done else None,
            )
        )


def _found(sources: Iterable[KernelSource], arch: str, nvcc: Nvcc) -> dict[Any, Outcome]:
    """Those that the cache here has."""
    cache = ArtifactCache()
    pairs = ((source, cuda_cache.find_compiled(cache, source, arch, nvcc)) for source in sources)
    return {source: Outcome(source.entry, "built", "", found.stats, True) for source, found in pairs if found}


def _name(nvcc: Nvcc | None) -> str | None:
    return None if nvcc is None else nvcc.identity


def _work(group: Group) -> int:
    """What compiling takes, roughly: the characters of sources, the number of specs."""
    return sum(len(kernel.text) if isinstance(kernel, KernelSource) else 1 for kernel in group)
