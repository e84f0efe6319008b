"""Sources of QR factorizations and of what is made of them, the thread family: C for SIMD targets, CUDA for GPUs."""

from __future__ import annotations

from kernelgen.emit.simd import target_variables
from kernelgen.emit.source import KernelSource, Launch, element_strides, render
from kernelgen.emit.thread import cuda_source, variables_of
from kernelgen.gpu import WARP
from kernelgen.programs.lu import backward_program
from kernelgen.programs.qr import factor_program, generate_program, project_program
from kernelgen.programs.tiles import Node, expand
from kernelgen.schedules import DEFAULT_THREADS, ThreadSchedule
from kernelgen.schedules.stages.lanes import LaneStage
from kernelgen.schedules.stages.panels import PanelStage
from kernelgen.schedules.stages.reflectors import RHS, STEP, ReflectorStage
from kernelgen.spec import KernelSpec
from kernelgen.targets import SIMD_TARGETS, TARGETS


def generate_qr(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source of one kernel of "geqrf", "orgqr", "ormqr" or "gels".

    Its entry takes pointers to the operation's arguments in their order, then int64: nrhs if there are right-hand
    sides, `stride`, the distance between neighbouring elements of one matrix, and `batch`. On a GPU it returns
    nothing; on a CPU it returns an int, and has `first` and `last`, groups of `lanes` matrices, besides. tau is
    (batch, min(m, n)), b (batch, m, nrhs) and x (batch, n, nrhs), in rows, that of ormqr (batch, m, nrhs); x may be b
    if it has as many rows.
    """
    return _for_gpu(spec, schedule) if TARGETS[spec.target].gpu else _for_simd(spec, schedule)


def _for_simd(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    problem = spec.problem
    text = render(
        "simd/columns/qr.c.jinja",
        spec=spec,
        schedule=schedule,
        math=problem.math,
        m=problem.rows,
        n=problem.n,
        array_strides=element_strides(spec, _leading(spec)),
        root="pivot",
        programs=programs_of(spec, straight=schedule.unroll == "full", beside=0),
        **target_variables(SIMD_TARGETS[spec.target], problem.dtype),
    )
    return KernelSource(text, spec.name, spec.lanes, SIMD_TARGETS[spec.target].flags)


def _for_gpu(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    problem, threads = spec.problem, schedule.threads or DEFAULT_THREADS
    stage = schedule.general_stage(problem, spec.layout, spec.order)
    strides = element_strides(spec, _leading(spec))
    variables = variables_of(spec) | {"m": problem.rows, "strides": strides, "warp": WARP, "stage": stage}
    # Columns are scaled: no square of a norm is small.
    scaled = (problem.dtype, problem.math) == ("float32", "ieee")
    variables["root"] = "ordinary_pivot" if scaled else "pivot"
    if isinstance(stage, LaneStage):
        text = render("thread/qr/lanes.cu.jinja", **variables)
    elif isinstance(stage, PanelStage):
        text = render("thread/qr/panels.cu.jinja", **variables, rhs=RHS, pieces=True, anywhere=True)
    elif isinstance(stage, ReflectorStage):
        variables["together"] = stage.together(threads)
        text = render("thread/qr/split.cu.jinja", **variables, step=STEP, rhs=RHS)
    else:
        programs = programs_of(spec, straight=True, beside=int(problem.op == "gels"))
        text = render("thread/qr/qr.cu.jinja", **variables, programs=programs)
    items = threads // (schedule.split or 1)
    shared, cache = stage.shared_bytes(threads), schedule.cache or "shared"
    launch = Launch(threads, items, shared, cache, pdl=bool(schedule.pdl))
    return cuda_source(text, spec.name, problem.dtype, problem.math, launch)


def _leading(spec: KernelSpec) -> int:
    """Elements between neighbouring rows, if the order is by rows, else columns."""
    return spec.problem.n if spec.order == "row" else spec.problem.rows


def programs_of(spec: KernelSpec, *, straight: bool, beside: int) -> dict[str, tuple[Node, ...]]:
    """The programs of a kernel: its factorization, with right-hand sides `beside` it, and what is made of that."""
    m, n = spec.problem.rows, spec.problem.n
    programs = {
        "factor": factor_program(m, n, rhs=beside),
        "project": project_program(min(m, n), 1),
        "backward": backward_program(n, 1),
        "generate": generate_program(n),
    }
    return {name: tuple(expand(each)) if straight else each for name, each in programs.items()}
