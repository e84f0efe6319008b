"""Many kernels compiled in threads: the outcomes so far, and the progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from batchchol.artifacts.stats import CompileStats
from batchchol.progress import Progress, Show
from kernelgen import KernelSource

Group = tuple[Any, ...]
"""Kernels that are compiled together."""

_TICK_SECONDS = 1.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of building one kernel.

    Attributes
    ----------
    entry : str
        The kernel's name.
    status : {"built", "compile", "timeout"}
        Whether it can be loaded, or why not.
    message : str
        What the compiler said if it cannot.
    stats : CompileStats or None
        None if it cannot.
    reused : bool
        Whether it was in the cache already.
    """

    entry: str
    status: str
    message: str = ""
    stats: CompileStats | None = None
    reused: bool = False


@dataclass
class Build:
    """Kernels that are compiled group by group.

    Attributes
    ----------
    total : int
        How many kernels there are.
    progress : callable
        Called with a :class:`Progress` about every second and whenever something is done, in the thread of `run`.
    outcomes : dict
        Those of the kernels that are done; at first of those that need not be compiled.
    """

    total: int
    progress: Show = lambda _: None
    outcomes: dict[Any, Outcome] = field(default_factory=dict)
    begin: float = field(default_factory=time.monotonic)

    def run(
        self,
        groups: Sequence[Group],
        attempt: Callable[[Group], Sequence[Outcome]],
        *,
        jobs: int,
        stop: Callable[[], None],
    ) -> None:
        """Compile groups in `jobs` threads; whatever ends this ends the compilers too.

        Parameters
        ----------
        attempt : callable
            The outcomes of a group's kernels; none if each must be tried alone.
        stop : callable
            Ends all attempts that run.
        """
        started = time.monotonic()
        with ThreadPoolExecutor(jobs, thread_name_prefix="batchchol-build") as pool:
            pending = {pool.submit(attempt, group): group for group in groups}
            total = sum(map(_work, groups))
            try:
                while pending:
                    for group in self._collect(pending):
                        pending[pool.submit(attempt, group)] = group
                    left = sum(map(_work, pending.values()))
                    done = total - left
                    self.report((time.monotonic() - started) * left / done if done else None)
            except BaseException:
                stop()
                pool.shutdown(cancel_futures=True)
                raise

    def report(self, seconds_left: float | None = None) -> None:
        """Report the progress."""
        done = self.outcomes.values()
        self.progress(
            Progress(
                done=len(done),
                total=self.total,
                reused=sum(outcome.reused for outcome in done),
                failed=sum(outcome.status != "built" for outcome in done),
                seconds=time.monotonic() - self.begin,
                seconds_left=seconds_left,
            )
        )

    def _collect(self, pending: dict[Future[Sequence[Outcome]], Group]) -> list[Group]:
        """Note what has finished; return what to try again."""
        again: list[Group] = []
        finished, _ = wait(pending, _TICK_SECONDS, FIRST_COMPLETED)
        for future in finished:
            group = pending.pop(future)
            outcomes = future.result()
            if outcomes:
                self.outcomes |= zip(group, outcomes, strict=True)
            else:
                again += ((kernel,) for kernel in group)
        return again


def _work(group: Group) -> int:
    """The rough cost of compiling: the characters of sources, the number of specs."""
    return sum(len(kernel.text) if isinstance(kernel, KernelSource) else 1 for kernel in group)
