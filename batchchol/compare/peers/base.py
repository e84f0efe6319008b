"""What a peer is: an optional library that factors the same workloads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from batchchol.backends import Availability
from batchchol.compare.contenders import Contender, Workload


@dataclass(frozen=True)
class Peer:
    """One way into an optional library.

    `survey` says whether it is installed, which version, and else how to get it; `contender` makes ready to factor
    a workload with a number of threads, and may only be called where `survey` found the library.
    """

    name: str
    survey: Callable[[], Availability]
    contender: Callable[[Workload, int], Contender]


def blas_limit(threads: int) -> AbstractContextManager[object]:
    """Hold the BLAS libraries of this process to a number of threads, as far as threadpoolctl is installed."""
    try:
        control: Any = import_module("threadpoolctl")
    except ImportError:
        return nullcontext()
    limit: AbstractContextManager[object] = control.threadpool_limits(threads, user_api="blas")
    return limit
