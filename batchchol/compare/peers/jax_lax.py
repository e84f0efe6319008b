"""JAX on a GPU: `jax.lax.linalg.cholesky` and solves, compiled for the shape. It works on streams of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache, partial
from importlib import import_module
from typing import Any

from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device
from batchchol.compare.contenders import SINGLE, Arena, BaseArena, Contender, Latest
from batchchol.compare.peers.base import Peer
from batchchol.compare.solves import SolveArena


def contenders(arena: Arena) -> list[Contender]:
    """Each call waits for its result: JAX's streams are not to be had, and do not wait for the default one."""
    jax, inputs = _jax(), _imported(arena, [(array,) for array in arena.each(arena.input)])
    factor = jax.jit(partial(jax.lax.linalg.cholesky, symmetrize_input=False))
    made = Latest(lambda a: factor(*a).block_until_ready(), inputs)
    return [
        Contender(
            "jax.jit(jax.lax.linalg.cholesky)",
            made.calls,
            lambda index: arena.result(index, memory.as_gpuarray(made.value)),
            protocols=SINGLE,
        )
    ]


def solvers(arena: SolveArena) -> list[Contender]:
    """`jax.scipy.linalg.cho_solve`, mapped over the batch and compiled for the shape; waited for as above."""
    jax, inputs = _jax(), _imported(arena, arena.pairs())
    cho_solve = import_module("jax.scipy.linalg").cho_solve
    solve = jax.jit(jax.vmap(lambda l, b: cho_solve((l, True), b)))
    made = Latest(lambda given: solve(*given).block_until_ready(), inputs)
    return [
        Contender(
            "jax.jit(jax.vmap(jax.scipy.linalg.cho_solve))",
            made.calls,
            lambda index: arena.solved(index, memory.as_gpuarray(made.value)),
            protocols=SINGLE,
        )
    ]


def _imported(arena: BaseArena, arrays: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Device arrays of an arena, some a set, as JAX's in the same memory."""
    jax = _jax()
    if arena.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    # What the arena holds is still being written, on a stream that JAX does not wait for.
    device().synchronize()
    return [tuple(jax.numpy.asarray(_Exported(array)) for array in each) for each in arrays]


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
    {"potrf": contenders, "potrs": solvers},
    missing="JAX cannot be used on the GPU ({error})",
    hint="pip install 'jax[cuda13]'",
)
