"""What does a small batch cost, and how should many of them reach a GPU?"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from . import grid, library
from .calls import SAMPLES
from .cases import Case, about, case
from .device import Taken
from .question import Question as _Question
from .question import skipping

# Ways that are graphs: what they are recorded with.
GRAPHS: dict[str, dict[str, Any]] = {"chain": {"branches": 1}, "graph": {}, "free": {"branches": None}}


class SmallBatches(_Question):
    """The library's own schedule and layout: n × batch × the way of calls to the GPU. See floor.py."""

    defaults = True
    param_names = ("backend", "n", "batch", "math", "way")
    params = grid.axes(
        param_names, backend=grid.CUDA, n=grid.SMALL_N, batch=grid.SMALL_BATCH, math=("fast",), way=grid.WAY
    )

    def setup(self, *values: Any) -> None:
        named = self.selected(*values)
        self.way = named.pop("way")
        self.point = grid.Point(**named, protocol="queued" if self.way in GRAPHS else self.way)
        self.case = case(self.point, True)

    def device_factor(self, *_: Any) -> Taken:
        if self.way not in GRAPHS:
            return self.case.samples()
        with skipping():
            sample = recorded(self.point, self.way).sample(SAMPLES)
        return Taken([each / self.point.batch for each in sample.seconds], about(self.case.plan, sample))

    def track_host(self, *_: Any) -> float:
        """Microseconds of the host for each call of `factor`, recorded ones included."""
        if self.way == "single":
            raise SkipNotImplemented("the host spends on a single call what it spends on a queued one")
        with skipping():
            call, factorizations = launcher(self.point, self.way)
            return min(library.host_seconds(self.case.plan.backend, call)) / factorizations * 1e6

    track_host.unit = "µs"  # type: ignore[attr-defined]


@cache
def recorded(point: grid.Point, way: str) -> Any:
    """The graphs of a way."""
    chosen: Case = case(point, True)
    return library.graphs(chosen.plan.backend, chosen.plan.spec, chosen.batch, **GRAPHS[way])


def launcher(point: grid.Point, way: str) -> tuple[Callable[[], Any], int]:
    """A call, and how many factorizations it is."""
    if way in GRAPHS:
        graph = recorded(point, way).graphs[0]
        return graph.launch, len(graph)
    return case(point, True).call(), 1
