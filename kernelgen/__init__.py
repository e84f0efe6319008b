"""From what a kernel is to its source text: pure Python and jinja2, no NumPy, no device, no files written."""

from kernelgen.source import GENERATOR_VERSION, KernelSource, generate
from kernelgen.spec import MAX_CHUNK, MAX_N, MAX_NB, KernelSpec, Layout, Problem, SpecError, ThreadSchedule
from kernelgen.targets import TARGETS, Target

__all__ = [
    "GENERATOR_VERSION",
    "MAX_CHUNK",
    "MAX_N",
    "MAX_NB",
    "TARGETS",
    "KernelSource",
    "KernelSpec",
    "Layout",
    "Problem",
    "SpecError",
    "Target",
    "ThreadSchedule",
    "generate",
]
