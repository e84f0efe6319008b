"""The `device_*` benchmark type: the function itself returns samples, taken by a backend's own clock."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from asv_runner.benchmarks.time import TimeBenchmark


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
