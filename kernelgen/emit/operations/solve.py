"""Sources of solves by a given factor, the thread family: C for SIMD targets, CUDA for GPUs."""

from __future__ import annotations

from kernelgen.emit.simd import leading_dimension, target_variables
from kernelgen.emit.source import SCALARS, KernelSource, Launch, element_strides, microkernels_of, render
from kernelgen.emit.thread import cuda_source, launch_of, stride_expression
from kernelgen.gpu import MAX_BLOCKS, MAX_SHARED_BYTES, MAX_THREADS, REGISTERS, RESERVED_BYTES, SCHEDULERS, WARP
from kernelgen.programs.potrs import solve_program
from kernelgen.programs.tiles import Node, expand, operations
from kernelgen.schedules import ThreadSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import CUDA, ELEMENT_BYTES, SIMD_TARGETS

# Registers of a thread besides those of its right-hand sides.
_OTHER_REGISTERS = 56


def generate_solve(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source of one kernel that solves by given factors.

    On a GPU its entry is `void entry(const scalar *l, const scalar *b, scalar *x, long long nrhs, long long stride,
    long long batch)`; on a CPU it returns an int, and has `first` and `last`, groups of `lanes` matrices, besides.
    `stride` is the distance between neighbouring elements of one factor; `b` and `x`, which may be `b`, are
    (batch, n, nrhs) in rows.
    """
    problem, on_gpu = spec.problem, spec.target == CUDA.name
    if on_gpu and schedule.staged:
        return _staged(spec, schedule)
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
        "simd/triangles/solve.c.jinja",
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
        "thread/solve/solve.cu.jinja",
        **variables,
        target=CUDA,
        dtype=problem.dtype,
        scalar=SCALARS[problem.dtype],
        work_strides=element_strides(spec, problem.n),
        stride=stride_expression(spec),
        apart=1,
    )
    return cuda_source(text, spec.name, problem.dtype, problem.math, launch_of(problem, schedule))


def _staged(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    problem, strides = spec.problem, element_strides(spec, spec.problem.n)
    stage = schedule.triangle_stage(problem, spec.layout, by_rows=strides[1] == 1)
    rhs, threads, shared = schedule.rhs or 1, schedule.threads or 1, schedule.solve_bytes(stage)
    # The rows of a thread and of a step; where threads share a matrix, as many elements come ahead of their turn.
    columns = schedule.column_registers(problem) + rhs * schedule.nb * ELEMENT_BYTES[problem.dtype] // 4
    columns *= 1 if stage.split == 1 else 2
    text = render(
        "thread/solve/staged.cu.jinja",
        spec=spec,
        schedule=schedule,
        stage=stage,
        n=problem.n,
        math=problem.math,
        dtype=problem.dtype,
        scalar=SCALARS[problem.dtype],
        element_bytes=ELEMENT_BYTES[problem.dtype],
        widths=tuple(dict.fromkeys((rhs, 1))),
        resident=resident_blocks(threads, shared, columns),
    )
    launch = Launch(threads, threads // stage.split, shared, schedule.cache or "shared", pdl=bool(schedule.pdl))
    return cuda_source(text, spec.name, problem.dtype, problem.math, launch)


def resident_blocks(threads: int, shared: int, columns: int) -> int:
    """Blocks that a multiprocessor has shared memory and room for, if their threads have registers for `columns`."""
    by_memory = (MAX_SHARED_BYTES + RESERVED_BYTES) // (shared + RESERVED_BYTES)
    # Each scheduler has registers of its own for its warps.
    warps = SCHEDULERS * (REGISTERS // SCHEDULERS // (WARP * (columns + _OTHER_REGISTERS)))
    return max(1, min(by_memory, warps // (threads // WARP), MAX_THREADS // threads, MAX_BLOCKS))


def solve_programs(n: int, schedule: ThreadSchedule) -> tuple[tuple[int, tuple[Node, ...]], ...]:
    """The program for as many right-hand sides as are in registers, and that for each of the last ones."""
    sizes = dict.fromkeys((schedule.rhs or 1, 1))
    programs = ((size, solve_program(n, schedule.nb, size)) for size in sizes)
    if schedule.unroll == "full":
        return tuple((size, tuple(expand(program))) for size, program in programs)
    return tuple(programs)
