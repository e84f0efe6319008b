"""The backends, and which one is used."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

from batchchol.backends import cpu
from batchchol.backends.base import Availability, Backend, Kernel
from batchchol.errors import BackendUnavailable

__all__ = ["Availability", "Backend", "Kernel", "get_backend", "survey"]

# In the order of preference.
_BACKENDS: dict[str, Callable[[], Backend]] = {"cpu": cpu.CpuBackend}


def get_backend(name: str | None = None) -> Backend:
    """The backend of that name, else the one that BATCHCHOL_BACKEND names, else the first that works.

    Raises
    ------
    BackendUnavailable
        If the name is unknown or the backend cannot be used here; says what is missing and how to get it.
    """
    for origin, chosen in (("backend", name), ("BATCHCHOL_BACKEND", os.environ.get("BATCHCHOL_BACKEND"))):
        if chosen and chosen not in _BACKENDS:
            raise BackendUnavailable(f"{origin}={chosen!r} is unknown: use one of {', '.join(map(repr, _BACKENDS))}")
        if chosen:
            return _make(chosen)
    for candidate in _BACKENDS:
        try:
            return _make(candidate)
        except BackendUnavailable:
            continue
    hints = "; ".join(found.hint for found in survey())
    raise BackendUnavailable(f"no backend can be used here: {hints}")


def survey() -> list[Availability]:
    """What was found of every backend."""
    return [cpu.survey()]


@cache
def _make(name: str) -> Backend:
    return _BACKENDS[name]()
