"""Calls on arrays of libraries on a GPU: results are arrays of the same library there, on its current stream.

What needs no more than its arrays and the usual options is done in the library's memory (`foreign_calls`). All else
is done with PyCUDA's arrays on the default stream, with waits between that and the library's; results are views of
those. Arrays that are not C-contiguous are copied.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, wraps
from inspect import signature
from typing import Any, TypeVar, cast

from batchchol.backends.cuda import gpus
from batchchol.backends.cuda.arrays.libraries import Library, library_of
from batchchol.batches.batch import Batch
from batchchol.batches.rectangular import RectangularBatch

_NOTHING = nullcontext()
Call = TypeVar("Call", bound=Callable[..., Any])


def takes_foreign(*returned: type[tuple[Any, ...]]) -> Callable[[Call], Call]:
    """Have a public call take arrays of other libraries, the first one of which says whose its results are.

    It also says on which GPU all is done, and so does a batch.

    `returned` are the named tuples that several results may be returned as.
    """

    def decorated(call: Call) -> Call:
        first = next(iter(signature(call).parameters))

        @wraps(call)
        def called(*given: Any, **named: Any) -> Any:
            a = given[0] if given else named.get(first)
            library = library_of(a)
            if library is None:
                if not isinstance(a, Batch | RectangularBatch) or a.gpu in (None, gpus.first()):
                    return call(*given, **named)
                with gpus.gpus(a.gpu):
                    return call(*given, **named)
            gpu = library.gpu_of(a)
            there = library.there(gpu)
            if there is None and gpu == gpus.first():
                found = _quick(call, returned)(library, *given, **named)
                return _converted(call, library, gpu, given, named) if found is None else found
            with gpus.on(gpu), there or _NOTHING:
                found = _quick(call, returned)(library, *given, **named)
                return _converted(call, library, gpu, given, named) if found is None else found

        return cast(Call, called)

    return decorated


@cache
def _quick(call: Callable[..., Any], returned: tuple[type, ...]) -> Callable[..., Any]:
    """What does a call in the library's own memory, or returns None where it is not for that: imported late."""
    from batchchol.api.arrays import foreign_calls

    return foreign_calls.quick(call, returned)


# Taking a call's parameters apart takes longer than launching its kernel.
_signature = cache(signature)


def _converted(
    call: Callable[..., Any], library: Library, gpu: int, given: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """A call with PyCUDA's arrays in place of the library's, and its results as the library's."""
    from batchchol.backends.cuda import memory

    out, stream = named.get("out"), library.stream(gpu)
    bound = _signature(call).bind(*given, **named)
    for place, (name, each) in enumerate(bound.arguments.items()):
        if each is not out and memory.is_device_array(each):
            array = memory.contiguous(each, name)
            bound.arguments[name] = array if place else memory.as_gpuarray(array, name)
    results = call(*bound.args, **bound.kwargs)

    def turned(result: Any) -> Any:
        if result is out or not memory.is_device_array(result):
            return result
        if stream and bound.arguments.get("stream") is None:
            memory.share(stream, result)
        return library.over(result, gpu)

    if not isinstance(results, tuple):
        return turned(results)
    return type(results)(*map(turned, results))
