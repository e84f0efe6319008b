"""The `device_*` benchmark type: the function itself returns samples, taken by a backend's own clock; timed calls."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented
from asv_runner.benchmarks.time import TimeBenchmark

from . import library

SAMPLES = 20
# The buffers that calls take in turns are this many times as large as the last cache.
CACHES = 4

Call = Callable[[], None]


@dataclass(frozen=True)
class Taken:
    """What a `device_*` function returns: samples, in seconds per matrix, and what their record says besides."""

    seconds: Sequence[float]
    about: Mapping[str, Any] = field(default_factory=dict)


class DeviceBenchmark(TimeBenchmark):  # type: ignore[misc]
    """A benchmark whose function returns `Taken` samples.

    It ends where a `time_*` benchmark does, so that asv computes the same statistics and applies the same
    test of significance in `compare` and `continuous`; only who reads the clock differs. asv prints seconds
    in human units: nanoseconds, here. What asv does not store goes where `batchchol.asv_plugin.samples` keeps it.
    """

    name_regex = re.compile("^(Device[A-Z_].+)|(device_.+)$")

    def run(self, *param: Any) -> dict[str, Any]:
        """Return what asv expects of a timing: the samples, each of one call."""
        taken = self.func(*param)
        samples = [float(sample) for sample in taken.seconds]
        if not samples or not all(math.isfinite(sample) and sample > 0 for sample in samples):
            raise ValueError(f"{self.name} must return positive, finite seconds, got {samples!r}")
        # Older commits keep no records.
        with suppress(ImportError):
            from batchchol.asv_plugin.samples import record

            record(self.name, dict(zip(self.param_names, param, strict=True)), samples, taken.about)
        return {"samples": samples, "number": 1}


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
