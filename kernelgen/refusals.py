"""How a description refuses what cannot be built: the message names the field, the value and what works."""

from __future__ import annotations

from operator import index
from typing import Any


class SpecError(ValueError):
    """A spec that cannot be built; the message names the field, the value and what works."""


def require(ok: bool, field: str, got: object, works: str) -> None:
    """Refuse a value unless it is all right."""
    if not ok:
        raise SpecError(f"{field}={got!r} cannot be built: {works}")


def one_of(field: str, got: object, allowed: tuple[str, ...]) -> None:
    """Refuse what is not one of these words."""
    require(got in allowed, field, got, f"use one of {', '.join(map(repr, allowed))}")


def whole(got: Any) -> int | None:
    """The plain int of an integer, NumPy's too; None of everything else, True and False included."""
    if isinstance(got, bool):
        return None
    try:
        return index(got)
    except TypeError:
        return None


def integer(field: str, got: object, low: int, high: int) -> int:
    """The plain int of an integer in this range, bounds included; refuse everything else."""
    number = whole(got)
    if number is None or not low <= number <= high:
        raise SpecError(f"{field}={got!r} cannot be built: use an integer from {low} to {high}")
    return number


def keep_integer(description: object, field: str, low: int, high: int) -> None:
    """Make a field of a frozen description the plain int of an integer in this range; refuse everything else."""
    object.__setattr__(description, field, integer(field, getattr(description, field), low, high))
