"""From what a kernel is to its source text: pure Python and jinja2, no NumPy, no device, no files written."""

from kernelgen.axes import MAX_CHUNK
from kernelgen.refusals import SpecError
from kernelgen.rendering import GENERATOR_VERSION, KernelSource, Launch
from kernelgen.schedules import (
    FAMILIES,
    MAX_NB,
    BlockSchedule,
    Schedule,
    SharedSchedule,
    ThreadSchedule,
)
from kernelgen.source import generate
from kernelgen.spec import MAX_N, KernelSpec, Layout, Problem
from kernelgen.targets import CUDA, SIMD_TARGETS, TARGETS, Target
from kernelgen.tensor_schedules import StripSchedule, WarpSchedule

__all__ = [
    "CUDA",
    "FAMILIES",
    "GENERATOR_VERSION",
    "MAX_CHUNK",
    "MAX_N",
    "MAX_NB",
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
    "generate",
]
