"""The calls that are made most, on arrays of other libraries on a GPU, in the memory and on the stream of these.

Each has the name and the arguments of the public call, behind a library, and returns None where it is not for them:
the public call then does it, or says what is wrong. All that follows from shapes is kept for the next call.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from batchchol.api import device_addresses as at
from batchchol.api.columns import fit
from batchchol.api.device_addresses import Case, Place
from batchchol.backends.cuda.libraries import Library, Make
from batchchol.batches.checks import check_math
from kernelgen import MAX_N
from kernelgen.problem import MATHS

# The results of a call, or None.
Found = tuple[Any, ...] | None
_BYTE, _INFO = np.dtype(np.uint8), np.dtype(np.int32)
_DTYPES = {name: np.dtype(name) for name in ("float32", "float64")}
# The options that change nothing when they have these values.
_PLAIN: dict[str, Any] = {
    "assume_a": "pos",
    "spec": None,
    "out": None,
    "jitter": None,
    "threads": None,
    "stream": None,
    "logdet": False,
    "overwrite_a": False,
    "overwrite_b": False,
}


class _Known(NamedTuple):
    """What is known of matrices of a shape: their case, and what makes arrays for a call's results."""

    case: Case
    room: at.Room
    matrices: Make
    info: Make
    numbers: Make


class _Sides(NamedTuple):
    """What is known of right-hand sides beside matrices: how many, and what makes the solutions."""

    nrhs: int
    solutions: Make


class _Call(NamedTuple):
    """The matrices of a call: where they are, what is known of them, and where the call's work is queued."""

    address: int
    known: _Known
    place: Place


def cholesky_ex(
    library: Library, a: Any, *, upper: Any = False, math: Any = None, backend: Any = None, **other: Any
) -> Found:
    """Factors and info."""
    if (call := _call(library, a, upper, math, backend, other)) is None:
        return None
    l, info = call.known.matrices(), call.known.info()
    at.factor(call.known.case, call.place, call.address, library.address(l), library.address(info))
    return l, info


def solve_ex(
    library: Library, a: Any, b: Any, *, upper: Any = False, math: Any = None, backend: Any = None, **other: Any
) -> Found:
    """Solutions and info."""
    if (call := _call(library, a, upper, math, backend, other)) is None or (sides := _sides(library, a, b)) is None:
        return None
    x, info = sides.solutions(), call.known.info()
    addresses = library.address(b), library.address(x), library.address(info)
    at.solve(call.known.case, sides.nrhs, call.place, call.address, *addresses)
    return x, info


def cho_solve(
    library: Library, L: Any, b: Any, *, upper: Any = False, math: Any = None, backend: Any = None, **other: Any
) -> Found:
    """Solutions by factors."""
    if (call := _call(library, L, upper, math, backend, other)) is None or (sides := _sides(library, L, b)) is None:
        return None
    x = sides.solutions()
    addresses = library.address(b), library.address(x)
    at.solve_by_factors(call.known.case, sides.nrhs, call.place, call.address, *addresses)
    return (x,)


def inv_ex(
    library: Library, a: Any, *, upper: Any = False, math: Any = None, backend: Any = None, **other: Any
) -> Found:
    """Inverses and info."""
    if (call := _call(library, a, upper, math, backend, other)) is None:
        return None
    inverse, info = call.known.matrices(), call.known.info()
    at.invert(call.known.case, call.place, call.address, library.address(inverse), library.address(info))
    return inverse, info


def cho_inverse(
    library: Library, L: Any, *, upper: Any = False, math: Any = None, backend: Any = None, **other: Any
) -> Found:
    """Inverses by factors."""
    if (call := _call(library, L, upper, math, backend, other)) is None:
        return None
    inverse, nothing = call.known.matrices(), call.known.info()
    addresses = library.address(inverse), library.address(nothing)
    at.invert_by_factors(call.known.case, call.place, call.address, *addresses)
    return (inverse,)


def slogdet_ex(
    library: Library, a: Any, *, upper: Any = False, math: Any = None, backend: Any = None, **other: Any
) -> Found:
    """Signs, logarithms and info."""
    if (call := _call(library, a, upper, math, backend, other)) is None:
        return None
    sign, logabsdet, info = call.known.numbers(), call.known.numbers(), call.known.info()
    addresses = library.address(sign), library.address(logabsdet), library.address(info)
    at.log_determinants(call.known.case, call.place, call.address, *addresses)
    return sign, logabsdet, info


def _call(library: Library, a: Any, upper: Any, math: Any, backend: Any, other: dict[str, Any]) -> _Call | None:
    """What a call is about; None if it asks for more than is done here."""
    plain = type(upper) is bool and (math is None or type(math) is str) and backend in (None, "cuda")
    if not plain or any(name not in _PLAIN or _PLAIN[name] is not given for name, given in other.items()):
        return None
    if (seen := library.seen(a)) is None:
        return None
    known = _known(library, seen.shape, seen.dtype, upper, math or MATHS[0])
    return None if known is None else _Call(seen.address, known, Place(library.stream(), known.room))


def _sides(library: Library, a: Any, b: Any) -> _Sides | None:
    """What the right-hand sides of a call are; None if they are not in a kernel's order as they lie."""
    seen = library.seen(b) if type(b) is type(a) else None
    if seen is None or seen.dtype != a.dtype:
        return None
    return _known_sides(library, a.shape, seen.shape, seen.dtype)


@lru_cache(maxsize=1024)
def _known(library: Library, shape: Any, dtype: Any, upper: bool, math: str) -> _Known | None:
    found = _DTYPES.get(_name(dtype))
    if found is None or len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] > MAX_N or not prod(shape):
        return None
    check_math(math)
    outer = tuple(shape[:-2])
    made = (library.maker(tuple(shape), found), library.maker(outer, _INFO), library.maker(outer, found))
    return _Known(Case(shape[-1], prod(outer), found.name, upper, math), _room_of(library), *made)


@lru_cache(maxsize=1024)
def _known_sides(library: Library, a: Any, b: Any, dtype: Any) -> _Sides | None:
    how = fit(tuple(a[:-2]), a[-1], tuple(b), "matrices")
    if not how.plain or not how.nrhs:
        return None
    return _Sides(how.nrhs, library.maker(how.x, _DTYPES[_name(dtype)]))


def _name(dtype: Any) -> str:
    """A dtype's name, of NumPy's or torch's."""
    return str(dtype).rpartition(".")[2]


class _Kept(int):
    """The address of a library's array, which it keeps."""

    array: Any


def _room_of(library: Library) -> at.Room:
    """Makes room in the library's memory."""

    def room(nbytes: int, purpose: str) -> _Kept:
        array = library.maker((nbytes,), _BYTE)()
        kept = _Kept(library.address(array))
        kept.array = array
        return kept

    return room
