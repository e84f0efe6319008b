"""Repair of matrices that are not positive definite: a multiple of their mean diagonal is added to those alone.

The multiple grows until they are, as in GPyTorch's psd_safe_cholesky, which does not look at the size of the elements
and adds the same to all that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from numbers import Real
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The first multiple, how it grows, and how often it is tried.
FIRST: Mapping[str, float] = MappingProxyType({"float32": 1e-6, "float64": 1e-8})
GROWTH, TRIES = 10, 3

Members = NDArray[np.intp]


def check_jitter(jitter: Any) -> None:
    """Refuse anything but a first multiple, "auto" or None."""
    if jitter is None or (isinstance(jitter, str) and jitter == "auto"):
        return
    number = isinstance(jitter, Real | np.floating) and not isinstance(jitter, bool | np.bool_)
    if not (number and isfinite(jitter) and jitter > 0):
        raise ValueError(f"jitter: got {jitter!r}, expected a positive number, 'auto' or None")


def first_multiple(jitter: float | str, dtype: np.dtype[Any]) -> float:
    """The multiple of the mean diagonal that is tried first."""
    return FIRST[dtype.name] if isinstance(jitter, str) else float(jitter)


def repair(
    jitter: Any,
    dtype: np.dtype[Any],
    info: NDArray[np.int32],
    members: Callable[[Members], NDArray[Any]],
    again: Callable[[Members, NDArray[Any]], NDArray[np.int32]],
) -> NDArray[Any]:
    """Try matrices whose info is not 0 again, with more and more on the diagonal, and write their info anew.

    Parameters
    ----------
    jitter : float or "auto"
        The first multiple of the mean diagonal.
    members : callable
        A copy of some of the matrices, (count, n, n).
    again : callable
        Works on such a copy, keeps the results, and returns the info of each.

    Returns
    -------
    ndarray, shape (batch,)
        What was added to each at last; 0 to those that did not fail, and to those whose mean diagonal is not a
        positive number, which are not tried.
    """
    added = np.zeros(len(info), dtype)
    # Counting is the fastest look: it is all that is done where none failed.
    if not np.count_nonzero(info):
        return added
    failed = np.flatnonzero(info)
    share = first_multiple(jitter, dtype)
    for _ in range(TRIES):
        if not failed.size:
            break
        matrices = members(failed)
        means = np.einsum("mii->m", matrices, dtype=np.float64) / matrices.shape[-1]
        amounts = (share * means).astype(dtype)
        hopeful = np.isfinite(amounts) & (amounts > 0)
        failed, matrices, amounts = failed[hopeful], matrices[hopeful], amounts[hopeful]
        if not failed.size:
            break
        np.einsum("mii->mi", matrices)[...] += amounts[:, np.newaxis]
        added[failed] = amounts
        info[failed] = again(failed, matrices)
        failed = failed[info[failed] != 0]
        share *= GROWTH
    return added
