"""How long does a solve take, by given factors or by the matrices, for one right-hand side and for several?"""

from __future__ import annotations

from functools import cache
from typing import Any

from .harness import SAMPLES, TIMED_RECIPE, Plan, Question, Taken, grid, library, plan, skipping, supported

# The operations on factors.
OF_FACTORS = ("potrs", "potri")


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
    op = "potrs"

    def prepare(self) -> None:
        self.plan = plan(self.point, self.planned)
        self.matrices = matrices(self.op, self.plan)

    def device_solve(self, *_: Any) -> Taken:
        plan, asked = self.plan, {"threads": self.point.threads, "protocol": self.point.protocol}
        with skipping():
            sample = library.sample_solve(
                plan.backend, plan.spec, self.matrices, self.named["nrhs"], samples=SAMPLES, **asked
            )
        about = {"spec": plan.spec.name, "layout": str(plan.layout), "ratio": sample.ratio}
        about |= {"device": plan.backend.device(), **library.circumstances(sample)}
        return Taken([seconds / self.point.batch for seconds in sample.seconds], about)

    @classmethod
    def planned(cls, point: grid.Point, backend: library.Backend) -> Plan:
        """The kernel that solves in the layout that the library factors in."""
        return plan_of(cls.op, point, backend)


class FusedSolves(Solves):
    """`solve`'s kernel, which factors and solves at once, on matrices in the library's own layout; as above."""

    op = "posv"


class GeneralSolves(
    Solves, names=Solves.param_names, backend=grid.BACKEND, n=grid.GENERAL_N, batch=grid.BATCH[1:3], nrhs=grid.NRHS
):
    """The same of matrices that are taken for general ones, by LU factors; as above."""

    op = "gesv"


class LargerGeneralSolves(
    GeneralSolves,
    names=Solves.param_names,
    backend=grid.BACKEND,
    n=grid.LU_N[1:],
    batch=(16_384,),
    nrhs=grid.NRHS,
):
    """The same of orders that one thread of a GPU has no registers for; seconds per matrix: n × nrhs."""


class LeastSquares(GeneralSolves):
    """`lstsq`'s kernel, by QR factorizations of square matrices; as above."""

    op = "gels"


def plan_of(op: str, point: grid.Point, backend: library.Backend) -> Plan:
    """The kernel of an operation in the layout that the library factors in."""
    with skipping():
        layout = library.default_layout(backend, point.n, point.dtype, point.batch)
        spec = library.default_spec(point.n, backend, layout, dtype=point.dtype, op=op)
        return supported(Plan(point, backend, spec, layout))


@cache
def matrices(op: str, plan: Plan) -> library.Batch:
    """The timed matrices, or their factors."""
    with skipping():
        made = plan.filled(plan.point.batch, TIMED_RECIPE)
        return library.factor(made).L if op in OF_FACTORS else made
