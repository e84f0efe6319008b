"""Arrays of a GPU of the orders just above `kernelgen.MAX_N`: one kernel has each matrix on chip, all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from types import MappingProxyType

from kernelgen import (
    KernelSource,
    KernelSpec,
    Problem,
    SpecError,
    WarpSchedule,
    WholeSchedule,
    generate,
)

# The families that have such orders, and where their matrices are.
_PLACES: Mapping[str, str] = MappingProxyType(
    {WarpSchedule.family: "registers", WholeSchedule.family: "shared memory"}
)
# Family, warps and matrices of a multiprocessor, up to each order.
_CHOSEN: Mapping[str, tuple[tuple[int, tuple[str, int, int]], ...]] = MappingProxyType(
    {
        "float32": ((144, ("whole", 4, 5)), (160, ("whole", 4, 4)), (192, ("whole", 4, 2))),
        "float64": ((160, ("whole", 6, 2)),),
    }
)
# Those among which they were chosen.
_WARPS, _RESIDENT = (4, 5, 6, 8), (2, 3, 4, 5)


@dataclass(frozen=True)
class OnChip:
    """What factors matrices of a dtype and an order, "row" or "col", whole: a kernel of canonical arrays.

    `family` is "warp" or "whole", `warps` how many have a matrix, `resident` of how many blocks a multiprocessor has
    the registers.
    """

    dtype: str
    order: str
    family: str
    warps: int
    resident: int

    def __post_init__(self) -> None:
        if self.family not in _PLACES:
            raise SpecError(f"family={self.family!r}: expected one of {list(_PLACES)}")

    @property
    def name(self) -> str:
        """It in a few words."""
        beside = f", {self.resident} a multiprocessor" if self.resident > 1 else ""
        return f"on chip, in {_PLACES[self.family]}, {self.warps} warps{beside}"

    def spec(self, n: int) -> KernelSpec:
        """Its kernel of order n, which works out of place and in place.

        Raises
        ------
        SpecError
            If there is none.
        """
        uplo = "upper" if self.order == "col" else "lower"
        schedule: WarpSchedule | WholeSchedule = WholeSchedule(self.warps, self.resident, pdl=True)
        if self.family == WarpSchedule.family:
            schedule = WarpSchedule(warps=self.warps, update="tensor", blocks=self.resident, pdl=True)
        return KernelSpec(Problem(n, self.dtype, uplo), "canonical", "row", schedule, "cuda")


def on_chip(n: int, dtype: str, order: str) -> OnChip | None:
    """What factors matrices of order n, if they fit: as was fast."""
    fitting = [choice for most, choice in _CHOSEN[dtype] if n <= most]
    return OnChip(dtype, order, *fitting[0]) if fitting else None


def all_on_chip(n: int, dtype: str) -> Iterator[OnChip]:
    """All that can be built of order n, in rows."""
    for choice in product(_PLACES, _WARPS, _RESIDENT):
        with suppress(SpecError):
            how = OnChip(dtype, "row", *choice)
            how.spec(n)
            yield how


@lru_cache(maxsize=256)
def kernel(how: OnChip, n: int) -> KernelSource:
    """Its kernel of order n; an item is a matrix. Arguments: matrices, factors, info, 1 and the batch."""
    return generate(how.spec(n))
