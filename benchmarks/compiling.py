"""What does a kernel cost before it runs, how large is it, what does it occupy, and how accurate is it?"""

from __future__ import annotations

import os
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from .harness import CHECKED_RECIPE, TIMED_RECIPE, Question, grid, plan, skipping


class _Compiled(Question):
    """Base: one kernel of a batch that does not matter."""

    def prepare(self) -> None:
        self.plan = plan(self.point)

    def stats(self) -> Any:
        with skipping():
            return self.plan.backend.kernel(self.plan.spec).stats


class Compiling(_Compiled, backend=grid.BACKEND, n=grid.N, batch=(1_000,), unroll=grid.UNROLL, math=grid.MATH):
    """Compile time, size of the machine code and residual ratio: n × unroll × math."""

    def track_compile_time(self, *_: Any) -> float:
        # An empty cache, in the folder that asv makes for this process and removes after it: a hit would
        # report how long the compiler took when another commit was measured.
        os.environ["BATCHCHOL_CACHE"] = os.path.abspath("cache")
        return float(self.stats().compile_seconds)

    def track_code_size(self, *_: Any) -> int:
        return int(self.stats().code_bytes)

    def track_residual(self, *_: Any) -> float:
        with skipping():
            return max(map(self.plan.largest_ratio, (TIMED_RECIPE, CHECKED_RECIPE)))

    track_compile_time.unit = "seconds"  # type: ignore[attr-defined]
    track_code_size.unit = "bytes"  # type: ignore[attr-defined]
    track_residual.unit = "ratio"  # type: ignore[attr-defined]


class Registers(_Compiled, backend=grid.CUDA, n=grid.N, batch=(1_000,), unroll=grid.UNROLL, math=grid.MATH):
    """Registers of a GPU's thread, and bytes of them that are kept in memory instead: n × unroll × math."""

    def track_registers(self, *_: Any) -> int:
        return self.used("registers")

    def track_spills(self, *_: Any) -> int:
        return self.used("spill_bytes")

    def used(self, resource: str) -> int:
        """What the kernel takes of a resource, as its assembler said."""
        amount = getattr(self.stats(), resource)
        if amount is None:
            raise SkipNotImplemented(
                "the driver makes the code of this kernel from PTX, and does not say what it takes"
            )
        return int(amount)

    track_registers.unit = "registers"  # type: ignore[attr-defined]
    track_spills.unit = "bytes"  # type: ignore[attr-defined]
