"""A machine's kernels of the newest commit in a roofline plot (Williams, Waterman and Patterson, CACM 2009)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from batchchol.asv_plugin.history.cases import Case, Number
from batchchol.operations.roofline import compulsory_bytes, flops
from kernelgen import Layout

_WIDTH, _HEIGHT = 640.0, 360.0
# The room of a kernel's name, with the circle beside it.
_NAME = (30.0, 12.0)


@dataclass(frozen=True)
class Kernel:
    """A case's kernel: flops by compulsory byte, and what it reached."""

    case: Case
    number: Number
    intensity: float
    flops_per_second: float

    @property
    def bytes_per_second(self) -> float:
        return self.flops_per_second / self.intensity


@dataclass(frozen=True)
class Roofline:
    """Kernels placed in a box of `width` × `height`, both axes logarithmic; the roof is the best rate of all of them.

    `rate` is in bytes per second. `x_ticks` and `y_ticks` are places and texts.
    """

    width: float
    height: float
    kernels: tuple[tuple[float, float, Kernel], ...]
    rate: float
    roof: tuple[tuple[float, float], tuple[float, float]]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]

    @cached_property
    def names(self) -> dict[int, bool]:
        """Places in `kernels` of the fastest of each intensity, if a name has room there; True: to its left."""
        found: dict[int, bool] = {}
        taken: list[tuple[float, float]] = []
        done: set[float] = set()
        for place, (x, y, _) in sorted(enumerate(self.kernels), key=lambda each: each[1][1]):
            left = any(
                0 < other_x - x < _NAME[0] and abs(other_y - y) < _NAME[1] for other_x, other_y, _ in self.kernels
            )
            at = (x - _NAME[0] if left else x, y)
            if x not in done and not any(_overlap(at, other) for other in taken):
                found[place] = left
                taken.append(at)
            done.add(x)
        return found


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return abs(one[0] - other[0]) < _NAME[0] and abs(one[1] - other[1]) < _NAME[1]


def roofline(cases: Iterable[Case]) -> Roofline | None:
    """The plot of all cases whose kernel is known; None if there is none."""
    kernels = [kernel for case in cases if (kernel := _kernel(case))]
    if not kernels:
        return None
    rate = max(kernel.bytes_per_second for kernel in kernels)
    left, right = _decades(kernel.intensity for kernel in kernels)
    bottom, top = _decades([*(kernel.flops_per_second for kernel in kernels), rate * right])

    def place(intensity: float, speed: float) -> tuple[float, float]:
        x = _WIDTH * math.log(intensity / left) / math.log(right / left)
        return x, _HEIGHT * math.log(top / speed) / math.log(top / bottom)

    placed = tuple((*place(each.intensity, each.flops_per_second), each) for each in kernels)
    first = max(left, bottom / rate)
    x_ticks = tuple((place(value, top)[0], f"{value:g}") for value in _powers(left, right, 2))
    y_ticks = tuple((place(left, value)[1], f"{value / 1e9:,g}") for value in _powers(bottom, top, 10))
    roof = (place(first, rate * first), place(right, rate * right))
    return Roofline(_WIDTH, _HEIGHT, placed, rate, roof, x_ticks, y_ticks)


def _kernel(case: Case) -> Kernel | None:
    """Place the newest number of a case of potrf, if what was recorded of it says how its data lie."""
    if not case.known or case.unit != "seconds" or not {"n", "dtype"} <= set(case.params):
        return None
    newest = case.known[-1]
    operation, layout = newest.about.get("spec", "").partition("_")[0], newest.about.get("layout", "")
    if operation != "potrf" or not layout:
        return None
    n, work = case.params["n"], flops(case.params["n"])
    moved = compulsory_bytes(n, _layout(layout), case.params["dtype"])
    return Kernel(case, newest, work / moved, work / newest.median)


def _layout(text: str) -> Layout:
    """The layout that prints as `text`, such as "chunked128-col"."""
    kind, _, order = text.rpartition("-")
    chunk = kind.removeprefix("chunked")
    return Layout.chunked(int(chunk), order) if chunk != kind else Layout(kind, None, order)


def _decades(values: Iterable[float]) -> tuple[float, float]:
    """The powers of two around some values: at least one apart."""
    logs = [math.log2(value) for value in values]
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    return 2.0**low, 2.0 ** max(high, low + 1)


def _powers(low: float, high: float, base: int) -> Iterator[float]:
    first = math.ceil(math.log(low, base) - 1e-9)
    for exponent in range(first, math.floor(math.log(high, base) + 1e-9) + 1):
        yield float(base) ** exponent
