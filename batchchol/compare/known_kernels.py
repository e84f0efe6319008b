"""The best kernels that are known of each family: those of the tables of defaults, and those of tuning runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf, log2
from pathlib import Path

from batchchol.defaults.lookup import default_spec
from batchchol.defaults.shipped import source_of
from batchchol.measure.dataset import read_correct
from batchchol.tune.winners import FIRST_SAMPLES
from kernelgen import KernelSpec, Layout, SpecError
from kernelgen.schedules import DEFAULT_THREADS


@dataclass(frozen=True)
class Known:
    """A kernel and the layout it was measured on; `ns_per_matrix` at that batch, infinite if it was not measured.

    `samples` is what the time is the median of.
    """

    spec: KernelSpec
    layout: Layout
    batch: int
    ns_per_matrix: float = inf
    samples: int = 0


@dataclass(frozen=True)
class Wanted:
    """What a kernel is wanted for."""

    n: int
    batch: int
    dtype: str
    math: str
    target: str
    arch: str | None = None


def read(path: Path) -> list[Known]:
    """What a tuning run measured, by the protocol of its first point.

    Raises
    ------
    DataFileError
        If the file is none of a tuning run.
    """
    rows = read_correct(path)
    return [
        Known(
            row.spec,
            Layout(row.spec.layout, row.point.chunk if row.spec.layout == "chunked" else None, row.spec.order),
            row.point.batch,
            row.median_seconds / row.point.batch * 1e9,
            row.samples,
        )
        for row in rows
        if row.point.protocol == rows[0].point.protocol
    ]


def best_packed(known: Iterable[Known], family: str, wanted: Wanted) -> Known | None:
    """The best kernel of a family on chunks, measured or out of the tables; None if no one is known at this order."""
    measured = [each for each in known if each.spec.family == family and each.layout.kind == "chunked"]
    found = _best(measured, wanted)
    return found or next((each for each in _of_tables(wanted) if each.spec.family == family), None)


def best_canonical(known: Iterable[Known], wanted: Wanted) -> KernelSpec | None:
    """The best kernel on canonical arrays, out of place: measured, the block family's on chunks, or of the tables."""
    everything = list(known)
    found = _best([each for each in everything if each.layout.kind == "canonical"], wanted)
    if found:
        return found.spec
    packed = best_packed(everything, "block", wanted)
    if packed:
        with suppress(SpecError):
            schedule = replace(packed.spec.schedule, stride=None)
            return replace(packed.spec, layout="canonical", order="row", schedule=schedule)
    with suppress(SpecError):
        return _default(wanted, "canonical", None, "row")
    return None


def _best(known: Iterable[Known], wanted: Wanted) -> Known | None:
    """The fastest at the nearest batch, of those that were measured longer if there are any."""
    problem, kind = (wanted.n, wanted.dtype, "lower"), (wanted.math, wanted.target)
    fitting = [
        each
        for each in known
        if (each.spec.problem.n, each.spec.problem.dtype, each.spec.problem.uplo) == problem
        and (each.spec.problem.math, each.spec.target) == kind
        and not each.spec.in_place
    ]
    return min(
        fitting,
        key=lambda each: (
            round(abs(log2(each.batch / wanted.batch)), 3), each.samples <= FIRST_SAMPLES, each.ns_per_matrix,
        ),
        default=None,
    )  # fmt: skip


def _of_tables(wanted: Wanted) -> Iterator[Known]:
    """What the tables name for each chunk that they know."""
    cases = source_of(wanted.target, wanted.arch).table.cases
    chunks = sorted({case.chunk for case in cases if case.chunk is not None} | {DEFAULT_THREADS})
    for chunk in sorted(chunks, key=lambda chunk: chunk != DEFAULT_THREADS):
        with suppress(SpecError):
            spec = _default(wanted, "chunked", chunk, "col")
            yield Known(spec, Layout.chunked(chunk), wanted.batch)


def _default(wanted: Wanted, layout: str, chunk: int | None, order: str) -> KernelSpec:
    return default_spec(
        wanted.n,
        target=wanted.target,
        dtype=wanted.dtype,
        layout=layout,
        chunk=chunk,
        order=order,
        math=wanted.math,
        batch=wanted.batch,
        arch=wanted.arch,
    )
