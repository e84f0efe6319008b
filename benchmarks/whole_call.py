"""How long does the whole call take, from NumPy array to NumPy array, and how long NumPy's own?"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from . import grid, library
from .cases import TIMED_RECIPE
from .question import Question as _Question
from .question import skipping

CHECKED_MATRICES = 128
# The largest batch would be larger than many a machine's memory, twice: as array and as result.
BATCH = grid.BATCH[:3]


@cache
def matrices(n: int, batch: int, dtype: str) -> Any:
    """The timed array, of shape (batch, n, n)."""
    with skipping():
        return library.generate(TIMED_RECIPE, n=n, stop=batch, dtype=dtype)


@cache
def check(call: Callable[[Any], Any], n: int, batch: int, dtype: str) -> None:
    """Check evenly spread results of `call`, the first and the last included."""
    members = np.unique(np.linspace(0, batch - 1, min(CHECKED_MATRICES, batch)).astype(int))
    a = matrices(n, batch, dtype)
    worst = library.ratios(a[members], call(a)[members]).max()
    if not worst <= library.RATIO_BOUND["ieee"]:
        raise library.ResidualError(f"the residual ratio is {worst:.3g}, over {library.RATIO_BOUND['ieee']}")


class WholeCall(_Question):
    """`batchchol.cholesky`, packing included, on all cores; seconds per call, not per matrix."""

    param_names = ("backend", "n", "batch", "dtype")
    params = grid.axes(param_names, backend=grid.BACKEND, n=grid.N, batch=BATCH, dtype=grid.DTYPE)
    repeat = (3, 20, 2.0)

    def setup(self, *values: Any) -> None:
        named = self.selected(*values)
        self.call = _library_call(named.pop("backend"))
        self.a = matrices(**named)
        check(self.call, **named)

    def time_cholesky(self, *_: Any) -> None:
        self.call(self.a)


class Numpy(_Question):
    """The baseline, `numpy.linalg.cholesky`, on the same arrays; seconds per call, not per matrix."""

    param_names = ("n", "batch", "dtype")
    params = grid.axes(param_names, n=grid.N, batch=BATCH, dtype=grid.DTYPE)
    # Fewer than above: at n = 100 one call takes seconds.
    repeat = (2, 10, 1.0)

    def setup(self, *values: Any) -> None:
        self.a = matrices(**self.selected(*values))

    def time_cholesky(self, *_: Any) -> None:
        np.linalg.cholesky(self.a)


@cache
def _library_call(backend: str) -> Callable[[Any], Any]:
    with skipping():
        library.get_backend(backend)
    return partial(library.cholesky, backend=backend)
