"""Sources of solves by a given factor, the thread family: C for SIMD targets, CUDA for GPUs."""

from __future__ import annotations

from kernelgen.emit.simd import leading_dimension, target_variables
from kernelgen.emit.source import SCALARS, KernelSource, element_strides, microkernels_of, render
from kernelgen.emit.thread import cuda_source, launch_of, stride_expression
from kernelgen.programs.potrs import solve_program
from kernelgen.programs.tiles import Node, expand, operations
from kernelgen.schedules import ThreadSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import CUDA, SIMD_TARGETS


def generate_solve(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source of one kernel that solves by given factors.

    On a GPU its entry is `void entry(const scalar *l, const scalar *b, scalar *x, long long nrhs, long long stride,
    long long batch)`; on a CPU it returns an int, and has `first` and `last`, groups of `lanes` matrices, besides.
    `stride` is the distance between neighbouring elements of one factor; `b` and `x`, which may be `b`, are
    (batch, n, nrhs) in rows.
    """
    problem, on_gpu = spec.problem, spec.target == CUDA.name
    programs = solve_programs(problem.n, schedule)
    variables = {
        "spec": spec,
        "schedule": schedule,
        "n": problem.n,
        "math": problem.math,
        "programs": programs,
        "microkernels": microkernels_of(op for _, program in programs for op in operations(program)),
    }
    if on_gpu:
        return _for_gpu(spec, schedule, variables)
    target = SIMD_TARGETS[spec.target]
    apart = spec.layout == "canonical" or bool(schedule.staged)
    leading = leading_dimension(spec, staged=apart)
    text = render(
        "simd/solve.c.jinja",
        **variables,
        array_strides=element_strides(spec, problem.n),
        work_strides=element_strides(spec, leading),
        leading=leading,
        apart_factor=apart,
        apart="LANES",
        **target_variables(target, problem.dtype),
    )
    return KernelSource(text, spec.name, spec.lanes, target.flags)


def _for_gpu(spec: KernelSpec, schedule: ThreadSchedule, variables: dict[str, object]) -> KernelSource:
    problem = spec.problem
    text = render(
        "thread/solve.cu.jinja",
        **variables,
        target=CUDA,
        dtype=problem.dtype,
        scalar=SCALARS[problem.dtype],
        work_strides=element_strides(spec, problem.n),
        stride=stride_expression(spec),
        apart=1,
    )
    return cuda_source(text, spec.name, problem.dtype, problem.math, launch_of(problem, schedule))


def solve_programs(n: int, schedule: ThreadSchedule) -> tuple[tuple[int, tuple[Node, ...]], ...]:
    """The program for as many right-hand sides as are in registers, and that for each of the last ones."""
    sizes = dict.fromkeys((schedule.rhs or 1, 1))
    programs = ((size, solve_program(n, schedule.nb, size)) for size in sizes)
    if schedule.unroll == "full":
        return tuple((size, tuple(expand(program))) for size, program in programs)
    return tuple(programs)
