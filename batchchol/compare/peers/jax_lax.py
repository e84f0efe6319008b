"""JAX on a GPU: `jax.lax.linalg.cholesky` and solves, compiled for the shape. It works on streams of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device
from batchchol.compare.contenders import SINGLE, Arena, BaseArena, Contender, Latest
from batchchol.compare.factors import LuArena, LuFactored
from batchchol.compare.peers.base import Peer
from batchchol.compare.reflections import LeastSquaresArena, QrArena, QrFactored
from batchchol.compare.solves import BaseSolveArena, FusedArena, GeneralArena, SolveArena


def contenders(arena: Arena) -> list[Contender]:
    """Each call waits for its result: JAX's streams cannot be obtained, and do not wait for the default one."""
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
    cho_solve = import_module("jax.scipy.linalg").cho_solve
    return [_mapped(arena, "jax.scipy.linalg.cho_solve", lambda l, b: cho_solve((l, True), b))]


def fused(arena: FusedArena) -> list[Contender]:
    """`cho_factor` and `cho_solve` together, and `solve` of positive definite matrices, as above."""
    linalg = import_module("jax.scipy.linalg")

    def two_steps(a: Any, b: Any) -> Any:
        return linalg.cho_solve(linalg.cho_factor(a, lower=True), b)

    return [
        _mapped(arena, "cho_factor and cho_solve of jax.scipy.linalg", two_steps),
        _mapped(arena, "jax.scipy.linalg.solve", lambda a, b: linalg.solve(a, b, lower=True, assume_a="pos")),
    ]


def general(arena: GeneralArena) -> list[Contender]:
    """`jax.numpy.linalg.solve`, mapped and compiled as above."""
    return [_mapped(arena, "jax.numpy.linalg.solve", _jax().numpy.linalg.solve)]


def lu_factors(arena: LuArena) -> list[Contender]:
    """`jax.lax.linalg.lu`, compiled and waited for as above; its pivots count from 0."""
    jax, inputs = _jax(), _imported(arena, [(array,) for array in arena.each(arena.input)])
    factor = jax.jit(jax.lax.linalg.lu)
    made = Latest(lambda a: jax.block_until_ready(factor(*a)), inputs)

    def result(index: int) -> LuFactored:
        lu, pivots, _ = made.value
        return arena.factored(index, memory.as_gpuarray(lu), memory.as_gpuarray(pivots + 1))

    return [Contender("jax.jit(jax.lax.linalg.lu)", made.calls, result, protocols=SINGLE)]


def reflectors(arena: QrArena) -> list[Contender]:
    """`jax.numpy.linalg.qr`, compiled and waited for as above."""
    jax, inputs = _jax(), _imported(arena, [(array,) for array in arena.each(arena.input)])
    factor = jax.jit(jax.numpy.linalg.qr)
    made = Latest(lambda a: jax.block_until_ready(factor(*a)), inputs)

    def result(index: int) -> QrFactored:
        return arena.multiplied(index, *(memory.as_gpuarray(each) for each in made.value))

    return [Contender("jax.jit(jax.numpy.linalg.qr)", made.calls, result, protocols=SINGLE)]


def least_squares(arena: LeastSquaresArena) -> list[Contender]:
    """`jax.numpy.linalg.lstsq`, mapped and compiled as above; by singular values."""
    return [_mapped(arena, "jax.numpy.linalg.lstsq", lambda a, b: _jax().numpy.linalg.lstsq(a, b)[0])]


def _mapped(arena: BaseSolveArena, what: str, function: Callable[[Any, Any], Any]) -> Contender:
    jax, inputs = _jax(), _imported(arena, arena.pairs())
    compiled = jax.jit(jax.vmap(function))
    made = Latest(lambda given: compiled(*given).block_until_ready(), inputs)
    return Contender(
        f"jax.jit(jax.vmap({what}))",
        made.calls,
        lambda index: arena.solved(index, memory.as_gpuarray(made.value)),
        protocols=SINGLE,
    )


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


_WAYS: Mapping[str, Callable[[Any], Sequence[Contender]]] = {
    "potrf": contenders,
    "potrs": solvers,
    "posv": fused,
    "gesv": general,
    "getrf": lu_factors,
    "geqrf": reflectors,
    "gels": least_squares,
}
PEER = Peer(
    "jax",
    "cuda",
    _version,
    _WAYS,
    missing="JAX cannot be used on the GPU ({error})",
    hint="pip install 'jax[cuda13]'",
)
