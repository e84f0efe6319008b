"""How long does the whole call take, from NumPy array to NumPy array, and how long NumPy's own?"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from .harness import TIMED_RECIPE, Question, grid, library, skipping

CHECKED_MATRICES = 128
# Twice the largest batch, array and result, exceeds the memory of many machines.
BATCH = grid.BATCH[:3]


@cache
def matrices(point: grid.Point) -> Any:
    """The timed array, of shape (batch, n, n)."""
    with skipping():
        return library.generate(TIMED_RECIPE, n=point.n, stop=point.batch, dtype=point.dtype)


@cache
def check(call: Callable[[Any], Any], point: grid.Point) -> None:
    """Check evenly spread results of `call`, the first and the last included."""
    members = np.unique(np.linspace(0, point.batch - 1, min(CHECKED_MATRICES, point.batch)).astype(int))
    a = matrices(point)
    worst = library.ratios(a[members], call(a)[members]).max()
    if not worst <= library.RATIO_BOUND["ieee"]:
        raise library.ResidualError(f"the residual ratio is {worst:.3g}, over {library.RATIO_BOUND['ieee']}")


class WholeCall(
    Question, names=("backend", "n", "batch", "dtype"), backend=grid.BACKEND, n=grid.N, batch=BATCH, dtype=grid.DTYPE
):
    """`batchchol.cholesky`, packing included, on all cores; seconds per call, not per matrix."""

    repeat = (3, 20, 2.0)

    def prepare(self) -> None:
        self.call = _library_call(self.point.backend)
        self.a = matrices(self.point)
        check(self.call, self.point)

    def time_cholesky(self, *_: Any) -> None:
        self.call(self.a)


class Numpy(Question, names=("n", "batch", "dtype"), n=grid.N, batch=BATCH, dtype=grid.DTYPE):
    """The baseline, `numpy.linalg.cholesky`, on the same arrays; seconds per call, not per matrix."""

    # Fewer than above: at n = 100 one call takes seconds, and as long to warm up.
    repeat = (2, 10, 0.5)
    warmup_time = 0

    def prepare(self) -> None:
        self.a = matrices(self.point)

    def time_cholesky(self, *_: Any) -> None:
        np.linalg.cholesky(self.a)


@cache
def _library_call(backend: str) -> Callable[[Any], Any]:
    with skipping():
        library.get_backend(backend)
    return partial(library.cholesky, backend=backend)
