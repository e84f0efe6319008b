"""Solutions, factors and inverses whose kernels find determinants on the way: the checks of both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.batch import Batch
from batchchol.operations import logdet, poinv, posv, potri


def check_both(
    check_results: Callable[..., float],
    check_logarithms: Callable[..., float],
    given: Batch,
    *rest: Any,
    upper: bool = False,
    samples: int = 128,
    host: Callable[[Any], NDArray[Any]] = np.asarray,
) -> float:
    """Check results by a batch, and the logarithms (batch,) of determinants.

    Parameters
    ----------
    check_results : callable
        The check of the operation without determinants, such as `posv.check`.
    check_logarithms : callable
        `logdet.check`, or `logdet.check_by_factors`.
    given : Batch
        The matrices or factors.
    rest
        The other arguments of the kernel, of which the last ones are the logarithms and the info, and the math.
    upper, samples, host
        As for `posv.check`.

    Returns
    -------
    float
        The largest ratio of a result.

    Raises
    ------
    ResidualError
        If either check fails: the numbers measured with these results must not be stored.
    """
    *results, logarithms, info, math = rest
    how: dict[str, Any] = {"upper": upper, "samples": samples, "host": host}
    check_logarithms(given, logarithms, info, math, **how)
    return check_results(given, *results, info, math, **how)


check_solutions = partial(check_both, posv.check, logdet.check)
"""Of "posvdet": `check_both` of solutions (batch, n, nrhs)."""

check_inverses = partial(check_both, poinv.check, logdet.check)
"""Of "poinvdet": `check_both` of inverses (batch, n, n) by matrices."""

check_inverses_by_factors = partial(check_both, potri.check, logdet.check_by_factors)
"""Of "potridet": `check_both` of inverses (batch, n, n) by factors."""
