"""C sources for SIMD targets of kernels that factor and solve at once, the thread family."""

from __future__ import annotations

from kernelgen.emit.operations.solve import solve_programs
from kernelgen.emit.simd import factorization_variables
from kernelgen.emit.source import KernelSource, microkernels_of, render
from kernelgen.programs.tiles import operations
from kernelgen.schedules import ThreadSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import SIMD_TARGETS


def generate_posv_for_simd(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source of `generate_posv` for this target."""
    # Canonical matrices are transposed into the chunk, and factored there.
    variables = factorization_variables(spec, schedule, in_place=spec.layout == "canonical", apart=True)
    programs = solve_programs(spec.problem.n, schedule)
    text = render(
        "simd/triangles/posv.c.jinja",
        **variables,
        programs=programs,
        solve_microkernels=microkernels_of(op for _, each in programs for op in operations(each)),
        apart_factor=True,
        apart="LANES",
    )
    return KernelSource(text, spec.name, spec.lanes, SIMD_TARGETS[spec.target].flags)
