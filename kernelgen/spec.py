"""What a kernel is: frozen descriptions that refuse, with the reason, what cannot be built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from kernelgen.targets import ELEMENT_BYTES, TARGETS, Target

MAX_N = 128
MAX_NB = 16
MAX_CHUNK = 512
# One multiply-add is one line of straight-line code, and compile time grows faster than that: this is n up to 33.
FULL_UNROLL_BUDGET = 6_600

LAYOUT_KINDS = ("canonical", "interleaved", "chunked")
ORDERS = ("row", "col")
LOOKINGS = ("right", "left", "top")
UNROLLS = ("tiles", "full")
MATHS = ("ieee", "fast")
CACHES = ("l1", "shared")
# Threads of a block: the literature ties them to the chunk; this is the chunk that is laid out by default.
DEFAULT_THREADS = 32
MAX_THREADS = 512


class SpecError(ValueError):
    """A spec that cannot be built; the message names the field, the value and what works."""


def _require(ok: bool, field: str, got: object, works: str) -> None:
    if not ok:
        raise SpecError(f"{field}={got!r} cannot be built: {works}")


def _one_of(field: str, got: object, allowed: tuple[str, ...]) -> None:
    _require(got in allowed, field, got, f"use one of {', '.join(map(repr, allowed))}")


def _integer(field: str, got: object, low: int, high: int) -> None:
    plain = isinstance(got, int) and not isinstance(got, bool)
    _require(plain and low <= got <= high, field, got, f"use an integer from {low} to {high}")  # type: ignore[operator]


@dataclass(frozen=True)
class Problem:
    """What is computed: `op` on SPD matrices of order `n`, reading and writing the triangle `uplo`."""

    n: int
    dtype: str = "float32"
    uplo: str = "lower"
    op: str = "potrf"

    def __post_init__(self) -> None:
        _integer("n", self.n, 1, MAX_N)
        _one_of("dtype", self.dtype, tuple(ELEMENT_BYTES))
        _one_of("uplo", self.uplo, ("lower", "upper"))
        _one_of("op", self.op, ("potrf",))


@dataclass(frozen=True)
class Layout:
    """Where element (i, j) of matrix m lies.

    `order` is the order of the elements of one matrix: "row" (NumPy's) or "col" (LAPACK's). `chunk` is the
    number of matrices interleaved together, and belongs to the chunked layout alone.
    """

    kind: str
    chunk: int | None = None
    order: str = "col"

    def __post_init__(self) -> None:
        _one_of("layout", self.kind, LAYOUT_KINDS)
        _one_of("order", self.order, ORDERS)
        if self.kind == "chunked":
            _integer("chunk", self.chunk, 2, MAX_CHUNK)
        else:
            _require(self.chunk is None, "chunk", self.chunk, f"layout {self.kind!r} has no chunk, use None")

    @classmethod
    def canonical(cls, order: str = "row") -> Layout:
        """One matrix after another."""
        return cls("canonical", None, order)

    @classmethod
    def interleaved(cls, order: str = "col") -> Layout:
        """Matrix index fastest over the whole batch."""
        return cls("interleaved", None, order)

    @classmethod
    def chunked(cls, chunk: int, order: str = "col") -> Layout:
        """Interleaved inside chunks of `chunk` matrices, chunks one after another."""
        return cls("chunked", chunk, order)

    def __str__(self) -> str:
        return f"{self.kind}{self.chunk or ''}-{self.order}"


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
        _integer("nb", self.nb, 1, MAX_NB)
        _one_of("looking", self.looking, LOOKINGS)
        _one_of("unroll", self.unroll, UNROLLS)
        _one_of("math", self.math, MATHS)
        for field in ("prefetch", "staged"):
            got = getattr(self, field)
            _require(isinstance(got, bool | None), field, got, "use True, False or None")
        if self.threads is not None:
            _integer("threads", self.threads, 1, MAX_THREADS)
        if self.cache is not None:
            _one_of("cache", self.cache, CACHES)
        if self.stride is not None:
            _integer("stride", self.stride, 2, MAX_CHUNK)

    def settled(self, target: Target) -> ThreadSchedule:
        """The schedule with the target's defaults filled in; refuses what the target has no choice of."""
        foreign = ("prefetch", "staged") if target.gpu else ("threads", "cache", "stride")
        for field in foreign:
            got = getattr(self, field)
            _require(got is None, field, got, f"target {target.name!r} has no such choice, use None")
        if target.gpu:
            return replace(self, threads=self.threads or DEFAULT_THREADS, cache=self.cache or "l1")
        return replace(
            self,
            prefetch=True if self.prefetch is None else self.prefetch,
            staged=True if self.staged is None else self.staged,
        )


def straight_line_operations(n: int) -> int:
    """Multiply-adds, scalings and square roots of one factorization: the lines of its straight-line code."""
    return (n**3 - n) // 6 + n * (n + 1) // 2


@dataclass(frozen=True)
class KernelSpec:
    """Everything that decides a kernel's source text."""

    problem: Problem
    layout: str
    order: str
    schedule: ThreadSchedule
    target: str
    in_place: bool = False

    def __post_init__(self) -> None:
        _one_of("layout", self.layout, LAYOUT_KINDS)
        _one_of("order", self.order, ORDERS)
        _one_of("target", self.target, tuple(TARGETS))
        _require(isinstance(self.in_place, bool), "in_place", self.in_place, "use True or False")
        object.__setattr__(self, "schedule", self.schedule.settled(TARGETS[self.target]))
        n, schedule = self.problem.n, self.schedule
        _require(schedule.nb <= n, "nb", schedule.nb, f"a tile fits the matrix, use nb from 1 to {min(n, MAX_NB)}")
        operations = straight_line_operations(n)
        _require(
            schedule.staged is not False or self.layout != "canonical",
            "staged",
            schedule.staged,
            "canonical arrays are transposed into a chunk in any case, use staged=True",
        )
        _require(
            schedule.stride is None or self.layout == "chunked",
            "stride",
            schedule.stride,
            f"in layout {self.layout!r} it depends on nothing but the batch, use None",
        )
        _require(
            schedule.unroll != "full" or operations <= FULL_UNROLL_BUDGET,
            "unroll",
            schedule.unroll,
            f"n={n} is {operations:,} operations of straight-line code, over the budget of "
            f"{FULL_UNROLL_BUDGET:,}; use unroll='tiles'",
        )

    @property
    def lanes(self) -> int:
        """Matrices that one group of the kernel factors side by side: a SIMD register's, or one to a GPU thread."""
        return TARGETS[self.target].lanes(self.problem.dtype)

    @property
    def name(self) -> str:
        """A short identifier, one per spec: a legal C identifier and file name."""
        problem, schedule = self.problem, self.schedule
        parts = [
            problem.op,
            {"float32": "f32", "float64": "f64"}[problem.dtype],
            f"n{problem.n}",
            self.layout,
            self.order,
            schedule.looking,
            f"nb{schedule.nb}",
            schedule.unroll,
            schedule.math,
            self.target,
        ]
        parts += ["upper"] * (problem.uplo == "upper") + ["prefetch"] * bool(schedule.prefetch)
        parts += ["staged"] * bool(schedule.staged and self.layout != "canonical")
        parts += [f"t{schedule.threads}", str(schedule.cache)] * TARGETS[self.target].gpu
        parts += [f"s{schedule.stride}"] * (schedule.stride is not None)
        return "_".join(parts + ["inplace"] * self.in_place)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, as JSON keeps them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> KernelSpec:
        """The spec that `to_dict` described.

        Raises
        ------
        SpecError
            If a field is missing, unknown or out of range.
        """
        try:
            rest = {key: value for key, value in values.items() if key not in ("problem", "schedule")}
            return cls(problem=Problem(**values["problem"]), schedule=ThreadSchedule(**values["schedule"]), **rest)
        except (KeyError, TypeError) as error:
            raise SpecError(f"not a kernel spec: {error}; use what KernelSpec.to_dict wrote") from error
