"""What a search is about, the points that compete with one another, and what it can learn from other searches."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.sizes import shown
from batchchol.measure.dataset import key_of_row
from batchchol.measure.point import Point
from batchchol.measure.row import rows_of
from batchchol.tune.choosing.winners import grouped
from kernelgen import TARGETS

Numbers = NDArray[np.float64]

CODE = ("code_bytes", "registers", "spill_bytes", "stack_bytes")
"""What compilers say of a kernel: columns of a data set."""

Code = tuple[float, ...]
"""What a compiler said of a kernel, in the order of `CODE`, NaN where it did not; empty if nobody asked one."""


@dataclass(frozen=True, order=True)
class Case:
    """A problem and a batch to run; everything else of a point is a parameter that may be chosen.

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
    op : str
        The operation.
    """

    n: int
    dtype: str
    math: str
    batch: int
    uplo: str
    target: str
    threads: int
    protocol: str
    op: str = "potrf"

    def __str__(self) -> str:
        triangle = "" if self.uplo == "lower" else f", {self.uplo}"
        operation = "" if self.op == "potrf" else f"{self.op}, "
        return f"{operation}n = {self.n}, {self.dtype}, {self.math}, batch {self.batch:,}{triangle}"


def case_of(point: Point) -> Case:
    """The case that a point is of."""
    problem = point.spec.problem
    return Case(
        problem.n,
        problem.dtype,
        problem.math,
        point.batch,
        problem.uplo,
        point.spec.target,
        point.threads,
        point.protocol,
        problem.op,
    )


@dataclass(frozen=True)
class Budget:
    """How many points of a case may be measured: a number, or a share of all."""

    points: int | None = None
    share: float | None = None

    def of(self, count: int) -> int:
        """The measurements for a case of `count` points, at least one and at most all."""
        wanted = self.points if self.points is not None else math.ceil((self.share or 0.0) * count - 1e-9)
        return min(count, max(1, wanted))


def budget(text: str) -> Budget:
    """A type for argparse: ``"40"`` points, or ``"5%"`` of them."""
    if re.fullmatch(r"[0-9]{1,18}", text) and int(text) > 0:
        return Budget(points=int(text))
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?%", text) and 0 < float(text[:-1]) <= 100:
        return Budget(share=float(text[:-1]) / 100)
    raise ArgumentTypeError(f"got {shown(text)}, expected a number of points such as 40, or a share such as 5%")


@dataclass(frozen=True)
class Lesson:
    """What is known of a point: how much longer it took than the best of its case, as a logarithm; its code."""

    point: Point
    log: float
    code: Code = ()


def code_of(numbers: Mapping[str, Any]) -> Code:
    """What numbers by the names of `CODE` say."""
    said = [numbers.get(name) for name in CODE]
    return tuple(math.nan if each is None else float(each) for each in said) if any(said) else ()


def lessons(rows: Iterable[Mapping[str, Any]], gpu: bool, without: Collection[str] = ()) -> list[Lesson]:
    """What the rows of a data set teach a search on a GPU, or on a CPU.

    Parameters
    ----------
    rows : iterable of mappings
        As `dataset.read_rows` returns them, of one device.
    without : collection of str
        Keys of rows that the search knows anyway.
    """
    read = [(code_of(row), row) for row in rows if key_of_row(row) not in without]
    known = [(row, code) for code, values in read for row in rows_of([values]) if TARGETS[row.spec.target].gpu == gpu]
    cases = grouped(known, lambda pair: case_of(pair[0].point))
    found = (((row.point, row.seconds, code) for row, code in case) for case in cases.values())
    return [lesson for case in found for lesson in lessons_of(case)]


def lessons_of(case: Iterable[tuple[Point, float | None, Code]]) -> list[Lesson]:
    """What a case teaches: points, what each took in seconds, None where there is no number, and its code."""
    known = list(case)
    logs = relative(np.array([math.inf if took is None else math.log(took) for _, took, _ in known]))
    return [Lesson(point, float(log), code) for (point, _, code), log in zip(known, logs, strict=True)]


def relative(logs: Numbers) -> Numbers:
    """How much more each is than the least of a case; what failed, infinite, is e times slower than the slowest."""
    good = np.isfinite(logs)
    if not good.any():
        return np.ones(len(logs))
    return np.asarray(np.where(good, logs, logs[good].max() + 1.0) - logs[good].min())
