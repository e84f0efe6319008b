"""Kernels of GPUs as the CPU's tests call kernels: on batches, by the emulation of tests/emulation/programs.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from batchchol.artifacts.stats import CompileStats
from batchchol.backends.base import memory_of
from batchchol.batches.layouts import stride
from kernelgen import KernelSource, KernelSpec, generate

from .programs import CudaProgram, compile_program


@dataclass(frozen=True)
class EmulatedKernel:
    """A kernel in one of the emulation's programs."""

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

    def __call__(self, *arrays: Any, threads: int = 1, stream: Any = None) -> None:
        first, operation = arrays[0], self.spec.problem.operation
        columns = [] if operation.columns is None else [arrays[operation.columns].shape[-1]]
        numbers = map(np.int64, (*columns, stride(first.batch, first.layout), first.batch))
        self.program.launch(self.source, first.batch, *memory_of(operation, arrays), *numbers)
