"""Spec to source text, with what a caller needs to launch it."""

from __future__ import annotations

from kernelgen.emit import block, shared, simd, strip, warp
from kernelgen.emit import thread as cuda
from kernelgen.emit.solve import generate_solve
from kernelgen.emit.source import KernelSource
from kernelgen.schedules import BlockSchedule, SharedSchedule, StripSchedule, ThreadSchedule, WarpSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import TARGETS


def generate(spec: KernelSpec) -> KernelSource:
    """The source of the kernel of a spec: C for SIMD targets, CUDA C++ for GPUs."""
    match spec.schedule:
        case ThreadSchedule() as schedule:
            if spec.problem.op == "potrs":
                return generate_solve(spec, schedule)
            if TARGETS[spec.target].gpu:
                return cuda.generate_thread(spec, schedule)
            return simd.generate_thread(spec, schedule)
        case SharedSchedule() as schedule:
            return shared.generate_shared(spec, schedule)
        case BlockSchedule() as schedule:
            return block.generate_block(spec, schedule)
        case WarpSchedule() as schedule:
            return warp.generate_warp(spec, schedule)
        case StripSchedule() as schedule:
            return strip.generate_strip(spec, schedule)
