"""What measures in the worker processes of the tests: benches that are quick, slow, wrong, or do not survive."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchchol.batches import host_memory
from batchchol.errors import BackendUnavailable, CacheError, DeviceLost
from batchchol.measure.bench import Bench, Settings
from batchchol.measure.point import Point
from batchchol.measure.row import Row

LOG = "SWEEP_TEST_LOG"
"""The variable that names a file: the worker's number and the key of each point that it began go there."""


class Quick:
    """Measures nothing, and says that all is well."""

    def __init__(self, backend: str, settings: Settings) -> None:
        self.samples = settings.samples

    def facts(self) -> dict[str, Any]:
        lanes = {"float32": 16, "float64": 8}
        return {
            "backend": "cpu",
            "target": "avx2",
            "protocol": "single",
            "lanes": lanes,
            "free_bytes": None,
            "architecture": None,
        }

    def about(self) -> dict[str, Any]:
        return {
            "device": "a fake",
            "cpu": "a fake",
            "compiler": "a compiler",
            "date": "2026-11-21T20:00:00",
            "commit": "0123",
        }

    def ceilings(self, dtype: str, threads: int) -> dict[str, Any]:
        return {"copy_bytes_per_second": 1e9 * threads, "peak_flops_per_second": 1e10}

    def measure(self, point: Point, samples: int | None = None) -> Row:
        if log := os.environ.get(LOG):
            with Path(log).open("a") as stream:
                stream.write(f"{os.getpid()} {point.key}\n")
        seconds = tuple(1e-6 * (1 + sample / 8) for sample in range(samples or self.samples))
        conditions = {"temperature_c": 40.0}
        return Row.timed(point, seconds, calls=2, ratio=0.25, source="0a", about=conditions)


class FakeGpu(Quick):
    """A GPU's, faster the larger the tiles are."""

    def facts(self) -> dict[str, Any]:
        lanes = {"float32": 32, "float64": 32}
        gpu = {"backend": "cuda", "target": "cuda", "protocol": "queued", "lanes": lanes, "architecture": "sm_90"}
        return super().facts() | gpu

    def measure(self, point: Point, samples: int | None = None) -> Row:
        row = super().measure(point, samples)
        seconds = tuple(each / point.spec.schedule.nb for each in row.sample_seconds)
        return Row.timed(point, seconds, calls=row.calls, ratio=row.ratio, source=row.source, about=row.about)


class SmallCache(Bench):
    """Really measures, as if the cache were one that few buffers exceed."""

    def __init__(self, backend: str, settings: Settings) -> None:
        host_memory.last_level_cache_bytes = lambda: 1 << 17
        super().__init__(backend, settings)


class OnGpu(Bench):
    """Really measures, but tiles of 2 make the GPU read where nothing is, and tiles of 3 keep it busy for ever."""

    def measure(self, point: Point, samples: int | None = None) -> Row:
        from batchchol.backends.cuda import memory as device_memory
        from batchchol.backends.cuda import support
        from batchchol.backends.cuda.device import device

        gpu, room = device(), device_memory.empty((1 << 10,), "float32", "a test")
        match point.spec.schedule.nb:
            case 2:
                support.copy(gpu, 0, int(room.gpudata), 1 << 12)
                gpu.synchronize()
            case 3:
                support.multiply_add(gpu, int(room.gpudata), 32, 1 << 50, "float32")
                gpu.synchronize()
        return super().measure(point, samples)


class Slow(Quick):
    """Takes its time."""

    def measure(self, point: Point, samples: int | None = None) -> Row:
        time.sleep(0.02)
        return super().measure(point, samples)


class Endless(Quick):
    """Measures all but tiles of 3."""

    def measure(self, point: Point, samples: int | None = None) -> Row:
        if point.spec.schedule.nb == 3:
            with Path(os.environ[LOG]).open("a") as stream:
                stream.write(f"{os.getpid()} point\n")
            time.sleep(1000)
        return replace(super().measure(point, samples), wall_seconds=1e-3)


class Planted(Quick):
    """The tile size says what happens."""

    def measure(self, point: Point, samples: int | None = None) -> Row:
        row = super().measure(point, samples)
        match point.spec.schedule.nb:
            case 2:
                ctypes.string_at(0)
            case 3:
                Path(os.environ[LOG]).with_suffix(".hangs").touch()
                time.sleep(1000)
            case 4:
                os.kill(os.getpid(), signal.SIGKILL)
            case 5:
                raise RuntimeError("what nobody expected")
            case 6:
                raise DeviceLost(700, "launching: an illegal memory access was encountered")
            case 7:
                return Row(point, "wrong", "matrix 3 has info 1")
            case 8:
                raise CacheError("the cache folder cannot be written")
        return row


class Fatal(Slow):
    """Tiles of 3 end the process that started this one, such as a cluster's worker."""

    def measure(self, point: Point, samples: int | None = None) -> Row:
        if point.spec.schedule.nb == 3:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1000)
        return super().measure(point, samples)


class Uneven(Slow):
    """The first of its kind, by a file that it makes, is another device than those that follow."""

    def about(self) -> dict[str, Any]:
        try:
            Path(os.environ[LOG]).with_suffix(".first").mkdir()
        except FileExistsError:
            return super().about()
        return super().about() | {"device": "another"}


class Finder(Quick):
    """Finds the kernels of a GPU in the cache; compiles none."""

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"backend": "cuda", "target": "cuda", "architecture": "sm_90"}

    def measure(self, point: Point, samples: int | None = None) -> Row:
        from batchchol.artifacts.cuda_modules import find
        from batchchol.measure.shared_code import code_of

        found = find(code_of(point).source, "sm_90")
        return super().measure(point, samples) if found else Row(point, "wrong", "its kernel is not here")


class Doomed(Quick):
    """No point survives."""

    def measure(self, point: Point, samples: int | None = None) -> Row:
        os._exit(3)


class Absent(Quick):
    """There is no device."""

    def __init__(self, backend: str, settings: Settings) -> None:
        raise BackendUnavailable("backend 'cuda' cannot be used: no GPU")


class Broken(Quick):
    """Dies before it can be asked."""

    def __init__(self, backend: str, settings: Settings) -> None:
        os._exit(5)


def script(folder: str, data: str, count: int) -> None:
    """A sweep of `count` points with the slow bench, for a test that kills it."""
    from batchchol.measure.dataset import DataSet
    from batchchol.measure.process import Measurer
    from batchchol.tune.sweep import sweep

    environment = {"PYTHONPATH": folder}
    with (
        Measurer("cpu", bench="sweep_benches:Slow", environment=environment) as measurer,
        DataSet(Path(data), "a fake") as kept,
    ):
        sweep(points(count), measurer, kept)


def points(count: int) -> list[Point]:
    """Points that differ in order and tile size."""
    from kernelgen import KernelSpec, Problem, ThreadSchedule

    cases = [(n, nb, looking) for n in range(16, 128) for nb in range(1, 17) for looking in ("left", "top")]
    specs = [
        KernelSpec(Problem(n), "chunked", "col", ThreadSchedule(nb, looking), "avx2")
        for n, nb, looking in cases[:count]
    ]
    return [Point(spec, 1000, 16) for spec in specs]
