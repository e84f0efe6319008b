"""One case tuned by the sweep's worker process: what `tuning.measure` asks for, measured where it may fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from batchchol.backends import Backend
from batchchol.measure.bench import Settings
from batchchol.measure.point import Point
from batchchol.measure.process import Measurer
from batchchol.measure.row import Row
from batchchol.operations.roofline import Ceilings
from batchchol.tune import candidates, tuning
from kernelgen import KernelSpec

FEW_POINTS = Settings(burst_seconds=1e-3)
"""Where there are few points, each can take its time."""


def isolated(measurer: Measurer, backend: Backend, batch: int, threads: int) -> Callable[..., tuning.Point]:
    """Who measures candidates on batches of so many matrices, for `tuning.measure`."""

    def measured(spec: KernelSpec, samples: int, protocol: str | None = None) -> tuning.Point:
        chunk = candidates.layout_of(spec).chunk
        point = Point(spec, batch, chunk, threads, protocol or backend.protocols[0])
        return as_tuned(measurer.measure(point, samples))

    return measured


def ceilings_of(measurer: Measurer, dtype: str, threads: int, target: str) -> Ceilings:
    """The ceilings that the process measured."""
    about = cast(Mapping[str, Any], measurer.about(dtype, threads))
    return Ceilings(about["copy_bytes_per_second"], about["peak_flops_per_second"], threads, dtype, target)


def as_tuned(row: Row) -> tuning.Point:
    """A row as the points of `tuning` are."""
    point, code = row.point, cast(Mapping[str, Any], row.code)
    return tuning.Point(
        spec=point.spec,
        chunk=point.chunk,
        batch=point.batch,
        threads=point.threads,
        protocol=point.protocol,
        status=row.status,
        median_seconds=row.median_seconds,
        spread=row.spread,
        ratio=row.ratio,
        samples=len(row.seconds),
        floor_seconds=row.floor_seconds,
        compile_seconds=code.get("compile_seconds", float("nan")),
        code_bytes=code.get("code_bytes", 0),
        registers=code.get("registers"),
        spill_bytes=code.get("spill_bytes"),
        shared_bytes=code.get("shared_bytes"),
        conditions={name: value for name, value in row.conditions.items() if value is not None},
    )
