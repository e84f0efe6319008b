"""Which family the default table chooses for what, as a table of pages: made of the table that calls use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from batchchol.defaults.lookup import default_layout, default_spec
from kernelgen.problem import MATHS

ARCH, LARGEST = "sm_90", 128
HEADS = ("data", "1,024 matrices", "16,384", "2 GiB")

_ELEMENT_BYTES = {"float32": 4, "float64": 8}
_BATCHES: tuple[Callable[[int], int], ...] = (
    lambda matrix_bytes: 1_024,
    lambda matrix_bytes: 16_384,
    lambda matrix_bytes: (2 << 30) // matrix_bytes,
)
# Families of fewer orders in a row than these are named together.
_FEW = 11


@cache
def lines() -> tuple[tuple[str, ...], ...]:
    """The cells of each line: arrays and packed batches by dtype and math, one line where the maths agree."""
    return tuple(_lines())


def _lines() -> Iterator[tuple[str, ...]]:
    for data in ("arrays", "packed"):
        for dtype in _ELEMENT_BYTES:
            of = {math: [_families(data, dtype, math, batch) for batch in _BATCHES] for math in MATHS}
            cells = {", ".join(f"`{math}`" for math in MATHS if of[math] == each): each for each in of.values()}
            yield from ((f"{data}, {dtype}, {maths}", *each) for maths, each in cells.items())


def _families(data: str, dtype: str, math: str, batch: Callable[[int], int]) -> str:
    orders = range(1, LARGEST + 1)
    sizes = [batch(n * n * _ELEMENT_BYTES[dtype]) for n in orders]
    asked: dict[str, Any] = {"target": "cuda", "dtype": dtype, "math": math, "arch": ARCH}
    return summary([_family(data, n, asked | {"batch": size}) for n, size in zip(orders, sizes, strict=True)])


def _family(data: str, n: int, asked: dict[str, Any]) -> str:
    if data == "arrays":
        return default_spec(n, layout="canonical", order="row", **asked).family
    layout = default_layout(n, **asked)
    return default_spec(n, layout=layout.kind, order=layout.order, chunk=layout.chunk, **asked).family


def summary(families: Sequence[str]) -> str:
    """What orders from 1 on have, such as "`thread` to 24, `block` or `warp` to 30"."""
    runs = [(family, len([*run])) for family, run in groupby(families)]
    parts = []
    last = 0
    for few, group in groupby(runs, key=lambda run: run[1] < _FEW):
        found = [*group]
        for together in [found] if few else [[run] for run in found]:
            last += sum(orders for _, orders in together)
            names = sorted({f"`{family}`" for family, _ in together})
            parts.append(f"{' or '.join(names)} to {last}")
    return ", ".join(parts)
