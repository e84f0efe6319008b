"""SciPy: its LAPACK wrapper, called for one matrix after another.

`scipy.linalg.cholesky` takes batches too, but loops over them in Python with several checks a matrix: measured,
it takes three times as long at n = 4 as the low-level function in a loop, and never less.
"""

from __future__ import annotations

import numpy as np
import scipy
from scipy.linalg import lapack

from batchchol.backends import lapack as by_address
from batchchol.compare.contenders import Arena, Contender
from batchchol.compare.peers.base import Peer, blas_limit, lapack_name
from batchchol.compare.solves import SolveArena


def contenders(arena: Arena) -> list[Contender]:
    """A copy of the batch, factored in place matrix by matrix."""
    name = lapack_name("potrf", arena.dtype)
    potrf = getattr(lapack, name)
    inputs, outputs = arena.each(arena.input), arena.each(arena.output)
    status = np.zeros(arena.batch, np.int32)

    def call(index: int) -> None:
        result = outputs[index]
        np.copyto(result, inputs[index])
        for member, matrix in enumerate(result):
            # LAPACK's upper triangle of the transpose, which is Fortran's view of it, is the lower one here.
            _, info = potrf(matrix.T, lower=0, clean=1, overwrite_a=1)
            if info:
                status[member] = info

    return [
        Contender(
            f"scipy.linalg.lapack.{name}, in a loop",
            arena.calls(call),
            lambda index: arena.result(index, info=status),
        )
    ]


def solvers(arena: SolveArena) -> list[Contender]:
    """LAPACK's potrs for one matrix after another: from Python, and by its address on threads of this library.

    `scipy.linalg.cho_solve` is the same function with several checks a matrix.
    """
    name = lapack_name("potrs", arena.dtype)
    potrs = getattr(lapack, name)
    # No solutions are left in the room that others had.
    arena.restore()

    def loop(index: int) -> None:
        for factor, b, x in zip(arena.input(index), arena.column(index), arena.output(index), strict=True):
            x[...], _ = potrs(factor.T, b, lower=0)

    def on_threads(index: int) -> None:
        by_address.potrs(arena.input(index), arena.column(index), arena.output(index), False, arena.threads)

    return [
        Contender(f"scipy.linalg.lapack.{name}, in a loop", arena.calls(loop), arena.solved),
        Contender(f"SciPy's {name} by its address", arena.calls(on_threads), arena.solved),
    ]


PEER = Peer(
    "scipy",
    "cpu",
    lambda: f"scipy {scipy.__version__}",
    {"potrf": contenders, "potrs": solvers},
    limit=blas_limit,
)
