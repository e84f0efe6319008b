"""Lists on the command line: types for argparse, whose messages say what was got and what is expected."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from threading import TIMEOUT_MAX

from batchchol.cuda.toolkit import parse_architecture

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"([1-9]\d*)(KiB|MiB|GiB)?")


def integers(text: str) -> list[int]:
    """The numbers of a list such as ``"8,16-20"``."""
    return [number for part in text.split(",") for number in _range(part.strip())]


def names(allowed: tuple[str, ...]) -> Callable[[str], list[str]]:
    """A type for lists of some of these names, or ``"all"`` of them."""

    def parse(text: str) -> list[str]:
        found = list(allowed) if text == "all" else [part.strip() for part in text.split(",")]
        if unknown := [name for name in found if name not in allowed]:
            raise ArgumentTypeError(f"got {unknown[0]!r}, expected some of {', '.join(allowed)}, or all")
        return list(dict.fromkeys(found))

    return parse


def architecture(text: str) -> str:
    """The name of a GPU architecture, such as ``"sm_90"``."""
    try:
        parse_architecture(text)
    except ValueError:
        raise ArgumentTypeError(f"got {text!r}, expected the name of a GPU architecture, such as sm_90") from None
    return text


def architectures(text: str) -> list[str]:
    """The GPU architectures of a list such as ``"sm_80,sm_90"``."""
    return list(dict.fromkeys(architecture(part.strip()) for part in text.split(",")))


def size(text: str) -> str:
    """A batch: so many matrices, or, such as ``"2GiB"``, as many as so much memory holds."""
    if not _SIZE.fullmatch(text):
        raise ArgumentTypeError(f"got {text!r}, expected matrices or an amount of memory such as 2GiB")
    return text


def sizes(text: str) -> list[str]:
    """The batches of a list such as ``"1024,2GiB"``, each a `size`."""
    return [size(part.strip()) for part in text.split(",")]


def matrices(size: str, n: int, dtype: str) -> int:
    """How many matrices a `size` means: a number, or as many as so much memory holds, in whole 1,024s."""
    number, unit = _SIZE.fullmatch(size).groups()  # type: ignore[union-attr]
    if unit is None:
        return int(number)
    per_matrix = n * n * {"float32": 4, "float64": 8}[dtype]
    return max(1, int(number) * _UNITS[unit] // per_matrix // 1024) * 1024


def positive(text: str) -> int:
    """A count: an integer from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"got {text!r}, expected a positive integer")
    return int(text)


def seconds(text: str) -> float:
    """A time limit: a number of seconds, more than 0."""
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 0 < limit <= TIMEOUT_MAX:
        raise ArgumentTypeError(f"got {text!r}, expected a number of seconds, more than 0")
    return limit


def _range(part: str) -> range:
    first, dash, last = part.partition("-")
    try:
        bounds = int(first), int(last if dash else first)
    except ValueError:
        raise ArgumentTypeError(f"got {part!r}, expected numbers or ranges such as 8,16-20") from None
    if bounds[0] > bounds[1]:
        raise ArgumentTypeError(f"got the empty range {part!r}: put the smaller number first")
    return range(bounds[0], bounds[1] + 1)
