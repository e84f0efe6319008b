"""What a peer on a GPU is: an optional library that factors the matrices of the same arena."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from batchchol.backends import Availability
from batchchol.compare.gpu_contenders import Arena, DeviceContender


def _nothing(ns: Iterable[int], dtype: str) -> None:
    del ns, dtype


@dataclass(frozen=True)
class DevicePeer:
    """One way into an optional library.

    `survey` says whether it is installed, which version, and else how to get it. `contenders` makes ready to factor
    the matrices of an arena, in all the ways of which the fastest is to count; it may only be called where `survey`
    found the library. `prepare` does ahead, for all orders, what takes long.
    """

    name: str
    survey: Callable[[], Availability]
    contenders: Callable[[Arena], Sequence[DeviceContender]]
    prepare: Callable[[Iterable[int], str], None] = _nothing
