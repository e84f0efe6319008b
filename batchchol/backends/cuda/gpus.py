"""Which GPUs the calls of a thread use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from batchchol.batches.checks import integer

_NOTHING = nullcontext()


class _Chosen(threading.local):
    """The GPUs of this thread, by their numbers, and the first of them."""

    numbers: tuple[int, ...] = (0,)
    first: int = 0


_chosen = _Chosen()


def first() -> int:
    """The number of the GPU that this thread's calls use; of several the first."""
    return _chosen.first


def chosen() -> tuple[int, ...]:
    """The numbers of all that they use."""
    return _chosen.numbers


@contextmanager
def gpus(*numbers: int) -> Iterator[None]:
    """Have the calls of this thread use these GPUs, in place of the first one (number 0).

    Arrays and batches on a GPU are worked on where they are, whatever is chosen. `get_backend("cuda")` is that of the
    first of these, and arrays of the host are worked on there; `cholesky` and `cholesky_ex` share them out to all.

    Parameters
    ----------
    *numbers : int
        Numbers of GPUs as CUDA counts them, all different.

    Raises
    ------
    TypeError, ValueError
        If there are none, or they are no such numbers. That there is no such GPU is said by what first uses it.
    """
    wanted = tuple(integer("numbers", number) for number in numbers)
    if not wanted or min(wanted) < 0 or len(set(wanted)) < len(wanted):
        raise ValueError(f"numbers: got {wanted}, expected different numbers of GPUs, from 0 on, at least one")
    before = _chosen.numbers
    _choose(wanted)
    try:
        yield
    finally:
        _choose(before)


def on(number: int) -> AbstractContextManager[Any]:
    """`gpus` of one, where it is not the first one chosen already."""
    return _NOTHING if number == _chosen.first else gpus(number)


def _choose(numbers: tuple[int, ...]) -> None:
    _chosen.numbers, _chosen.first = numbers, numbers[0]
