"""Kernels from machine code that another commit of the library built."""

from __future__ import annotations

import ctypes

from batchchol.artifacts.c_library import load_copy
from batchchol.artifacts.stats import CompileStats
from batchchol.backends.base import Kernel
from batchchol.backends.cpu import CpuKernel, signature
from kernelgen import KernelSpec, Launch

_UNKNOWN = CompileStats(0.0, 0, "another commit's")


def foreign_kernel(spec: KernelSpec, code: bytes, entry: str, launch: Launch | None) -> Kernel:
    """The kernel of a spec from machine code: each call loads it once more, apart from all others.

    Raises
    ------
    OSError, AttributeError, DeviceError
        If this machine does not take the code, or the kernel is not in it.
    """
    if launch is None:
        function = getattr(load_copy(code, entry), entry)
        function.argtypes, function.restype = signature(spec.problem.operation), ctypes.c_int
        return CpuKernel(spec, _UNKNOWN, function)
    # Not at the top: importing this needs no GPU.
    from batchchol.backends.cuda.device import device
    from batchchol.backends.cuda.kernels import CudaKernel
    from batchchol.backends.cuda.launching.functions import Code, Function

    gpu = device()
    with gpu.current(f"loading {entry}"):
        module = gpu.driver.load(code + b"\0", entry)
        handle = gpu.driver.function(module, entry, shared_bytes=launch.shared_bytes, cache=launch.cache)
    return CudaKernel(spec, gpu, Function(Code(launch, None, handle), entry, launch, _UNKNOWN))
