"""How a description refuses what cannot be built: the message names the field, the value and what works."""

from __future__ import annotations


class SpecError(ValueError):
    """A spec that cannot be built; the message names the field, the value and what works."""


def require(ok: bool, field: str, got: object, works: str) -> None:
    """Refuse a value unless it is all right."""
    if not ok:
        raise SpecError(f"{field}={got!r} cannot be built: {works}")


def one_of(field: str, got: object, allowed: tuple[str, ...]) -> None:
    """Refuse what is not one of these words."""
    require(got in allowed, field, got, f"use one of {', '.join(map(repr, allowed))}")


def integer(field: str, got: object, low: int, high: int) -> None:
    """Refuse what is not an integer in this range, bounds included."""
    plain = isinstance(got, int) and not isinstance(got, bool)
    require(plain and low <= got <= high, field, got, f"use an integer from {low} to {high}")  # type: ignore[operator]
