"""Alternating least squares by a library's own products, as one writes it without a kernel: rows padded to a length.

docs/examples/als.py is compared with this; `asarray` makes the library's arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse


class Rows(NamedTuple):
    """Rows of about the same length, padded to the longest: what they rated (rows, length), and how confidently."""

    rows: Any
    columns: Any
    confidence: Any


def padded(ratings: sparse.csr_matrix, factors: int, asarray: Any, elements: int) -> list[Rows]:
    """All rows, the shortest first, as arrays that `asarray` makes; of what is padded the confidence is 0.

    A slice has that many `elements` of factors at most, or one row.
    """
    lengths = np.diff(ratings.indptr)
    order = np.argsort(lengths, kind="stable")
    parts, first = [], 0
    while first < len(order):
        # To twice the shortest: three quarters of what is computed, on average, are no padding.
        longest = max(2 * int(lengths[order[first]]), 8)
        last = int(np.searchsorted(lengths[order], longest, side="right"))
        last = min(last, first + max(1, elements // (longest * factors)))
        rows = order[first:last]
        begins, ends = ratings.indptr[rows, None], ratings.indptr[rows + 1, None]
        places = begins + np.arange(int((ends - begins).max()))
        there, places = places < ends, np.minimum(places, ratings.nnz - 1)
        confidence = np.where(there, ratings.data[places], np.float32(0))
        parts.append(Rows(asarray(rows), asarray(ratings.indices[places]), asarray(confidence)))
        first = last
    return parts


def half_step(parts: list[Rows], fixed: Any, found: Any, regularization: float, solve: Any, asarray: Any) -> None:
    """Write the best factors of the padded rows to `found`, with those of the columns `fixed`."""
    factors = fixed.shape[1]
    gram = fixed.T @ fixed + asarray(regularization * np.eye(factors, dtype=np.float32))
    for part in parts:
        y = fixed[part.columns]
        more = (part.confidence - 1) * (part.confidence > 0)
        a = gram + (y * more[:, :, None]).swapaxes(1, 2) @ y
        b = (part.confidence[:, None, :] @ y)[:, 0]
        found[part.rows] = solve(a, b)


def steps(
    asarray: Any, elements: int, ratings: sparse.csr_matrix, factors: int, regularization: float, solve: Any
) -> list[Callable[[Any, Any], None]]:
    """The half steps of users and of items, in slices of that many `elements`."""
    sides = (padded(each, factors, asarray, elements) for each in (ratings, ratings.T.tocsr()))
    how = {"regularization": regularization, "solve": solve, "asarray": asarray}
    return [partial(half_step, parts, **how) for parts in sides]
