"""A random forest predicts the times of points; the most promising are measured next (Hutter et al., 2011).

Each case may have a forest of its own, or all cases of a search one together: what one of them learns of a parameter
is mostly true of its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from batchchol.measure.point import Point
from batchchol.tune.search.cases import Code, Lesson, Numbers, relative
from batchchol.tune.search.features import encoded, package
from batchchol.tune.search.strategies import Strategy
from batchchol.tune.search.taught import LEAST_LESSONS
from batchchol.tune.search.taught import taught as by_lessons

# All settings are those that did best in the replay.
_TREES = 32
# How many of them are grown anew when something is told: the others have not seen it yet.
_AFRESH = 16
# The share of the features that a split may choose from.
_SHARE = 0.6
# How much of the trees' disagreement counts as promise; how often one tree decides alone.
_HOPE, _DOUBT = 1.0, 0.3
# Points before the first forest, of all cases together and of each at least; of these candidates the one farthest
# from the others is taken.
_BEGIN, _BEGIN_EACH, _CANDIDATES = 6, 2, 3
_SEED_LIMIT = 2**31
_TIE = 1e-9


class Pool:
    """What is known of several cases, and the forest that they share.

    Parameters
    ----------
    cases : sequence of sequences of Point
        The points of each case.
    seed : int
    taught : sequence of Lesson
        Of other cases, or of the same ones on another device.

    Raises
    ------
    BatchcholError
        If scikit-learn or pandas is not installed; names the extra.
    """

    def __init__(self, cases: Sequence[Sequence[Point]], seed: int = 0, taught: Sequence[Lesson] = ()) -> None:
        package("sklearn.tree")
        self.random = np.random.default_rng(seed)
        points = [point for case in cases for point in case]
        self.encoding = encoded((*points, *(lesson.point for lesson in taught)))
        self.begin = 0 if taught else max(_BEGIN_EACH, math.ceil(_BEGIN / len(cases)))
        """Points of each case before its first forest."""
        starts = [0, *accumulate(map(len, cases))]
        self.slices = [slice(first, last) for first, last in pairwise(starts)]
        """Where each case is among the points of all."""
        features = self.encoding.features.astype(np.float32)
        self._features, self._taught = features[: len(points)], features[len(points) :]
        self._logs = [lesson.log for lesson in taught]
        self._known: list[dict[int, float]] = [{} for _ in cases]
        self._answers: list[Numbers] = []
        self._bound: Numbers | None = None

    @property
    def blank(self) -> bool:
        """Whether nothing at all is known."""
        return not self._logs and not any(self._known)

    def learn(self, case: int, number: int, seconds: float | None) -> None:
        """Take in what a case's point of that number took."""
        self._known[case][number] = math.inf if seconds is None else math.log(seconds)
        self._bound = None

    def promise(self, case: int) -> Numbers:
        """How fast each point of a case may be, less is faster: a lower confidence bound, or one tree's prediction.

        Without the latter, whose choices differ, a forest that was led astray by its first points stays there.
        """
        if self._bound is None:
            self._grow()
            answers = np.stack(self._answers)
            self._bound = answers.mean(axis=0) - _HOPE * answers.std(axis=0)
        mine = self.slices[case]
        if self.random.random() >= _DOUBT:
            return self._bound[mine]
        answer = self._answers[self.random.integers(len(self._answers))][mine]
        # One tree tells few points apart.
        return answer + _TIE * self.random.random(len(answer))

    def _grow(self) -> None:
        """Replace the oldest trees by some that know everything."""
        from sklearn.tree import DecisionTreeRegressor

        rows, logs = [self._taught], [np.array(self._logs)]
        for known, place in zip(self._known, self.slices, strict=True):
            if known:
                rows.append(self._features[place][list(known)])
                logs.append(relative(np.array(list(known.values()))))
        # Square roots, so that the slow points, which differ most, do not decide every split.
        x, y = np.concatenate(rows), np.sqrt(np.concatenate(logs))
        for _ in range(_AFRESH if self._answers else _TREES):
            drawn = self.random.integers(len(y), size=len(y))
            tree = DecisionTreeRegressor(max_features=_SHARE, random_state=int(self.random.integers(_SEED_LIMIT)))
            tree.fit(x[drawn], y[drawn], check_input=False)
            self._answers.append(tree.predict(self._features, check_input=False))
        self._answers = self._answers[-_TREES:]


class Forest(Strategy):
    """Asks for the point with the least lower confidence bound, see `Pool.promise`, or for the best of one tree.

    A point without a number counts as slower than all others.
    """

    def __init__(self, points: Sequence[Point], seed: int = 0, pool: Pool | None = None, case: int = 0) -> None:
        super().__init__(points)
        self._pool = pool or Pool([points], seed)
        self._case = case
        self._taken: list[int] = []

    def ask(self) -> Point | None:
        if not self.free:
            return None
        free = np.fromiter(self.free, dtype=np.int64)
        early = len(self._taken) < self._pool.begin or self._pool.blank
        number = self._far(free) if early else int(free[np.argmin(self._pool.promise(self._case)[free])])
        self._taken.append(number)
        return self.take(number)

    def tell(self, point: Point, seconds: float | None) -> None:
        number = self.told(point)
        if number not in self._taken:
            self._taken.append(number)
        self._pool.learn(self._case, number, seconds)

    def _far(self, free: NDArray[np.int64]) -> int:
        """The farthest, among some random free points, from those that were taken."""
        some = self._pool.random.choice(free, min(len(free), _CANDIDATES), replace=False)
        encoding, mine = self._pool.encoding, self._pool.slices[self._case]
        nearest = np.full(len(some), math.inf)
        for number in self._taken:
            apart = encoding.distances(encoding.places[mine][number])[mine]
            nearest = np.minimum(nearest, apart[some])
        return int(some[np.argmax(nearest)])


def together(
    cases: Sequence[Sequence[Point]],
    seed: int = 0,
    taught: Sequence[Lesson] = (),
    codes: Mapping[str, Code] = MappingProxyType({}),
) -> Sequence[Strategy]:
    """A strategy for each case: all with one forest, or, where much is known of others, by that."""
    if len(taught) >= LEAST_LESSONS:
        return by_lessons(cases, seed, taught, codes)
    pool = Pool(cases, seed, taught)
    return [Forest(points, pool=pool, case=case) for case, points in enumerate(cases)]
