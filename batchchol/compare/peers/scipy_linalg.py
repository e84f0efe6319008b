"""SciPy: its LAPACK wrapper, called for one matrix after another.

`scipy.linalg.cholesky` takes batches too, but loops over them in Python with several checks a matrix: measured,
it takes three times as long at n = 4 as the low-level function in a loop, and never less.
"""

from __future__ import annotations

import time

import numpy as np
import scipy
from scipy.linalg import lapack

from batchchol.backends import Availability
from batchchol.compare.contenders import Contender, Outcome, Workload, canonical, touched
from batchchol.compare.peers.base import Peer, blas_limit
from kernelgen import Layout


def contender(workload: Workload, threads: int) -> Contender:
    """A copy of the batch, factored in place matrix by matrix."""
    name = {"float32": "spotrf", "float64": "dpotrf"}[workload.dtype]
    potrf = getattr(lapack, name)
    shape = workload.dense.shape
    results = [touched(shape, workload.dtype, "SciPy's factors") for _ in workload.inputs]
    status = np.zeros(workload.batch, np.int32)

    def run(index: int) -> Outcome:
        result = results[index]
        start = time.perf_counter()
        np.copyto(result, workload.inputs[index])
        for member, matrix in enumerate(result):
            # LAPACK's upper triangle of the transpose, which is Fortran's view of it, is the lower one here.
            _, info = potrf(matrix.T, lower=0, clean=1, overwrite_a=1)
            if info:
                status[member] = info
        seconds = time.perf_counter() - start
        return Outcome(seconds, canonical(result), status)

    return Contender(
        PEER.name,
        _version(),
        f"scipy.linalg.lapack.{name}, in a loop",
        Layout.canonical(),
        len(workload.inputs),
        run,
        limit=lambda: blas_limit(threads),
    )


def _survey() -> Availability:
    return Availability("scipy", True, _version())


def _version() -> str:
    return f"scipy {scipy.__version__}"


PEER = Peer("scipy", _survey, contender)
