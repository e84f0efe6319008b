"""CUDA sources of the shared family: a thread for each element of a tile, the operands of a step in shared memory.

The older of the published methods, of one matrix or several to a block of threads, and a form of it for a single
matrix, larger than those of a batch may be.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.emit.source import SCALARS, KernelSource, Launch, element_strides, render
from kernelgen.emit.thread import cuda_source
from kernelgen.problem import MATHS, Problem
from kernelgen.programs.potrf import tile_program
from kernelgen.programs.tiles import Load, operations
from kernelgen.refusals import integer, one_of
from kernelgen.schedules import SharedSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import CUDA, ELEMENT_BYTES

# A single matrix is factored by as large tiles as a block of threads has room for.
MAX_SINGLE_N = 1024
SINGLE_NB = 32


def generate_shared(spec: KernelSpec, schedule: SharedSchedule) -> KernelSource:
    """The CUDA source of one factorization kernel; entry and arguments are those of the thread family."""
    problem = spec.problem
    words = f"{problem.op}, {problem.uplo} triangle"
    return _generate(spec, schedule, problem, words, element_strides(spec, problem.n))


def generate_single(
    n: int, dtype: str = "float32", math: str = "ieee", looking: str = "left", nb: int = SINGLE_NB
) -> KernelSource:
    """The CUDA source of a kernel that factors one matrix on one block of threads.

    Its entry is that of the other kernels. Arrays are canonical, column after column; the lower triangle is read
    and written, the other one zeroed; out of place, but `l` may be `a`.

    Parameters
    ----------
    n : int
        Order of the matrix, 1 to 1024.
    dtype : {"float32", "float64"}
        Of its elements.
    math : {"ieee", "fast"}
        Accuracy class of roots and reciprocals.
    looking : {"right", "left", "top"}
        When updates are applied.
    nb : int
        Tile size, 1 to 32, a thread to each element; that of a matrix that is smaller is its order.

    Raises
    ------
    SpecError
        If an argument is outside what can be built.
    """
    n = integer("n", n, 1, MAX_SINGLE_N)
    one_of("dtype", dtype, tuple(ELEMENT_BYTES))
    one_of("math", math, MATHS)
    schedule = SharedSchedule(min(n, nb), looking, 1, cache="shared")
    usual = (looking, nb) == ("left", SINGLE_NB)
    how = "single" if usual else f"single_{looking}_nb{schedule.nb}"
    name = f"potrf_{ {'float32': 'f32', 'float64': 'f64'}[dtype] }_n{n}_{how}_{math}_{CUDA.name}"
    single = _Single(name, n, dtype, math)
    return _generate(single, schedule, single, "potrf of a single matrix, lower triangle", (1, n))


@dataclass(frozen=True)
class _Single:
    """The template's variables, by a spec and its problem."""

    name: str
    n: int
    dtype: str
    math: str
    layout: str = "canonical"
    order: str = "col"
    in_place: bool = False


def _generate(
    spec: KernelSpec | _Single,
    schedule: SharedSchedule,
    problem: Problem | _Single,
    words: str,
    strides: tuple[int, int],
) -> KernelSource:
    n, dtype, nb, matrices = problem.n, problem.dtype, schedule.nb, schedule.matrices or 1
    program = tile_program(n, nb, schedule.looking, in_place=spec.in_place)
    launch = Launch(matrices * nb * nb, matrices, cache=schedule.cache or "shared", pdl=bool(schedule.pdl))
    canonical = spec.layout == "canonical"
    operands = dict.fromkeys(op.tile for op in operations(program) if isinstance(op, Load) and op.tile != "C")
    text = render(
        "shared/shared.cu.jinja",
        spec=spec,
        schedule=schedule,
        problem=words,
        math=problem.math,
        n=n,
        dtype=dtype,
        scalar=SCALARS[dtype],
        strides=strides,
        # Between threads of neighbouring rows, columns and matrices.
        steps=(1, nb, nb * nb) if canonical else (matrices, matrices * nb, 1),
        stride="1" if canonical else str(schedule.stride or "(offset)stride"),
        program=program,
        # X is what the threads of a tile exchange.
        tiles=[*operands, "X"],
        launch=launch,
    )
    return cuda_source(text, spec.name, dtype, problem.math, launch)
