"""How a kernel factors: one small description for each family of kernels: thread, shared and block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from kernelgen.block_shape import WARP, BlockShape
from kernelgen.refusals import integer, one_of, require
from kernelgen.targets import Target

if TYPE_CHECKING:
    from kernelgen.spec import Problem

MAX_NB = 16
MAX_CHUNK = 512
# One multiply-add is one line of straight-line code, and compile time grows faster than that: this is n up to 33.
FULL_UNROLL_BUDGET = 6_600

LOOKINGS = ("right", "left", "top")
UNROLLS = ("tiles", "full")
MATHS = ("ieee", "fast")
CACHES = ("l1", "shared")
# Threads of a block: the literature ties them to the chunk; this is the chunk that is laid out by default.
DEFAULT_THREADS = 32
MAX_THREADS = 512

# What a block of threads can have on every GPU of compute capability 9.0: see CUDA's programming guide.
MAX_BLOCK_THREADS = 1024
MAX_SHARED_BYTES = 227 << 10
# A tile of the shared family has a thread for each of its elements.
MAX_SHARED_NB = 32
MIN_BLOCK_NB = 4
BLOCK_LANES = (1, 2, 4, 8, 16, 32)
MAX_RESIDENT_BLOCKS = 32


@dataclass(frozen=True)
class ThreadSchedule:
    """One SIMD lane or GPU thread per matrix.

    `nb` is the tile size, `looking` when updates are applied, `unroll` what becomes straight-line code, `math`
    the accuracy class of the square root and its reciprocal.

    SIMD targets alone have `prefetch`, whether each load of the input also prefetches the same element of the next
    group of matrices, and `staged`, whether a group is factored in a chunk of its own that stays in cache and
    written out, past the caches, when it is done. GPUs alone have `threads`, those of a block, `cache`, which of
    the two the hardware's split of its on-chip memory favours, "l1" or "shared", and `stride`, the only chunk that
    the kernel runs on, its offsets being constants of the code: None is any chunk, given at run time. For the others
    None is the target's default, and the only choice where the target has none; the schedule of a `KernelSpec` has
    it filled in.
    """

    family: ClassVar[str] = "thread"

    nb: int
    looking: str = "left"
    unroll: str = "tiles"
    math: str = "ieee"
    prefetch: bool | None = None
    staged: bool | None = None
    threads: int | None = None
    cache: str | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        integer("nb", self.nb, 1, MAX_NB)
        one_of("looking", self.looking, LOOKINGS)
        one_of("unroll", self.unroll, UNROLLS)
        for field in ("prefetch", "staged"):
            got = getattr(self, field)
            require(isinstance(got, bool | None), field, got, "use True, False or None")
        if self.threads is not None:
            integer("threads", self.threads, 1, MAX_THREADS)
        _check_common(self)

    def settled(self, target: Target) -> ThreadSchedule:
        """The schedule with the target's defaults filled in; refuses what the target has no choice of."""
        foreign = ("prefetch", "staged") if target.gpu else ("threads", "cache", "stride")
        for field in foreign:
            got = getattr(self, field)
            require(got is None, field, got, f"target {target.name!r} has no such choice, use None")
        if target.gpu:
            return replace(self, threads=self.threads or DEFAULT_THREADS, cache=self.cache or "l1")
        return replace(
            self,
            prefetch=True if self.prefetch is None else self.prefetch,
            staged=True if self.staged is None else self.staged,
        )

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        _check_fit(self, problem, layout)
        operations = straight_line_operations(problem.n)
        require(
            self.staged is not False or layout != "canonical",
            "staged",
            self.staged,
            "canonical arrays are transposed into a chunk in any case, use staged=True",
        )
        require(
            self.unroll != "full" or operations <= FULL_UNROLL_BUDGET,
            "unroll",
            self.unroll,
            f"n={problem.n} is {operations:,} operations of straight-line code, over the budget of "
            f"{FULL_UNROLL_BUDGET:,}; use unroll='tiles'",
        )

    @property
    def method(self) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        return (self.looking, f"nb{self.nb}", self.unroll, self.math)

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail; what a layout leaves no choice of is not said."""
        parts = ["prefetch"] * bool(self.prefetch) + ["staged"] * bool(self.staged and layout != "canonical")
        parts += [] if self.threads is None else [f"t{self.threads}"]
        return (*parts, *_memory_words(self))


@dataclass(frozen=True)
class SharedSchedule:
    """A block of threads for a few matrices, one thread for each element of a tile, operands in shared memory.

    The older of the published methods. `nb` is the tile size, `looking` when updates are applied, `matrices` how many
    a block factors side by side, by default as many as its threads suffice for, at most a warp; `math`, `cache` and
    `stride` are those of the thread family.
    """

    family: ClassVar[str] = "shared"

    nb: int
    looking: str = "left"
    matrices: int | None = None
    math: str = "ieee"
    cache: str | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        integer("nb", self.nb, 1, MAX_SHARED_NB)
        one_of("looking", self.looking, LOOKINGS)
        if self.matrices is not None:
            integer("matrices", self.matrices, 1, MAX_BLOCK_THREADS // self.nb**2)
        _check_common(self)

    def settled(self, target: Target) -> SharedSchedule:
        """The schedule with its defaults filled in; refuses every target but a GPU."""
        _check_gpu(self.family, target)
        matrices = self.matrices or min(MAX_BLOCK_THREADS // self.nb**2, WARP)
        return replace(self, matrices=matrices, cache=self.cache or "shared")

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        _check_fit(self, problem, layout)

    @property
    def method(self) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        return (self.family, self.looking, f"nb{self.nb}", f"m{self.matrices}", self.math)

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail."""
        return _memory_words(self)


@dataclass(frozen=True)
class BlockSchedule:
    """A block of threads for a few matrices, one thread for each tile of each, which it holds in its registers.

    `nb` is the tile size, `lanes` how many matrices a block factors side by side, `blocks` how many blocks a
    multiprocessor is to have room for at least, which bounds the registers of a thread (None is 1); `math`, `cache`
    and `stride` are those of the thread family.
    """

    family: ClassVar[str] = "block"

    nb: int
    lanes: int
    math: str = "ieee"
    blocks: int | None = None
    stride: int | None = None
    cache: str | None = None

    def __post_init__(self) -> None:
        integer("nb", self.nb, MIN_BLOCK_NB, MAX_NB)
        plain = isinstance(self.lanes, int) and not isinstance(self.lanes, bool)
        works = f"use one of {', '.join(map(str, BLOCK_LANES))}"
        require(plain and self.lanes in BLOCK_LANES, "lanes", self.lanes, works)
        if self.blocks is not None:
            integer("blocks", self.blocks, 1, MAX_RESIDENT_BLOCKS)
        _check_common(self)

    def settled(self, target: Target) -> BlockSchedule:
        """The schedule with its defaults filled in; refuses every target but a GPU."""
        _check_gpu(self.family, target)
        return replace(self, blocks=self.blocks or 1, cache=self.cache or "shared")

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        _check_fit(self, problem, layout, smallest=MIN_BLOCK_NB)
        shape = self.shape(problem)
        require(
            shape.threads <= MAX_BLOCK_THREADS,
            "lanes",
            self.lanes,
            f"n={problem.n} by tiles of {self.nb} is {shape.threads:,} threads, over the {MAX_BLOCK_THREADS:,} of a "
            "block; use fewer lanes or a larger nb",
        )
        require(
            shape.shared_bytes <= MAX_SHARED_BYTES,
            "lanes",
            self.lanes,
            f"n={problem.n} by tiles of {self.nb} is {shape.shared_bytes:,} bytes of shared memory, over "
            f"the {MAX_SHARED_BYTES:,} of a block; use fewer lanes",
        )

    def shape(self, problem: Problem) -> BlockShape:
        """How a block's matrices are spread over its threads and its shared memory."""
        return BlockShape(problem.n, self.nb, self.lanes, problem.dtype)

    @property
    def method(self) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        return (self.family, f"nb{self.nb}", f"lanes{self.lanes}", self.math)

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail."""
        return (f"b{self.blocks}", *_memory_words(self))


Schedule = ThreadSchedule | SharedSchedule | BlockSchedule

FAMILIES: Mapping[str, type[ThreadSchedule] | type[SharedSchedule] | type[BlockSchedule]] = MappingProxyType(
    {schedule.family: schedule for schedule in (ThreadSchedule, SharedSchedule, BlockSchedule)}
)


def straight_line_operations(n: int) -> int:
    """Multiply-adds, scalings and square roots of one factorization: the lines of its straight-line code."""
    return (n**3 - n) // 6 + n * (n + 1) // 2


def _check_common(schedule: Schedule) -> None:
    """What every family has."""
    one_of("math", schedule.math, MATHS)
    if schedule.cache is not None:
        one_of("cache", schedule.cache, CACHES)
    if schedule.stride is not None:
        integer("stride", schedule.stride, 2, MAX_CHUNK)


def _check_gpu(family: str, target: Target) -> None:
    works = f"target {target.name!r} has the family {ThreadSchedule.family!r} alone"
    require(target.gpu, "family", family, works)


def _check_fit(schedule: Schedule, problem: Problem, layout: str, smallest: int = 1) -> None:
    """A tile fits the matrix, or is the smallest there is; a constant stride has a chunk to be the stride of."""
    most = max(min(problem.n, MAX_NB if schedule.family != "shared" else MAX_SHARED_NB), smallest)
    works = f"a tile fits the matrix, use nb from {smallest} to {most}"
    require(schedule.nb <= most, "nb", schedule.nb, works)
    require(
        schedule.stride is None or layout == "chunked",
        "stride",
        schedule.stride,
        f"in layout {layout!r} it depends on nothing but the batch, use None",
    )


def _memory_words(schedule: Schedule) -> tuple[str, ...]:
    words = [] if schedule.cache is None else [schedule.cache]
    return (*words, *([] if schedule.stride is None else [f"s{schedule.stride}"]))
