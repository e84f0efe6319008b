"""Factors of a batch, and the logarithms of its determinants: on the way, or by the factors."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchchol.api.factors.device_factorizations import logarithms as logarithms_there
from batchchol.api.factors.device_factorizations import new_logarithms
from batchchol.api.factors.host_factorizations import diagonal, logarithms
from batchchol.api.results import Factor, FactorLogDeterminant
from batchchol.backends.base import Form
from batchchol.backends.recorder import current_recorder
from batchchol.batches.batch import Batch
from batchchol.plan import Prepared, determining


def factor_and_determine(batch: Batch, prepared: Prepared, threads: int | None, stream: Any) -> FactorLogDeterminant:
    """What a kernel finds that factors as the prepared one does; else that one factors, and its factors tell.

    Raises
    ------
    RuntimeError
        If a graph is being recorded in this thread.
    """
    if current_recorder() is not None:
        raise RuntimeError("logdet: got True while a graph is being recorded in this thread, expected False")
    choice, result = prepared.choice, prepared.result
    device = choice.device
    info = device.info(batch, choice.spec, poisoned=False)
    count = int(threads or device.threads)
    both = determining(choice.spec)
    if choice.kernel is not None and both is not None:
        if device.name == "cpu":
            logs: Any = np.empty(batch.batch, batch.dtype)
        else:
            logs = new_logarithms(info, Form.of(batch))
        device.kernel(both)(batch, result, logs, info, threads=count, stream=stream)
        return FactorLogDeterminant(result, info[: batch.batch], logs)
    if choice.kernel is not None:
        choice.kernel(batch, result, info, threads=count, stream=stream)
    return determined_by_factors(Factor(result, info[: batch.batch]), stream)


def determined_by_factors(factored: Factor, stream: Any = None) -> FactorLogDeterminant:
    """What the diagonals of factors tell."""
    l, info = factored
    if l.backend == "cpu":
        return FactorLogDeterminant(l, info, logarithms(diagonal(l), info))
    return FactorLogDeterminant(l, info, logarithms_there(l.address, info, Form.of(l), stream))
