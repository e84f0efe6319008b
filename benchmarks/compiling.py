"""What does a kernel cost before it runs, how large is it, and how accurate?"""

from __future__ import annotations

import os
from typing import Any

from . import grid
from .cases import CHECKED_RECIPE, TIMED_RECIPE, case
from .question import Question as _Question


class Compiling(_Question):
    """Compile time, size of the machine code and residual ratio: n × unroll × math."""

    params = grid.axes(
        backend=grid.BACKEND,
        n=grid.N,
        batch=(1_000,),
        unroll=grid.UNROLL,
        math=grid.MATH,
    )

    def setup(self, *values: Any) -> None:
        point = grid.Point(**self.selected(*values))
        # An empty cache, in the folder that asv makes for this process and removes after it: a hit would
        # report how long the compiler took when another commit was measured.
        os.environ["BATCHCHOL_CACHE"] = os.path.abspath("cache")
        self.case = case(point)
        self.stats = self.case.backend.kernel(self.case.spec).stats

    def track_compile_time(self, *_: Any) -> float:
        return self.stats.compile_seconds

    def track_code_size(self, *_: Any) -> int:
        return self.stats.code_bytes

    def track_residual(self, *_: Any) -> float:
        return max(map(self.case.largest_ratio, (TIMED_RECIPE, CHECKED_RECIPE)))

    track_compile_time.unit = "seconds"  # type: ignore[attr-defined]
    track_code_size.unit = "bytes"  # type: ignore[attr-defined]
    track_residual.unit = "ratio"  # type: ignore[attr-defined]
