"""How kernels factor: the families thread, shared and block, and all families by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from kernelgen.axes import (
    LOOKINGS,
    UNROLLS,
    BaseSchedule,
    check_stride,
    number,
    resident_blocks,
    switch,
    word,
)
from kernelgen.block_shape import BlockShape
from kernelgen.gpu import MAX_BLOCK_THREADS, MAX_SHARED_BYTES, WARP
from kernelgen.operations import OPERATIONS
from kernelgen.refusals import keep_integer, require
from kernelgen.targets import Target
from kernelgen.tensor_schedules import StripSchedule, WarpSchedule
from kernelgen.thread_stage import ThreadStage, check_staged

if TYPE_CHECKING:
    from kernelgen.spec import Problem

MAX_NB = 16
# One multiply-add is one line of straight-line code, and compile time grows faster than that: this is n up to 33.
FULL_UNROLL_BUDGET = 6_600

# Threads of a block: the literature ties them to the chunk; this is the chunk that is laid out by default.
DEFAULT_THREADS = 32
MAX_THREADS = 512
# A few right-hand sides fill the registers of every target beside a tile of the factor.
MAX_RHS, DEFAULT_RHS = 16, 4

# A tile of the shared family has a thread for each of its elements.
MAX_SHARED_NB = 32
MIN_BLOCK_NB = 4
MAX_LANES = 32
MAX_PIPELINE = 4
# The smallest tiles of the largest matrices have as many columns.
MAX_EARLY = 32
MAX_SPARE = 16


@dataclass(frozen=True)
class ThreadSchedule(BaseSchedule):
    """One SIMD lane or GPU thread per matrix.

    `nb` is the tile size, `looking` when updates are applied, `unroll` what becomes straight-line code. A solve has
    no `looking` but "left", and `rhs`, how many right-hand sides it has in registers at a time.

    SIMD targets alone have `prefetch`, whether each load of the input also prefetches the same element of the next
    group of matrices. There `staged` is whether a group is factored in a chunk of its own that stays in cache and
    written out, past the caches, when it is done; on a GPU, for canonical arrays, whether the threads of a warp read
    and write their matrices together, by way of shared memory. GPUs alone have `threads`, those of a block, and
    `blocks`, for how many of them a multiprocessor must have registers (the fewer, the more a thread may have; None
    is one if `staged`, else it is left to the compiler).
    """

    family: ClassVar[str] = "thread"
    gpu_only: ClassVar[bool] = False
    operations: ClassVar[tuple[str, ...]] = ("potrf", "potrs")

    nb: int = number(1, MAX_NB, MISSING, "tile size")
    looking: str = word(LOOKINGS, "left", "when updates are applied")
    unroll: str = word(UNROLLS, "tiles", "loops over tiles, or straight-line code")
    prefetch: bool | None = switch("whether the next tiles are fetched early", only="simd")
    staged: bool | None = switch("whether tiles are copied to a buffer first")
    threads: int | None = number(1, MAX_THREADS, None, "threads of a GPU's block", only="gpu")
    blocks: int | None = resident_blocks()
    rhs: int | None = number(1, MAX_RHS, None, "right-hand sides in registers at a time")

    def _defaults(self, target: Target, problem: Problem) -> dict[str, Any]:
        rhs = self.rhs or DEFAULT_RHS if OPERATIONS[problem.op].has_columns else self.rhs
        if not target.gpu:
            # A solve has no code for it.
            prefetch = self.prefetch is not False if problem.op == "potrf" else bool(self.prefetch)
            return {"prefetch": prefetch, "staged": self.staged is not False, "rhs": rhs}
        cache = self.cache or ("shared" if self.staged else "l1")
        threads = self.threads or DEFAULT_THREADS
        return {"staged": self.staged or None, "threads": threads, "cache": cache, "rhs": rhs}

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        _check_fit(self, problem, layout)
        if problem.op == "potrs":
            self._check_solve(layout)
        works = f"{problem.op} has no right-hand sides, use None"
        require(self.rhs is None or problem.op == "potrs", "rhs", self.rhs, works)
        operations = straight_line_operations(problem.n) if self.rhs is None else self.rhs * problem.n**2
        works = "canonical arrays are transposed into a chunk in any case, use staged=True"
        require(self.staged is not False or layout != "canonical", "staged", self.staged, works)
        code = f"n={problem.n} is {operations:,} operations of straight-line code"
        works = f"{code}, over the budget of {FULL_UNROLL_BUDGET:,}; use unroll='tiles'"
        require(self.unroll != "full" or operations <= FULL_UNROLL_BUDGET, "unroll", self.unroll, works)
        if self.staged and self.threads is not None:
            check_staged(self, self.stage(problem), layout)

    def _check_solve(self, layout: str) -> None:
        """Refuse what a solve has no choice of."""
        only_choices = {"looking": "left", "stride": None, "pdl": None, "blocks": None}
        for field, only in only_choices.items():
            got = getattr(self, field)
            require(got == only, field, got, f"potrs has no such choice, use {only!r}")
        require(not self.prefetch, "prefetch", self.prefetch, "potrs does not prefetch, use False")
        works = "on a GPU potrs reads the factor where it is, use None"
        require(self.threads is None or not self.staged, "staged", self.staged, works)

    def stage(self, problem: Problem) -> ThreadStage:
        """How the warps of a GPU stage their matrices."""
        return ThreadStage(problem.n, problem.dtype, self.threads or DEFAULT_THREADS)

    @property
    def method(self) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        order = (self.looking,) if self.rhs is None else ()
        return (*order, f"nb{self.nb}", *([] if self.rhs is None else [f"rhs{self.rhs}"]), self.unroll)

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail; what a layout leaves no choice of is not said."""
        # On a CPU canonical arrays always are.
        said = self.staged and (layout != "canonical" or self.threads is not None)
        parts = ["prefetch"] * bool(self.prefetch) + ["staged"] * bool(said)
        parts += [] if self.threads is None else [f"t{self.threads}"]
        parts += [] if self.blocks is None else [f"b{self.blocks}"]
        return (*parts, *super().details(layout))


@dataclass(frozen=True)
class SharedSchedule(BaseSchedule):
    """A block of threads for a few matrices, one thread for each element of a tile, operands in shared memory.

    The older of the published methods. `nb` is the tile size, `looking` when updates are applied, `matrices` how many
    a block factors side by side, by default as many as its threads suffice for, at most a warp.
    """

    family: ClassVar[str] = "shared"

    nb: int = number(1, MAX_SHARED_NB, MISSING, "tile size")
    looking: str = word(LOOKINGS, "left", "when updates are applied")
    matrices: int | None = number(1, MAX_BLOCK_THREADS, None, "matrices of a block", only="gpu")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.matrices is not None:
            keep_integer(self, "matrices", 1, MAX_BLOCK_THREADS // self.nb**2)

    def _defaults(self, target: Target, problem: Problem) -> dict[str, Any]:
        matrices = self.matrices or min(MAX_BLOCK_THREADS // self.nb**2, WARP)
        return {"matrices": matrices, "cache": self.cache or "shared"}

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        _check_fit(self, problem, layout)

    @property
    def method(self) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        return (self.family, self.looking, f"nb{self.nb}", f"m{self.matrices}")


@dataclass(frozen=True)
class BlockSchedule(BaseSchedule):
    """A block of threads for a few matrices, one thread for each tile of each, which it holds in its registers.

    `nb` is the tile size, `lanes` how many matrices a block factors side by side, `blocks` how many blocks a
    multiprocessor is to have room for at least, which bounds the registers of a thread (None is 1).

    With a `pipeline`, from 1, columns of tiles of successive matrices follow each other through a block, each as soon
    as its operands are there: there are `blocks` blocks to a multiprocessor however many matrices there are, and room
    for the panels of `pipeline` of them, by which the first columns may be ahead of the last ones. The last warps
    have most to do: `spare` further ones take turns with as many of them. The first have least: `fold` of them do
    what as many others would, besides, so that more matrices find room. The other warps' tiles of the last `early`
    columns are fetched before those that they follow are done. Without (None and 0) all columns of a block wait for
    each other, and there are as many blocks as it takes.
    """

    family: ClassVar[str] = "block"

    nb: int = number(MIN_BLOCK_NB, MAX_NB, MISSING, "tile size")
    lanes: int = number(1, MAX_LANES, MISSING, "matrices that a block factors side by side", only="gpu")
    blocks: int | None = resident_blocks()
    pipeline: int | None = number(0, MAX_PIPELINE, None, "groups of matrices that have panels at a time", only="gpu")
    early: int | None = number(0, MAX_EARLY, None, "columns of tiles whose next tiles are fetched early", only="gpu")
    spare: int | None = number(0, MAX_SPARE, None, "warps that take turns with the last ones", only="gpu")
    fold: int | None = number(0, MAX_SPARE, None, "first warps that do the work of two", only="gpu")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("early", "spare", "fold"):
            got = getattr(self, name)
            require(bool(self.pipeline) or not got, name, got, "only a pipeline has any, use pipeline=1")

    def _defaults(self, target: Target, problem: Problem) -> dict[str, Any]:
        zeros = {name: getattr(self, name) or 0 for name in ("pipeline", "early", "spare", "fold")}
        return {"blocks": self.blocks or 1, "cache": self.cache or "shared", **zeros}

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        _check_fit(self, problem, layout, smallest=MIN_BLOCK_NB)
        shape = self.shape(problem)
        tiles, warps = f"n={problem.n} by tiles of {self.nb} is", shape.working_threads // WARP
        works = f"{tiles} {shape.side} columns of them, use no more"
        require((self.early or 0) <= shape.side, "early", self.early, works)
        require(shape.spare < warps, "spare", self.spare, f"{tiles} {warps} warps, use fewer than those")
        works = f"{tiles} {warps - shape.spare} warps that are not relieved, use no more than half of those"
        require(2 * shape.fold <= warps - shape.spare, "fold", self.fold, works)
        works = f"{tiles} warps {shape.fold - 1} and {shape.fold} with lanes of one diagonal tile, use another number"
        require(not shape.fold or not shape.shared_diagonal(shape.fold), "fold", self.fold, works)
        works = f"{tiles} {shape.threads:,} threads, over the {MAX_BLOCK_THREADS:,} of a block; "
        works += "use fewer lanes or a larger nb" + (", or fewer spare warps" if self.spare else "")
        require(shape.threads <= MAX_BLOCK_THREADS, "lanes", self.lanes, works)
        works = f"{tiles} {shape.shared_bytes:,} bytes of shared memory, over the {MAX_SHARED_BYTES:,} of a block; "
        works += "use fewer lanes" + (", a smaller pipeline or less of early" if self.pipeline else "")
        require(shape.shared_bytes <= MAX_SHARED_BYTES, "lanes", self.lanes, works)

    def shape(self, problem: Problem) -> BlockShape:
        """How a block's matrices are spread over its threads and its shared memory."""
        numbers = (self.pipeline or 0, self.early or 0, self.spare or 0, self.fold or 0)
        return BlockShape(problem.n, self.nb, self.lanes, problem.dtype, *numbers)

    @property
    def method(self) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        parts = [self.family, f"nb{self.nb}", f"lanes{self.lanes}"]
        parts += [f"pipe{self.pipeline}"] * bool(self.pipeline) + [f"early{self.early}"] * bool(self.early)
        parts += [f"spare{self.spare}"] * bool(self.spare) + [f"fold{self.fold}"] * bool(self.fold)
        return tuple(parts)

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail."""
        return (f"b{self.blocks}", *super().details(layout))


Schedule = ThreadSchedule | SharedSchedule | BlockSchedule | WarpSchedule | StripSchedule

FAMILIES: Mapping[str, type[Schedule]] = MappingProxyType(
    {
        schedule.family: schedule
        for schedule in (ThreadSchedule, SharedSchedule, BlockSchedule, WarpSchedule, StripSchedule)
    }
)


def has_math(schedule: Schedule, math: str) -> bool:
    """Whether a schedule's family has an accuracy class."""
    return math == "fast" or not isinstance(schedule, StripSchedule)


def in_other_math(schedule: Schedule) -> Schedule:
    """The schedule for another accuracy class than its own: what not every class has is its default again."""
    return replace(schedule, update=None) if isinstance(schedule, WarpSchedule) else schedule


def straight_line_operations(n: int) -> int:
    """Multiply-adds, scalings and square roots of one factorization: the lines of its straight-line code."""
    return (n**3 - n) // 6 + n * (n + 1) // 2


def _check_fit(
    schedule: ThreadSchedule | SharedSchedule | BlockSchedule, problem: Problem, layout: str, smallest: int = 1
) -> None:
    """A tile fits the matrix, or is the smallest there is; a constant stride has a chunk to be the stride of."""
    most = max(min(problem.n, MAX_NB if schedule.family != "shared" else MAX_SHARED_NB), smallest)
    works = f"a tile fits the matrix, use nb from {smallest} to {most}"
    require(schedule.nb <= most, "nb", schedule.nb, works)
    check_stride(schedule, layout)
