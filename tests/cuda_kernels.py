"""Kernels of GPUs as the CPU's tests call kernels: on batches, by the emulation of tests/cuda_programs.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from batchchol.batch import Batch
from batchchol.layouts import stride
from batchchol.stats import CompileStats
from kernelgen import KernelSource, KernelSpec, generate

from .cuda_programs import QUICK, CudaProgram, compile_program


@dataclass(frozen=True)
class EmulatedKernel:
    """A factorization kernel in one of the emulation's programs."""

    spec: KernelSpec
    source: KernelSource
    program: CudaProgram

    @classmethod
    def of(cls, spec: KernelSpec, source: KernelSource | None = None) -> EmulatedKernel:
        """The kernel that a spec generates, or another one of the same problem, in a program of its own.

        Another one is there to be wrong: it is compiled quickly.
        """
        if source is None:
            generated = generate(spec)
            return cls(spec, generated, compile_program((generated,)))
        return cls(spec, source, compile_program((source,), QUICK))

    @classmethod
    def quick(cls, spec: KernelSpec) -> EmulatedKernel:
        """The kernel that a spec generates, for what does not depend on how it rounds."""
        return cls.of(spec, generate(spec))

    @property
    def stats(self) -> CompileStats:
        raise NotImplementedError("what compiling for the emulation costs says nothing of a GPU")

    def __call__(self, a: Batch, out: Batch, info: Any, threads: int = 1, stream: Any = None) -> None:
        numbers = (np.int64(stride(a.batch, a.layout)), np.int64(a.batch))
        self.program.launch(self.source, a.batch, a.data, out.data, info, *numbers)
