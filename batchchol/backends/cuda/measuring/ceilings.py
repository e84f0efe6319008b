"""The ceilings of a GPU: the rate of its best copy, and its arithmetic peak."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from batchchol.backends.cuda import memory, support
from batchchol.backends.cuda.device import Device
from batchchol.backends.cuda.measuring.clock import Clock

# Far more than any cache holds, yet no great part of a GPU's memory.
_COPIED_BYTES = 1 << 30
_SAMPLES = 20
_PEAK_STEPS = 20_000
_THREADS_PER_MULTIPROCESSOR = 2048


def copy_bytes_per_second(gpu: Device, clock: Clock) -> float:
    """Bytes read plus bytes written, per second, by whichever copy is the fastest: the driver's, or a kernel."""
    size = min(_COPIED_BYTES, memory.free_bytes() // 4) // 512 * 512
    source = memory.empty((size,), np.uint8, "measuring the copy rate")
    target = memory.empty((size,), np.uint8, "measuring the copy rate")
    copies: list[Callable[[], None]] = [
        lambda: memory.copy_on_device(source, target),
        lambda: support.copy(gpu, int(source.gpudata), int(target.gpudata), size),
    ]
    return 2 * size / min(_best_seconds(clock, copy) for copy in copies)


def peak_flops_per_second(gpu: Device, clock: Clock, dtype: str) -> float:
    """Independent fused multiply-adds of a dtype, each two flops, on all multiprocessors."""
    threads = gpu.multiprocessors * _THREADS_PER_MULTIPROCESSOR
    room = memory.empty((threads,), dtype, "measuring the arithmetic peak")

    def work() -> None:
        support.multiply_add(gpu, int(room.gpudata), threads, _PEAK_STEPS, dtype)

    return support.multiply_add_flops(threads, _PEAK_STEPS) / _best_seconds(clock, work)


def _best_seconds(clock: Clock, call: Callable[[], None]) -> float:
    return min(clock.seconds([call], _SAMPLES, "queued", 3))
