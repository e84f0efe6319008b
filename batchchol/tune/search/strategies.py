"""Strategies: which point of a case to measure next."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

from batchchol.measure.point import Point
from batchchol.tune.search.cases import Code, Lesson

STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        "exhaustive": "batchchol.tune.search.strategies:Exhaustive",
        "random": "batchchol.tune.search.strategies:Random",
        "tpe": "batchchol.tune.search.tpe:Tpe",
        "forest": "batchchol.tune.search.forest:Forest",
        "transfer": "batchchol.tune.search.forest:together",
    }
)
"""Where each strategy is: its class, or what makes one for each of several cases that learn from one another.

Some need packages of the extra `search`.
"""

TOGETHER = ("transfer",)
"""The strategies whose cases learn from one another."""

DEFAULT = "transfer"
"""What needed the fewest measurements in the replay: see docs/guided-search.md."""


class Strategy(ABC):
    """Ask for a point, measure it, and tell what came of it; several may be asked for before the first is told.

    No point is asked twice, and none that was told. The same seed and the same answers give the same questions.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = tuple(points)
        self.free = dict.fromkeys(range(len(points)))
        """The numbers of the points that were neither asked for nor told, in order."""
        self._numbers = {point.key: number for number, point in enumerate(points)}

    @abstractmethod
    def ask(self) -> Point | None:
        """Return the point to measure next; None when all were asked for or told."""

    def tell(self, point: Point, seconds: float | None) -> None:
        """Take in the seconds of a call that a point of the case took, or None if it has no number.

        Also of points that were not asked for, such as those of an earlier search.

        Raises
        ------
        ValueError
            If the point is not of the case.
        """
        self.told(point)

    def take(self, number: int) -> Point:
        """Ask for the point of this number."""
        del self.free[number]
        return self.points[number]

    def told(self, point: Point) -> int:
        """The number of a point that is known now; ValueError if it is none of the case."""
        if point.key not in self._numbers:
            raise ValueError(f"point: got {point.key!r}, which is none of the {len(self.points):,} of this case")
        number = self._numbers[point.key]
        self.free.pop(number, None)
        return number


def make(
    name: str,
    cases: Sequence[Sequence[Point]],
    seed: int = 0,
    taught: Sequence[Lesson] = (),
    codes: Mapping[str, Code] = MappingProxyType({}),
) -> list[Strategy]:
    """Return the strategy of that name for each of these cases.

    Parameters
    ----------
    cases : sequence of sequences of Point
        The points of each case.
    seed : int
    taught : sequence of Lesson
        What is known from elsewhere, for those strategies that can learn from it.
    codes : dict of str to Code
        What compilers say of the points, by their keys, as far as it is known.

    Raises
    ------
    ValueError
        If there is no such strategy.
    BatchcholError
        If it needs a package that is not installed.
    """
    if name not in STRATEGIES:
        raise ValueError(f"strategy: got {name!r}, expected one of {', '.join(STRATEGIES)}")
    made: Any = resolve_name(STRATEGIES[name])
    return list(made(cases, seed, taught, codes)) if name in TOGETHER else [made(points, seed) for points in cases]


class Exhaustive(Strategy):
    """Every point, in the order of the space."""

    def __init__(self, points: Sequence[Point], seed: int = 0) -> None:
        super().__init__(points)
        self._order = iter(self._sequence(len(points), seed))

    def ask(self) -> Point | None:
        number = next((number for number in self._order if number in self.free), None)
        return None if number is None else self.take(number)

    def _sequence(self, count: int, seed: int) -> Sequence[int]:
        """The points' numbers in the order in which they are asked for."""
        return range(count)


class Random(Exhaustive):
    """Every point, in a random order: the baseline that a strategy must beat."""

    def _sequence(self, count: int, seed: int) -> Sequence[int]:
        numbers = list(range(count))
        random.Random(seed).shuffle(numbers)
        return numbers[::-1]
