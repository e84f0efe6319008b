"""Arrays of a GPU of the orders just above `kernelgen.MAX_N`: one kernel has each matrix on chip, all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from batchchol.algorithms.plan_space import combinations
from kernelgen import KernelSource, KernelSpec, Problem, SpecError, WholeSchedule, generate

# Warps, and matrices of a multiprocessor, up to each order. (Measured on an H200.)
_CHOSEN: Mapping[str, tuple[tuple[int, int, int], ...]] = MappingProxyType(
    {
        "float32": ((131, 4, 6), (145, 4, 5), (163, 4, 4), (191, 4, 3), (192, 4, 2), (232, 6, 2)),
        "float64": ((133, 5, 3), (165, 6, 2), (192, 8, 1), (235, 12, 1)),
    }
)


@dataclass(frozen=True)
class OnChip:
    """What factors matrices of a dtype and an order, "row" or "col", whole: a kernel of canonical arrays.

    `warps` are those of a matrix, `resident` the matrices that a multiprocessor has registers for.
    """

    dtype: str
    order: str
    warps: int
    resident: int

    @property
    def name(self) -> str:
        """A few words for it."""
        beside = f", {self.resident} a multiprocessor" if self.resident > 1 else ""
        return f"on chip, {self.warps} warps to a matrix{beside}"

    def spec(self, n: int) -> KernelSpec:
        """The spec of the kernel of order n, which works out of place and in place.

        Raises
        ------
        SpecError
            If there is none.
        """
        problem = Problem(n, self.dtype, "upper" if self.order == "col" else "lower")
        schedule = WholeSchedule(self.warps, self.resident, pdl=True)
        return KernelSpec(problem, "canonical", "row", schedule, "cuda")


def on_chip(n: int, dtype: str, order: str) -> OnChip | None:
    """The way to factor matrices of order n on chip that was fast, if they fit."""
    fitting = [choice for most, *choice in _CHOSEN[dtype] if n <= most]
    return OnChip(dtype, order, *fitting[0]) if fitting else None


def all_on_chip(n: int, dtype: str) -> Iterator[OnChip]:
    """All that can be built of order n, in rows."""
    for choice in combinations("on_chip"):
        with suppress(SpecError):
            how = OnChip(dtype, "row", **choice)
            how.spec(n)
            yield how


@lru_cache(maxsize=256)
def kernel(how: OnChip, n: int) -> KernelSource:
    """The kernel of order n; an item is a matrix. Arguments: matrices, factors, info, 1 and the batch."""
    return generate(how.spec(n))
