"""The public calls on arrays of other libraries on a GPU, in the memory and on the stream of these.

What a call does is laid out once for its arrays' shapes, dtypes and GPU, its options and the library, by
`foreign_plans`: then it makes its results and launches its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from inspect import Parameter, signature
from operator import itemgetter
from typing import Any

import numpy as np

from batchchol.api.arrays import device_addresses as at
from batchchol.api.arrays.foreign_plans import PLANS, Array, Plan
from batchchol.backends.cuda.arrays.libraries import Library
from batchchol.defaults.generation import generation

# Does a call, behind a library; None where it is not for here: the public call then does it, or says what is wrong.
Quick = Callable[..., Any]
# Does it for the addresses of its arrays.
Run = Callable[..., Any]
_BYTE = np.dtype(np.uint8)


@dataclass(frozen=True, eq=False)
class _Public:
    """A public call: what plans it, the types that it may return, its parameters and their defaults.

    The first `count` parameters are arrays. `deciding` are the options that its plan takes.
    """

    plan: Callable[..., Plan | None]
    returned: Mapping[str, type]
    parameters: tuple[str, ...]
    positional: int
    count: int
    deciding: tuple[str, ...]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, call: Callable[..., Any], returned: Sequence[type]) -> _Public | None:
        plan = PLANS.get(call.__name__)
        if plan is None:
            return None
        given, planned = signature(call).parameters, signature(plan).parameters
        positional = [each for each in given.values() if each.kind is not Parameter.KEYWORD_ONLY]
        deciding = [name for name, each in planned.items() if each.kind is Parameter.KEYWORD_ONLY]
        return cls(
            plan,
            {each.__name__: each for each in returned},
            tuple(given),
            len(positional),
            len(planned) - len(deciding),
            tuple(deciding),
            {name: each.default for name, each in given.items()},
        )

    def arranged(self, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
        """The arrays and the options of a call that does not have just its arrays by position."""
        if len(given) > self.positional:
            return None
        placed = dict(zip(self.parameters, given, strict=False))
        if placed.keys() & named.keys():
            return None
        options = placed | named
        try:
            return [options.pop(name) for name in self.parameters[: self.count]], options
        except KeyError:
            return None

    def decided(self, named: dict[str, Any]) -> tuple[Any, ...] | None:
        """The options that decide; None if one of these is of another type than it should be, or others are set.

        Nothing else is kept: an array that a call writes to would be.
        """
        defaults, deciding = self.defaults, self.deciding
        for name, got in named.items():
            default = defaults.get(name, defaults)
            if got is default:
                continue
            if name in deciding:
                if type(got) is not (bool if type(default) is bool else str):
                    return None
            elif name != "backend" or type(got) is not str or got != "cuda":
                return None
        return tuple([named.get(name, defaults[name]) for name in deciding])


def quick(call: Callable[..., Any], returned: Sequence[type]) -> Quick:
    """What does a public call, which returns a tuple of one of these types, or an array alone."""
    public = _Public.of(call, returned)
    if public is None:
        return lambda *_, **__: None
    count = public.count
    usual = public.decided({})

    def called(library: Library, *given: Any, **named: Any) -> Any:
        arrays: Sequence[Any] = given
        if len(given) != count:
            arranged = public.arranged(given, named)
            if arranged is None:
                return None
            arrays, named = arranged
        options = public.decided(named) if named else usual
        if options is None or (count > 1 and len({*map(type, arrays)}) > 1):
            return None
        seen: list[Any] = [*map(library.seen, arrays)]
        if None in seen:
            return None
        run = _prepared(public, library, options, tuple([each[1:] for each in seen]), generation())
        return run(*[each[0] for each in seen])

    return called


def forget() -> None:
    """Choose anew at the next calls."""
    _prepared.cache_clear()


def _nothing(*_: int) -> None:
    """What is done of calls that are not for here."""


@lru_cache(maxsize=4096)
def _prepared(
    public: _Public, library: Library, options: tuple[Any, ...], described: tuple[Any, ...], _: object
) -> Run:
    """How a call is done for arrays of these shapes, dtypes and GPUs."""
    gpu = described[0][2]
    if any(each[2] != gpu for each in described):
        return _nothing
    arrays = [Array(tuple(shape), str(dtype).rpartition(".")[2]) for shape, dtype, _ in described]
    plan = public.plan(*arrays, **dict(zip(public.deciding, options, strict=True)))
    if plan is None:
        return _nothing
    makers = [library.maker(each.shape, np.dtype(each.dtype), gpu) for each in plan.results]
    queue, stream, address = plan.operation(_room_of(library, gpu)), library.stream, library.address
    # A named tuple's own constructor is a function of Python.
    kind = public.returned.get(plan.returned)
    returned: Callable[[Any], Any] = itemgetter(0) if kind is None else partial(tuple.__new__, kind)

    def run(*addresses: int) -> Any:
        results = [make() for make in makers]
        queue(stream(gpu), *addresses, *map(address, results))
        return returned(results)

    return run


class _Kept(int):
    """The address of a library's array, which it keeps."""

    array: Any


def _room_of(library: Library, gpu: int) -> at.Room:
    """Makes room in the library's memory."""
    maker = cache(lambda nbytes: library.maker((nbytes,), _BYTE, gpu))

    def room(nbytes: int, purpose: str) -> _Kept:
        array = maker(nbytes)()
        kept = _Kept(library.address(array))
        kept.array = array
        return kept

    return room
