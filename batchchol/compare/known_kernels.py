"""The best known kernels of each family: those of the tables of defaults, and those of tuning runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from math import log2
from pathlib import Path

from batchchol.defaults.lookup import default_choice, default_layout
from batchchol.defaults.request import TYPICAL_BATCH, Request
from batchchol.defaults.shipped import source_of
from batchchol.measure.dataset import read_correct
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from batchchol.tune.choosing.winners import FIRST_SAMPLES
from kernelgen import KernelSpec, SpecError
from kernelgen.schedules import DEFAULT_THREADS


def read(path: Path) -> list[Row]:
    """What a tuning run measured, by the protocol of its first point.

    Raises
    ------
    DataFileError
        If the file is none of a tuning run.
    """
    rows = read_correct(path)
    return [row for row in rows if row.point.protocol == rows[0].point.protocol]


def best_packed(known: Iterable[Row], family: str, request: Request) -> Point | None:
    """The best kernel of a family on chunks, measured or from the tables; None if none is known at this order."""
    measured = [row for row in known if row.spec.family == family and row.spec.layout == "chunked"]
    found = _best(measured, request)
    return found or next((each for each in _of_tables(request) if each.spec.family == family), None)


def best_canonical(known: Iterable[Row], request: Request) -> KernelSpec | None:
    """The best kernel on canonical arrays, out of place: measured, or the one of the tables."""
    found = _best([row for row in known if row.spec.layout == "canonical"], request)
    if found:
        return found.spec
    with suppress(SpecError):
        return default_choice(replace(request, layout="canonical", order="row")).spec
    return None


def _best(known: Iterable[Row], request: Request) -> Point | None:
    """The fastest at the nearest batch, of those that were measured longer if there are any."""

    def rank(row: Row) -> tuple[float, bool, float]:
        apart = round(abs(log2(row.point.batch / (request.batch or TYPICAL_BATCH))), 3)
        return apart, row.samples <= FIRST_SAMPLES, row.median_seconds / row.point.batch

    wanted = request.problem, request.target, False
    fitting = [row for row in known if (row.spec.problem, row.spec.target, row.spec.in_place) == wanted]
    return min(fitting, key=rank).point if fitting else None


def _of_tables(request: Request) -> Iterator[Point]:
    """What the tables name for each chunk that they know, that of batches first."""
    cases = source_of(request.target, request.arch).table.cases
    chunks = {case.chunk for case in cases if case.chunk is not None} | {DEFAULT_THREADS}
    where = {"target": request.target, "dtype": request.problem.dtype, "arch": request.arch}
    usual = default_layout(request.problem.n, batch=request.batch, math=request.problem.math, **where).chunk
    for chunk in sorted(chunks, key=lambda chunk: (chunk != usual, chunk != DEFAULT_THREADS, chunk)):
        with suppress(SpecError):
            spec = default_choice(replace(request, chunk=chunk)).spec
            yield Point(spec, request.batch or TYPICAL_BATCH, chunk)
