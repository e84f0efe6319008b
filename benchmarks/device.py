"""The `device_*` benchmark type: the function itself returns samples, taken by a backend's own clock."""

from __future__ import annotations

import math
import re
from typing import Any

from asv_runner.benchmarks.time import TimeBenchmark


class DeviceBenchmark(TimeBenchmark):  # type: ignore[misc]
    """A benchmark whose function returns its samples, in seconds per matrix.

    It ends where a `time_*` benchmark does, so that asv computes the same statistics and applies the same
    test of significance in `compare` and `continuous`; only who reads the clock differs. asv prints seconds
    in human units: nanoseconds, here.
    """

    name_regex = re.compile("^(Device[A-Z_].+)|(device_.+)$")

    def run(self, *param: Any) -> dict[str, Any]:
        """Return what asv expects of a timing: the samples, each of one call."""
        samples = [float(sample) for sample in self.func(*param)]
        if not samples or not all(math.isfinite(sample) and sample > 0 for sample in samples):
            raise ValueError(f"{self.name} must return positive, finite seconds, got {samples!r}")
        return {"samples": samples, "number": 1}
