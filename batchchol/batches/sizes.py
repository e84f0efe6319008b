"""Numbers and lists on the command line: types for argparse, whose messages say what was got and what is expected.

A number is written in the digits 0 to 9. `int` and `float` also take those of other scripts, and underscores.
"""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from threading import TIMEOUT_MAX

from batchchol.artifacts.nvcc import parse_architecture
from kernelgen import MAX_N

LARGEST = 2**63 - 1
"""The largest number that sizes and offsets can hold."""

LONGEST_LIST = 10_000
"""Numbers that a list may have: each is worked on by itself."""

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"([1-9][0-9]*)(KiB|MiB|GiB)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
# The number of digits that Python converts at least, whatever its settings are (sys.set_int_max_str_digits).
_MOST_DIGITS = 640
# Of an argument, what a message repeats.
_SHOWN = 60


def integer(text: str) -> int:
    """An integer."""
    if not _INTEGER.fullmatch(text) or len(text) > _MOST_DIGITS:
        raise ArgumentTypeError(f"got {shown(text)}, expected an integer")
    return int(text)


def number(text: str) -> float:
    """A finite number."""
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise ArgumentTypeError(f"got {shown(text)}, expected a number")
    return float(text)


def positive(text: str) -> int:
    """A count: an integer from 1 on."""
    try:
        count = integer(text)
    except ArgumentTypeError:
        count = 0
    if not 1 <= count <= LARGEST:
        raise ArgumentTypeError(f"got {shown(text)}, expected a positive integer")
    return count


def integers(text: str) -> list[int]:
    """The numbers of a list such as ``"8,16-20"``."""
    ranges = [_range(part.strip()) for part in text.split(",")]
    if (count := sum(map(_length, ranges))) > LONGEST_LIST:
        raise ArgumentTypeError(f"got {shown(text)}, {count:,} numbers, expected at most {LONGEST_LIST:,}")
    return [each for part in ranges for each in part]


def counts(text: str) -> list[int]:
    """The numbers of a list of `integers`, each of them a count."""
    found = integers(text)
    if not all(found):
        raise ArgumentTypeError(f"got {shown(text)}, expected positive integers")
    return found


def orders(text: str) -> list[int]:
    """The orders of a list of `integers`, none of which is too large for a kernel."""
    found = integers(text)
    if wrong := [n for n in found if not 1 <= n <= MAX_N]:
        raise ArgumentTypeError(f"got {wrong[0]}, expected orders from 1 to {MAX_N}")
    return found


def name(text: str) -> str:
    """A name, such as a file's: not empty."""
    if not text:
        raise ArgumentTypeError("got nothing, expected a name")
    return text


def names(allowed: tuple[str, ...]) -> Callable[[str], list[str]]:
    """A type for lists of some of these names, or ``"all"`` of them."""

    def parse(text: str) -> list[str]:
        found = list(allowed) if text == "all" else [part.strip() for part in text.split(",")]
        if unknown := [name for name in found if name not in allowed]:
            raise ArgumentTypeError(f"got {shown(unknown[0])}, expected some of {', '.join(allowed)}, or all")
        return list(dict.fromkeys(found))

    return parse


def architecture(text: str) -> str:
    """The name of a GPU architecture, such as ``"sm_90"``."""
    try:
        parse_architecture(text)
    except ValueError:
        raise ArgumentTypeError(
            f"got {shown(text)}, expected the name of a GPU architecture, such as sm_90"
        ) from None
    return text


def architectures(text: str) -> list[str]:
    """The GPU architectures of a list such as ``"sm_80,sm_90"``."""
    return list(dict.fromkeys(architecture(part.strip()) for part in text.split(",")))


def size(text: str) -> str:
    """A batch: its matrices, or, such as ``"2GiB"``, as many as that much memory holds."""
    found = _SIZE.fullmatch(text)
    if not found:
        raise ArgumentTypeError(f"got {shown(text)}, expected matrices or an amount of memory such as 2GiB")
    if len(found[1]) > len(str(LARGEST)) or int(found[1]) * _UNITS.get(found[2], 1) > LARGEST:
        raise ArgumentTypeError(f"got {shown(text)}, expected at most {LARGEST} matrices or bytes")
    return text


def memory(text: str) -> int:
    """An amount of memory, such as ``"2GiB"``, in bytes."""
    number, unit = _SIZE.fullmatch(size(text)).groups()  # type: ignore[union-attr]
    if unit is None:
        raise ArgumentTypeError(f"got {shown(text)}, expected an amount of memory such as 2GiB")
    return int(number) * _UNITS[unit]


def sizes(text: str) -> list[str]:
    """The batches of a list such as ``"1024,2GiB"``, each a `size`."""
    return [size(part.strip()) for part in text.split(",")]


def matrices(size: str, n: int, dtype: str) -> int:
    """How many matrices a `size` means: a number, or as many as that much memory holds, in whole 1,024s."""
    number, unit = _SIZE.fullmatch(size).groups()  # type: ignore[union-attr]
    if unit is None:
        return int(number)
    per_matrix = n * n * {"float32": 4, "float64": 8}[dtype]
    return max(1, int(number) * _UNITS[unit] // per_matrix // 1024) * 1024


def seconds(text: str) -> float:
    """A time limit: a number of seconds, more than 0."""
    try:
        limit = number(text)
    except ArgumentTypeError:
        limit = 0.0
    if not 0 < limit <= TIMEOUT_MAX:
        raise ArgumentTypeError(f"got {shown(text)}, expected a number of seconds, more than 0")
    return limit


def duration(text: str) -> float:
    """A time in seconds: a number of them, or of minutes or hours as in 10m and 2h."""
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    try:
        return unit * seconds(text[:-1]) if unit else seconds(text)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"got {shown(text)}, expected a time such as 90, 10m or 2h") from error


def shown(text: str) -> str:
    """An argument as a message repeats it: quoted, and not longer than a line."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _range(part: str) -> range:
    first, dash, last = part.partition("-")
    try:
        bounds = integer(first.strip()), integer((last if dash else first).strip())
    except ArgumentTypeError:
        raise ArgumentTypeError(f"got {shown(part)}, expected numbers or ranges such as 8,16-20") from None
    if bounds[0] > bounds[1]:
        raise ArgumentTypeError(f"got the empty range {shown(part)}: put the smaller number first")
    if bounds[1] > LARGEST:
        raise ArgumentTypeError(f"got {shown(part)}, expected numbers up to {LARGEST}")
    return range(bounds[0], bounds[1] + 1)


def _length(numbers: range) -> int:
    # len() holds no more than sys.maxsize.
    return numbers.stop - numbers.start
