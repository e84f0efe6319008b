"""What does a factorization cost in joules?"""

from __future__ import annotations

from typing import Any

from .harness import Question, case, grid, library, planned, skipping


class Energy(
    Question,
    names=("backend", "n", "batch", "dtype", "math"),
    backend=grid.BACKEND,
    n=grid.SMALL_N,
    batch=(100_000,),
    dtype=grid.DTYPE,
    math=grid.MATH,
):
    """Of a matrix, by the counter of the GPU or the CPU: the library's own schedule and layout.

    Calls are repeated for five seconds, on buffers that go round the cache; the power of an idle device is in it.
    """

    def prepare(self) -> None:
        self.case = case(self.point, _by_default)

    def track_joules(self, *_: Any) -> float:
        chosen = self.case
        with skipping():
            spent = library.joules(chosen.plan.backend, chosen.plan.spec, chosen.batch, self.point.threads)
        return spent / self.point.batch * 1e6

    track_joules.unit = "µJ"  # type: ignore[attr-defined]


def _by_default(point: grid.Point, backend: library.Backend) -> Any:
    return planned(point, backend, defaults=True)
