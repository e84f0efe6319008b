"""Spec to source text, with what a caller needs to launch it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kernelgen.emit import simd
from kernelgen.emit import thread as cuda
from kernelgen.emit.families import block, shared, strip, warp, whole
from kernelgen.emit.operations.logdet import generate_logdet
from kernelgen.emit.operations.lu import generate_lu
from kernelgen.emit.operations.posv import generate_posv
from kernelgen.emit.operations.potri import generate_inverse
from kernelgen.emit.operations.qr import generate_qr
from kernelgen.emit.operations.solve import generate_solve
from kernelgen.emit.source import KernelSource
from kernelgen.schedules import (
    BlockSchedule,
    SharedSchedule,
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
    WholeSchedule,
)
from kernelgen.spec import KernelSpec
from kernelgen.targets import TARGETS

Generate = Callable[[KernelSpec, ThreadSchedule], KernelSource]


def _generate_factorization(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    generate_thread = cuda.generate_thread if TARGETS[spec.target].gpu else simd.generate_thread
    return generate_thread(spec, schedule)


# The thread family has kernels of all operations.
_OF_THREADS: Mapping[str, Generate] = MappingProxyType(
    {
        **dict.fromkeys(("potrf", "potrfdet"), _generate_factorization),
        "potrs": generate_solve,
        **dict.fromkeys(("posv", "posvdet"), generate_posv),
        "logdet": generate_logdet,
        **dict.fromkeys(("potri", "potridet", "poinv", "poinvdet", "pptri", "ppinv"), generate_inverse),
        "getrf": generate_lu,
        "getrs": generate_lu,
        "gesv": generate_lu,
        **dict.fromkeys(("geqrf", "orgqr", "ormqr", "gels"), generate_qr),
    }
)


def generate(spec: KernelSpec) -> KernelSource:
    """The source of the kernel of a spec: C for SIMD targets, CUDA C++ for GPUs."""
    match spec.schedule:
        case ThreadSchedule() as schedule:
            return _OF_THREADS[spec.problem.op](spec, schedule)
        case SharedSchedule() as schedule:
            return shared.generate_shared(spec, schedule)
        case BlockSchedule() as schedule:
            return block.generate_block(spec, schedule)
        case WarpSchedule() as schedule:
            return warp.generate_warp(spec, schedule)
        case StripSchedule() as schedule:
            return strip.generate_strip(spec, schedule)
        case WholeSchedule() as schedule:
            return whole.generate_whole(spec, schedule)
