"""How long does a solve by given factors take, for one right-hand side and for several?"""

from __future__ import annotations

from functools import cache
from typing import Any

from .harness import SAMPLES, TIMED_RECIPE, Plan, Question, Taken, backend_of, grid, library, skipping, supported


class Solves(
    Question,
    names=("backend", "n", "batch", "dtype", "nrhs", "threads", "protocol"),
    backend=grid.BACKEND,
    n=grid.SMALL_N,
    batch=grid.BATCH[1:3],
    nrhs=grid.NRHS,
):
    """`cho_solve`'s kernel on factors in the library's own layout; seconds per matrix: n × batch × nrhs."""

    # Its time is that of one kernel: a gate compares the machine code.
    kernel_alone = True

    def prepare(self) -> None:
        self.plan = plan(self.point)
        self.factors = factors(self.plan)

    def device_solve(self, *_: Any) -> Taken:
        plan, asked = self.plan, {"threads": self.point.threads, "protocol": self.point.protocol}
        with skipping():
            sample = library.sample_solve(
                plan.backend, plan.spec, self.factors, self.named["nrhs"], samples=SAMPLES, **asked
            )
        about = {"spec": plan.spec.name, "layout": str(plan.layout), "ratio": sample.ratio}
        about |= {"device": plan.backend.device(), **library.circumstances(sample)}
        return Taken([seconds / self.point.batch for seconds in sample.seconds], about)

    @staticmethod
    def planned(point: grid.Point, backend: library.Backend) -> Plan:
        """The kernel that solves by factors in the layout that the library factors in."""
        with skipping():
            layout = library.default_layout(backend, point.n, point.dtype, point.batch)
            spec = library.default_spec(point.n, backend, layout, dtype=point.dtype, op="potrs")
            return supported(Plan(point, backend, spec, layout))


@cache
def plan(point: grid.Point) -> Plan:
    """That of a point, on its backend."""
    return Solves.planned(point, backend_of(point))


@cache
def factors(plan: Plan) -> library.Batch:
    """The factors of the timed matrices."""
    with skipping():
        return library.factor(plan.filled(plan.point.batch, TIMED_RECIPE)).L
