"""Kernels of GPUs as the CPU's tests call kernels: on batches, by the emulation of tests/cuda_programs.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from batchchol.artifacts.stats import CompileStats
from batchchol.batches.batch import Batch
from batchchol.batches.layouts import stride
from kernelgen import KernelSource, KernelSpec, generate

from .cuda_programs import CudaProgram, compile_program


@dataclass(frozen=True)
class EmulatedKernel:
    """A factorization kernel in one of the emulation's programs."""

    spec: KernelSpec
    source: KernelSource
    program: CudaProgram

    @classmethod
    def of(cls, spec: KernelSpec, source: KernelSource | None = None) -> Self:
        """The kernel that a spec generates, or another one of the same problem, in a program of its own."""
        source = source or generate(spec)
        return cls(spec, source, compile_program((source,)))

    @property
    def stats(self) -> CompileStats:
        raise NotImplementedError("what compiling for the emulation costs says nothing of a GPU")

    def __call__(self, a: Batch, out: Batch, info: Any, threads: int = 1, stream: Any = None) -> None:
        numbers = (np.int64(stride(a.batch, a.layout)), np.int64(a.batch))
        self.program.launch(self.source, a.batch, a.data, out.data, info, *numbers)


class EmulatedSolver(EmulatedKernel):
    """A kernel of solves in one of the emulation's programs."""

    def __call__(self, l: Batch, b: Any, x: Any, threads: int = 1, stream: Any = None) -> None:
        numbers = (np.int64(b.shape[-1]), np.int64(stride(l.batch, l.layout)), np.int64(l.batch))
        self.program.launch(self.source, l.batch, l.data, b, x, *numbers)
