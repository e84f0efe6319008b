"""Cases alone, when much is known of others: a forest says what to expect of a point, kriging what else was seen.

The forest is one of extremely randomized trees (Geurts, Ernst and Wehenkel, 2006), told what the compiler says of
each kernel: registers and spilled bytes tell more of an order that it has not seen than the parameters do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from batchchol.measure.point import Point
from batchchol.tune.search.cases import CODE, Code, Lesson, Numbers, relative
from batchchol.tune.search.features import Encoding, encoded, package
from batchchol.tune.search.strategies import Strategy
from kernelgen.gpu import MAX_THREADS, REGISTERS

LEAST_LESSONS = 500
"""Fewer say too little to begin with."""

# All settings are those that did best in the replay.
_TREES, _SHARE = 40, 0.6
# Orders that count: to twice as large or half as large, the nearer the more.
_SPAN, _NEAR = math.log(2) + 1e-9, 0.5
# How much the trees' disagreement counts as promise, and what of a point's surprise is noise.
_HOPE, _NOISE = 1.5, 0.15
# How far the least and the largest number of a parameter are apart, where a word from another is 1.
_RANGE = 2.0


@dataclass(frozen=True)
class Expected:
    """Of each point of a case: the root of its relative logarithm as the trees say it, and how they differ."""

    mean: Numbers
    doubt: Numbers


class Taught(Strategy):
    """Asks for the point with the least lower confidence bound.

    A point is as much slower than expected as its neighbours are, the nearest most.
    """

    def __init__(self, points: Sequence[Point], expected: Expected, encoding: Encoding, mine: slice) -> None:
        super().__init__(points)
        self._expected, self._encoding, self._mine = expected, encoding, mine
        self._known: dict[int, float] = {}
        self._near: list[Numbers] = []
        """How near each point is to the known ones."""

    def ask(self) -> Point | None:
        if not self.free:
            return None
        free = np.fromiter(self.free, dtype=np.int64)
        return self.take(int(free[np.argmin(self._bound()[free])]))

    def tell(self, point: Point, seconds: float | None) -> None:
        number = self.told(point)
        if number not in self._known:
            encoding = self._encoding
            apart = encoding.distances(encoding.places[self._mine][number], span=_RANGE)[self._mine]
            self._near.append(np.exp(-apart))
        self._known[number] = math.inf if seconds is None else math.log(seconds)

    def _bound(self) -> Numbers:
        mean, doubt = self._expected.mean, self._expected.doubt
        if not self._known:
            return mean - _HOPE * doubt
        numbers, near = list(self._known), np.stack(self._near)
        surprise = np.sqrt(relative(np.array(list(self._known.values())))) - mean[numbers]
        weights = np.linalg.solve(near[:, numbers] + _NOISE * np.eye(len(numbers)), near)
        unknown = np.sqrt(np.maximum(1 - np.einsum("ij,ij->j", near, weights), 0))
        return np.asarray(mean + (surprise - np.median(surprise)) @ weights - _HOPE * doubt * unknown)


def taught(
    cases: Sequence[Sequence[Point]], seed: int, lessons: Sequence[Lesson], codes: Mapping[str, Code]
) -> list[Taught]:
    """A strategy for each case.

    Parameters
    ----------
    lessons : sequence of Lesson
        Of other cases, or of the same ones on another device.
    codes : dict of str to Code
        What compilers say of the points, by their keys; of those that are not there nothing is known.

    Raises
    ------
    BatchcholError
        If scikit-learn or pandas is not installed; names the extra.
    """
    package("sklearn.ensemble")
    points = [point for case in cases for point in case]
    lessons = _near(lessons, {case[0].spec.problem.n for case in cases}) or lessons
    encoding = encoded((*points, *(lesson.point for lesson in lessons)))
    said = [*(codes.get(point.key, ()) for point in points), *(lesson.code for lesson in lessons)]
    orders = np.array([each.spec.problem.n for each in (*points, *(lesson.point for lesson in lessons))], float)
    features = np.column_stack([encoding.features, _of_tiles(encoding, orders), _of_code(said, encoding, orders)])
    features = features.astype(np.float32)
    answers = np.sqrt([lesson.log for lesson in lessons])
    places = [slice(first, last) for first, last in pairwise([0, *accumulate(map(len, cases))])]
    known = features[len(points) :], orders[len(points) :], answers
    return [
        Taught(case, _expected(features[mine], float(orders[mine.start]), *known, seed=seed), encoding, mine)
        for case, mine in zip(cases, places, strict=True)
    ]


def _near(lessons: Sequence[Lesson], orders: Iterable[int]) -> list[Lesson]:
    """The lessons of orders that count for one of these."""
    known = {lesson.point.spec.problem.n for lesson in lessons}
    count = {n for n in known if any(abs(math.log(n / order)) <= _SPAN for order in orders)}
    return [lesson for lesson in lessons if lesson.point.spec.problem.n in count]


def _of_tiles(encoding: Encoding, orders: Numbers) -> Numbers:
    """How many tiles of nb a matrix is, not rounded, and what part of the last one is empty."""
    nb = np.maximum(_column(encoding, "nb"), 1)
    tiles = orders / nb
    return np.column_stack([tiles, np.ceil(tiles) - tiles])


def _of_code(said: Iterable[Code], encoding: Encoding, orders: Numbers) -> Numbers:
    """The numbers of code in orders of magnitude, its bytes by elements and by operations of a matrix, and threads.

    These are as many as registers suffice for, in whole blocks.
    """
    numbers = np.nan_to_num(np.array([each or (math.nan,) * len(CODE) for each in said], float), nan=-1.0)
    logs = np.log1p(np.maximum(numbers, -0.9))
    size = logs[:, CODE.index("code_bytes")]
    block = np.maximum(_column(encoding, "block"), 1)
    threads = REGISTERS // np.maximum(numbers[:, CODE.index("registers")] * block, 1) * block
    return np.column_stack(
        [logs, size - 2 * np.log(orders), size - 3 * np.log(orders), np.minimum(threads, MAX_THREADS)]
    )


def _column(encoding: Encoding, name: str) -> Numbers:
    """A parameter's numbers; -1 if it does not differ between points."""
    at = [parameter.name for parameter in encoding.parameters]
    return encoding.features[:, at.index(name)] if name in at else np.full(len(encoding.features), -1.0)


def _expected(features: Any, order: float, known: Any, orders: Numbers, answers: Numbers, *, seed: int) -> Expected:
    from sklearn.ensemble import ExtraTreesRegressor

    apart = np.abs(np.log(orders / order))
    near = apart <= max(_SPAN, float(apart.min()))
    forest = ExtraTreesRegressor(_TREES, max_features=_SHARE, random_state=seed)
    forest.fit(known[near], answers[near], sample_weight=np.exp(-apart[near] / _NEAR))
    said = np.stack([tree.predict(features, check_input=False) for tree in forest.estimators_])
    return Expected(said.mean(axis=0), said.std(axis=0))
