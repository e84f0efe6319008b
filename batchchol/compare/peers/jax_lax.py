"""JAX on a GPU: `jax.lax.linalg.cholesky`, compiled for the shape. It works on streams of its own."""

from __future__ import annotations

import os
from functools import cache, partial
from importlib import import_module
from typing import Any

from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device
from batchchol.compare.contenders import SINGLE, Arena, Contender, Latest
from batchchol.compare.peers.base import Peer


def contenders(arena: Arena) -> list[Contender]:
    """Each call waits for its result: JAX's streams are not to be had, and do not wait for the default one."""
    jax = _jax()
    if arena.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    arrays = arena.each(arena.input)
    # What the arena holds is still being written, on a stream that JAX does not wait for.
    device().synchronize()
    inputs = [jax.numpy.asarray(_Exported(array)) for array in arrays]
    factor = jax.jit(partial(jax.lax.linalg.cholesky, symmetrize_input=False))
    made = Latest(lambda a: factor(a).block_until_ready(), inputs)
    return [
        Contender(
            "jax.jit(jax.lax.linalg.cholesky)",
            made.calls,
            lambda index: arena.result(index, memory.as_gpuarray(made.value)),
            protocols=SINGLE,
        )
    ]


class _Exported:
    """A device array with the CUDA array interface and nothing else, for libraries that would call its methods."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim


@cache
def _jax() -> Any:
    # By default it takes three quarters of the GPU's memory at its first use.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return import_module("jax")


def _version() -> str:
    jax = _jax()
    if jax.default_backend() != "gpu":
        raise ImportError(f"its default backend is {jax.default_backend()!r}")
    return f"jax {jax.__version__}"


PEER = Peer(
    "jax",
    "cuda",
    _version,
    contenders,
    missing="JAX cannot be used on the GPU ({error})",
    hint="pip install 'jax[cuda13]'",
)
