"""What a search is about: the points that compete with one another."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Iterable
from dataclasses import dataclass

from batchchol.batches.sizes import shown
from batchchol.measure.point import Point
from batchchol.tune.winners import grouped


@dataclass(frozen=True, order=True)
class Case:
    """What somebody wants to run; everything else of a point is a parameter that may be chosen.

    Attributes
    ----------
    n : int
        Order of each matrix.
    dtype, math, uplo : str
        Of the elements; accuracy class; triangle.
    batch : int
        Matrices of a call.
    target : str
        "cuda", or a CPU's instruction set.
    threads : int
        Of the host.
    protocol : str
        How points are timed.
    """

    n: int
    dtype: str
    math: str
    batch: int
    uplo: str
    target: str
    threads: int
    protocol: str

    def __str__(self) -> str:
        triangle = "" if self.uplo == "lower" else f", {self.uplo}"
        return f"n = {self.n}, {self.dtype}, {self.math}, batch {self.batch:,}{triangle}"


def case_of(point: Point) -> Case:
    """The case that a point is of."""
    spec = point.spec
    problem = spec.problem
    return Case(
        problem.n,
        problem.dtype,
        spec.problem.math,
        point.batch,
        problem.uplo,
        spec.target,
        point.threads,
        point.protocol,
    )


def by_case(points: Iterable[Point]) -> dict[Case, list[Point]]:
    """The points of each case, in their order; cases in the order of their first points."""
    return grouped(points, case_of)


@dataclass(frozen=True)
class Budget:
    """How many points of a case may be measured: a number, or a share of those there are."""

    points: int | None = None
    share: float | None = None

    def of(self, count: int) -> int:
        """The measurements of a case of `points` points, at least one and no more than there are."""
        wanted = self.points if self.points is not None else math.ceil((self.share or 0.0) * count - 1e-9)
        return min(count, max(1, wanted))


def budget(text: str) -> Budget:
    """A type for argparse: ``"40"`` points, or ``"5%"`` of them."""
    if re.fullmatch(r"[0-9]{1,18}", text) and int(text) > 0:
        return Budget(points=int(text))
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?%", text) and 0 < float(text[:-1]) <= 100:
        return Budget(share=float(text[:-1]) / 100)
    raise ArgumentTypeError(f"got {shown(text)}, expected a number of points such as 40, or a share such as 5%")
