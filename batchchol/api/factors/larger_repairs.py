"""Repair on a GPU of matrices above the orders of kernels: on the host's schedule, which waits for the info."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.algorithms import large
from batchchol.api.repairs import Members, repair
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device


def repair_larger(jitter: float | str, a: memory.View, upper: bool, l: int, info: Any) -> Any:
    """What was added to the diagonals of those whose info is not 0, as a GPUArray.

    Their factors, among those at the address `l`, are written anew.
    Only these are copied to the host and factored again, a slice at a time.
    """
    n, itemsize = a.shape[-1], a.dtype.itemsize
    status = memory.to_host(info).reshape(-1)

    def members(which: Members) -> NDArray[Any]:
        copies = np.empty((len(which), n, n), a.dtype)
        gpu = device()
        with gpu.current("copying from the GPU"):
            for copy, member in zip(copies, which, strict=True):
                gpu.pycuda.memcpy_dtoh(copy, a.address + int(member) * n * n * itemsize)
        return copies

    def again(which: Members, repaired: NDArray[Any]) -> NDArray[np.int32]:
        factors, found = large.factor_host(repaired, upper)
        for factor, member in zip(factors, which, strict=True):
            memory.copy_to_device(factor, l + int(member) * n * n * itemsize)
        return found

    added = repair(jitter, a.dtype, status, members, again)
    if prod(info.shape):
        memory.copy_to_device(status, int(info.gpudata))
    return memory.to_device(added.reshape(info.shape), "what is added to the diagonals")
