"""The thread family: a SIMD lane or a GPU thread to each matrix."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Any, ClassVar

from kernelgen.gpu import MAX_SHARED_BYTES, WARP
from kernelgen.operations import OPERATIONS, Operation
from kernelgen.problem import Problem
from kernelgen.refusals import require
from kernelgen.schedules.axes import (
    LOOKINGS,
    MAX_NB,
    UNROLLS,
    BaseSchedule,
    check_tile,
    number,
    resident_blocks,
    switch,
    word,
)
from kernelgen.schedules.budget import FULL_UNROLL_BUDGET, straight_line_operations
from kernelgen.schedules.general_matrices import check_general
from kernelgen.schedules.stages.general import (
    MAX_SPLIT,
    BlockStage,
    GeneralStage,
    SharedStage,
    SplitStage,
    WarpsStage,
)
from kernelgen.schedules.stages.lanes import LaneStage
from kernelgen.schedules.stages.panels import PanelStage
from kernelgen.schedules.stages.reflectors import ReflectorStage
from kernelgen.schedules.stages.rows import RowsStage, check_rows
from kernelgen.schedules.stages.thread import SolveStage, ThreadStage
from kernelgen.schedules.stages.triangles import TriangleStage
from kernelgen.targets import ELEMENT_BYTES, Target

# Threads of a block: the literature ties them to the chunk; this is the chunk that is laid out by default.
DEFAULT_THREADS = 32
MAX_THREADS = 512
# A few right-hand sides fill the registers of every target beside a tile of the factor.
MAX_RHS, DEFAULT_RHS = 16, 4
# Of the 255 registers of a thread, those that can be elements of its right-hand sides.
MAX_COLUMN_REGISTERS = 128
# Halves of these are vectors too, with all of the target's registers and instructions: AVX-512's.
HALVED_VECTOR_BYTES = 64


@dataclass(frozen=True)
class ThreadSchedule(BaseSchedule):
    """One SIMD lane or GPU thread per matrix.

    `nb` is the tile size, `looking` when updates are applied, `unroll` what becomes straight-line code. Solves have
    `rhs`, how many right-hand sides are in registers at a time; those by a given factor have no `looking` but "left".

    SIMD targets alone have `prefetch`, whether each load of the input also prefetches the same element of the next
    group of matrices. There `staged` is whether a group is factored in a chunk of its own that stays in cache and
    written out, past the caches, when it is done. Of canonical arrays, `half` is whether a group fills half of the
    widest vectors, so that larger matrices still fit that cache, and `overlap` whether the next group is staged
    before the factors of one are written, which wait for its last roots.

    On a GPU `staged` is, for canonical arrays, whether the threads of a warp read and write their matrices together,
    by way of shared memory. GPUs alone have `threads`, those of a block, and `blocks`, for how many of them a
    multiprocessor must have registers (the fewer, the more a thread may have; None is one if `staged`, else it is
    left to the compiler).

    Kernels that factor and solve at once keep the factor on the chip. On a GPU it stays in registers, which takes
    straight-line code, or goes to shared memory if `staged`, as matrices in any layout may.

    Staged solves by given factors bring the triangles of a warp's matrices, in any layout, to shared memory, where
    both substitutions read them. They alone may `split` a matrix, that is the rows of its right-hand sides, over
    several threads (None is one), which then solve for `nb` rows at a time. So may a GPU's kernels of general
    matrices, rows of which then stay where they are until they are written; if `staged` as well, whole warps have a
    matrix in shared memory, and exchange its rows there panel by panel. Of QR factorizations, Q and least squares, a
    few lanes of a warp have whole columns, and show them by shuffles; if `staged`, threads may have parts of
    columns, which they show in shared memory, as many threads and those of other operations do in any case; whole
    warps have a matrix in shared memory then, and a panel of reflectors at a time in registers. Kernels that factor
    and solve at once may `split` arrays, and packed matrices of chunks of 16, 32 or multiples: each of k threads has
    every k-th row in registers, one right-hand side at a time, and `blocks` of a multiprocessor go on to further
    ones; 16 threads of arrays are a grid, each with every fourth row of every fourth column.
    """

    family: ClassVar[str] = "thread"
    gpu_only: ClassVar[bool] = False
    operations: ClassVar[tuple[str, ...]] = tuple(OPERATIONS)

    nb: int = number(1, MAX_NB, MISSING, "tile size")
    looking: str = word(LOOKINGS, "left", "when updates are applied")
    unroll: str = word(UNROLLS, "tiles", "loops over tiles, or straight-line code")
    prefetch: bool | None = switch("whether the next tiles are fetched early", only="simd")
    staged: bool | None = switch("whether tiles are copied to a buffer first")
    threads: int | None = number(1, MAX_THREADS, None, "threads of a GPU's block", only="gpu")
    blocks: int | None = resident_blocks()
    rhs: int | None = number(1, MAX_RHS, None, "right-hand sides in registers at a time")
    split: int | None = number(1, MAX_SPLIT, None, "threads of a matrix", only="gpu")
    half: bool | None = switch("whether vectors are half of the widest", only="simd")
    overlap: bool | None = switch("whether the next matrices are staged before results are written", only="simd")

    @property
    def halves(self) -> bool:
        return bool(self.half)

    def _defaults(self, target: Target, problem: Problem) -> dict[str, Any]:
        operation = problem.operation
        rhs = self.rhs or operation.fixed.get("rhs") or DEFAULT_RHS if operation.has_columns else self.rhs
        if not target.gpu:
            prefetch = bool(operation.fixed.get("prefetch", True) if self.prefetch is None else self.prefetch)
            works = f"target {target.name!r} has no halves of its vectors, use None"
            require(not self.half or target.vector_bytes >= HALVED_VECTOR_BYTES, "half", True, works)
            settled = {"prefetch": prefetch, "staged": self.staged is not False, "rhs": rhs}
            return settled | {"half": self.half or None, "overlap": self.overlap or None}
        staged = self.staged
        if (operation.forgets or operation.inverts) and not operation.general:
            rhs = self.rhs or 1 if operation.has_columns else self.rhs
            staged = staged or self.unroll == "tiles" or not operation.has_columns
        cache = self.cache or ("shared" if staged or operation.general else "l1")
        split = None if self.split == 1 else self.split
        panels = operation.general and staged and split
        threads = self.threads or (split if panels else _threads_of(problem, split))
        return {"staged": staged or None, "threads": threads, "cache": cache, "rhs": rhs, "split": split}

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        check_tile(self, self.nb, problem, layout)
        self._check_fixed(problem.operation)
        factors = problem.op in ("potrf", "potrfdet")
        works = "only factorizations of canonical arrays choose how groups are staged, use None"
        for name in ("half", "overlap"):
            require(not getattr(self, name) or (factors and layout == "canonical"), name, True, works)
        works = f"{problem.op} has no right-hand sides, use None"
        require(self.rhs is None or problem.operation.has_columns, "rhs", self.rhs, works)
        if problem.operation.general:
            check_general(self, problem, layout)
            return
        operations = straight_line_operations(problem.n) if problem.operation.factors else 0
        operations //= (self.split or 1) if problem.op == "posv" else 1
        operations += problem.n**3 // 3 if problem.operation.inverts else 0
        operations += (self.rhs or 0) * problem.n**2 // (self.split or 1)
        works = "canonical arrays are transposed into a chunk in any case, use staged=True"
        require(self.staged is not False or layout != "canonical", "staged", self.staged, works)
        works = f"{problem.op} has no other place for its factor than a chunk, use staged=True"
        apart = problem.operation.forgets or problem.operation.inverts
        require(self.staged is not False or not apart, "staged", self.staged, works)
        code = f"n={problem.n} is {operations:,} operations of straight-line code"
        works = f"{code}, over the budget of {FULL_UNROLL_BUDGET:,}; use unroll='tiles'"
        require(self.unroll != "full" or operations <= FULL_UNROLL_BUDGET, "unroll", self.unroll, works)
        stages = bool(self.staged) and self.threads is not None
        works = "solves by factors where they are do not wait for their predecessors themselves, use None"
        require(not self.pdl or stages or problem.operation.factors, "pdl", self.pdl, works)
        if self.split and problem.op == "posv":
            _check_split(self, problem, layout)
            return
        works = "only staged solves by given factors have several threads to a matrix, use None"
        require(self.split is None or (stages and not problem.operation.factors), "split", self.split, works)
        if self.threads is not None and apart:
            works = f"{problem.op} has straight-line code alone on a GPU, use 'full'"
            require(not problem.operation.in_registers or self.unroll == "full", "unroll", self.unroll, works)
            _check_kept(self, self.solve_stage(problem, layout))
        elif stages and problem.operation.factors:
            _check_staged(self, self.stage(problem), layout)
        elif stages:
            _check_staged_solve(self, problem, layout)

    def _check_fixed(self, operation: Operation) -> None:
        """Refuse what an operation has no choice of."""
        for name, only in operation.fixed.items():
            got, lacks = getattr(self, name), "does not prefetch" if name == "prefetch" else "has no such choice"
            require(got in (None, only), name, got, f"{operation.name} {lacks}, use {only!r}")

    def stage(self, problem: Problem) -> ThreadStage:
        """How the warps of a GPU stage their matrices."""
        return ThreadStage(problem.n, problem.dtype, self.threads or DEFAULT_THREADS)

    def solve_stage(self, problem: Problem, layout: str) -> SolveStage:
        """What the warps of a GPU have in shared memory where they factor and solve at once."""
        threads, interleaved = self.threads or DEFAULT_THREADS, layout != "canonical"
        if problem.operation.inverts and self.unroll == "tiles":
            # Each thread has lines of its own, whatever the layout.
            interleaved = False
        rhs = self.rhs or 1 if problem.operation.has_columns else 0
        return SolveStage(problem.n, problem.dtype, threads, rhs, bool(self.staged), interleaved)

    def general_stage(
        self, problem: Problem, layout: str, order: str = "col"
    ) -> GeneralStage | SharedStage | SplitStage | WarpsStage | BlockStage | ReflectorStage | LaneStage | PanelStage:
        """What the warps of a GPU have in shared memory of general matrices."""
        if self.split is None:
            return SharedStage(problem) if self.staged else GeneralStage(problem, layout)
        if problem.operation.rectangular:
            lanes = LaneStage(problem, self.split, layout, order)
            if lanes.fits and not self.staged:
                return lanes
            if self.staged and self.split % WARP == 0:
                return PanelStage(problem, self.split)
            return ReflectorStage(problem, self.split, layout)
        if self.staged:
            return BlockStage(problem, self.split)
        return WarpsStage(problem, self.split) if self.split > WARP else SplitStage(problem, self.split, layout)

    def triangle_stage(self, problem: Problem, layout: str, *, by_rows: bool) -> TriangleStage:
        """How a warp's threads stage the triangles that they solve by."""
        return TriangleStage(problem.n, problem.dtype, self.split or 1, by_rows, layout == "canonical")

    def column_registers(self, problem: Problem) -> int:
        """Registers of a thread that have elements of right-hand sides."""
        return (self.rhs or 1) * -(-problem.n // (self.split or 1)) * ELEMENT_BYTES[problem.dtype] // 4

    def solve_bytes(self, stage: TriangleStage) -> int:
        """Shared memory of a block: its warps' triangles, and as many right-hand sides as are in registers."""
        columns = stage.matrices * (stage.n * (self.rhs or 1) | 1)
        warps = (self.threads or DEFAULT_THREADS) // WARP
        return warps * (stage.scalars + columns) * ELEMENT_BYTES[stage.dtype]

    def method(self, operation: Operation) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        parts = {"looking": self.looking, "nb": f"nb{self.nb}", "rhs": self.rhs and f"rhs{self.rhs}"}
        return (*(part for name, part in parts.items() if part and name not in operation.fixed), self.unroll)

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail; what a layout leaves no choice of is not said."""
        # On a CPU canonical arrays always are.
        said = self.staged and (layout != "canonical" or self.threads is not None)
        parts = ["prefetch"] * bool(self.prefetch) + ["staged"] * bool(said)
        parts += ["half"] * self.halves + ["overlap"] * bool(self.overlap)
        parts += [] if self.split is None else [f"split{self.split}"]
        parts += [] if self.threads is None else [f"t{self.threads}"]
        parts += [] if self.blocks is None else [f"b{self.blocks}"]
        return (*parts, *super().details(layout))


def _threads_of(problem: Problem, split: int | None) -> int:
    """Threads of a block, by default."""
    if split is None or split <= WARP:
        return DEFAULT_THREADS
    return split if problem.operation.rectangular else WarpsStage(problem, split).threads


def _check_staged(schedule: ThreadSchedule, stage: ThreadStage, layout: str) -> None:
    """Refuse what the warps of a GPU cannot stage."""
    works = "of other layouts a GPU's threads read neighbours in memory as it is, use None"
    require(layout == "canonical", "staged", schedule.staged, works)
    works = "staged matrices stay in registers, use 'full'"
    require(schedule.unroll == "full", "unroll", schedule.unroll, works)
    _check_room(stage)


def _check_kept(schedule: ThreadSchedule, stage: SolveStage) -> None:
    """Refuse what the warps of a GPU cannot factor and solve with at once."""
    works = "kernels that factor and solve at once have no such choice on a GPU, use 'left'"
    require(schedule.looking == "left", "looking", schedule.looking, works)
    works = "straight-line code has no tiles, use 1"
    require(schedule.unroll == "tiles" or schedule.nb == 1, "nb", schedule.nb, works)
    _check_room(stage)


def _check_split(schedule: ThreadSchedule, problem: Problem, layout: str) -> None:
    """Refuse what several threads to a matrix cannot factor and solve with at once."""
    split, threads = schedule.split or 1, schedule.threads or DEFAULT_THREADS
    works = "threads share one right-hand side at a time: staged=True, unroll='full', rhs=1"
    plain = schedule.staged and schedule.unroll == "full" and schedule.rhs == 1 and schedule.looking == "left"
    require(bool(plain and layout != "interleaved"), "split", split, works)
    if layout == "canonical":
        require(threads == WARP, "threads", threads, f"a block is one warp, use {WARP}")
    else:
        works = f"blocks have {WARP} matrices of a chunk, or half as many, use threads={WARP * split}"
        require(threads in (WARP * split, WARP // 2 * split), "threads", threads, works)
        whole = schedule.stride is not None and schedule.stride % (threads // split) == 0
        require(whole, "stride", schedule.stride, works)
    works = "blocks go on to further matrices, use as many as a multiprocessor has room for"
    require(schedule.blocks is not None, "blocks", schedule.blocks, works)
    stage = RowsStage(problem, split, threads, layout == "canonical")
    check_rows(stage)
    require(
        (schedule.blocks or 1) <= stage.blocks,
        "blocks",
        schedule.blocks,
        f"shared memory has room for {stage.blocks}",
    )


def _check_room(stage: ThreadStage | SolveStage) -> None:
    """Refuse parts of warps, and more than fits shared memory."""
    works = f"staged matrices are those of whole warps, use a multiple of {WARP}"
    require(stage.threads % WARP == 0, "threads", stage.threads, works)
    works = (
        f"n={stage.n} is {stage.shared_bytes:,} bytes of shared memory, over the {MAX_SHARED_BYTES:,} of a block; "
        "use fewer"
    )
    require(stage.shared_bytes <= MAX_SHARED_BYTES, "threads", stage.threads, works)


def _check_staged_solve(schedule: ThreadSchedule, problem: Problem, layout: str) -> None:
    """Refuse what the warps of a GPU cannot stage of a solve by given factors."""
    threads, split = schedule.threads or DEFAULT_THREADS, schedule.split or 1
    works = f"a tile is of rows of as many threads, use a power of two up to split={split}"
    require(schedule.nb <= split and schedule.nb & (schedule.nb - 1) == 0, "nb", schedule.nb, works)
    works = "right-hand sides stay in registers, use 'full'"
    require(schedule.unroll == "full", "unroll", schedule.unroll, works)
    works = f"staged triangles are those of whole warps, use a multiple of {WARP}"
    require(threads % WARP == 0, "threads", threads, works)
    require(split & (split - 1) == 0, "split", split, "use a power of two")
    registers = schedule.column_registers(problem)
    works = f"n={problem.n} is {registers} registers of each thread, over {MAX_COLUMN_REGISTERS}; use fewer"
    require(registers <= MAX_COLUMN_REGISTERS, "rhs", schedule.rhs, works)
    stages = (schedule.triangle_stage(problem, layout, by_rows=by_rows) for by_rows in (False, True))
    taken = max(map(schedule.solve_bytes, stages))
    works = f"n={problem.n} is {taken:,} bytes of shared memory, over the {MAX_SHARED_BYTES:,} of a block; use fewer"
    works += " of them, or a larger split"
    require(taken <= MAX_SHARED_BYTES, "threads", threads, works)
