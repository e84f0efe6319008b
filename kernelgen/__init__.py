"""From what a kernel is to its source text: pure Python and jinja2, no NumPy, no device, no files written."""

from kernelgen.rendering import GENERATOR_VERSION, KernelSource, Launch
from kernelgen.source import generate
from kernelgen.spec import MAX_CHUNK, MAX_N, MAX_NB, KernelSpec, Layout, Problem, SpecError, ThreadSchedule
from kernelgen.targets import CUDA, SIMD_TARGETS, TARGETS, Target

__all__ = [
    "CUDA",
    "GENERATOR_VERSION",
    "MAX_CHUNK",
    "MAX_N",
    "MAX_NB",
    "SIMD_TARGETS",
    "TARGETS",
    "KernelSource",
    "KernelSpec",
    "Launch",
    "Layout",
    "Problem",
    "SpecError",
    "Target",
    "ThreadSchedule",
    "generate",
]
