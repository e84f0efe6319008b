"""Does it pay to launch a kernel before its predecessors have ended?"""

from __future__ import annotations

from typing import Any

from .harness import _KernelQuestion, grid, library, skipping


class Launches(
    _KernelQuestion,
    names=grid.WITHOUT_CHOICES,
    backend=grid.CUDA,
    n=grid.SMALL_N,
    batch=grid.LAUNCHED_BATCH,
    math=("fast",),
    protocol=("queued",),
    pdl=grid.PDL,
):
    """The library's own schedule and layout, queued: n × batch × whether it is launched early. See floor.py."""

    def track_host(self, *_: Any) -> float:
        """Microseconds of the host for each call of `factor`."""
        with skipping():
            return min(library.host_seconds(self.case.plan.backend, self.case.call())) * 1e6

    track_host.unit = "µs"  # type: ignore[attr-defined]
