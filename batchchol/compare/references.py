"""Figures of libraries that were measured elsewhere and earlier: dated lines to compare with, never measurements."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_FILE = "references.csv"


@dataclass(frozen=True)
class Reference:
    """GFLOP/s of a library on one GPU, by the protocol and on the date that it was measured."""

    library: str
    version: str
    n: int
    batch: int
    gflops: float
    protocol: str
    gpu: str
    date: str

    @property
    def label(self) -> str:
        """Such as "magma, 2026-11-21", which marks it as a dated figure."""
        return f"{self.library}, {self.date}"


@cache
def references() -> tuple[Reference, ...]:
    """All that come with the package: float32, of batches on one NVIDIA H200 with CUDA 13.0."""
    text = (files("batchchol.compare") / _FILE).read_text(encoding="utf-8")
    read: dict[str, Any] = {"n": int, "batch": int, "gflops": float}
    rows = csv.DictReader(text.splitlines())
    return tuple(Reference(**{name: read.get(name, str)(value) for name, value in row.items()}) for row in rows)


def lines(gpu: str, dtype: str, measured: Iterable[str], ns: Iterable[int], batch: int) -> list[Reference]:
    """The figures of libraries not measured here, on the same GPU: one for each order, at the nearest batch.

    A batch that is more than a half away is another question. Larger ones than were measured count as the largest:
    a GPU that is full is not fuller for more.
    """
    orders, present = set(ns), set(measured)
    if dtype != "float32":
        return []
    chosen = []
    for library in dict.fromkeys(each.library for each in references() if each.library not in present):
        for n in sorted(orders):
            known = [each for each in references() if (each.library, each.n, each.gpu) == (library, n, gpu)]
            largest = max((each.batch for each in known), default=0)
            near = [each for each in known if 2 / 3 <= min(batch, largest) / each.batch <= 3 / 2]
            chosen += [min(near, key=lambda each: abs(each.batch - batch))] if near else []
    return chosen
