"""The asv suite of batchchol: one question a file. See docs/benchmarks.md."""

from __future__ import annotations

import os

from asv_runner.benchmarks import benchmark_types

# Defaults that were tuned on this machine are not those of a commit.
os.environ["BATCHCHOL_TABLES"] = "shipped"

from .harness import DeviceBenchmark

if DeviceBenchmark not in benchmark_types:
    benchmark_types.append(DeviceBenchmark)
