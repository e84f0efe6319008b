"""The baseline: `numpy.linalg.cholesky`, one call for the whole batch."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from batchchol.backends import Availability
from batchchol.compare.contenders import Contender, Outcome, Workload, canonical
from batchchol.compare.peers.base import Peer, blas_limit
from kernelgen import Layout


def contender(workload: Workload, threads: int) -> Contender:
    """NumPy loops over the matrices in C on one thread; its LAPACK may use more within a matrix."""
    info = np.zeros(workload.batch, np.int32)

    def run(index: int) -> Outcome:
        start = time.perf_counter()
        factors = np.linalg.cholesky(workload.inputs[index])
        seconds = time.perf_counter() - start
        return Outcome(seconds, canonical(factors), info)

    return Contender(
        PEER.name,
        _version(),
        "numpy.linalg.cholesky",
        Layout.canonical(),
        len(workload.inputs),
        run,
        limit=lambda: blas_limit(threads),
    )


def _survey() -> Availability:
    return Availability("numpy", True, _version())


def _version() -> str:
    built_with: Any = np.show_config(mode="dicts")
    lapack = built_with.get("Build Dependencies", {}).get("lapack", {})
    return " ".join(["numpy", np.__version__, lapack.get("name", ""), lapack.get("version", "")]).strip()


PEER = Peer("numpy", _survey, contender)
