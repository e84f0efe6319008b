"""The energy of a contender's calls, without what makes their inputs again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from batchchol.backends import Backend
from batchchol.compare.contenders import Contender
from batchchol.measure.energy import Energy, device_energy


def repeated(contender: Contender, backend: Backend, seconds: float) -> Energy:
    """What a call uses, all of the device, repeated for at least `seconds`.

    Calls that overwrite their input are repeated with the copies that restore it, whose energy, measured alone, is
    subtracted.
    """
    if contender.restore is None:
        forget = contender.forget
        calls = contender.calls if forget is None else [partial(_both, call, forget) for call in contender.calls]
        return device_energy(backend, calls, seconds)
    spent = device_energy(backend, [partial(_round, contender.restore, contender.calls)], seconds)
    restored = device_energy(backend, [contender.restore], seconds)
    return spent.without(restored).of(len(contender.calls))


def _both(call: Callable[[], None], forget: Callable[[], None]) -> None:
    call()
    forget()


def _round(restore: Callable[[], None], calls: Iterable[Callable[[], None]]) -> None:
    restore()
    for call in calls:
        call()
