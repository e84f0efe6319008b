"""The geometry of the pages' charts: a case over the commits of its machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from batchchol.asv_plugin.history.cases import Case, Commit, Number

_TICKS = 3
# Room above and below the numbers, as a share of what they span, and the least span as a share of the largest.
_ROOM, _LEAST = 0.12, 0.1
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps"))


@dataclass(frozen=True)
class Dot:
    """A number at its place; `low` and `high` are the ends of its interval."""

    x: float
    y: float
    low: float
    high: float
    number: Number


@dataclass(frozen=True)
class Mark:
    """A change point between two commits."""

    x: float
    text: str
    tone: str


@dataclass(frozen=True)
class Chart:
    """A case drawn in a box of `width` × `height`, as numbers of SVG."""

    width: float
    height: float
    dots: tuple[Dot, ...]
    marks: tuple[Mark, ...]
    ticks: tuple[tuple[float, str], ...]

    @property
    def line(self) -> str:
        """The points of the line through the medians."""
        return " ".join(f"{dot.x:.1f},{dot.y:.1f}" for dot in self.dots)


def shown(value: float, unit: str) -> str:
    """A number of a benchmark for people."""
    if unit != "seconds":
        return f"{value:,.4g} {unit}"
    size, name = next((each for each in _UNITS if abs(value) >= each[0]), _UNITS[-1])
    return f"{value / size:.3g} {name}"


def change_text(ratio: float) -> str:
    """A change for people: +4.1%, or ×2.3 where percent would mislead."""
    return f"{100 * (ratio - 1):+.1f}%" if 0.5 < ratio < 2 else f"×{ratio:.3g}"


def tone(ratio: float) -> str:
    """How a change is coloured."""
    return "bad" if ratio > 1 else "good"


def chart(case: Case, width: float, height: float) -> Chart:
    """A case over all commits of its machine: where it was not measured, the line goes on to the next number."""
    if not case.known:
        return Chart(width, height, (), (), ())
    low, high = _range(case.known)
    step = width / max(1, len(case.commits) - 1)
    places = {commit.name: index * step for index, commit in enumerate(case.commits)}

    def y(value: float) -> float:
        return height * (high - value) / (high - low)

    dots = tuple(
        Dot(_x(places, each.commit, width), y(each.median), y(each.low), y(each.high), each) for each in case.known
    )
    ticks = tuple((y(value), shown(value, case.unit)) for value in _ticks(low, high))
    return Chart(width, height, dots, tuple(_marks(case, dots)), ticks)


def _x(places: dict[str, float], commit: Commit, width: float) -> float:
    """The only commit is in the middle."""
    return places[commit.name] if len(places) > 1 else width / 2


def _marks(case: Case, dots: Sequence[Dot]) -> Iterator[Mark]:
    for change in case.changes:
        kernel = " (same kernel)" if case.same_kernel(change.index) else ""
        x = (dots[change.index - 1].x + dots[change.index].x) / 2
        yield Mark(x, change_text(change.ratio) + kernel, tone(change.ratio))


def _range(numbers: Sequence[Number]) -> tuple[float, float]:
    low, high = min(each.low for each in numbers), max(each.high for each in numbers)
    room = _ROOM * max(high - low, _LEAST * abs(high), 1e-300)
    return max(0.0, low - room), high + room


def _ticks(low: float, high: float) -> Iterator[float]:
    for index in range(_TICKS):
        yield low + (high - low) * (index + 0.5) / _TICKS
