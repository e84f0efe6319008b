"""The asv suite of batchchol: one question a file. See docs/benchmarks.md."""

from __future__ import annotations

from asv_runner.benchmarks import benchmark_types

from .device import DeviceBenchmark

if DeviceBenchmark not in benchmark_types:
    benchmark_types.append(DeviceBenchmark)
