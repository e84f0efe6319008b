"""The compile stage of a sweep: every kernel ahead of its points, in parallel, on a machine that needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from batchchol.artifacts.compilers import TIME_LIMIT
from batchchol.artifacts.cuda_modules import Outcome, build_all
from batchchol.artifacts.nvcc import find_nvcc
from batchchol.artifacts.stats import CompileStats
from batchchol.backends import get_backend
from batchchol.measure import shared_code
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from batchchol.progress import Show
from kernelgen import TARGETS, KernelSource, KernelSpec, ThreadSchedule
from kernelgen.emit.support import support_kernels


@dataclass(frozen=True)
class Built:
    """The points whose kernels were built, in their order, rows for the others, and what compilers say.

    The latter by the keys of the points that were asked for.
    """

    points: list[Point]
    failed: list[Row]
    stats: Mapping[str, CompileStats] = field(default_factory=dict)


class Compilers(Protocol):
    """Compiles kernels somewhere: with the arguments and outcomes of `build_all` and of a CPU backend's `build`."""

    def cuda(
        self,
        sources: Sequence[KernelSource],
        arch: str,
        *,
        jobs: int | None,
        per_module: int,
        time_limit: float,
        progress: Show,
    ) -> list[Outcome]: ...

    def cpu(self, specs: Sequence[KernelSpec], *, time_limit: float, progress: Show) -> list[Outcome]: ...


def build(
    points: Sequence[Point],
    arch: str | None,
    *,
    jobs: int | None = None,
    per_module: int = 8,
    time_limit: float = TIME_LIMIT,
    show: Show = lambda _: None,
    compilers: Compilers | None = None,
) -> Built:
    """Compile what points need and the cache lacks; after an interrupt the next call continues there.

    Code for blocks of any size is of no use to a block that would need more registers with it than there are: such
    a point gets its spec's own code, and is another one for that.

    Parameters
    ----------
    arch : str or None
        What a GPU's kernels are compiled for, such as "sm_90".
    jobs, per_module, time_limit :
        See `batchchol.artifacts.cuda_modules.build_all`; kernels of a CPU are compiled one by one.
    compilers : Compilers, optional
        By default those of this machine.

    Raises
    ------
    CompilerNotFound
        If something needs compiling and there is no compiler.
    CacheError
        If the cache folder cannot be written.
    """
    if not points:
        return Built([], [])
    if not TARGETS[points[0].spec.target].gpu:
        make = partial(get_backend("cpu").build, jobs=jobs) if compilers is None else compilers.cpu
        compiled = partial(make, time_limit=time_limit, progress=show)
        return _sorted_out(points, points, _outcomes(points, lambda codes: compiled([code.spec for code in codes])))
    assert arch is not None, "a GPU's kernels are for an architecture"
    limits: dict[str, Any] = {"jobs": jobs, "per_module": per_module, "time_limit": time_limit, "progress": show}

    def compile_codes(codes: Iterable[Point], *support: KernelSource) -> list[Outcome]:
        sources = [*(shared_code.code_of(code).source for code in codes), *support]
        return (compile_here if compilers is None else compilers.cuda)(sources, arch, **limits)

    outcomes = _outcomes(points, lambda codes: compile_codes(codes, *support_kernels()))
    settled = [_settled(point, outcomes[point]) for point in points]
    if changed := [point for point in settled if point not in outcomes]:
        outcomes |= _outcomes(changed, compile_codes)
    return _sorted_out(points, settled, outcomes)


def _settled(point: Point, outcome: Outcome) -> Point:
    schedule, stats = point.spec.schedule, outcome.stats
    if not point.any_block or stats is None or not isinstance(schedule, ThreadSchedule):
        return point
    return point.own if shared_code.too_large(stats, schedule.threads or 0) else point


def _outcomes(
    points: Sequence[Point], compile_codes: Callable[[Iterable[Point]], Sequence[Outcome]]
) -> dict[Point, Outcome]:
    """The outcome of each point; of those that run the same code one is compiled."""
    codes = {shared_code.identity(point): point for point in points}
    by_code = dict(zip(codes, compile_codes(codes.values()), strict=False))
    return {point: by_code[shared_code.identity(point)] for point in points}


def compile_here(sources: Sequence[KernelSource], arch: str, **limits: Any) -> list[Outcome]:
    """`build_all`, or an error if there is no compiler for what is missing."""
    found = build_all(sources, arch, **limits)
    if any(outcome.status != "built" for outcome in found):
        # Without a compiler the kernels are not to blame.
        find_nvcc()
    return found


def _sorted_out(asked: Sequence[Point], points: Sequence[Point], outcomes: Mapping[Point, Outcome]) -> Built:
    each = [(point, outcomes[point]) for point in points]
    stats = {first.key: outcome.stats for first, (_, outcome) in zip(asked, each, strict=True) if outcome.stats}
    return Built(
        [point for point, outcome in each if outcome.status == "built"],
        [Row(point, outcome.status, outcome.message) for point, outcome in each if outcome.status != "built"],
        stats,
    )
