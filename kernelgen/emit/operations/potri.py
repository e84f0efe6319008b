"""Sources of kernels that invert, by given factors or factoring first, the thread family: C and CUDA."""

from __future__ import annotations

from kernelgen.emit.operations.triangles import generate_on_triangles
from kernelgen.emit.simd import factorization_variables
from kernelgen.emit.source import KernelSource, microkernels_of, render
from kernelgen.programs.potri import inverse_program
from kernelgen.programs.tiles import expand, operations
from kernelgen.schedules import ThreadSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import CUDA, SIMD_TARGETS


def generate_inverse(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source of one kernel that inverts by factors ("potri"), or factors matrices and inverts them ("poinv").

    On a GPU its entry is `void entry(const scalar *a, scalar *x, int *info, long long stride, long long batch)`, `a`
    being the factors or the matrices; on a CPU it returns an int, and has `first` and `last`, groups of `lanes`
    matrices, besides. `stride` is the distance between neighbouring elements of one of them, `x` is (batch, n, n),
    both triangles of each inverse, `info` has room for `batch` numbers. Where an info is not 0 the inverse has no
    meaning. Kernels of "pptri" and "ppinv" write one triangle of each, as the matrices lie; those of "potridet" and
    "poinvdet" have `scalar *logdet` before `info`, as `generate_posv` says.
    """
    if spec.target == CUDA.name:
        return generate_on_triangles("thread/triangles/potri.cu.jinja", spec, schedule)
    canonical = spec.layout == "canonical"
    variables = factorization_variables(spec, schedule, in_place=canonical, apart=True)
    program = inverse_program(spec.problem.n, schedule.nb)
    if schedule.unroll == "full":
        program = tuple(expand(program))
    own = microkernels_of(operations(program))
    text = render(
        "simd/triangles/potri.c.jinja",
        **variables,
        inverse=program,
        inverse_microkernels=own,
    )
    return KernelSource(text, spec.name, spec.lanes, SIMD_TARGETS[spec.target].flags)
