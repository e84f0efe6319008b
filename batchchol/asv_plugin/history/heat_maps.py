"""Heat maps of a benchmark: its newest times by order and one more parameter, over the best of each order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from batchchol.asv_plugin.history.cases import Case

# A cell is as hot as can be from this many times the best on.
_HOTTEST = 2.0


@dataclass(frozen=True)
class Cell:
    """The best case of an order and a value: its time over the best of the order."""

    case: Case
    ratio: float

    @property
    def heat(self) -> int:
        """0 of the best to 100 percent, logarithmic."""
        return round(100 * min(1.0, math.log(max(1.0, self.ratio)) / math.log(_HOTTEST)))


@dataclass(frozen=True)
class HeatMap:
    """Cells by order and value of a parameter; None where nothing was measured."""

    benchmark: str
    parameter: str
    values: tuple[Any, ...]
    rows: tuple[tuple[int, tuple[Cell | None, ...]], ...]


def heat_maps(benchmark: str, cases: Sequence[Case]) -> Iterator[HeatMap]:
    """One for each parameter that varies beside n; each cell is the best over all other parameters."""
    usable = [case for case in cases if case.known and not case.numbers[-1].failed and "n" in case.params]
    names = dict.fromkeys(name for case in usable for name in case.params if name != "n")
    for name in names:
        values = sorted({case.params.get(name) for case in usable}, key=_order)
        if len(values) > 1:
            orders = sorted({case.params["n"] for case in usable})
            yield HeatMap(benchmark, name, tuple(values), tuple(_row(usable, n, name, values) for n in orders))


def _row(cases: Sequence[Case], n: int, name: str, values: Sequence[Any]) -> tuple[int, tuple[Cell | None, ...]]:
    found = [[case for case in cases if (case.params["n"], case.params.get(name)) == (n, value)] for value in values]
    best = [min(each, key=_newest) if each else None for each in found]
    least = min(_newest(case) for case in best if case)
    return n, tuple(Cell(case, _newest(case) / least) if case else None for case in best)


def _newest(case: Case) -> float:
    return case.known[-1].median


def _order(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)
