"""The calls that are made most, on arrays of other libraries on a GPU, in the memory and on the stream of these.

Each has the name and the arguments of the public call, behind a library, and returns None where it is not for them:
the public call then does it, or says what is wrong. All that follows from shapes is kept for the next call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from batchchol.api.arrays import device_addresses as at
from batchchol.api.arrays.device_addresses import Case
from batchchol.api.columns import fit
from batchchol.backends.cuda.arrays.libraries import Library, Make
from batchchol.batches.checks import check_math
from batchchol.defaults.generation import generation
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


# What a call does with the address of its matrices, and those of its right-hand sides: the results.
Run = Callable[..., Found]
# What decides how that is done: the library, the matrices' shape, dtype and GPU, their triangle and the math.
_Key = tuple[Library, Any, Any, int, bool, str]


class _Known(NamedTuple):
    """What is known of matrices of a shape: their case, and what makes arrays for a call's results."""

    case: Case
    room: at.Room
    matrices: Make
    info: Make
    numbers: Make


def cholesky_ex(library: Library, a: Any, **how: Any) -> Found:
    """Factors and info."""
    asked = _asked(library, a, **how)
    return None if asked is None else _factoring(asked[1], generation())(asked[0])


def solve_ex(library: Library, a: Any, b: Any, **how: Any) -> Found:
    """Solutions and info."""
    return _by_sides(_solving, library, a, b, how)


def cho_solve(library: Library, L: Any, b: Any, **how: Any) -> Found:
    """Solutions by factors."""
    return _by_sides(_substituting, library, L, b, how)


def inv_ex(library: Library, a: Any, **how: Any) -> Found:
    """Inverses and info."""
    asked = _asked(library, a, **how)
    return None if asked is None else _inverting(asked[1], generation())(asked[0])


def cho_inverse(library: Library, L: Any, **how: Any) -> Found:
    """Inverses by factors."""
    asked = _asked(library, L, **how)
    return None if asked is None else _inverting_by_factors(asked[1], generation())(asked[0])


def slogdet_ex(library: Library, a: Any, **how: Any) -> Found:
    """Signs, logarithms and info."""
    asked = _asked(library, a, **how)
    return None if asked is None else _taking_logarithms(asked[1], generation())(asked[0])


def forget() -> None:
    """Choose anew at the next calls."""
    for kept in (_known, _factoring, _inverting, _inverting_by_factors, _solving, _substituting, _taking_logarithms):
        kept.cache_clear()


def _asked(
    library: Library, a: Any, *, upper: Any = False, math: Any = None, backend: Any = None, **other: Any
) -> tuple[int, _Key] | None:
    """The address of a call's matrices, and what decides how it is done; None if it asks for more than is here."""
    plain = type(upper) is bool and (math is None or type(math) is str) and backend in (None, "cuda")
    if not plain or (other and any(name not in _PLAIN or _PLAIN[name] is not got for name, got in other.items())):
        return None
    if (seen := library.seen(a)) is None:
        return None
    address, shape, dtype, gpu = seen
    return address, (library, shape, dtype, gpu, upper, math or MATHS[0])


def _by_sides(runs: Callable[..., Run], library: Library, a: Any, b: Any, how: dict[str, Any]) -> Found:
    """What a call with right-hand sides does, if those are in a kernel's order as they lie."""
    asked = _asked(library, a, **how)
    seen = library.seen(b) if type(b) is type(a) else None
    if asked is None or seen is None:
        return None
    address, shape, *same = seen
    return runs(asked[1], shape, *same, generation())(asked[0], address)


def _nothing(*_: int) -> None:
    """What is done of calls that are not for here."""


@lru_cache(maxsize=1024)
def _factoring(key: _Key, _: object) -> Run:
    if (known := _known(*key)) is None:
        return _nothing
    return _matrices_and_info(key, known, at.factoring(known.case))


@lru_cache(maxsize=1024)
def _inverting(key: _Key, _: object) -> Run:
    if (known := _known(*key)) is None:
        return _nothing
    return _matrices_and_info(key, known, at.inverting(known.case))


@lru_cache(maxsize=1024)
def _inverting_by_factors(key: _Key, _: object) -> Run:
    if (known := _known(*key)) is None:
        return _nothing
    invert = _matrices_and_info(key, known, at.inverting_by_factors(known.case))
    return lambda l: (invert(l) or ())[:1]


def _matrices_and_info(key: _Key, known: _Known, operation: at.Operation) -> Run:
    """Results of which the first ones are of the shape of the matrices."""
    library, gpu, queue = key[0], key[3], operation(known.room)
    stream, address, matrices, info = library.stream, library.address, known.matrices, known.info

    def run(a: int) -> Found:
        results, status = matrices(), info()
        queue(stream(gpu), a, address(results), address(status))
        return results, status

    return run


@lru_cache(maxsize=1024)
def _solving(key: _Key, sides: Any, dtype: Any, gpu: int, _: object) -> Run:
    if (known := _known(*key)) is None or (made := _solutions(key, sides, dtype, gpu)) is None:
        return _nothing
    nrhs, solutions = made
    queue = at.solving(known.case, nrhs)(known.room)
    library, info = key[0], known.info
    stream, address = library.stream, library.address

    def run(a: int, b: int) -> Found:
        x, status = solutions(), info()
        queue(stream(gpu), a, b, address(x), address(status))
        return x, status

    return run


@lru_cache(maxsize=1024)
def _substituting(key: _Key, sides: Any, dtype: Any, gpu: int, _: object) -> Run:
    if (known := _known(*key)) is None or (made := _solutions(key, sides, dtype, gpu)) is None:
        return _nothing
    nrhs, solutions = made
    queue = at.substituting(known.case, nrhs)(known.room)
    stream, address = key[0].stream, key[0].address

    def run(l: int, b: int) -> Found:
        x = solutions()
        queue(stream(gpu), l, b, address(x))
        return (x,)

    return run


@lru_cache(maxsize=1024)
def _taking_logarithms(key: _Key, _: object) -> Run:
    if (known := _known(*key)) is None:
        return _nothing
    queue, library, gpu = at.taking_logarithms(known.case)(known.room), key[0], key[3]

    def run(a: int) -> Found:
        sign, logabsdet, info = known.numbers(), known.numbers(), known.info()
        queue(library.stream(gpu), a, *map(library.address, (sign, logabsdet, info)))
        return sign, logabsdet, info

    return run


@lru_cache(maxsize=1024)
def _known(library: Library, shape: Any, dtype: Any, gpu: int, upper: bool, math: str) -> _Known | None:
    """What is known of matrices, if there are kernels for such."""
    found = _DTYPES.get(_name(dtype))
    if found is None or len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] > MAX_N or not prod(shape):
        return None
    check_math(math)
    outer = tuple(shape[:-2])
    whole = tuple(shape)
    made = [library.maker(s, d, gpu) for s, d in ((whole, found), (outer, _INFO), (outer, found))]
    return _Known(Case(shape[-1], prod(outer), found.name, upper, math), _room_of(library, gpu), *made)


def _solutions(key: _Key, sides: Any, dtype: Any, gpu: int) -> tuple[int, Make] | None:
    """How many right-hand sides there are, and what makes solutions; None if they do not lie as a kernel's."""
    library, shape, *_ = key
    if (dtype, gpu) != key[2:4]:
        return None
    how = fit(tuple(shape[:-2]), shape[-1], tuple(sides), "matrices")
    if not how.plain or not how.nrhs:
        return None
    return how.nrhs, library.maker(how.x, _DTYPES[_name(dtype)], gpu)


def _name(dtype: Any) -> str:
    """A dtype's name, of NumPy's or torch's."""
    return str(dtype).rpartition(".")[2]


class _Kept(int):
    """The address of a library's array, which it keeps."""

    array: Any


def _room_of(library: Library, gpu: int) -> at.Room:
    """Makes room in the library's memory."""

    def room(nbytes: int, purpose: str) -> _Kept:
        array = library.maker((nbytes,), _BYTE, gpu)()
        kept = _Kept(library.address(array))
        kept.array = array
        return kept

    return room
