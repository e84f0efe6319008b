"""The baseline: `numpy.linalg.cholesky`, `solve`, `inv` and `qr`, one call for the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from batchchol.compare.contenders import Arena, Contender, Latest
from batchchol.compare.inversions import DeterminantArena, InverseArena, Inverted
from batchchol.compare.peers.base import Peer, blas_limit
from batchchol.compare.reflections import LeastSquaresArena, QrArena, QrFactored
from batchchol.compare.solves import FusedArena


def contenders(arena: Arena) -> list[Contender]:
    """NumPy loops over the matrices in C on one thread; its LAPACK may use more within a matrix."""
    made = Latest(np.linalg.cholesky, arena.each(arena.input))
    return [
        Contender(
            "numpy.linalg.cholesky",
            made.calls,
            lambda index: arena.result(index, made.value),
            forget=made.forget,
        )
    ]


def fused(arena: FusedArena) -> list[Contender]:
    """`numpy.linalg.solve`, whose matrices may be any: it makes LU factors of them."""
    made = Latest(lambda given: np.linalg.solve(*given), arena.pairs())
    return [
        Contender("numpy.linalg.solve", made.calls, lambda index: arena.solved(index, made.value), forget=made.forget)
    ]


def inverses(arena: InverseArena) -> list[Contender]:
    """`numpy.linalg.inv`, whose matrices may be any: it makes LU factors of them."""
    made = Latest(np.linalg.inv, arena.each(arena.input))
    return [
        Contender("numpy.linalg.inv", made.calls, lambda index: arena.inverted(index, made.value), forget=made.forget)
    ]


def reflectors(arena: QrArena) -> list[Contender]:
    """`numpy.linalg.qr`: reflectors, whose transposes it returns, and Q and R."""
    raw = Latest(lambda given: np.linalg.qr(given, "raw"), arena.each(arena.input))
    made = Latest(np.linalg.qr, arena.each(arena.input))

    def reflected(index: int) -> QrFactored:
        factors, tau = raw.value
        return arena.reflected(index, np.ascontiguousarray(factors.swapaxes(-1, -2)), tau)

    def multiplied(index: int) -> QrFactored:
        return arena.multiplied(index, *made.value)

    return [
        Contender("numpy.linalg.qr, raw", raw.calls, reflected, forget=raw.forget),
        Contender("numpy.linalg.qr", made.calls, multiplied, forget=made.forget),
    ]


def least_squares(arena: LeastSquaresArena) -> list[Contender]:
    """`numpy.linalg.lstsq`, by singular values, for one matrix after another: it takes no batches."""

    def call(index: int) -> None:
        for a, b, x in zip(arena.input(index), arena.column(index), arena.output(index), strict=True):
            x[...] = np.linalg.lstsq(a, b, None)[0]

    return [Contender("numpy.linalg.lstsq, in a loop", arena.calls(call), arena.solved)]


def determinants(arena: DeterminantArena) -> list[Contender]:
    """`numpy.linalg.slogdet`, whose matrices may be any: it makes LU factors of them."""
    made = Latest(np.linalg.slogdet, arena.each(arena.input))

    def result(index: int) -> Inverted:
        return arena.inverted(index, made.value.logabsdet)

    return [Contender("numpy.linalg.slogdet", made.calls, result, forget=made.forget)]


def _version() -> str:
    built_with: Any = np.show_config(mode="dicts")
    lapack = built_with.get("Build Dependencies", {}).get("lapack", {})
    return " ".join(["numpy", np.__version__, lapack.get("name", ""), lapack.get("version", "")]).strip()


_WAYS: Mapping[str, Callable[[Any], Sequence[Contender]]] = {
    "potrf": contenders,
    "posv": fused,
    "poinv": inverses,
    "logdet": determinants,
    "gesv": fused,
    "geqrf": reflectors,
    "gels": least_squares,
}
PEER = Peer("numpy", "cpu", _version, _WAYS, limit=blas_limit)
