"""CUDA sources of the thread family: one GPU thread to a matrix."""

from __future__ import annotations

import re
from typing import Any

from kernelgen.rendering import SCALARS, KernelSource, Launch, element_strides, microkernels_of, render
from kernelgen.schedules import DEFAULT_THREADS, ThreadSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import TARGETS
from kernelgen.tiles import operations, resident, tile_program

# Denormals are part of what `fast` gives up; double precision has no such mode.
FAST_FLAGS = {"float32": ("-ftz=true",), "float64": ()}

_DEFINED = re.compile(r"^#define (\w+)", re.MULTILINE)


def generate_thread(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The CUDA source of one factorization kernel.

    Its entry is `void entry(const scalar *a, scalar *l, int *info, long long stride, long long batch)`: `stride` is
    the distance between neighbouring elements of one matrix, and `info` has room for `batch` numbers. `a` is `l` for
    a spec in place. A schedule with a `stride` of its own takes no other.
    """
    problem = spec.problem
    strides = element_strides(spec, problem.n)
    text = render(
        "thread.cu.jinja",
        spec=spec,
        schedule=schedule,
        target=TARGETS[spec.target],
        n=problem.n,
        dtype=problem.dtype,
        scalar=SCALARS[problem.dtype],
        array_strides=strides,
        work_strides=strides,
        in_place=spec.in_place,
        stride=stride_expression(spec),
        **_program(spec, schedule),
    )
    flags = FAST_FLAGS[problem.dtype] if schedule.math == "fast" else ()
    threads = schedule.threads or DEFAULT_THREADS
    launch = Launch(threads, threads, cache=schedule.cache or "l1")
    return KernelSource(undefine_macros(text), spec.name, spec.lanes, flags, launch)


def stride_expression(spec: KernelSpec) -> str:
    """The distance between neighbouring elements of one matrix, as the code of the entry has it."""
    if spec.layout == "canonical":
        return "1"
    return str(spec.schedule.stride or "stride")


def _program(spec: KernelSpec, schedule: ThreadSchedule) -> dict[str, Any]:
    """The tile program, and whether its tiles stay in registers: in straight-line code they can."""
    program = tile_program(spec.problem.n, schedule.nb, schedule.looking, in_place=spec.in_place)
    if schedule.unroll == "full":
        placed = tuple(resident(program))
        return {"resident": True, "program": placed, "microkernels": microkernels_of(p.op for p in placed)}
    return {"resident": False, "program": program, "microkernels": microkernels_of(operations(program))}


def undefine_macros(text: str) -> str:
    """The text with an end to each of its macros: others may follow it in a translation unit."""
    names = dict.fromkeys(_DEFINED.findall(text))
    return "\n".join([text.rstrip("\n"), "", *(f"#undef {name}" for name in names), ""])
