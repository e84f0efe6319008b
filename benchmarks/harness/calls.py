"""What a backend does besides factoring, timed by its clock like a factorization."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asv_runner.benchmarks.mark import SkipNotImplemented

from . import library
from .device import Taken

SAMPLES = 20
# The buffers that calls take in turns are this many times as large as the last cache.
CACHES = 4

Call = Callable[[], None]


def buffers(backend: library.Backend, nbytes: int) -> int:
    """How many sets of `nbytes` calls take in turns, so that none finds its data in a cache."""
    if not hasattr(backend, "last_level_cache_bytes"):
        raise SkipNotImplemented("the backend of this commit times nothing but factorizations")
    return -(-CACHES * backend.last_level_cache_bytes() // nbytes)


def timed(backend: library.Backend, calls: Sequence[Call], matrices: int, protocol: str | None) -> Taken:
    """Seconds per matrix of calls that do the same to as many matrices each."""
    before = backend.conditions()
    seconds = backend.seconds(calls, samples=SAMPLES, protocol=protocol)
    about = {
        "device": backend.device(),
        "protocol": protocol or backend.protocols[0],
        "conditions": {"before": before, "after": backend.conditions()},
    }
    return Taken([each / matrices for each in seconds], about)
