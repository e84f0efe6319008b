"""The public calls on arrays of other libraries on a GPU, in the memory and on the stream of these.

What a call does is laid out once for its arrays' shapes, dtypes and GPU, its options and the library, by
`foreign_plans`: then it makes its results and launches its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from inspect import Parameter, signature
from itertools import chain
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np

from batchchol.api.arrays import device_addresses as at
from batchchol.api.arrays.foreign_plans import PLANS, Array, Plan
from batchchol.api.arrays.general_addresses import of_copy
from batchchol.backends.cuda.arrays.libraries import Apart, Library
from batchchol.defaults.generation import generation
from kernelgen.targets import ELEMENT_BYTES

# Does a call, behind a library; None where it is not for here: the public call then does it, or says what is wrong.
Quick = Callable[..., Any]
# Does it for the addresses of its arrays.
Run = Callable[..., Any]
# What the results are returned as.
Returned = Callable[[Any], Any]
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
    """The quick form of a public call that returns a tuple of one of these types, or an array alone."""
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
        if named and named.get("out") is not None:
            return _into(public, library, arrays, named)
        options = public.decided(named) if named else usual
        if options is None:
            return None
        # A list for each call costs as much as all the rest, so one and two arrays do without it.
        if count == 1:
            seen = library.seen(arrays[0]) or library.apart(arrays[0])
            if seen is None:
                return None
            return _prepared(public, library, options, seen[1:], generation())(seen[0])
        try:
            several: list[Any] = [library.seen(each) or library.apart(each) for each in arrays]
        except AttributeError:
            # Not all are of this library.
            return None
        if None in several:
            return None
        if count == 2:
            one, two = several
            return _prepared(public, library, options, one[1:] + two[1:], generation())(one[0], two[0])
        described = tuple(chain.from_iterable([each[1:] for each in several]))
        return _prepared(public, library, options, described, generation())(*[each[0] for each in several])

    return called


def _into(public: _Public, library: Library, arrays: Sequence[Any], named: dict[str, Any]) -> Any:
    """A call whose first result goes to the caller's array."""
    out = named["out"]
    options = public.decided({**named, "out": None})
    try:
        several: list[Any] = [library.seen(each) for each in (*arrays, out)]
    except AttributeError:
        return None
    if options is None or None in several:
        return None
    described = tuple(chain.from_iterable([each[1:] for each in several]))
    return _prepared(public, library, options, described, generation())(*[each[0] for each in several], out=out)


def forget() -> None:
    """Choose anew at the next calls."""
    _prepared.cache_clear()


def _nothing(*_: int, out: Any = None) -> None:
    """Do nothing: the call is left to the public function."""


@lru_cache(maxsize=1024)
def _prepared(
    public: _Public, library: Library, options: tuple[Any, ...], described: tuple[Any, ...], _: object
) -> Run:
    """How a call is done for arrays of these shapes, dtypes and GPUs, the last one that of a result if it is more."""
    gpu, shapes = described[2], described[::3]
    if any(other != gpu for other in described[2::3]):
        return _nothing
    wholes = [tuple(each.shape if isinstance(each, Apart) else each) for each in shapes]
    dtypes = [str(each).rpartition(".")[2] for each in described[1::3]]
    arrays = [*map(Array, wholes, dtypes)]
    given, into = arrays[: public.count], arrays[public.count :]
    plan = public.plan(*given, **dict(zip(public.deciding, options, strict=True)))
    if plan is None or into not in ([], [plan.results[0]]):
        return _nothing
    apart = {place: each.steps for place, each in enumerate(shapes) if isinstance(each, Apart)}
    if any(dtypes[place] not in ELEMENT_BYTES for place in apart):
        return _nothing
    for place, steps in apart.items():
        plan = plan._replace(operation=of_copy(plan.operation, place, *arrays[place], steps))
    # A named tuple's own constructor is a function of Python.
    kind = public.returned.get(plan.returned)
    returned: Returned = itemgetter(0) if kind is None else partial(tuple.__new__, kind)
    return _run_into(arrays, plan, library, gpu, returned) if into else _run(plan, library, gpu, returned)


def _run(plan: Plan, library: Library, gpu: int, returned: Returned) -> Run:
    """What makes the results of a plan and queues it.

    Where the library lacks memory it is not for here: what this one has left, or says of that, is the caller's.
    """
    makers = [library.maker(each.shape, np.dtype(each.dtype), gpu) for each in plan.results]
    queue, stream, address = plan.operation(_room_of(library, gpu)), library.stream, library.address
    lack = library.lack_of_memory

    def run(*addresses: int) -> Any:
        try:
            results = [make() for make in makers]
            queue(stream(gpu), *addresses, *map(address, results))
        except lack:
            return None
        return returned(results)

    def run_for_two(*addresses: int) -> Any:
        try:
            results = first, second = make_first(), make_second()
            queue(stream(gpu), *addresses, address(first), address(second))
        except lack:
            return None
        return returned(results)

    if len(makers) != 2:
        return run
    # What most calls return, for less.
    make_first, make_second = makers
    return run_for_two


def _run_into(arrays: list[Array], plan: Plan, library: Library, gpu: int, returned: Returned) -> Run:
    """The same for the first of the results where the last of the arrays is, if no other lies there too."""
    makers = [library.maker(each.shape, np.dtype(each.dtype), gpu) for each in plan.results[1:]]
    queue, stream, address = plan.operation(_room_of(library, gpu)), library.stream, library.address
    *sizes, size = (prod(each.shape) * np.dtype(each.dtype).itemsize for each in arrays)
    lack = library.lack_of_memory

    def run(*addresses: int, out: Any) -> Any:
        *given, place = addresses
        if any(place < other + its and other < place + size for other, its in zip(given, sizes, strict=True)):
            return None
        try:
            results = [make() for make in makers]
            queue(stream(gpu), *addresses, *map(address, results))
        except lack:
            return None
        return returned([out, *results])

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
