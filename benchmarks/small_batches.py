"""What does a small batch cost, and how should many of them reach a GPU?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from .harness import SAMPLES, Case, Taken, _KernelQuestion, about, case, grid, library, skipping

# Ways that are graphs: what they are recorded with.
GRAPHS: dict[str, dict[str, Any]] = {"chain": {"branches": 1}, "graph": {}, "free": {"branches": None}}


class SmallBatches(
    _KernelQuestion,
    names=("backend", "n", "batch", "math", "way"),
    backend=grid.CUDA,
    n=grid.SMALL_N,
    batch=grid.SMALL_BATCH,
    math=("fast",),
    way=grid.WAY,
):
    """The library's own schedule and layout: n × batch × the way of calls to the GPU. See floor.py."""

    def prepare(self) -> None:
        self.way = self.named["way"]
        self.point = replace(self.point, protocol="queued" if self.way in GRAPHS else self.way)
        self.case = case(self.point, self.planned)

    def device_factor(self, *_: Any) -> Taken:
        if self.way not in GRAPHS:
            return self.case.samples()
        with skipping():
            sample = recorded(self.case, self.way).sample(SAMPLES)
        return Taken([each / self.point.batch for each in sample.seconds], about(self.case.plan, sample))

    def track_host(self, *_: Any) -> float:
        """Microseconds of the host for each call of `factor`, recorded ones included."""
        if self.way == "single":
            raise SkipNotImplemented("the host spends on a single call what it spends on a queued one")
        with skipping():
            call, factorizations = launcher(self.case, self.way)
            return min(library.host_seconds(self.case.plan.backend, call)) / factorizations * 1e6

    track_host.unit = "µs"  # type: ignore[attr-defined]


@cache
def recorded(chosen: Case, way: str) -> Any:
    """The graphs of a way."""
    return library.graphs(chosen.plan.backend, chosen.plan.spec, chosen.batch, **GRAPHS[way])


def launcher(chosen: Case, way: str) -> tuple[Callable[[], Any], int]:
    """A call, and how many factorizations it is."""
    if way in GRAPHS:
        graph = recorded(chosen, way).graphs[0]
        return graph.launch, len(graph)
    return chosen.call(), 1
