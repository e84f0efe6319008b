"""How does the time of a matrix fall with the batch, from 1,024 matrices to all that the memory holds?"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from .harness import Case, Taken, _KernelQuestion, checked, grid, most_matrices, planned, present


class Ladder(
    _KernelQuestion,
    names=("backend", "n", "batch", "dtype", "protocol"),
    backend=grid.BACKEND,
    n=(8, 32, 128),
    batch=grid.LADDER,
):
    """n × batch in powers of two, and the largest that fits; the library's own choices, on all cores."""

    version = "1"
    # The largest batch of a host with much memory takes minutes to make.
    timeout = 1_800

    def prepare(self) -> None:
        self.build_ahead()
        self.case = rung(self.point, self.named["batch"] == grid.LIMIT)

    def device_factor(self, *_: Any) -> Taken:
        taken = self.case.samples()
        return Taken(taken.seconds, {**taken.about, "batch": self.case.plan.point.batch})


@cache
def rung(point: grid.Point, limit: bool) -> Case:
    """The case of a batch on all cores; at the limit, of the largest that fits.

    Raises
    ------
    SkipNotImplemented
        If the batch does not fit; says how large one may be.
    """
    backend = present(point)
    most = most_matrices(backend, point)
    if not limit and point.batch > most:
        raise SkipNotImplemented(f"{point.batch:,} matrices of order {point.n} do not fit: at most {most:,} do")
    batch = most if limit else point.batch
    return checked(planned(replace(point, batch=batch, threads=backend.threads), backend, defaults=True))
