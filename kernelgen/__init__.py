"""From the description of a kernel to its source text: Python and jinja2, no NumPy, no device, no files written."""

from kernelgen.emit import generate
from kernelgen.emit.source import GENERATOR_VERSION, KernelSource, Launch
from kernelgen.problem import MAX_CHUNK, MAX_N, MAX_ON_CHIP, Layout, Problem
from kernelgen.refusals import SpecError
from kernelgen.schedules import (
    FAMILIES,
    MAX_NB,
    BlockSchedule,
    Schedule,
    SharedSchedule,
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
    WholeSchedule,
)
from kernelgen.spec import KernelSpec
from kernelgen.targets import CUDA, SIMD_TARGETS, TARGETS, Target

__all__ = [
    "CUDA",
    "FAMILIES",
    "GENERATOR_VERSION",
    "MAX_CHUNK",
    "MAX_N",
    "MAX_NB",
    "MAX_ON_CHIP",
    "SIMD_TARGETS",
    "TARGETS",
    "BlockSchedule",
    "KernelSource",
    "KernelSpec",
    "Launch",
    "Layout",
    "Problem",
    "Schedule",
    "SharedSchedule",
    "SpecError",
    "StripSchedule",
    "Target",
    "ThreadSchedule",
    "WarpSchedule",
    "WholeSchedule",
    "generate",
]
