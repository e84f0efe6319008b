"""Sources of kernels that try matrices which fail again themselves, with a multiple of their mean diagonal added."""

from __future__ import annotations

from kernelgen.emit.operations.posv_cuda import generate_posv_for_gpu
from kernelgen.emit.source import KernelSource
from kernelgen.emit.thread import generate_thread
from kernelgen.schedules import ThreadSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import TARGETS


def generate_repairing(spec: KernelSpec) -> KernelSource | None:
    """The source of the kernel of a spec, with repair; None where it is a kernel of its own (`support_kernel`).

    Its arguments are those of the kernel of the spec, with `scalar *added` behind `info`, and at the end `double
    first, long long growth, long long tries`: what fails is tried again `tries` times, with `first` times its mean
    diagonal added, then `growth` times as much. `added` has room for `batch` elements, what was added to each at
    last: 0 to those that did not fail, or whose mean diagonal is not a positive number, which are not tried again.
    Logarithms of determinants are of what was repaired.
    """
    schedule = spec.schedule
    if not (TARGETS[spec.target].gpu and isinstance(schedule, ThreadSchedule)):
        return None
    if spec.problem.op in ("posv", "posvdet") and not schedule.split:
        return generate_posv_for_gpu(spec, schedule, repairs=True)
    if spec.problem.op in ("potrf", "potrfdet") and schedule.staged and not spec.in_place:
        return generate_thread(spec, schedule, repairs=True)
    return None
