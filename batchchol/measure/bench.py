"""Measuring points in this process: the data stay on the device, results are checked before they count."""

from __future__ import annotations

import platform
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from batchchol.backends import Backend, get_backend
from batchchol.batches.batch import Batch
from batchchol.errors import BatchcholError, CompileError, DeviceError, DeviceLost, OutOfMemory, ResidualError
from batchchol.measure import shared_code
from batchchol.measure.energy import Energy, device_energy
from batchchol.measure.point import Point
from batchchol.measure.provenance import about, installed
from batchchol.measure.row import Row, Value
from batchchol.measure.solves import sample_solve
from batchchol.measure.timing import CACHES, Sample, rotating_buffers
from kernelgen import Layout

RECIPE = "diagonally_dominant"
"""What is timed; every kernel is also checked on Wishart matrices, which are harder."""

_CHECK_RECIPE, _CHECK_BATCH = "wishart", 1_000
_CONDITIONS_SECONDS = 0.5
# The share of the free memory that data of earlier points may keep.
_KEPT_SHARE = 0.5
# The driver's error for a block that needs more resources than a multiprocessor has.
_OUT_OF_RESOURCES = 701
_NAN_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Settings:
    """How points are measured: samples of each, untimed ones before them, and seconds that a burst takes."""

    samples: int = 20
    warm_up: int = 2
    burst_seconds: float = 100e-6


FEW_POINTS = Settings(burst_seconds=1e-3)
"""Where there are few points, each can take its time."""


@dataclass(frozen=True)
class _Data:
    """Inputs and outputs of cold calls, and the small batch for the check."""

    pairs: Sequence[tuple[Batch, Batch]]
    check: tuple[Batch, Batch]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes + out.nbytes for a, out in self.pairs)


class Bench:
    """Measures points on a backend; see `Row` for the result of one."""

    def __init__(self, backend: Backend | str, settings: Settings = Settings()) -> None:
        self._backend = get_backend(backend) if isinstance(backend, str) else backend
        self._settings = settings
        self._data: OrderedDict[Any, _Data] = OrderedDict()
        self._budget = int(self._backend.free_bytes() * _KEPT_SHARE)
        self._conditions: dict[str, Value] = {}
        self._read = -np.inf

    def about(self) -> dict[str, Value]:
        """The columns of the machine and its software."""
        device = self._backend.device()
        name = device.get("gpu") or device["cpu"]
        versions = {"python": platform.python_version(), "numpy": np.__version__, "pycuda": installed("pycuda")}
        known = {package: version for package, version in versions.items() if version}
        return {**about(self._backend), **known, "device": name, "recipe": RECIPE}

    def facts(self) -> dict[str, Any]:
        """What a search space needs to know about the device."""
        backend = self._backend
        return {
            "backend": backend.name,
            "target": backend.target,
            "protocol": backend.protocols[0],
            "lanes": {dtype: backend.lanes(dtype) for dtype in ("float32", "float64")},
            "free_bytes": backend.free_bytes(),
            "architecture": backend.device().get("architecture"),
            "counts_joules": backend.joules() is not None,
        }

    def ceilings(self, dtype: str, threads: int) -> dict[str, Value]:
        """The columns of the machine's ceilings: measured once, in about a second."""
        found = self._backend.ceilings(dtype, threads)
        return {
            "copy_bytes_per_second": found.copy_bytes_per_second,
            "peak_flops_per_second": found.peak_flops_per_second,
        }

    def measure(self, point: Point, samples: int | None = None) -> Row:
        """One point, with `samples` samples; what cannot be measured has the reason in place of numbers.

        Raises
        ------
        DeviceLost
            If nothing works any more on the device until this process ends.
        CacheError, CompilerNotFound
            If no kernel can be kept, or compiled.
        """
        begin = time.perf_counter()
        row = self._attempt(point, samples or self._settings.samples)
        self._read_conditions()
        date = datetime.now(UTC).isoformat(timespec="seconds")
        about = {**row.about, **self._conditions, "date": date}
        return replace(row, wall_seconds=time.perf_counter() - begin, about=about)

    def energy(self, point: Point, seconds: float) -> Energy | None:
        """The energy of a call of a measured point, repeated for that long; None if that fails, or nothing counts it.

        Raises
        ------
        DeviceLost
            As `measure`.
        """
        try:
            kernel, _ = shared_code.load(self._backend, point)
            pairs = self._data_of(point).pairs
            info = self._backend.info(pairs[0][0], point.spec)
            calls = [partial(kernel, *pair, info, threads=point.threads) for pair in pairs]
            return device_energy(self._backend, calls, seconds)
        except DeviceLost:
            raise
        except BatchcholError:
            return None

    def _attempt(self, point: Point, samples: int) -> Row:
        refused = partial(Row, point)
        if reason := self._unsupported(point):
            return refused("unsupported", reason)
        try:
            return self._measured(point, samples)
        except CompileError as error:
            return refused(error.status, str(error))
        except ResidualError as error:
            return refused("wrong", str(error))
        except OutOfMemory as error:
            self._data.clear()
            return refused("unsupported", str(error))
        except DeviceLost:
            raise
        except DeviceError as error:
            return refused("unsupported" if error.status == _OUT_OF_RESOURCES else "runtime", str(error))

    def _unsupported(self, point: Point) -> str | None:
        if point.spec.in_place:
            return "works in place: a factored matrix is no input for the next sample"
        if point.protocol not in self._backend.protocols:
            return f"protocol {point.protocol!r} is not one of {', '.join(self._backend.protocols)}"
        return self._backend.unsupported(point.spec, point.layout)

    def _measured(self, point: Point, samples: int) -> Row:
        kernel, chosen = shared_code.load(self._backend, point)
        if point.spec.problem.op != "potrf":
            found = self._sampled(point, samples)
            return Row.timed(
                point,
                list(found.seconds),
                calls=1,
                ratio=found.ratio,
                floor_seconds=found.floor,
                check_seconds=0.0,
                source=chosen.hash,
                flags=" ".join(chosen.source.flags),
                about=shared_code.numbers(self._backend, kernel),
            )
        data = self._data_of(point)
        clock = time.perf_counter
        begin = clock()
        ratio = self._checked_once(kernel, data.check, point)
        checking = clock() - begin
        seconds, calls, timed = self._timed(kernel, data, point, samples)
        begin = clock()
        ratio = max(ratio, self._check(*timed, point))
        return Row.timed(
            point,
            seconds,
            calls=calls,
            ratio=ratio,
            floor_seconds=self._backend.floor(point.protocol),
            check_seconds=checking + clock() - begin,
            source=chosen.hash,
            flags=" ".join(chosen.source.flags),
            about=shared_code.numbers(self._backend, kernel),
        )

    def _sampled(self, point: Point, samples: int) -> Sample:
        """Samples of another operation than a factorization of triangles, by one right-hand side if it has any."""
        n, dtype, batch, layout = point.data
        self._data.clear()
        matrices = self._filled(n, dtype, batch, layout, RECIPE)
        threads, protocol = point.threads, point.protocol
        return sample_solve(self._backend, point.spec, matrices, samples=samples, threads=threads, protocol=protocol)

    def _timed(
        self, kernel: Any, data: _Data, point: Point, samples: int
    ) -> tuple[list[float], int, tuple[Batch, Batch, Any]]:
        """Seconds of the samples, calls of each, and the input, the output and the info of the last."""
        pairs = data.pairs
        info = self._backend.info(pairs[0][0], point.spec)
        a, out = pairs[(samples - 1) % len(pairs)]
        # Another kernel's result must not be taken for this one's.
        _poison(out)
        calls = [partial(kernel, *pair, info, threads=point.threads) for pair in pairs]
        warm_up = self._settings.warm_up
        if point.protocol == self._backend.protocols[0]:
            burst = self._settings.burst_seconds
            seconds, count = self._backend.series(calls, samples=samples, warm_up=warm_up, burst_seconds=burst)
        else:
            seconds, count = self._backend.seconds(calls, samples=samples, protocol=point.protocol), 1
        return seconds, count, (a, out, info)

    def _checked_once(self, kernel: Any, pair: tuple[Batch, Batch], point: Point) -> float:
        a, out = pair
        info = self._backend.info(a, point.spec)
        _poison(out)
        kernel(a, out, info, threads=point.threads)
        return self._check(a, out, info, point)

    def _check(self, a: Batch, out: Batch, info: Any, point: Point) -> float:
        spec = point.spec
        return self._backend.check(a, out.marked(spec.problem.uplo), info, spec.problem.math)

    def _data_of(self, point: Point) -> _Data:
        """The batch of a point, made once and kept while there is room."""
        found = self._data.get(point.data)
        if found is None:
            self._make_room(point)
            n, dtype, batch, layout = point.data
            pairs = rotating_buffers(self._backend, self._filled(n, dtype, batch, layout, RECIPE))
            check = self._filled(n, dtype, min(batch, _CHECK_BATCH), layout, _CHECK_RECIPE)
            found = self._data[point.data] = _Data(pairs, (check, check.copy()))
        self._data.move_to_end(point.data)
        return found

    def _make_room(self, point: Point) -> None:
        """Drop the data used longest ago until there is room for those of a point."""
        needed = 2 * (point.nbytes + CACHES * self._backend.last_level_cache_bytes())
        while self._data and needed + sum(data.nbytes for data in self._data.values()) > self._budget:
            self._data.popitem(last=False)

    def _filled(self, n: int, dtype: str, batch: int, layout: Layout, recipe: str) -> Batch:
        data = self._backend.empty(n, batch, layout, dtype)
        self._backend.fill(data, recipe)
        return data

    def _read_conditions(self) -> None:
        if time.monotonic() - self._read > _CONDITIONS_SECONDS:
            self._conditions = dict(self._backend.conditions())
            self._read = time.monotonic()


def _poison(batch: Batch) -> None:
    """Fill a batch's array with NaN."""
    if batch.backend == "cuda":
        from batchchol.backends.cuda.device import device

        device().fill_words(batch.address, _NAN_WORD, batch.nbytes // 4)
    else:
        batch.data.fill(np.nan)
