"""How long do inverses take, by matrices and by given factors, determinants of matrices, and LU factorizations?"""

from __future__ import annotations

from typing import Any

from .harness import SAMPLES, Plan, Question, Taken, grid, library, plan, skipping
from .solves import matrices, plan_of


class Inversions(
    Question,
    names=("backend", "n", "batch", "dtype", "threads", "protocol"),
    backend=grid.BACKEND,
    n=grid.SMALL_N,
    batch=(16_384,),
):
    """`inv`'s kernel on matrices in the library's own layout; seconds per matrix: n × batch."""

    # Its time is that of one kernel: a gate compares the machine code.
    kernel_alone = True
    op = "poinv"

    def prepare(self) -> None:
        self.plan = plan(self.point, self.planned)
        self.matrices = matrices(self.op, self.plan)

    def device_kernel(self, *_: Any) -> Taken:
        plan, asked = self.plan, {"threads": self.point.threads, "protocol": self.point.protocol}
        with skipping():
            sample = library.sample_solve(plan.backend, plan.spec, self.matrices, samples=SAMPLES, **asked)
        about = {"spec": plan.spec.name, "layout": str(plan.layout), "ratio": sample.ratio}
        about |= {"device": plan.backend.device(), **library.circumstances(sample)}
        return Taken([seconds / self.point.batch for seconds in sample.seconds], about)

    @classmethod
    def planned(cls, point: grid.Point, backend: library.Backend) -> Plan:
        """The kernel in the layout that the library factors in."""
        return plan_of(cls.op, point, backend)


class InversionsByFactors(Inversions):
    """`cho_inverse`'s kernel on factors; as above."""

    op = "potri"


class Determinants(Inversions):
    """`slogdet`'s kernel on matrices; as above."""

    op = "logdet"


class GeneralFactors(
    Inversions, names=Inversions.param_names, backend=grid.BACKEND, n=grid.LU_N, batch=grid.BATCH[1:3]
):
    """`lu_factor`'s kernel on general matrices; seconds per matrix: n × batch."""

    op = "getrf"
