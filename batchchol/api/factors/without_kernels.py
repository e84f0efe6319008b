"""Factors of batches that no kernel is for: of larger orders, and where there is no C compiler."""

from __future__ import annotations

from typing import Any

from batchchol.api.results import Factor
from batchchol.backends import lapack
from batchchol.backends.recorder import current_recorder
from batchchol.batches.batch import Batch
from batchchol.parallel import available_threads
from batchchol.plan import check_array_spec, prepare_lower
from kernelgen import MAX_N, KernelSpec


def factor_larger(
    batch: Batch, spec: KernelSpec | None, out: Batch | None, math: str | None, threads: int | None, stream: Any
) -> Factor:
    """The lower factors of a batch of an order that no kernel is for: by LAPACK, or as a GPU does it."""
    check_array_spec(batch.n, batch.dtype_name, False, spec, math)
    if batch.backend == "cpu":
        return factor_by_lapack(batch, out, threads, stream)
    if stream is not None:
        raise ValueError(f"stream: got one for matrices of order {batch.n}, expected None above {MAX_N}")
    if current_recorder() is not None:
        raise ValueError(f"batch: got matrices of order {batch.n} for a graph, expected at most {MAX_N}")
    from batchchol.algorithms.large import factor_device
    from batchchol.backends.cuda import memory

    result: Any = prepare_lower(batch, out)
    _, info = factor_device(memory.view(batch.data), False, room=memory.view(result.data))
    return Factor(result, info)


def factor_by_lapack(batch: Batch, out: Batch | None, threads: int | None, stream: Any) -> Factor:
    """The lower factors of a batch of the host, and their info, without a kernel."""
    if stream is not None:
        raise ValueError(f"stream: got {stream!r}, expected None: backend 'cpu' has none")
    result = prepare_lower(batch, out)
    return Factor(result, lapack.factor_batch(batch, result, int(threads or available_threads())))
