"""SciPy: its LAPACK wrapper, called for one matrix after another.

`scipy.linalg.cholesky` takes batches too, but loops over them in Python with several checks a matrix: measured,
it takes three times as long at n = 4 as the low-level function in a loop, and never less.
"""

from __future__ import annotations

import numpy as np
import scipy
from scipy.linalg import lapack

from batchchol.compare.contenders import Arena, Contender
from batchchol.compare.peers.base import Peer, blas_limit, lapack_name


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


PEER = Peer("scipy", "cpu", lambda: f"scipy {scipy.__version__}", contenders, limit=blas_limit)
