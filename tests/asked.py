"""Requests to the tables of defaults, by the names of their fields, wherever they belong."""

from __future__ import annotations

from typing import Any

from batchchol.defaults.lookup import Choice, choices, default_choice
from batchchol.defaults.request import Request
from kernelgen import Problem


def request_of(n: int, **asked: Any) -> Request:
    """The request for matrices of order `n`."""
    problem = Problem(n, **{name: asked.pop(name) for name in ("dtype", "uplo", "math") if name in asked})
    return Request(problem, **asked)


def choice_of(n: int, **asked: Any) -> Choice:
    """What is used."""
    return default_choice(request_of(n, **asked))


def choices_of(n: int, **asked: Any) -> tuple[Choice, ...]:
    """What there is for each size of batch."""
    return choices(request_of(n, **asked))
