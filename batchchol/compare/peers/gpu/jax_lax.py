"""JAX on a GPU: `jax.lax.linalg.cholesky`, compiled for the shape. It works on streams of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

from batchchol.backends import Availability
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device
from batchchol.compare.gpu_contenders import SINGLE, Arena, DeviceContender, Result
from batchchol.compare.peers.gpu.base import DevicePeer
from kernelgen import Layout


def contenders(arena: Arena) -> Sequence[DeviceContender]:
    """Each call waits for its result: JAX's streams are not to be had, and do not wait for the default one."""
    jax = _jax()
    if arena.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    # What the arena holds is still being written, on a stream that JAX does not wait for.
    device().synchronize()
    inputs = [jax.numpy.asarray(_Exported(arena.input(index))) for index in range(arena.sets)]
    factor = jax.jit(partial(jax.lax.linalg.cholesky, symmetrize_input=False))
    last: list[Any] = [None]

    def call(index: int) -> None:
        last[0] = factor(inputs[index]).block_until_ready()

    def result(index: int) -> Result:
        return arena.result(index, memory.as_gpuarray(last[0]))

    calls = [partial(call, index) for index in range(arena.sets)]
    spec, layout = "jax.jit(jax.lax.linalg.cholesky)", Layout.canonical("row")
    version = f"jax {jax.__version__}"
    return [
        DeviceContender(PEER.name, version, spec, layout, arena.math, calls, result, protocols=SINGLE),
    ]


class _Exported:
    """A device array with the CUDA array interface and nothing else, for whoever else would call its methods."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim


@cache
def _jax() -> Any:
    # By default it takes three quarters of the GPU's memory at its first use.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return import_module("jax")


def _survey() -> Availability:
    try:
        jax = _jax()
        if jax.default_backend() != "gpu":
            raise ImportError(f"its default backend is {jax.default_backend()!r}")
    except (ImportError, RuntimeError) as error:
        return Availability("jax", False, f"JAX cannot be used on the GPU ({error})", "pip install 'jax[cuda13]'")
    return Availability("jax", True, f"jax {jax.__version__}")


PEER = DevicePeer("jax", _survey, contenders)
