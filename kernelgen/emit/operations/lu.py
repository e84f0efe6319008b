"""Sources of LU factorizations and of solves by them, the thread family: C for SIMD targets, CUDA for GPUs."""

from __future__ import annotations

from kernelgen.emit.simd import target_variables
from kernelgen.emit.source import KernelSource, Launch, element_strides, render
from kernelgen.emit.thread import cuda_source, variables_of
from kernelgen.gpu import WARP
from kernelgen.programs.lu import backward_program, factor_program, forward_program
from kernelgen.programs.tiles import Node, expand
from kernelgen.schedules import DEFAULT_THREADS, ThreadSchedule
from kernelgen.schedules.stages.general import BlockStage, SharedStage, SplitStage, WarpsStage
from kernelgen.spec import KernelSpec
from kernelgen.targets import SIMD_TARGETS, TARGETS


def generate_lu(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source of one kernel of "getrf", "getrs" or "gesv".

    Its entry takes pointers to the operation's arguments in their order, then int64: nrhs if there are right-hand
    sides, `stride`, the distance between neighbouring elements of one matrix, and `batch`. On a GPU it returns
    nothing; on a CPU it returns an int, and has `first` and `last`, groups of `lanes` matrices, besides. Pivots are
    (batch, n), LAPACK's row interchanges, counted from 1; b and x, which may be b, are (batch, n, nrhs) in rows.
    """
    return _for_gpu(spec, schedule) if TARGETS[spec.target].gpu else _for_simd(spec, schedule)


def _for_simd(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    problem = spec.problem
    text = render(
        "simd/columns/lu.c.jinja",
        spec=spec,
        schedule=schedule,
        math=problem.math,
        n=problem.n,
        array_strides=element_strides(spec, problem.n),
        programs=programs_of(spec, straight=schedule.unroll == "full", beside=0),
        **target_variables(SIMD_TARGETS[spec.target], problem.dtype),
    )
    return KernelSource(text, spec.name, spec.lanes, SIMD_TARGETS[spec.target].flags)


def _for_gpu(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    problem, threads = spec.problem, schedule.threads or DEFAULT_THREADS
    stage, variables = schedule.general_stage(problem, spec.layout), variables_of(spec) | {"warp": WARP}
    if isinstance(stage, BlockStage):
        text = render("thread/lu/block.cu.jinja", **variables, stage=stage, pieces=True, anywhere=True)
    elif isinstance(stage, WarpsStage):
        text = render("thread/lu/warps.cu.jinja", **variables, stage=stage)
    elif isinstance(stage, SharedStage):
        text = render("thread/lu/staged.cu.jinja", **variables, stage=stage, pieces=True, anywhere=True)
    elif isinstance(stage, SplitStage):
        text = render("thread/lu/split.cu.jinja", **variables, stage=stage, pieces=True, anywhere=True)
    else:
        programs = programs_of(spec, straight=True, beside=int(problem.op == "gesv"))
        text = render("thread/lu/lu.cu.jinja", **variables, programs=programs, stage=stage)
    shared, cache = stage.shared_bytes(threads), schedule.cache or "shared"
    launch = Launch(threads, max(threads // (schedule.split or 1), 1), shared, cache, pdl=bool(schedule.pdl))
    return cuda_source(text, spec.name, problem.dtype, problem.math, launch)


def programs_of(spec: KernelSpec, *, straight: bool, beside: int) -> dict[str, tuple[Node, ...]]:
    """The programs of a kernel: its factorization, with right-hand sides `beside` it, and both solves of one.

    Rows of L are exchanged where L is written, or was.
    """
    n, whole = spec.problem.n, not spec.problem.operation.forgets
    programs = {
        "factor": factor_program(n, whole=whole, rhs=beside),
        "forward": forward_program(n, 1, whole=whole),
        "backward": backward_program(n, 1),
    }
    return {name: tuple(expand(each)) if straight else each for name, each in programs.items()}
