"""Generations of the tables of defaults: kept choices of an older one are out of date."""

from __future__ import annotations

import ctypes
from functools import cache


class Generation:
    """What choices are kept with; `valid`, which C code reads, is 1 until they are out of date."""

    def __init__(self) -> None:
        self.valid = ctypes.c_int(1)


@cache
def generation() -> Generation:
    """A new object after each `forget`: a choice kept with an older one is out of date."""
    return Generation()
