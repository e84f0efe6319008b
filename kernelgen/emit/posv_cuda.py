"""CUDA sources of kernels that factor and solve at once, the thread family."""

from __future__ import annotations

from kernelgen.emit.source import KernelSource
from kernelgen.refusals import SpecError
from kernelgen.schedules import ThreadSchedule
from kernelgen.spec import KernelSpec


def generate_posv_for_gpu(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source of `generate_posv` for this target."""
    raise SpecError("placeholder of the branch")
