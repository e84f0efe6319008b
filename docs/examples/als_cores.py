"""The systems of alternating least squares on CPU cores: a function in C sums them straight from the ratings.

NumPy's products of many small matrices take several times as long as the solves. Each core works on slices of rows of
its own, the systems of which stay in its cache until they are solved.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

# Elements of the systems of a slice, at most, and of how many parts of all ratings its own are one.
SLICE_ELEMENTS, PARTS = 1 << 18, 64
Solve = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Ratings(NamedTuple):
    """Ratings by row, and the rows where slices begin and the last one ends."""

    begins: np.ndarray
    columns: np.ndarray
    confidence: np.ndarray
    cuts: list[int]


def placed(ratings: sparse.csr_matrix, factors: int) -> Ratings:
    """Ratings with their rows in slices of about as much work."""
    begins, rows, cuts = ratings.indptr.astype(np.int64), ratings.shape[0], [0]
    while cuts[-1] < rows:
        enough = np.searchsorted(begins, begins[cuts[-1]] + ratings.nnz // PARTS)
        cuts.append(min(max(int(enough), cuts[-1] + 1), cuts[-1] + max(1, SLICE_ELEMENTS // factors**2), rows))
    return Ratings(begins, ratings.indices.astype(np.int32), ratings.data.astype(np.float32), cuts)


@cache
def sum_systems(n: int) -> Any:
    """The function in C for an order."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "als_cores.so")
        how = "-std=c11", "-O3", "-march=native", "-ffast-math", "-fPIC", "-shared", f"-DN={n}"
        subprocess.run(
            [os.environ.get("CC", "cc"), *how, Path(__file__).with_suffix(".c"), "-o", library], check=True
        )
        return ctypes.CDLL(str(library)).sum_systems


def half_step(ratings: Ratings, fixed: np.ndarray, found: np.ndarray, regularization: float, solve: Solve) -> None:
    """Write the best factors of all rows to `found`, with those of the columns `fixed`."""
    n, call = fixed.shape[1], sum_systems(fixed.shape[1])
    gram = fixed.T @ fixed + np.float32(regularization) * np.eye(n, dtype=np.float32)
    given = ratings.columns, ratings.confidence, fixed, gram

    def work(first: int, last: int) -> None:
        a, b = np.empty((last - first, n, n), np.float32), np.empty((last - first, n), np.float32)
        arrays = ratings.begins[first:], *given, a, b
        call(ctypes.c_int64(last - first), *(ctypes.c_void_p(each.ctypes.data) for each in arrays))
        found[first:last] = solve(a, b)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(work, ratings.cuts[:-1], ratings.cuts[1:]))
