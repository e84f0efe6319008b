"""Spec to source text, with what a caller needs to launch it."""

from __future__ import annotations

from kernelgen import cuda, simd
from kernelgen.rendering import KernelSource
from kernelgen.spec import KernelSpec
from kernelgen.targets import TARGETS


def generate(spec: KernelSpec) -> KernelSource:
    """The source of one factorization kernel: C for SIMD targets, CUDA C++ for GPUs."""
    return cuda.generate_thread(spec) if TARGETS[spec.target].gpu else simd.generate_thread(spec)
