"""The asv suite of batchchol: one question a file. See docs/benchmarks.md."""

from __future__ import annotations

import os

from asv_runner.benchmarks import benchmark_types

# What somebody tuned on this machine is not what a commit does.
os.environ["BATCHCHOL_TABLES"] = "shipped"

from .harness.device import DeviceBenchmark

if DeviceBenchmark not in benchmark_types:
    benchmark_types.append(DeviceBenchmark)
