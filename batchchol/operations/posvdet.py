"""Solutions and determinants by one factorization: the checks of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.batch import Batch
from batchchol.operations import logdet, posv


def check(
    a: Batch,
    b: Any,
    x: Any,
    logarithms: Any,
    info: Any,
    math: str,
    *,
    upper: bool = False,
    samples: int = 128,
    host: Callable[[Any], NDArray[Any]] = np.asarray,
) -> float:
    """Check solutions as `posv.check` does, and logarithms (batch,) of determinants as `logdet.check` does.

    Returns
    -------
    float
        The largest ratio of a solution.

    Raises
    ------
    ResidualError
        If either check fails: the numbers measured with this result must not be stored.
    """
    logdet.check(a, logarithms, info, math, upper=upper, samples=samples, host=host)
    return posv.check(a, b, x, info, math, upper=upper, samples=samples, host=host)
