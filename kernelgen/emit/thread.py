"""CUDA sources of the thread family: one GPU thread to a matrix."""

from __future__ import annotations

import re
from typing import Any

from kernelgen.emit.source import SCALARS, KernelSource, Launch, element_strides, microkernels_of, render
from kernelgen.problem import Problem
from kernelgen.programs.potrf import tile_program
from kernelgen.programs.tiles import Load, Store, operations, resident
from kernelgen.refusals import require
from kernelgen.schedules import DEFAULT_THREADS, ThreadSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import ELEMENT_BYTES, TARGETS

# Denormals are part of what `fast` gives up; double precision has no such mode.
FAST_FLAGS = {"float32": ("-ftz=true",), "float64": ()}

# Registers that a staged triangle may take, or else some were spilled.
HELD_REGISTERS = {"float32": 300, "float64": 224}

_DEFINED = re.compile(r"^#define (\w+)", re.MULTILINE)


def generate_any_block(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source of `generate_thread` for blocks of any size: equal for all specs that differ in that and in `cache`.

    A block's size is read where it runs, and the compiler does not know it: what needs more registers than a
    multiprocessor has for a block of that size cannot be launched. The entry is named after neither. A schedule with
    `blocks` has no such source, and is refused.
    """
    works = "code for blocks of any size is of factorizations, use 'potrf'"
    require(spec.problem.op == "potrf", "op", spec.problem.op, works)
    works = "code for blocks of any size leaves registers to the compiler, use None"
    require(schedule.blocks is None, "blocks", schedule.blocks, works)
    name = spec.name.replace(f"_t{schedule.threads}_{schedule.cache}", "_any", 1)
    return _generate(spec, schedule, name, "blocks of any size", "", "blockDim.x")


def generate_thread(spec: KernelSpec, schedule: ThreadSchedule, *, repairs: bool = False) -> KernelSource:
    """The CUDA source of one factorization kernel.

    Its entry is `void entry(const scalar *a, scalar *l, int *info, long long stride, long long batch)`: `stride` is
    the distance between neighbouring elements of one matrix, and `info` has room for `batch` numbers. Kernels of
    "potrfdet" have `scalar *logdet` before it, as `generate_posv` says. `a` is `l` for a spec in place. A schedule
    with a `stride` of its own takes no other. `generate_repairing` says what one that repairs takes besides: only
    staged matrices have room for that.
    """
    threads = schedule.threads
    geometry = f"blocks of {threads}, on-chip memory for {schedule.cache}"
    # Shared memory has room for few blocks: left to itself the compiler spills to have registers for more.
    blocks = schedule.blocks or (1 if schedule.staged else None)
    bounds = f"__launch_bounds__({threads}{f', {blocks}' if blocks else ''}) "
    entry = f"{spec.name}_repairs" if repairs else spec.name
    return _generate(spec, schedule, entry, geometry, bounds, str(threads), repairs=repairs)


def _generate(
    spec: KernelSpec,
    schedule: ThreadSchedule,
    entry: str,
    geometry: str,
    bounds: str,
    block: str,
    *,
    repairs: bool = False,
) -> KernelSource:
    problem = spec.problem
    strides = element_strides(spec, problem.n)
    text = render(
        "thread/thread.cu.jinja",
        spec=spec,
        entry=entry,
        repairs=repairs,
        geometry=geometry,
        bounds=bounds,
        block=block,
        schedule=schedule,
        stage=schedule.stage(problem) if schedule.staged else None,
        target=TARGETS[spec.target],
        math=problem.math,
        n=problem.n,
        dtype=problem.dtype,
        scalar=SCALARS[problem.dtype],
        array_strides=strides,
        work_strides=strides,
        element_bytes=ELEMENT_BYTES[problem.dtype],
        in_place=spec.in_place or stays_in_stage(spec.problem, schedule),
        late=stays_in_stage(spec.problem, schedule),
        stride=stride_expression(spec),
        **_program(spec, schedule),
    )
    return cuda_source(text, entry, problem.dtype, problem.math, launch_of(problem, schedule))


def cuda_source(text: str, name: str, dtype: str, math: str, launch: Launch) -> KernelSource:
    """The source of a GPU's kernel, of which a group is a single matrix."""
    flags = FAST_FLAGS[dtype] if math == "fast" else ()
    return KernelSource(undefine_macros(text), name, 1, flags, launch)


def launch_of(problem: Problem, schedule: ThreadSchedule) -> Launch:
    """How a kernel of the thread family is launched, whatever blocks its code is for."""
    threads = schedule.threads or DEFAULT_THREADS
    stage = schedule.stage(problem).shared_bytes if schedule.staged else 0
    return Launch(threads, threads, stage, schedule.cache or "l1", pdl=bool(schedule.pdl))


def variables_of(spec: KernelSpec) -> dict[str, Any]:
    """The variables of the templates of families other than thread, by a spec."""
    problem = spec.problem
    return {
        "spec": spec,
        "schedule": spec.schedule,
        "math": problem.math,
        "n": problem.n,
        "dtype": problem.dtype,
        "scalar": SCALARS[problem.dtype],
        "strides": element_strides(spec, problem.n),
        "stride": stride_expression(spec),
    }


def stays_in_stage(problem: Problem, schedule: ThreadSchedule) -> bool:
    """Whether a staged triangle is more than fits registers: it is then read by columns, each when its turn comes.

    Only a left-looking order does not ask for all of it at once.
    """
    words = ELEMENT_BYTES[problem.dtype] // 4 * problem.n * (problem.n + 1) // 2
    left = schedule.looking == "left" and schedule.nb == 1
    return bool(schedule.staged) and left and words > HELD_REGISTERS[problem.dtype]


def stride_expression(spec: KernelSpec) -> str:
    """The distance between neighbouring elements of one matrix, as the code of the entry has it."""
    if spec.layout == "canonical":
        return "1"
    return str(spec.schedule.stride or "stride")


def _program(spec: KernelSpec, schedule: ThreadSchedule) -> dict[str, Any]:
    """The tile program, and whether its tiles stay in registers: in straight-line code they can."""
    late = stays_in_stage(spec.problem, schedule)
    program = tile_program(spec.problem.n, schedule.nb, schedule.looking, in_place=spec.in_place or late)
    if schedule.unroll == "full":
        # What is staged is read and written apart from the program, unless it stays in the stage.
        read_whole = schedule.staged and not late
        placed = tuple(p for p in resident(program) if not (read_whole and isinstance(p.op, Load | Store)))
        return {"resident": True, "program": placed, "microkernels": microkernels_of(p.op for p in placed)}
    return {"resident": False, "program": program, "microkernels": microkernels_of(operations(program))}


def undefine_macros(text: str) -> str:
    """The text with an end to each of its macros: others may follow it in a translation unit."""
    names = dict.fromkeys(_DEFINED.findall(text))
    return "\n".join([text.rstrip("\n"), "", *(f"#undef {name}" for name in names), ""])
